"""The analyst with tools: searches against plain loops over a game of one number, and what becomes of them."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces

from envs.pong import env as pong
from nlrl_jax.algorithms import ppo, ultra, what_if
from nlrl_jax.algorithms.ppo import PPOConfig
from nlrl_jax.algorithms.what_if import SearchConfig
from nlrl_jax.rollouts import control
from nlrl_jax.types import ControlGame

CONFIG = PPOConfig(num_envs=2, num_steps=4, num_minibatches=2, features=(4,), discount=0.9)
SEARCH = SearchConfig(what_ifs=10, candidates=6, push=0.5, hold=2, horizon=5, recheck=7, margin=0.05, width=0.3)


@flax.struct.dataclass
class Place(environment.EnvState):
    x: jax.Array


class Walk(environment.Environment):
    """x moves by the action. Reward: -|x|. It ends beyond 2."""

    def reset_env(self, key, params):
        state = Place(0, jax.random.uniform(key, (), minval=0.5, maxval=1.5))
        return self.observe(state), state

    def observe(self, state):
        return jnp.stack([state.x, 1.0])

    def step_env(self, key, state, action, params):
        state = Place(state.time + 1, state.x + 0.3 * action[0])
        return self.observe(state), state, -jnp.abs(state.x), jnp.abs(state.x) > 2, {}

    def is_truncated(self, state, params):
        return state.time >= 6

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (1,))

    def observation_space(self, params=None):
        return spaces.Box(-3.0, 3.0, (2,))


GAME = ControlGame("walk", Walk(), None)
AGENT = ppo.agent_of(GAME.env, GAME.params, CONFIG)


@pytest.fixture(scope="module")
def base():
    state = ppo.init_state(GAME.env, GAME.params, CONFIG, jax.random.key(0))
    moments = state.return_moments.replace(var=jnp.float32(4.0))  # rewards were divided by 2
    return state.replace(return_moments=moments)


@pytest.fixture(scope="module")
def trajectories(base):
    play = lambda state, key: control.record(GAME.env, GAME.params, AGENT, state.params, state.obs_moments, key, 5, 6)
    return jax.jit(play)(base, jax.random.key(1))


def by_hand(base, x, offset, hold, horizon):
    """The same sum, step by step."""
    mean, total = AGENT.mean_action(base.params, base.obs_moments), 0.0
    for t in range(horizon):
        action = float(mean(jnp.asarray([[x, 1.0]]))[0, 0]) + (offset if t < hold else 0.0)
        x += 0.3 * np.clip(action, -1, 1)
        total -= 0.9**t * abs(x)
        if abs(x) > 2:
            return total
    value = float(AGENT.value(base.params, base.obs_moments, jnp.asarray([[x, 1.0]]))[0])
    return total + 0.9**horizon * 2 * value


def gain(base, x, offset, steps):
    return by_hand(base, x, offset, 2, steps) - by_hand(base, x, 0.0, 2, steps)


def test_a_search_is_the_sum_of_its_steps_and_the_value_at_the_end(base):
    x, offset = np.array([0.5, -1.0, 1.9, 0.0]), np.array([0.3, -0.2, 1.0, -0.7])
    states = Place(jnp.zeros(4, int), jnp.asarray(x, jnp.float32))
    obs = jax.vmap(GAME.env.observe)(states)
    got = what_if.play_on(GAME, CONFIG, base, obs, states, jnp.asarray(offset[:, None], jnp.float32), 3, 8)
    np.testing.assert_allclose(got, [by_hand(base, *pair, 3, 8) for pair in zip(x, offset)], rtol=1e-4)


def test_the_direction_is_the_slope_over_a_state_and_its_neighbours():
    """Exactly, where the values are linear in the offsets; between two slopes by the kernel's weights."""
    rng = np.random.default_rng(0)
    offsets, keys = rng.uniform(-1, 1, (3, 40, 2)), np.array([[0.0, 0], [0.1, 0.1], [9.0, 9]])
    slopes = np.array([[1.0, -2.0], [1.0, -2.0], [-3.0, 0.5]])
    values = np.einsum("kma,ka->km", offsets, slopes) + 0.2 * (offsets**2).sum(-1)
    np.testing.assert_allclose(what_if.directions(keys, offsets, values, 0.3), slopes, atol=0.02)
    values[1] = np.einsum("ma,a->m", offsets[1], [3.0, -2.0])
    mixed = what_if.directions(keys, offsets, values, 0.3)[0, 0]
    assert 1.5 < mixed < 2.5  # the neighbour's weight is exp(-0.01 / 0.18) = 0.95
    values[0, 0] = -1e9  # a fall counts no more than four times the usual
    assert np.abs(what_if.directions(keys, offsets, values, 0.3)).max() < 10


