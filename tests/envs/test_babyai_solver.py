import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.envs.babyai import levels, rules, solver
from tests.envs.babyai_worlds import pick, random_walks


def walks():
    """States [31, 240] and actions [30, 240]."""
    return random_walks(games=240, moves=30, seed=8, odds=(2, 2, 4, 3, 2, 1))


def test_the_hosts_step_is_the_devices():
    states, actions = walks()
    for t in range(len(actions)):
        now, after = (solver.read(pick(states, at, slice(80))) for at in (t, t + 1))
        for (task, node), (_, expected), action in zip(now, after, actions[t, :80].tolist(), strict=True):
            assert solver.step(task, node, action) == expected


@jax.jit
def _played(states, actions):
    """Number of instructions done after each of the actions [N, T]; 6 does nothing: int32 [T + 1, N]."""

    def move(states, action):
        return jax.vmap(rules.step)(states, action), states.done

    last, done = jax.lax.scan(move, states, actions.T)
    return jnp.concatenate([done, last.done[None]])


def succeed(states, most_hopeless):
    """Every plan fulfils its mission in its last step and not before; at most so many states have none."""
    plans = solver.plans(states)
    actions = np.full((len(plans), 64), 6, np.int32)
    for i, actions_of in enumerate(plans):
        actions[i, : len(actions_of or ())] = actions_of or ()
    done = np.asarray(_played(states, actions)) == rules.PARTS[states.mission]
    for i, actions_of in enumerate(plans):
        if actions_of is not None:
            assert done[len(actions_of), i] and not done[: len(actions_of), i].any()
    hopeless = [i for i, actions_of in enumerate(plans) if actions_of is None]
    assert len(hopeless) <= most_hopeless
    return hopeless


def test_every_task_is_solved():
    states = pick(walks()[0], 0)
    assert min(np.bincount(states.mission)) >= 20
    assert not succeed(states, 0)


def test_states_on_the_way_are_solved_but_for_those_whose_target_is_gone():
    states = pick(walks()[0], 30)
    for i in succeed(states, 30):
        state = pick(states, i)
        gone = (state.xs < 0) & (np.arange(rules.NUM_OBJECTS) != state.carrying)
        fits = [np.asarray(rules.matches(state, t)) for t in (0, 1)]
        assert any(gone[fitting].all() for fitting in fits if fitting.any())


@pytest.mark.slow
@pytest.mark.parametrize("mission", rules.MISSIONS)
def test_many_tasks_are_solved(mission):
    keys = jax.random.split(jax.random.key(21), 400)
    states = jax.device_get(jax.jit(jax.vmap(lambda key: levels.draw(key, mission)))(keys))
    assert not succeed(states, 0)


def shortest(task, node, most):
    """Breadth first through everything that can be done; None if it takes more than `most` steps."""
    layer, seen = [node], {node}
    for depth in range(most + 1):
        if any(solver.finished(task, node) for node in layer):
            return depth
        ahead = []
        for node in layer:
            for action in range(6):
                after = solver.step(task, node, action)
                if after not in seen:
                    seen.add(after)
                    ahead.append(after)
        layer = ahead
    return None


@pytest.mark.parametrize("mission", rules.MISSIONS)
def test_no_plan_is_shorter(mission):
    number, compared = rules.MISSIONS.index(mission), 0
    for at in (0, 30):
        states = pick(walks()[0], at)
        for task, node in solver.read(pick(states, states.mission == number)):
            actions = solver.search(task, node)
            if actions is None or not 0 < len(actions) <= 7:
                continue
            assert shortest(task, node, 7) == len(actions)
            compared += 1
    assert compared >= 3


def test_a_box_in_the_way_is_opened_and_a_wrong_thing_put_down():
    def state(kinds, xs, ys, carrying=-1, mission=rules.PICK):
        none = np.full(rules.NUM_OBJECTS, rules.NOWHERE)
        put = lambda array, values: np.concatenate([values, array[len(values) :]]).astype(np.int32)
        xs, ys = put(none, xs), put(none, ys)
        return pick(walks()[0], 0, 0).replace(
            door=np.int32(0),
            x=np.int32(1), y=np.int32(1), direction=np.int32(0),
            kinds=put(0 * none, kinds), colours=0 * xs, xs=xs, ys=ys,
            noted=np.where(xs >= 0, ys * rules.WIDTH + xs, -1).astype(np.int32), carrying=np.int32(carrying),
            mission=np.int32(mission), target_kinds=np.int32([rules.BALL, 0]), target_colours=np.int32([0, 0]),
        )  # fmt: skip

    # A corridor: the agent in the corner, boxes to the right and below, the ball behind the one on the right.
    corner = state([rules.BALL, rules.BOX, rules.BOX], [3, 2, 1], [1, 1, 2])
    assert solver.plan(corner) == (rules.TOGGLE, rules.FORWARD, rules.PICK_UP)
    assert solver.distance(corner) == 3
    holding = state([rules.BALL, rules.KEY], [2, rules.NOWHERE], [1, rules.NOWHERE], carrying=1)
    plan = solver.plan(holding)
    assert len(plan) == 4 and plan[1] == rules.DROP and plan[-1] == rules.PICK_UP
    gone = state([rules.BALL, rules.KEY], [rules.NOWHERE, 4], [rules.NOWHERE, 4])
    assert solver.plan(gone) is None and solver.distance(gone) is None
