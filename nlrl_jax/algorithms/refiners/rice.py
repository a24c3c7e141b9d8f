"""RICE (Cheng et al. 2024): refine from the critical states of the agent's own episodes, and explore.

    timestep = state_mask.critical_steps(weight, record.steps)
    state = base.replace(aux=rice.init(key, *rice.starts_of(record, timestep)))
    update = ppo.make_update(env, env_params, config, rice.hooks(probability=0.5))

With probability p an episode starts in a stored critical state, else where the environment starts it; random network
distillation adds its bonus (`rnd.py`). In RICE's code p is the probability of a *normal* start, 0.5 by default.

Departures and choices:
- Critical states are chosen once, in episodes of the base agent. (RICE's code plays a new episode of the base agent at
  each reset: the same distribution, at the cost of an episode.)
- The clock of the episode restarts, where a state has a field `time`; everything else, such as a score, is kept.
- PPO's metrics "env_return" and "env_steps" are of episodes from either kind of start: compare agents by
  `control.evaluate`.
- The learning rate of RICE's refinement, 1e-5, is the caller's (`methods.Shared.rice_rate`).
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from nlrl_jax.algorithms.ppo import Hooks
from nlrl_jax.algorithms.refiners import rnd
from nlrl_jax.algorithms.refiners.rnd import RNDConfig, RNDState
from nlrl_jax.rollouts.control import Trajectories

_RND = RNDConfig()


@flax.struct.dataclass
class RICEState:
    """obs: [K, ...], env_state: pytree [K, ...], the critical states. rnd: of the bonus."""

    obs: jax.Array
    env_state: Any
    rnd: RNDState


def starts_of(record: Trajectories, timestep: jax.Array) -> tuple[jax.Array, Any]:
    """(obs, env_state) before one timestep of each of N episodes, leading axis [N]. timestep: int32 [N]."""
    episode = jnp.arange(timestep.shape[0])
    return jax.tree.map(lambda x: x[timestep, episode], (record.obs, record.env_state))


def init(key: jax.Array, obs: jax.Array, env_state: Any, config: RNDConfig = _RND) -> RICEState:
    """What `PPOState.aux` must be: K critical states, and a fresh network for the bonus.

    Raises:
      ValueError: no critical state, or not as many states as observations.
    """
    K = obs.shape[0]
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(env_state)}
    if K < 1 or sizes != {K}:
        raise ValueError(f"{K} observations and {sizes} states; there must be as many of both, and at least one")
    return RICEState(obs, restarted(env_state), rnd.init(key, obs.shape[1:], config))


def restarted(env_state: Any) -> Any:
    """The same states at the beginning of their episodes' time."""
    if not hasattr(env_state, "time"):
        return env_state
    # A restart in the middle of a game has the whole time limit before it.
    return env_state.replace(time=jnp.zeros_like(env_state.time))


def hooks(probability: float = 0.5, config: RNDConfig = _RND) -> Hooks:
    """Both halves of RICE as hooks of PPO, whose `aux` is a `RICEState`.

    Args:
      probability: p, of a start in a critical state.

    Raises:
      ValueError: it is not a probability.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability}; it must lie in [0, 1]")

    def reset(aux, key, obs, env_state):
        key_kind, key_which = jax.random.split(key)
        index = jax.random.randint(key_which, (), 0, aux.obs.shape[0])
        # A mix of restarts: a stored critical state with probability p, else the game's own start.
        critical = jax.random.bernoulli(key_kind, probability)
        stored = jax.tree.map(lambda x: x[index], (aux.obs, aux.env_state))
        return jax.tree.map(lambda new, old: jnp.where(critical, new, old), stored, (obs, env_state))

    def bonus(aux, steps, obs_moments):
        del obs_moments
        paid, learned, metrics = rnd.reward(aux.rnd, steps, config)
        return paid, aux.replace(rnd=learned), metrics

    return Hooks(reset=reset, bonus=bonus)