def test_candidates_are_compared_with_the_mean_action_and_the_advice_is_asked_again(base):
    x = np.array([0.8, -0.6, 1.2])
    states = Place(jnp.zeros(3, int), jnp.asarray(x, jnp.float32))
    obs, taken = jax.vmap(GAME.env.observe)(states), np.array([[0.9], [-0.9], [5.0]])
    found = what_if.ask(GAME, CONFIG, base, obs, states, taken, x[:, None], jax.random.key(0), SEARCH)
    assert found.offsets.shape == (3, 7, 1) and (found.offsets[:, 0] == 0).all()
    np.testing.assert_allclose(found.mean + found.offsets[:, 1], [[0.9], [-0.9], [1.0]], atol=1e-6)  # within bounds
    for k in range(3):
        expected = [gain(base, x[k], float(offset[0]), 5) for offset in found.offsets[k]]
        np.testing.assert_allclose(found.values[k], expected, atol=1e-4)
        assert x[k] * found.advice[k, 0] < 0 and abs(found.advice[k, 0]) <= SEARCH.push + 1e-6  # towards 0
        again = gain(base, x[k], float(found.advice[k, 0]), 7)
        np.testing.assert_allclose(found.gain[k], again, atol=1e-4)


def test_findings_are_what_the_searches_say(base, trajectories):
    found = what_if.find(GAME, CONFIG, base, trajectories, jax.random.key(2), SEARCH)
    steps = np.asarray(trajectories.steps)
    assert found.counts["tools/what-ifs"] == 10 and len(found.analyses) == 5
    assert found.counts["tools/simulated steps"] == 10 * (7 * 5 + 2 * 7)
    assert 5 <= len(found.states) == found.counts["identify/critical"]
    mean = AGENT.mean_action(base.params, base.obs_moments)
    for state in found.states:
        n, t = state.episode, state.verdict.timeslot
        assert t < steps[n]
        np.testing.assert_array_equal(state.observation, trajectories.obs[t, n])
        np.testing.assert_allclose(state.taken, np.clip(trajectories.action[t, n], -1, 1), atol=1e-6)
        assert state.taken in state.rewards
        own = tuple(float(x) for x in np.asarray(mean(state.observation[None]))[0])
        assert any(np.allclose(action, own, atol=1e-5) and worth == 0 for action, worth in state.rewards.items())
        if state.verdict.action is not None:
            x = float(state.observation[0])
            offset = state.verdict.action[0] - own[0]
            assert gain(base, x, offset, 7) > SEARCH.margin - 1e-3
            assert x * offset < 0  # towards 0
    assert found.counts["identify/suggestions"] == sum(state.verdict.action is not None for state in found.states) > 0
    table = ultra.make_table(found.states, GAME, mean_action=mean)
    assert table.suggested.any() and np.abs(np.asarray(table.rewards)).max() <= 1


def test_only_the_slots_of_others_are_asked_about_where_there_are_some(base, trajectories):
    slots = [(0, 1), (2, 0), (4, 2)]
    found = what_if.find(GAME, CONFIG, base, trajectories, jax.random.key(2), SEARCH, slots)
    assert [(state.episode, state.verdict.timeslot) for state in found.states] == slots
    none = what_if.find(GAME, CONFIG, base, trajectories, jax.random.key(2), SEARCH, [])
    assert none.states == [] and len(none.analyses) == 5


def test_parts_of_a_search_make_no_difference(base, monkeypatch):
    x = jnp.linspace(-1.5, 1.5, 7)
    states = Place(jnp.zeros(7, int), x)
    obs = jax.vmap(GAME.env.observe)(states)
    ask = lambda: what_if.ask(
        GAME, CONFIG, base, obs, states, jnp.zeros((7, 1)), np.asarray(obs), jax.random.key(0), SEARCH
    )
    whole = ask()
    monkeypatch.setattr(what_if, "_ROWS", 21)
    for one, other in zip(whole, ask()):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_guided_evaluation_plays_what_the_guide_says(base):
    """It reads the observation and the agent's mean action, and its actions are held within the bounds."""
    mean = AGENT.mean_action(base.params, base.obs_moments)
    guide = lambda obs, action: action - 2 * obs[:, :1]
    play = lambda guide: control.evaluate(
        GAME.env, GAME.params, AGENT, base.params, base.obs_moments, jax.random.key(5), 3, True, guide
    )[0]
    key, _ = jax.random.split(jax.random.key(5))
    obs, _ = jax.vmap(GAME.env.reset_env, in_axes=(0, None))(jax.random.split(key, 3), None)
    expected = []
    for x in np.asarray(obs)[:, 0]:
        total = 0.0
        for _ in range(6):
            x += 0.3 * np.clip(float(mean(jnp.asarray([[x, 1.0]]))[0, 0]) - 2 * x, -1, 1)
            total -= abs(x)
        expected.append(total)
    np.testing.assert_allclose(play(guide), expected, rtol=1e-4)
    assert (np.asarray(play(None)) < np.array(expected)).all()


def test_discrete_actions_are_refused():
    game = pong.control_game()
    with pytest.raises(ValueError, match="has discrete actions"):
        what_if.ask(game, CONFIG, None, np.zeros((1, 6)), None, None, None, jax.random.key(0))
