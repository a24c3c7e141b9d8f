"""A sampling temperature that rises while returns stagnate (MS-GRPO, "Discussion").

The paper proposes the idea and no rule. Ours: a fast and a slow average of the iterations' mean return; as long as the
fast one is not ahead, the temperature grows by a factor each iteration up to a limit, else it falls back to its base.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

FAST, SLOW = 0.8, 0.95  # weights of the past
FACTOR = 1.02  # of the temperature, an iteration
AHEAD = 0.02  # by how much the fast average must lead, in units of the return


class Stagnation(NamedTuple):
    """temperature: of the next iteration. fast, slow: averages of the mean return. seen: iterations. All scalars."""

    temperature: jax.Array
    fast: jax.Array
    slow: jax.Array
    seen: jax.Array


def init_stagnation(temperature: float) -> Stagnation:
    """Nothing seen yet."""
    return Stagnation(jnp.float32(temperature), jnp.float32(0), jnp.float32(0), jnp.int32(0))


def adapt(state: Stagnation, mean_return: jax.Array, base: float, limit: float) -> Stagnation:
    """After an iteration: a temperature in [base, limit]."""
    first = state.seen == 0
    fast = jnp.where(first, mean_return, FAST * state.fast + (1 - FAST) * mean_return)
    slow = jnp.where(first, mean_return, SLOW * state.slow + (1 - SLOW) * mean_return)
    stagnates = fast < slow + AHEAD
    temperature = jnp.where(stagnates, state.temperature * FACTOR, state.temperature / FACTOR)
    return Stagnation(jnp.clip(temperature, base, limit), fast, slow, state.seen + 1)
