"""Rewards designed by hand for the games of ULTRA, from steps with fields [T, B, ...] as `ppo.Transitions` has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from envs.pong import OBSERVED

_SPEED = OBSERVED.index("column velocity")


def pong_return(steps: Any) -> jax.Array:
    """1 where our racket returns the ball, else 0: float32 [T, B].

    The ball came to us before the step and flies away after it. A serve never looks like that: the ball is served to
    us after a point lost to a ball that came, and to the opponent after one won with a ball that flew away.

    Raises:
      ValueError: the observations are not Pong's six numbers.
    """
    if steps.obs.shape[2:] != (len(OBSERVED),):
        raise ValueError(f"observations have shape {steps.obs.shape[2:]}; Pong's numbers have ({len(OBSERVED)},)")
    returned = (steps.obs[..., _SPEED] > 0) & (steps.next_obs[..., _SPEED] < 0)
    return returned.astype(jnp.float32)


def stretches(steps: Any, length: float = 1.0, dt: float = 0.05) -> jax.Array:
    """How many further stretches of the way lie behind the robot after a step: float [T, B], mostly 0.

    Line k stands at x = k * length, k = 1, 2, ...; crossing one pays 1, falling back over it costs 1, so that nothing
    is earned by swinging across it: an episode earns as many as it has got behind it at its end.

    Args:
      length: of a stretch, metres.
      dt: seconds a step (Ant: 0.05); the way of a step is dt * info["reward_forward"].
    """
    behind = lambda x: jnp.maximum(jnp.floor(x / length), 0.0)
    x = steps.info["x_position"]
    # An exploded step reports neither a place nor a speed, and so pays nothing.
    return behind(x) - behind(x - dt * steps.info["reward_forward"])
