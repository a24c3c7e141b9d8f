"""PPO: its pieces against formulas by hand and gymnax, and that it learns both kinds of actions."""

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from nlrl_jax import networks
from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import Hooks, PPOConfig
from nlrl_jax.gymnax_base import environment, spaces
from nlrl_jax.networks import RunningMoments
from nlrl_jax.rollouts import control
from tests.algorithms.refiners.toy_games import player

CARTPOLE, CARTPOLE_PARAMS = gymnax.make("CartPole-v1")
SMALL = PPOConfig(num_envs=4, num_steps=8, epochs=2, num_minibatches=2, features=(8,))


@struct.dataclass
class AimState(environment.EnvState):
    target: jax.Array


@struct.dataclass
class AimParams(environment.EnvParams):
    max_steps_in_episode: int = 3


class Aim(environment.Environment):
    """Says a number in [-1, 1] and pays 1 - (action - number)^2; never ends, is cut after three steps."""

    default_params = AimParams()

    def reset_env(self, key, params):
        state = AimState(jnp.int32(0), jax.random.uniform(key, (), minval=-1, maxval=1))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        reward = 1 - (action[0] - state.target) ** 2
        state = AimState(state.time + 1, jax.random.uniform(key, (), minval=-1, maxval=1))
        return self.observe(key, state, action, params), state, reward, jnp.array(False), {}

    def observe(self, key, state, action, params):
        return jnp.stack([state.target, state.time.astype(jnp.float32)])

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (1,))

    def observation_space(self, params=None):
        return spaces.Box(-1.0, 3.0, (2,))


@pytest.fixture(scope="module")
def collected():
    env = Aim()
    state = ppo.init_state(env, env.default_params, SMALL, jax.random.key(0))
    collect = jax.jit(ppo.make_collect(env, env.default_params, SMALL))
    return env, *collect(state, jax.random.key(1))


def test_moments_are_those_of_everything_seen():
    data = np.random.default_rng(0).normal(3, 2, (5, 7, 4)).astype(np.float32)
    moments = RunningMoments.of((4,)).update(data[:2]).update(data[2:])
    flat = data.reshape(-1, 4)
    np.testing.assert_allclose(moments.mean, flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, flat.var(0), rtol=1e-4)
    np.testing.assert_allclose(moments.normalize(flat).std(0), 1, rtol=1e-4)


def test_log_prob_and_entropy_equal_scipys():
    mean, log_std = jnp.array([[0.3, -1.0], [2.0, 0.0]]), jnp.array([-0.5, 0.2])
    action = jnp.array([[0.0, 0.5], [1.0, -1.0]])
    theirs = jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum(-1)
    np.testing.assert_allclose(networks.log_prob(mean, log_std, action), theirs, rtol=1e-6)
    many = jnp.repeat(mean[:1], 20_000, 0)
    entropy = -networks.log_prob(many, log_std, networks.sample(jax.random.key(0), many, log_std)).mean()
    np.testing.assert_allclose(networks.entropy(mean, log_std), entropy, atol=0.03)
    logits = jnp.array([[0.0, jnp.log(3.0)]])
    np.testing.assert_allclose(networks.log_prob(logits, None, jnp.array([1])), np.log(0.75), rtol=1e-6)
    by_hand = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    np.testing.assert_allclose(networks.entropy(logits, None), by_hand, rtol=1e-6)


def test_a_rollout_keeps_the_observation_that_an_episode_was_cut_in(collected):
    _, _, steps = collected
    assert steps.truncated[2::3].all() and not steps.terminated.any()
    assert not np.delete(np.asarray(steps.truncated), np.s_[2::3], axis=0).any()
    np.testing.assert_array_equal(steps.next_obs[2::3, :, 1], 3)  # the clock before the reset
    np.testing.assert_array_equal(steps.obs[3::3, :, 1], 0)  # and after it
    within = ~np.asarray(steps.done)[:-1]
    np.testing.assert_array_equal(np.asarray(steps.next_obs)[:-1][within], np.asarray(steps.obs)[1:][within])


def test_finished_returns_are_the_sums_of_rewards(collected):
    _, _, steps = collected
    reward = np.asarray(steps.reward)
    np.testing.assert_allclose(steps.finished_return[2], reward[:3].sum(0), rtol=1e-5)
    np.testing.assert_allclose(steps.finished_return[5], reward[3:6].sum(0), rtol=1e-5)
    assert (np.asarray(steps.finished_steps)[[2, 5]] == 3).all() and not np.asarray(steps.finished_return)[[0, 1]].any()


def test_a_cut_bootstraps_and_an_end_does_not(collected):
    """Against the recursion written out, in plain numpy."""
    env, state, steps = collected
    agent = ppo.agent_of(env, env.default_params, SMALL)
    steps = dataclasses.replace(steps, terminated=steps.terminated.at[4, 0].set(True))
    advantages, targets = ppo.advantages_of(agent, SMALL, state.params, state.obs_moments, steps, steps.reward)
    V = lambda obs: np.asarray(agent.value(state.params, state.obs_moments, obs))
    T, B = steps.reward.shape
    expected = np.zeros((T, B))
    for b in range(B):
        later = 0.0
        for t in reversed(range(T)):
            ends, dies = bool(steps.done[t, b]), bool(steps.terminated[t, b])
            next_value = 0.0 if dies else V(steps.next_obs[t, b][None])[0]
            delta = float(steps.reward[t, b]) + 0.99 * next_value - V(steps.obs[t, b][None])[0]
            later = delta + (0.0 if ends else 0.99 * 0.95 * later)
            expected[t, b] = later
    np.testing.assert_allclose(advantages, expected, atol=1e-4)
    np.testing.assert_allclose(targets - advantages, V(steps.obs.reshape(T * B, -1)).reshape(T, B), atol=1e-5)


