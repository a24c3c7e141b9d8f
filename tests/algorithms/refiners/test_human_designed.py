"""Rewards by hand: Pong's against the game's own physics, Ant's on a walk drawn by hand, and the hook."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import Transitions
from nlrl_jax.algorithms.refiners import human_designed
from nlrl_jax.envs.locomotion.env import progress_bonus
from nlrl_jax.envs.pong import env as pong
from tests.algorithms.refiners.toy_games import GAMES, SMALL


def test_pong_pays_exactly_the_returns_of_our_racket():
    """16 games of 300 steps; half of the actions follow the ball, so that some balls are met and some missed."""
    env, params = pong.Pong(), pong.PongParams(points=21)

    def step(carry, key):
        obs, state = carry
        key_act, key_step, key_follow = jax.random.split(key, 3)
        towards = jnp.where(obs[2] < obs[0] + 3, pong.RIGHT, pong.LEFT)
        action = jnp.where(jax.random.bernoulli(key_follow), towards, jax.random.randint(key_act, (), 0, 3))
        racket = pong.move(state.racket, action, params.racket_speed)
        opponent = pong.follow(state, params.opponent_speed)
        hit = pong.fly(state.ball, state.velocity, racket, opponent)[2]
        next_obs, state, reward, *_ = env.step_env(key_step, state, action, params)
        return (next_obs, state), (obs, next_obs, reward, hit)

    def play(key):
        return jax.lax.scan(step, env.reset_env(key, params), jax.random.split(key, 300))[1]

    obs, next_obs, reward, hit = jax.jit(jax.vmap(play, out_axes=1))(jax.random.split(jax.random.key(0), 16))
    none = jnp.zeros(reward.shape, bool)
    steps = Transitions(obs, none, reward, next_obs, none, none, none, {}, reward, reward)
    paid = pong.pong_return(steps)
    assert paid.dtype == jnp.float32 and paid.shape == (300, 16)
    np.testing.assert_array_equal(paid, np.asarray(hit, np.float32))
    assert paid.sum() > 20 and (reward == -1).sum() > 20 and (reward == 1).sum() > 5


def walk(*places, dt=0.05):
    """Steps of one robot along these places, as a robot's `info` tells them."""
    x, y = np.asarray(places[:-1], np.float32), np.asarray(places[1:], np.float32)
    info = {"x_position": jnp.asarray(y)[:, None], "reward_forward": jnp.asarray((y - x) / dt)[:, None]}
    none = jnp.zeros((len(y), 1), bool)
    return Transitions(none, none, none, none, none, none, none, info, none, none)


def test_a_robot_is_paid_for_each_further_stretch():
    paid = progress_bonus(walk(-0.1, 0.2, 0.9, 1.1, 0.8, 1.3, 3.2, 3.4, 2.9))[:, 0]
    np.testing.assert_array_equal(paid, [0, 0, 1, -1, 1, 2, 0, -1])
    assert float(paid.sum()) == 2  # it ends two metres out
    np.testing.assert_array_equal(progress_bonus(walk(0.0, 0.4, 0.6, 1.1), length=0.5)[:, 0], [0, 1, 1])
    np.testing.assert_array_equal(progress_bonus(walk(-0.9, -0.1, 0.1, -3.0))[:, 0], 0)  # nothing before x = 0
    np.testing.assert_array_equal(progress_bonus(walk(0.2, 1.4, dt=0.008), dt=0.008)[:, 0], 1)
    exploded = walk(5.0, 5.0)
    exploded = exploded.replace(info={"x_position": jnp.zeros((1, 1)), "reward_forward": jnp.zeros((1, 1))})
    np.testing.assert_array_equal(progress_bonus(exploded), 0)


def test_the_hook_weighs_the_reward_and_adds_it_to_the_environments():
    env = GAMES["continuous"]
    given = lambda steps: jnp.sum(steps.action**2, -1) - jnp.sum(steps.next_obs, -1)
    hooks = human_designed.hooks(given, 0.25)
    state = jax.jit(lambda key: ppo.init_state(env, env.default_params, SMALL, key, aux={"kept": 7}))(jax.random.key(0))
    key_collect, key_learn = jax.random.split(jax.random.key(1))
    collected, steps = ppo.make_collect(env, env.default_params, SMALL)(state, key_collect)
    bonus, aux, metrics = hooks.bonus(state.aux, steps, state.obs_moments)
    np.testing.assert_allclose(bonus, 0.25 * given(steps))
    assert aux == state.aux and float(metrics["human_rewarded"]) == 1
    np.testing.assert_allclose(metrics["human_reward"], given(steps).mean(), rtol=1e-6)
    learn = jax.jit(ppo.make_learn(env, env.default_params, SMALL))
    expected, _ = learn(collected, steps, steps.reward + 0.25 * given(steps), key_learn)
    after, metrics = jax.jit(ppo.make_update(env, env.default_params, SMALL, hooks))(state, jax.random.key(1))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), after.params, expected.params)
    assert metrics["finite"]


def test_a_reward_of_another_shape_is_refused():
    steps = walk(0.0, 1.0)
    with pytest.raises(ValueError, match=r"shape \(\); it must be \(1, 1\)"):
        human_designed.hooks(lambda steps: jnp.zeros(())).bonus(None, steps, None)
