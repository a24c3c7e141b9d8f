"""The mask network: what the masked game does, and that it finds the one state that matters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.refiners import state_mask
from nlrl_jax.algorithms.refiners.state_mask import BLIND, KEEP, MaskedEnv, MaskParams
from nlrl_jax.gymnax_base import spaces
from nlrl_jax.rollouts import control
from tests.algorithms.refiners.toy_games import CELLS, DOOR, GAMES, SMALL, Pull, player

N = 4000


@functools.partial(jax.jit, static_argnums=0)
def base_agent(game, seed=0):
    """(PPOState, MaskParams) of a fresh agent; in the corridor it always opens the door."""
    env = GAMES[game]
    state = ppo.init_state(env, env.default_params, SMALL, jax.random.key(seed))
    params = state.params
    if game == "discrete":
        params = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.array([0, 50.0, 0, 0]) if x.shape == (4,) else x, params
        )
    return state.replace(params=params), MaskParams(env.default_params, params, state.obs_moments)


def masked_game(game):
    return MaskedEnv(GAMES[game], GAMES[game].default_params, SMALL)


def executed(masked, params, action):
    """What N steps from one state execute, read from where they lead."""

    @jax.jit
    def step(action, keys):
        obs, state = masked.reset_env(jax.random.key(1), params)
        return obs, jax.vmap(lambda key: masked.step_env(key, state, action, params)[0])(keys)

    obs, next_obs = step(jnp.int32(action), jax.random.split(jax.random.key(2), N))
    return (np.asarray(next_obs) - np.asarray(obs)) / 0.3


def test_blinding_leaves_a_continuous_action_to_chance():
    _, params = base_agent("continuous")
    blind = executed(masked_game("continuous"), params, BLIND)
    for row in blind.T:  # uniform in [-1, 1]
        assert np.abs(row).max() <= 1 + 1e-5
        counts = np.histogram(row, bins=8, range=(-1.0001, 1.0001))[0]
        assert np.abs(counts / N - 1 / 8).max() < 5 * np.sqrt(7 / 64 / N)


def test_keeping_lets_the_base_policy_act_with_its_own_noise():
    state, params = base_agent("continuous")
    env, masked = GAMES["continuous"], masked_game("continuous")
    obs, _ = masked.reset_env(jax.random.key(1), params)
    mean, log_std = ppo.agent_of(env, env.default_params, SMALL).policy(state.params, state.obs_moments, obs[None])
    kept = executed(masked, params, KEEP)
    expected = np.clip(np.asarray(mean) + np.exp(log_std) * np.random.default_rng(0).normal(size=(N, 2)), -1, 1)
    np.testing.assert_allclose(kept.mean(0), expected.mean(0), atol=0.08)
    np.testing.assert_allclose((np.abs(kept) > 0.999).mean(), (np.abs(expected) > 0.999).mean(), atol=0.04)


def test_a_discrete_action_is_one_of_all_or_the_base_agents():
    masked, (_, params) = masked_game("discrete"), base_agent("discrete")
    obs, state = masked.reset_env(jax.random.key(0), params)
    door = state.replace(inner=state.inner.replace(cell=jnp.int32(DOOR)))
    for action, share in ((BLIND, 0.25), (KEEP, 1.0)):
        step = jax.vmap(lambda key, a=action: masked.step_env(key, door, jnp.int32(a), params)[1].inner.right)
        right = np.asarray(jax.jit(step)(jax.random.split(jax.random.key(3), N)))
        assert abs(right.mean() - share) < 5 * np.sqrt(share * (1 - share) / N) + 1e-6


def test_the_mask_sees_rewards_and_ends_of_the_game_and_its_bonus():
    masked, (_, params) = masked_game("continuous"), base_agent("continuous")
    state = ppo.init_state(masked, params, SMALL, jax.random.key(4))
    _, steps = jax.jit(ppo.make_collect(masked, params, SMALL))(state, jax.random.key(5))
    np.testing.assert_allclose(steps.reward, -jnp.sum(steps.next_obs**2, -1), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(steps.truncated)[5], True)  # cut after 6 steps
    assert not np.asarray(steps.terminated).any() and np.asarray(steps.truncated).sum() == SMALL.num_envs
    bonus, _, metrics = state_mask.hooks(0.01).bonus(None, steps, None)
    np.testing.assert_allclose(bonus, 0.01 * (np.asarray(steps.action) == 0))
    assert 0 < float(metrics["blinded"]) < 1


def test_importance_shows_the_one_state_that_matters():
    env = GAMES["discrete"]
    masked, (base, params) = masked_game("discrete"), base_agent("discrete")
    config = dataclasses.replace(SMALL, num_envs=16, num_steps=20, epochs=4, learning_rate=3e-3, features=(16,))
    state = jax.jit(lambda key: ppo.init_state(masked, params, config, key))(jax.random.key(1))
    update = ppo.make_update(masked, params, config, state_mask.hooks())
    train = jax.jit(lambda state, keys: jax.lax.scan(update, state, keys))
    state, metrics = train(state, jax.random.split(jax.random.key(2), 100))
    agent = ppo.agent_of(masked, params, config)
    weight = state_mask.importance(agent, state.params, state.obs_moments, jnp.eye(CELLS))
    assert weight[DOOR] > 0.95 and np.delete(np.asarray(weight), DOOR).max() < 0.5, weight
    assert float(metrics["env_return"][-1]) > 0.9 and float(metrics["blinded"][-1]) > 0.5

    record = control.record(player(env, env.default_params, SMALL, base), jax.random.key(3), 3, 7)
    weight = state_mask.importance(agent, state.params, state.obs_moments, record.obs)
    assert weight.shape == (7, 3)
    np.testing.assert_array_equal(state_mask.critical_steps(weight, record.steps), DOOR)


def test_critical_steps_by_hand():
    #                      episode: 0    1
    weight = jnp.array([[0.1, 0.3], [0.9, 0.3], [0.5, 0.2], [0.6, 0.99], [0.9, 0.98]])
    steps = jnp.array([5, 3])  # the second episode's last two do not count
    np.testing.assert_array_equal(state_mask.critical_steps(weight, steps), [1, 0])
    chosen = state_mask.critical_share(weight, steps, 0.4)  # 2 of 5, and 2 of 3: 1.2 rounded up
    np.testing.assert_array_equal(chosen.T, [[0, 1, 0, 0, 1], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(state_mask.critical_share(weight, steps, 1.0).sum(0), steps)
    np.testing.assert_array_equal(state_mask.critical_share(weight, steps, 0.01).sum(0), 1)
    for steps in (10, 30, 100):
        for share in (0.1, 0.3, 0.7):
            chosen = state_mask.critical_share(jnp.zeros((100, 1)), jnp.array([steps]), share)
            assert int(chosen.sum()) == round(share * steps)
    with pytest.raises(ValueError, match="share is 0"):
        state_mask.critical_share(weight, steps, 0)


def test_actions_without_bounds_are_refused():
    class Endless(Pull):
        def action_space(self, params=None):
            return spaces.Box(-jnp.inf, jnp.inf, (2,), jnp.float32)

    with pytest.raises(ValueError, match="finite bounds"):
        MaskedEnv(Endless(), Endless().default_params, SMALL)
