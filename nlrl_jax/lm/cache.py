"""Keys and values of tokens that the decoder has read.

Letters: B batch, S cache slots, P prefix tokens, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nlrl_jax.lm.config import ModelConfig


class KeyValues(NamedTuple):
    """Keys and values of all layers.

    As a cache: [layers, B, S, K, D], or a tuple with [1, B, S, K, D] per layer. As a shared prefix: [layers, P, K, D],
    no batch axis, or a tuple with [P, K, D] per layer.
    """

    k: jax.Array
    v: jax.Array


class HeadKeyValues(NamedTuple):
    """A cache with the heads in front: [layers, K, B, S, D], or a tuple with [1, K, B, S, D] per layer.

    Attention reads it as it lies. From `KeyValues` XLA:CPU copies all keys and values of a layer for every token, which
    takes six times as long as attention itself; programs that keep their cache from call to call have this one.
    """

    k: jax.Array
    v: jax.Array


def prefix_length(prefix: KeyValues | None) -> int:
    """P, or 0 without a prefix."""
    return 0 if prefix is None else prefix.k.shape[1]


class Cache(NamedTuple):
    """Key/value slots of a batch; `index` is the slot where the next token is written.

    It may have more rows than the tokens that it is given with: those use its first rows.
    """

    kv: KeyValues | HeadKeyValues
    index: jax.Array  # int32 []


def num_slots(kv: KeyValues | HeadKeyValues) -> int:
    """S of a cache's keys and values."""
    return jax.tree.leaves(kv)[0].shape[3 if isinstance(kv, HeadKeyValues) else 2]


def empty_cache(config: ModelConfig, batch: int, slots: int) -> Cache:
    """A cache with no token in it. Shapes: see `KeyValues`."""
    shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Cache(KeyValues(zeros, zeros), jnp.zeros((), jnp.int32))
