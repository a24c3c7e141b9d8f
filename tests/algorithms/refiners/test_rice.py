"""RICE: where episodes start, what a stored state keeps, and the whole update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.refiners import rice, rnd
from nlrl_jax.algorithms.refiners.rnd import RNDConfig
from nlrl_jax.rollouts import control
from tests.algorithms.refiners.toy_games import CELLS, GAMES, SMALL, player

RND = RNDConfig(num_minibatches=2, width=16, outputs=8)


begin = jax.jit(ppo.init_state, static_argnums=(0, 2))


def recorded(game, timesteps):
    """(obs, states, aux) of RICE: states of some episodes of a fresh agent, at a timestep of each."""
    env = GAMES[game]

    @jax.jit
    def play(key):
        state = ppo.init_state(env, env.default_params, SMALL, key)
        return control.record(player(env, env.default_params, SMALL, state), key, len(timesteps), 5)

    obs, env_state = rice.starts_of(play(jax.random.key(0)), jnp.array(timesteps))
    return obs, env_state, rice.init(jax.random.key(0), obs, env_state, RND)


def test_starts_are_the_states_before_the_chosen_steps():
    obs, env_state, _ = recorded("discrete", [0, 4, 2])
    np.testing.assert_array_equal(env_state.cell, [0, 4, 2])
    np.testing.assert_array_equal(obs, jax.nn.one_hot(jnp.array([0, 4, 2]), CELLS))


def test_the_clock_restarts_and_nothing_else():
    _, env_state, aux = recorded("continuous", [3] * 3)
    np.testing.assert_array_equal(env_state.time, 3)
    np.testing.assert_array_equal(aux.env_state.time, 0)
    np.testing.assert_array_equal(aux.env_state.place, env_state.place)
    np.testing.assert_array_equal(aux.obs, env_state.place)
    assert rice.restarted({"x": 1}) == {"x": 1}  # a state without a clock


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_share_of_critical_starts_is_p(probability):
    obs, _, aux = recorded("continuous", [3] * 4)
    reset = rice.hooks(probability, RND).reset
    N, env = 4000, GAMES["continuous"]

    @jax.jit
    def both(key, other):
        fresh = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(key, N), env.default_params)
        return fresh, jax.vmap(reset, in_axes=(None, 0, 0, 0))(aux, jax.random.split(other, N), *fresh)

    fresh, (start_obs, start) = both(jax.random.key(1), jax.random.key(2))
    which = (np.asarray(start_obs)[:, None] == np.asarray(obs)[None]).all(-1)  # [N, K]
    critical = which.any(1)
    assert abs(critical.mean() - probability) <= 4 * np.sqrt(probability * (1 - probability) / N)
    np.testing.assert_array_equal(start.place, start_obs)  # observation and state belong together
    np.testing.assert_array_equal(np.asarray(start_obs)[~critical], np.asarray(fresh[0])[~critical])
    if probability:
        shares = which.sum(0) / which.sum()
        np.testing.assert_allclose(shares, 0.25, atol=0.06)


def test_episodes_go_on_from_critical_states():
    env, config = GAMES["discrete"], dataclasses.replace(SMALL, num_steps=64)
    state = begin(env, env.default_params, config, jax.random.key(0), recorded("discrete", [3] * 3)[2])
    collect = jax.jit(ppo.make_collect(env, env.default_params, config, rice.hooks(1.0, RND)))
    _, steps = collect(state, jax.random.key(2))
    cells = np.argmax(steps.obs, -1)
    # The first games start where the environment starts them, all later ones in cell 3.
    np.testing.assert_array_equal(cells[:5], np.arange(5)[:, None] * np.ones((1, 4)))
    np.testing.assert_array_equal(cells[5:], np.tile([3, 4], 30)[:59, None] * np.ones((1, 4)))
    np.testing.assert_array_equal(np.asarray(steps.finished_steps)[steps.done][-4:], 2)


def test_the_bonus_is_that_of_random_network_distillation():
    env, aux = GAMES["discrete"], recorded("discrete", [3] * 3)[2]
    state = begin(env, env.default_params, SMALL, jax.random.key(0), aux)
    _, steps = jax.jit(ppo.make_collect(env, env.default_params, SMALL))(state, jax.random.key(2))
    bonus, after, _ = jax.jit(rice.hooks(0.5, RND).bonus)(aux, steps, state.obs_moments)
    expected, learned, _ = jax.jit(rnd.reward, static_argnums=2)(aux.rnd, steps, RND)
    np.testing.assert_array_equal(bonus, expected)
    jax.tree.map(np.testing.assert_array_equal, after.rnd, learned)


def test_what_cannot_be_is_refused():
    obs, env_state, _ = recorded("discrete", [0] * 3)
    with pytest.raises(ValueError, match="probability is 1.5"):
        rice.hooks(1.5)
    with pytest.raises(ValueError, match="2 observations"):
        rice.init(jax.random.key(0), obs[:2], env_state)
    with pytest.raises(ValueError, match="at least one"):
        rice.init(jax.random.key(0), obs[:0], jax.tree.map(lambda x: x[:0], env_state))
