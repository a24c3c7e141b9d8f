"""The mask network of RICE (Cheng et al. 2024), a simpler StateMask: where does the agent's action matter?

    network = MaskNetwork(game, config, base)      # config: of the base agent
    mask, blinded = network.train(network.init(key_init), iterations, key_train)
    weight = network.importance(mask, record.obs)

In each state a second agent either lets the base agent act or replaces its action by a random one, which earns a bonus.
It learns to blind the base agent where its action does not matter; its probability of *not* blinding is the importance
of a state.

`MaskParams` is data: to `vmap` over seeds with a base agent each, make the update inside the mapped function.

Departures and choices:
- The base agent's action is sampled, as it acts while refined. (RICE's code takes its most likely one.)
- StateMask (Cheng et al. 2023) keeps the return near the base agent's by a Lagrangian; RICE, and so we, maximise the
  return plus 0.01 for each blinded step, with plain PPO.
- MASK-R takes the most important share of an episode's timesteps; ULTRA does not say how many it takes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax import networks
from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.ppo import Hooks, PPOConfig, PPOState
from nlrl_jax.gymnax_base import environment, spaces
from nlrl_jax.networks import Agent, RunningMoments
from nlrl_jax.types import ControlGame

BLIND, KEEP = 0, 1


@flax.struct.dataclass
class MaskState:
    """inner: the game's own state. obs: what the base agent sees in it."""

    inner: Any
    obs: jax.Array


@flax.struct.dataclass
class MaskParams:
    """inner: the game's own parameters. policy, moments: `params` and `obs_moments` of the base agent."""

    inner: Any
    policy: Any
    moments: RunningMoments


class MaskedEnv(environment.Environment):
    """The game of blinding an agent. Actions: 0 a random action, 1 the base agent's. Rewards: the game's.

    Args:
      env, env_params, config: of the base agent; config is the one it was trained with.

    Raises:
      ValueError: continuous actions without finite bounds, from which none can be drawn at random.
    """

    def __init__(self, env: Any, env_params: Any, config: PPOConfig):
        super().__init__()
        self.env, self.agent = env, ppo.agent_of(env, env_params, config)
        if self.agent.continuous and not np.isfinite(self.agent.bounds).all():
            raise ValueError(f"actions lie in {self.agent.bounds}; a random one needs finite bounds")

    def reset_env(self, key, params):
        obs, inner = self.env.reset_env(key, params.inner)
        return obs, MaskState(inner, obs)

    def step_env(self, key, state, action, params):
        key_chance, key_base, key_step = jax.random.split(key, 3)
        # The agent reads batches: one observation is a batch of one.
        out = self.agent.policy(params.policy, params.moments, state.obs[None])
        base = self.agent.to_env(networks.sample(key_base, *out)[0])
        chance = self.env.action_space(params.inner).sample(key_chance).astype(base.dtype)
        # Both actions are drawn in each step, so that the random numbers do not depend on the mask.
        executed = jnp.where(action == BLIND, chance, base)
        obs, inner, reward, terminated, info = self.env.step_env(key_step, state.inner, executed, params.inner)
        return obs, MaskState(inner, obs), reward, terminated, info

    def is_truncated(self, state, params):
        return self.env.is_truncated(state.inner, params.inner)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return self.env.observation_space(params.inner)


def hooks(coefficient: float = 0.01) -> Hooks:
    """A reward for each blinded step. Metrics: "blinded", the share of such steps."""

    def bonus(aux, steps, obs_moments):
        del obs_moments
        blind = steps.action == BLIND
        return coefficient * blind, aux, {"blinded": jnp.mean(blind)}

    return Hooks(bonus=bonus)


class MaskNetwork:
    """The mask network of a base agent. Holds no parameters of its own.

    Args:
      config: the one the base agent was trained with.
    """

    def __init__(self, game: ControlGame, config: PPOConfig, base: PPOState):
        # As the base agent, but for RICE's entropy bonus.
        self.config = dataclasses.replace(config, entropy_coef=0.01)
        self.env = MaskedEnv(game.env, game.params, config)
        self.params = MaskParams(game.params, base.params, base.obs_moments)

    def init(self, key: jax.Array) -> PPOState:
        """The untrained network."""
        return ppo.init_state(self.env, self.params, self.config, key)

    def train(self, mask: PPOState, iterations: int, key: jax.Array) -> tuple[PPOState, float]:
        """(the network after `iterations` updates in all, the share of steps that the last one blinded).

        Raises:
          ValueError: an update is not finite.
        """
        step = jax.jit(ppo.make_update(self.env, self.params, self.config, hooks()))
        metrics = {"blinded": jnp.nan}
        for i in range(int(mask.iteration), iterations):
            mask, metrics = step(mask, jax.random.fold_in(key, i))
            if not metrics["finite"]:
                raise ValueError(f"update {i} of the mask network is not finite")
        return mask, float(metrics["blinded"])

    def importance(self, mask: PPOState, obs: jax.Array) -> jax.Array:
        """How much the base agent's action matters: obs [..., D] -> float [...]."""
        agent = ppo.agent_of(self.env, self.params, self.config)
        return importance(agent, mask.params, mask.obs_moments, obs)


def importance(agent: Agent, params: Any, moments: RunningMoments, obs: jax.Array) -> jax.Array:
    """The probability of not blinding at raw observations: [..., *shape] -> [...] in [0, 1].

    Args:
      agent, params, moments: the mask agent's: `ppo.agent_of(masked, mask_params, mask_config)` and of its `PPOState`.
    """
    shape = moments.mean.shape
    # The network reads rows [N, ...]; leading axes are folded into one and unfolded again.
    leading = obs.shape[: obs.ndim - len(shape)]
    logits, _ = agent.policy(params, moments, obs.reshape(math.prod(leading), *shape))
    return jax.nn.softmax(logits)[:, KEEP].reshape(leading)


def critical_steps(weight: jax.Array, steps: jax.Array) -> jax.Array:
    """The most important timestep of each episode (RICE), the first of equals.

    Args:
      weight: float [T, N], the importance of the states of `control.Trajectories`.
      steps: int32 [N], how many of them count.

    Returns: int32 [N].
    """
    return jnp.argmax(_counted(weight, steps), axis=0)


def critical_share(weight: jax.Array, steps: jax.Array, share: float) -> jax.Array:
    """The most important timesteps of each episode (MASK-R): bool [T, N].

    Args:
      weight, steps: as for `critical_steps`.
      share: of the episode's timesteps, in (0, 1]; the number is rounded up.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must lie in (0, 1]")
    # The rank of each timestep by importance: argsort of an argsort.
    order = jnp.argsort(-_counted(weight, steps), axis=0)
    rank = jnp.argsort(order, axis=0)
    # A hundredth of a step must not count as a whole one because 0.1 x 10 is not quite 1.
    steps = steps.astype(weight.dtype)
    return rank.astype(weight.dtype) < jnp.minimum(jnp.ceil(share * steps - 1e-3), steps)


def _counted(weight, steps):
    # Timesteps after an episode's end are never the most important.
    return jnp.where(jnp.arange(weight.shape[0])[:, None] < steps, weight, -jnp.inf)
