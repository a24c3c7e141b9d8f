"""A fresh agent of Pong and its episodes, for the tests of ULTRA."""

import functools

import jax

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import PPOConfig
from nlrl_jax.envs.pong import env as pong
from nlrl_jax.rollouts import control
from tests.algorithms.refiners.toy_games import player

GAME = pong.control_game(points=1)
CONFIG = PPOConfig(num_envs=4, num_steps=16, epochs=1, num_minibatches=2, features=(8,))


@functools.cache
def recorded():
    """Twelve episodes of at most 100 steps."""
    state = ppo.init_state(GAME.env, GAME.params, CONFIG, jax.random.key(0))
    agent = player(GAME.env, GAME.params, CONFIG, state)
    return control.episodes_of(jax.jit(lambda key: control.record(agent, key, 12, 100))(jax.random.key(1)))
