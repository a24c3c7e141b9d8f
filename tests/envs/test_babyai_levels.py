import functools
from collections import Counter, deque

import jax
import numpy as np
import pytest

from nlrl_jax.envs.babyai import levels, rules, solver
from nlrl_jax.envs.babyai.env import BabyAI
from tests.envs.babyai_worlds import pick

NAMES = rules.MISSIONS


@functools.cache
def drawn(mission, games):
    keys = jax.random.split(jax.random.key(11), games)
    return jax.device_get(jax.jit(jax.vmap(lambda key: levels.draw(key, mission)))(keys))


def of_mission(number):
    return pick(drawn("all", 1200), drawn("all", 1200).mission == number)


@pytest.mark.parametrize("mission", range(6), ids=NAMES)
def test_layouts(mission):
    states = of_mission(mission)
    games = len(states.time)
    assert 140 < games < 260  # each mission in a sixth of all
    for i in range(games):
        s = pick(states, i)
        things = [(x, y) for x, y in zip(s.xs, s.ys) if x >= 0]
        door = mission == rules.OPEN_DOOR
        assert len({*things, (s.x, s.y)}) == 9 + door
        assert all(1 <= y <= 6 and (1 <= x <= 6 or (door and 8 <= x <= 13)) for x, y in [*things[:8], (s.x, s.y)])
        fitting = [
            {j for j in range(9) if (s.kinds[j], s.colours[j]) == described and s.kinds[j]}
            for described in zip(s.target_kinds, s.target_colours)
        ]
        two = mission in (rules.GO_AFTER_PICK, rules.PICK_THEN_GO, rules.PUT_NEXT)
        assert fitting[0] and bool(fitting[1]) == two and not fitting[0] & fitting[1]
        if door:
            assert (s.xs[8], s.kinds[8], s.door) == (7, rules.DOOR, rules.LOCKED) and 1 <= s.ys[8] <= 6
            assert (s.kinds[0], s.colours[0]) == (rules.KEY, s.colours[8]) and (s.xs[0] < 7) == (s.x < 7)
        faced = (s.x + (s.direction == 0) - (s.direction == 2), s.y + (s.direction == 1) - (s.direction == 3))
        if mission == rules.GO_TO:
            assert all((s.xs[j], s.ys[j]) != faced for j in fitting[0])
        if mission == rules.PUT_NEXT:
            assert all(abs(s.xs[a] - s.xs[b]) + abs(s.ys[a] - s.ys[b]) > 1 for a in fitting[0] for b in fitting[1])
        reached, queue = {(s.x, s.y)}, deque([(s.x, s.y)])
        while queue:
            x, y = queue.popleft()
            for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                inside = 1 <= cell[1] <= 6 and (1 <= cell[0] <= 6 or (door and 8 <= cell[0] <= 13))
                if cell not in reached and (inside or cell in things):  # a door stands in the wall
                    reached.add(cell)
                    queue.extend([cell] * (cell not in things or not inside))
        assert set(things) <= reached


def test_kinds_colours_places_and_directions_are_even():
    states = drawn("pick up", 2000)
    kinds, colours = Counter(states.kinds[:, :8].ravel().tolist()), Counter(states.colours[:, :8].ravel().tolist())
    assert all(abs(kinds[k] / 16_000 - 1 / 3) < 0.02 for k in (5, 6, 7))
    assert all(abs(colours[c] / 16_000 - 1 / 6) < 0.015 for c in range(6))
    places = Counter(zip(states.x.tolist(), states.y.tolist()))
    assert len(places) == 36 and max(places.values()) < 2.2 * min(places.values())
    assert all(abs((states.direction == d).mean() - 0.25) < 0.04 for d in range(4))


def test_a_key_decides_the_task():
    keys = jax.random.split(jax.random.key(11), 1200)
    again = jax.jit(lambda key: levels.draw(key, "all"))(keys[7])
    same = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
    assert same(pick(drawn("all", 1200), 7), again)  # alone or in a batch
    assert not same(pick(drawn("all", 1200), 8), again)


def test_the_environment_pays_once_and_says_what_it_sees():
    env = BabyAI("go to")
    params = env.default_params.replace(max_steps_in_episode=20)
    _, state = jax.jit(env.reset_env)(jax.random.key(4), params)
    actions = solver.plan(state)
    step = jax.jit(env.step_env)
    for t, action in enumerate(actions, start=1):
        obs, state, reward, over, _ = step(jax.random.key(0), state, action, params)
        assert over == (t == len(actions))
        assert reward == pytest.approx(1 - 0.9 * t / 20 if over else 0)
    assert obs.shape == env.observation_space(params).shape
    image = np.asarray(rules.view(state)) / np.array([7, 5, 2])
    np.testing.assert_allclose(obs[:147].reshape(7, 7, 3), image, atol=1e-6)
    np.testing.assert_array_equal(obs[147:154], [1, 1, 0, 0, 0, 0, 0])
    assert obs[154:].sum() == 2 and env.is_terminated(state, params)
    _, _, reward, over, _ = step(jax.random.key(0), state, rules.TURN_LEFT, params)
    assert over and reward == 0
