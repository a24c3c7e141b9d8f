"""Random network distillation (Burda et al. 2018): a reward for novel states.

    state = ppo.init_state(env, env_params, config, key, aux=rnd.init(key, obs_shape))
    update = ppo.make_update(env, env_params, config, rnd.hooks())

A predictor learns the outputs of a fixed random network; its squared error at s_{t+1} is the novelty of step t. Widths
and rate are those of RICE's code (FACTS.md): target in-128-64, predictor in-128-128-64, Adam with 1e-3, weight 0.01.

LLM-RND (ULTRA, section 4.3) is `hooks(critical=...)`: only steps taken in critical states earn the bonus. To give
each seed its own table, make the update inside the function that `vmap` maps, and close over the table there.

Departures and choices:
- Novelty is divided by its running root mean square, so that the bonus is about the weight at first and falls with
  novelty. (Burda et al. divide by the deviation of discounted novelty; RICE's code rescales each step's novelties to
  [0, 1]; the deviation alone would blow up errors that are all alike.)
- One critic serves both rewards, and novelty ends with the episode, as in RICE. (Burda et al. have two critics.)
- Observations are normalised by moments of their own, which include a batch before it is rewarded: PPO's do not move
  where it does not normalise. Normalised values are clipped to +-5, as in Burda et al.
- The predictor learns from all steps of the batch it has just rewarded, once, in minibatches; also where only critical
  states earn the bonus.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from nlrl_jax.algorithms.ppo import Hooks, Transitions
from nlrl_jax.arrays import flat_steps
from nlrl_jax.config import check, option
from nlrl_jax.networks import RunningMoments, tower

_LIMIT = 5.0  # of normalised observations


@dataclasses.dataclass(frozen=True)
class RNDConfig:
    """Hyperparameters of random network distillation."""

    coefficient: float = option(0.01, "weight of the bonus relative to the environment's reward", least=0)
    learning_rate: float = option(1e-3, "Adam's learning rate", least=0)
    num_minibatches: int = option(4, "gradient steps per batch", least=1)
    width: int = option(128, "width of the hidden layers", least=1)
    outputs: int = option(64, "number of random features", least=1)

    def __post_init__(self):
        check(self)


@flax.struct.dataclass
class RNDState:
    """target, predictor: parameters. opt_state: the predictor's. obs_moments, error_moments: running statistics."""

    target: Any
    predictor: Any
    opt_state: Any
    obs_moments: RunningMoments
    error_moments: RunningMoments


def init(key: jax.Array, obs_shape: tuple[int, ...], config: RNDConfig = RNDConfig()) -> RNDState:
    """Fresh networks for observations of this shape."""
    key_target, key_predictor = jax.random.split(key)
    x = jnp.zeros((1, math.prod(obs_shape)))
    target, predictor = _networks(config)
    params = predictor.init(key_predictor, x)
    opt_state = optax.adam(config.learning_rate).init(params)
    return RNDState(target.init(key_target, x), params, opt_state, RunningMoments.of(obs_shape), RunningMoments.of())


def novelty(rnd: RNDState, obs: jax.Array, config: RNDConfig = RNDConfig()) -> jax.Array:
    """The predictor's mean squared error at raw observations: [N, ...] -> [N]."""
    return _errors(rnd.predictor, rnd.target, _normalized(rnd, obs), config)


def reward(
    rnd: RNDState,
    steps: Transitions,
    config: RNDConfig = RNDConfig(),
    critical: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, RNDState, dict[str, jax.Array]]:
    """(bonus [T, B], the state after learning from these steps, metrics).

    Metrics: "novelty" (mean, unscaled), "bonus" (mean, as paid), "rewarded" (share of steps that can earn it).

    Raises:
      ValueError: T x B is not a multiple of `num_minibatches`.
    """
    T, B = steps.reward.shape
    N, parts = T * B, config.num_minibatches
    if N % parts:
        raise ValueError(f"{T} steps x {B} environments do not divide into {parts} minibatches")
    obs = flat_steps(steps.next_obs)
    # 1. Statistics that include this batch; 2. its errors; 3. their running root mean square; 4. the predictor learns.
    rnd = rnd.replace(obs_moments=rnd.obs_moments.update(obs))
    x = _normalized(rnd, obs)
    errors = _errors(rnd.predictor, rnd.target, x, config)
    moments = rnd.error_moments.update(errors)
    # sqrt(E[e^2]), from variance and mean.
    bonus = config.coefficient * errors / (jnp.sqrt(moments.var + moments.mean**2) + 1e-8)
    paid = jnp.ones(N, bool) if critical is None else critical(flat_steps(steps.obs))
    bonus = jnp.where(paid, bonus, 0.0)

    def minibatch(carry, x):
        params, opt_state = carry
        grads = jax.grad(lambda p: jnp.mean(_errors(p, rnd.target, x, config)))(params)
        updates, opt_state = optax.adam(config.learning_rate).update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    # Every `parts`-th row, so that each minibatch spans all of the time.
    batches = x.reshape(N // parts, parts, -1).swapaxes(0, 1)
    (predictor, opt_state), _ = jax.lax.scan(minibatch, (rnd.predictor, rnd.opt_state), batches)
    rnd = rnd.replace(predictor=predictor, opt_state=opt_state, error_moments=moments)
    metrics = {"novelty": jnp.mean(errors), "bonus": jnp.mean(bonus), "rewarded": jnp.mean(paid)}
    return bonus.reshape(T, B), rnd, metrics


def hooks(config: RNDConfig = RNDConfig(), critical: Callable[[jax.Array], jax.Array] | None = None) -> Hooks:
    """The bonus as a hook of PPO, whose `aux` is an `RNDState`.

    Args:
      critical: raw observations [N, ...] -> bool [N], where a step can earn the bonus (LLM-RND); everywhere, if None.
    """

    def bonus(rnd, steps, obs_moments):
        del obs_moments
        return reward(rnd, steps, config, critical)

    return Hooks(bonus=bonus)


def _networks(config):
    """(target, predictor), of one and two hidden layers."""
    return tuple(tower((config.width,) * n, config.outputs, math.sqrt(2.0), activation=nn.relu) for n in (1, 2))


def _normalized(rnd, obs):
    return rnd.obs_moments.normalize(obs, _LIMIT).reshape(obs.shape[0], -1)


def _errors(predictor_params, target_params, x, config):
    target, predictor = _networks(config)
    # The target network stays as it was drawn.
    targets = jax.lax.stop_gradient(target.apply(target_params, x))
    return jnp.mean((predictor.apply(predictor_params, x) - targets) ** 2, axis=-1)
