"""Against minigrid, from our own layouts: what is seen, carried, paid and ended, step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minigrid.core.world_object import Ball, Box, Door, Key
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from nlrl_jax.envs.babyai import rules, solver
from nlrl_jax.envs.babyai.env import BabyAI
from tests.envs.babyai_worlds import pick

MAX_STEPS = 64
NAMES = {rules.DOOR: "door", rules.KEY: "key", rules.BALL: "ball", rules.BOX: "box"}


class Oracle(RoomGridLevel):
    """minigrid's own environment and instructions on the layout and mission of one of our states."""

    def __init__(self, state):
        self.state = state
        super().__init__(room_size=8, num_rows=1, num_cols=1 + (state.mission == rules.OPEN_DOOR), max_steps=MAX_STEPS)

    def gen_mission(self):
        s = self.state
        self.things = []
        for kind, colour, x, y in zip(s.kinds, s.colours, s.xs, s.ys):
            if kind:
                name = rules.COLOURS[colour]
                thing = (
                    Door(name, is_locked=True)
                    if kind == rules.DOOR
                    else {rules.KEY: Key, rules.BALL: Ball, rules.BOX: Box}[kind](name)
                )
                self.put_obj(thing, int(x), int(y))
                self.things.append(thing)
        self.agent_pos, self.agent_dir = (int(s.x), int(s.y)), int(s.direction)
        a, b = (ObjDesc(NAMES[k], rules.COLOURS[c]) if k else None for k, c in zip(s.target_kinds, s.target_colours))
        self.instrs = {
            rules.GO_TO: lambda: GoToInstr(a),
            rules.PICK: lambda: PickupInstr(a),
            rules.GO_AFTER_PICK: lambda: AfterInstr(GoToInstr(b), PickupInstr(a)),
            rules.PICK_THEN_GO: lambda: BeforeInstr(PickupInstr(a), GoToInstr(b)),
            rules.PUT_NEXT: lambda: PutNextInstr(a, b),
            rules.OPEN_DOOR: lambda: OpenInstr(a),
        }[int(s.mission)]()


ENV = BabyAI("all")
PARAMS = ENV.default_params.replace(max_steps_in_episode=MAX_STEPS)


@functools.partial(jax.jit, static_argnums=1)
def started(key, games):
    """First states [games] and their views."""
    _, states = jax.vmap(ENV.reset_env, (0, None))(jax.random.split(key, games), PARAMS)
    return states, jax.vmap(rules.view)(states)


@jax.jit
def played(key, states, planned):
    """Games from these states: actions, states, rewards, ends, views [steps, games].

    Args:
      planned: int32 [steps, games], actions; -1 for a random one.
    """

    def one(states, inputs):
        key, plan = inputs
        # Forward often, so that games go somewhere.
        random = jax.random.categorical(key, jnp.log(jnp.array([2, 2, 4, 2, 1, 1.0])), shape=plan.shape)
        action = jnp.where(plan < 0, random, plan)
        _, after, reward, end, _ = jax.vmap(ENV.step_env, (None, 0, 0, None))(key, states, action, PARAMS)
        return after, (action, after, reward, end, jax.vmap(rules.view)(after))

    return jax.lax.scan(one, states, (jax.random.split(key, len(planned)), planned))[1]


def compare(games, steps, seed):
    """Differences to minigrid by mission, and counts by mission of steps, successes, steps with something in the hands.

    Every other game begins with a plan that fulfils its mission. A game goes on after its mission is fulfilled, for the
    world's sake; rewards and ends are compared up to there.
    """
    start, views_before = jax.device_get(started(jax.random.key(seed), games))
    planned = np.full((steps, games), -1, np.int32)
    for g, plan in list(enumerate(solver.plans(start)))[::2]:
        planned[: len(plan), g] = plan
    actions, states, rewards, ends, views = jax.device_get(played(jax.random.key(seed), start, planned))
    differences, counts = np.zeros(6, int), np.zeros((6, 3), int)
    for g in range(games):
        first = pick(start, g)
        oracle = Oracle(first)
        differences[first.mission] += not np.array_equal(views_before[g], oracle.reset(seed=0)[0]["image"])
        over = False
        for t in range(steps):
            now = pick(states, t, g)
            seen, reward, terminated, truncated, _ = oracle.step(int(actions[t, g]))
            same = np.array_equal(views[t, g], seen["image"])
            same &= (int(now.x), int(now.y), int(now.direction)) == (*oracle.agent_pos, oracle.agent_dir)
            held = oracle.things[now.carrying] if now.carrying >= 0 else None
            same &= oracle.carrying is held
            if not over:
                same &= bool(ends[t, g]) == terminated and np.isclose(rewards[t, g], reward, atol=1e-6)
                same &= truncated == (now.time >= MAX_STEPS)
                over = terminated
                counts[first.mission, 1] += terminated
            differences[first.mission] += not same
            counts[first.mission] += (1, 0, held is not None)
    return differences, counts


def test_random_games_are_those_of_minigrid():
    differences, counts = compare(60, 60, 0)
    assert not differences.any()
    assert (counts[:, 0] >= 240).all() and (counts[:, 1] >= 2).all() and (counts[:, 2] > 20).all()


@pytest.mark.slow
def test_ten_thousand_random_steps_of_every_mission_are_those_of_minigrid():
    differences, counts = compare(300, 300, 1)
    print(dict(zip(rules.MISSIONS, counts.tolist())))
    assert not differences.any()
    assert (counts[:, 0] >= 10_000).all() and (counts[:, 1:] >= 10).all()