def test_scaled_rewards_are_divided_by_the_deviation_of_discounted_returns(collected):
    _, state, steps = collected
    _, scaled = ppo.scale_rewards(state, steps.reward, steps.done, 0.9)
    returns, running = [], np.zeros(4)
    for t in range(len(steps.reward)):
        running = running * 0.9 + np.asarray(steps.reward[t])
        returns.append(running.copy())
        running[np.asarray(steps.done[t])] = 0
    np.testing.assert_allclose(scaled, np.asarray(steps.reward) / np.std(returns), rtol=1e-3)


def test_hooks_change_actions_rewards_and_starts():
    env = Aim()
    hooks = Hooks(
        act=lambda aux, obs, action: (jnp.where(obs[:, :1] > 0, aux, action), obs[:, 0] > 0),
        bonus=lambda aux, steps, moments: (jnp.ones_like(steps.reward), aux, {"mine": jnp.float32(7)}),
        reset=lambda aux, key, obs, state: (obs.at[1].set(2.0), state.replace(time=jnp.int32(2))),
    )
    state = ppo.init_state(env, env.default_params, SMALL, jax.random.key(0), aux=jnp.float32(0.25))
    after, steps = jax.jit(ppo.make_collect(env, env.default_params, SMALL, hooks))(state, jax.random.key(1))
    where = np.asarray(steps.obs[..., 0] > 0)
    np.testing.assert_array_equal(steps.replaced, where)
    np.testing.assert_array_equal(np.asarray(steps.action)[where], 0.25)
    assert steps.truncated[2:].all()  # every later episode starts one step before its cut
    _, metrics = jax.jit(ppo.make_update(env, env.default_params, SMALL, hooks))(state, jax.random.key(1))
    assert metrics["mine"] == 7 and 0 < metrics["replaced"] < 1


def test_clipped_values_stop_moving(collected):
    env, state, steps = collected

    def moved(value_clip):
        config = dataclasses.replace(SMALL, epochs=20, learning_rate=1e-2, value_clip=value_clip)
        learn = jax.jit(ppo.make_learn(env, env.default_params, config))
        after, _ = learn(state, steps, 5 + steps.reward, jax.random.key(2))
        value = lambda params: ppo.agent_of(env, env.default_params, config).value(
            params, state.obs_moments, steps.obs[0]
        )
        return np.abs(value(after.params) - value(state.params)).mean()

    assert moved(0.02) < 0.3 < moved(np.inf)


AIMING = PPOConfig(num_envs=32, num_steps=16, learning_rate=3e-3, entropy_coef=0.0, features=(16,), discount=0.5)
BALANCING = PPOConfig(num_envs=16, num_steps=64, learning_rate=1e-3, features=(32, 32))


@pytest.mark.parametrize(
    "env, params, config, updates, least",
    [
        (Aim(), Aim.default_params, AIMING, 60, 2.9),  # continuous actions: 3 is the most, drawing at random earns 1
        (CARTPOLE, CARTPOLE_PARAMS, BALANCING, 100, 400),  # at random: about 20
    ],
    ids=["aim", "cartpole"],
)
def test_both_kinds_of_actions_are_learned(env, params, config, updates, least):
    state = ppo.init_state(env, params, config, jax.random.key(0))
    train = jax.jit(lambda s, k: jax.lax.scan(ppo.make_update(env, params, config), s, k))
    state, metrics = train(state, jax.random.split(jax.random.key(1), updates))
    agent = player(env, params, config, state)
    returns, _ = control.evaluate(agent, jax.random.key(2), 20, deterministic=True)
    assert metrics["finite"].all() and returns.mean() > least


def test_a_record_holds_whole_episodes():
    config = dataclasses.replace(SMALL, normalize_obs=False)
    state = ppo.init_state(CARTPOLE, CARTPOLE_PARAMS, config, jax.random.key(0))
    agent = player(CARTPOLE, CARTPOLE_PARAMS, config, state)
    record = jax.jit(lambda key: control.record(agent, key, 6, 60))(jax.random.key(1))
    for n, episode in enumerate(control.episodes_of(record)):
        assert episode.number == n and len(episode) == record.steps[n] <= 60
        assert len(episode.observations) == len(episode) + 1 and episode.rewards.sum() == len(episode)
        x, angle = episode.observations[-1][[0, 2]]
        assert episode.terminated == (abs(x) > 2.4 or abs(angle) > 12 * np.pi / 180)
        # What the environment does from a stored state is what was recorded.
        t = len(episode) // 2
        stored = jax.tree.map(lambda leaf, t=t, n=n: leaf[t, n], record.env_state)
        obs = CARTPOLE.step_env(jax.random.key(0), stored, episode.actions[t], CARTPOLE_PARAMS)[0]
        np.testing.assert_allclose(obs, episode.observations[t + 1], rtol=1e-5)


def test_seeds_that_train_as_one_program_train_as_each_alone():
    update = ppo.make_update(CARTPOLE, CARTPOLE_PARAMS, SMALL)

    def train(key):
        key_init, key_updates = jax.random.split(key)
        state = ppo.init_state(CARTPOLE, CARTPOLE_PARAMS, SMALL, key_init)
        state, metrics = jax.lax.scan(update, state, jax.random.split(key_updates, 3))
        return state.params, metrics["env_return"], metrics["episodes"]

    keys = jax.random.split(jax.random.key(5), 3)
    together = jax.jit(jax.vmap(train))(keys)
    alone = jax.jit(train)
    for i, key in enumerate(keys):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), mine, alone(key))
    first, second = (jax.tree.leaves(jax.tree.map(lambda leaf, i=i: leaf[i], together[0])) for i in (0, 1))
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
