"""Two games so small that one can see what an agent should do in them."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import PPOConfig
from nlrl_jax.gymnax_base import environment, spaces
from nlrl_jax.rollouts.control import ControlPlayer

CELLS, DOOR = 5, 2
ENVS, STEPS = 4, 8

# Small and quick; for tests that train nothing to the end.
SMALL = PPOConfig(num_envs=ENVS, num_steps=STEPS, epochs=2, num_minibatches=2, features=(8,), normalize_reward=False)


def player(env, params, config, state):
    """The agent of a `PPOState`."""
    return ControlPlayer(env, params, ppo.agent_of(env, params, config), state.params, state.obs_moments)


@struct.dataclass
class CorridorState(environment.EnvState):
    cell: jax.Array
    right: jax.Array  # whether the door was passed as it should be


class Corridor(environment.Environment):
    """Cells 0..4, one a step whatever one does: | 0 | 1 | door | 3 | 4 |. In cell 2 alone the action counts.

    Of four actions the second opens the door; the last step then pays 1. Observations are one-hot.
    """

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=CELLS + 1)

    def reset_env(self, key, params):
        state = CorridorState(jnp.int32(0), jnp.int32(0), jnp.bool_(False))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        right = jnp.where(state.cell == DOOR, action == 1, state.right)
        state = CorridorState(state.time + 1, state.cell + 1, right)
        over = state.cell >= CELLS
        return self.observe(key, state, action, params), state, jnp.where(over & right, 1.0, 0.0), over, {}

    def observe(self, key, state, action, params):
        return jax.nn.one_hot(state.cell, CELLS)

    def is_terminated(self, state, params):
        return state.cell >= CELLS

    def action_space(self, params=None):
        return spaces.Discrete(4)

    def observation_space(self, params=None):
        return spaces.Box(0.0, 1.0, (CELLS,), jnp.float32)


@struct.dataclass
class PullState(environment.EnvState):
    place: jax.Array


class Pull(environment.Environment):
    """A point on a plane, pushed by a force in [-1, 1]^2, costs its squared distance from the origin; 6 steps."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=6)

    def reset_env(self, key, params):
        state = PullState(jnp.int32(0), jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0))
        return state.place, state

    def step_env(self, key, state, action, params):
        state = PullState(state.time + 1, state.place + 0.3 * action)
        return state.place, state, -jnp.sum(state.place**2), jnp.bool_(False), {}

    def is_terminated(self, state, params):
        return jnp.bool_(False)

    def action_space(self, params=None):
        return spaces.Box(-1.0, 1.0, (2,), jnp.float32)

    def observation_space(self, params=None):
        return spaces.Box(-jnp.inf, jnp.inf, (2,), jnp.float32)


GAMES = {"discrete": Corridor(), "continuous": Pull()}


def seeds(init, number=2):
    """`init(key)` for a few keys, and stacked along a leading axis as `vmap` takes it: ([state], states)."""
    init = jax.jit(init)
    each = [init(jax.random.key(seed)) for seed in range(number)]
    return each, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def assert_seeds_alike(update, each, stacked, keys, of):
    """`vmap(update)` over stacked states does to each what `update` does to it. of: state -> what is compared.

    Returns: the stacked metrics.
    """
    after, metrics = jax.jit(jax.vmap(update))(stacked, keys)
    single = jax.jit(update)
    for n, state in enumerate(each):
        alone = jax.tree.leaves(of(single(state, keys[n])[0]))
        for x, y in zip(alone, jax.tree.leaves(of(after)), strict=True):
            np.testing.assert_allclose(x, y[n], atol=2e-5)
    return metrics
