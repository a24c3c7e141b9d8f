"""Several seeds of one run as one program.

many = over_seeds(update, vectorize=True)
states = stack([init_state(..., key) for key in keys])
states, metrics = jax.jit(many)(states, keys)      # metrics: each [n]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def stack(states: Sequence[Any]) -> Any:
    """n states as one with a leading axis [n] on everything but `params`, which they share."""
    params = states[0].params
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state.replace(params=None) for state in states))
    return stacked.replace(params=params)


def over_seeds(update: Callable[..., tuple[Any, dict[str, jax.Array]]], vectorize: bool) -> Callable[..., Any]:
    """`update(state, key)` for a stack of states and one key each: (states, keys [n]) -> (states, metrics [n]).

    The states share their frozen `params`, of which there is one copy.

    Args:
      vectorize: all seeds at once (`jax.vmap`): what an accelerator with memory to spare wants. Otherwise one after
        the other inside the program (`jax.lax.map`), which gives the bits of single runs and takes the memory of one.
    """

    def many(states: Any, keys: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        def one(state_and_key):
            state, key = state_and_key
            state, metrics = update(state.replace(params=states.params), key)
            return state.replace(params=None), metrics

        stacked = (states.replace(params=None), keys)
        new, metrics = jax.vmap(one)(stacked) if vectorize else jax.lax.map(one, stacked)
        return new.replace(params=states.params), metrics

    return many
