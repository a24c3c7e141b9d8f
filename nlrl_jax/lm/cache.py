"""What the decoder keeps of tokens that it has read: keys and values, and the states of recurrent layers.

Letters: B batch, S cache slots, P prefix tokens, K key/value heads, D head size; of linear layers V value heads, D key
and E value size of a head, W taps of the convolution, F its channels.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nlrl_jax.lm.config import ModelConfig


class States(NamedTuple):
    """What linear layers (`lm.delta_net`) keep of a row's tokens, however many they are.

    conv: [linear layers, B, W - 1, F], the last inputs of the convolution. memory: float32 [linear layers, B, V, D, E].
    Or tuples with one such array of [1, B, ...] per layer. As those of a shared prefix: without B.
    """

    conv: jax.Array
    memory: jax.Array


class KeyValues(NamedTuple):
    """Keys and values of all layers of attention, and the states of the others.

    As a cache: [layers, B, S, K, D], or a tuple with [1, B, S, K, D] per layer. As a shared prefix: [layers, P, K, D],
    no batch axis, or a tuple with [P, K, D] per layer.
    """

    k: jax.Array
    v: jax.Array
    states: States | None = None  # None where all layers are attention


class HeadKeyValues(NamedTuple):
    """A cache with the heads in front: [layers, K, B, S, D], or a tuple with [1, K, B, S, D] per layer.

    Attention reads it as it lies. From `KeyValues` XLA:CPU copies all keys and values of a layer for every token, which
    takes six times as long as attention itself; programs that keep their cache from call to call have this one.
    """

    k: jax.Array
    v: jax.Array
    states: States | None = None


def prefix_length(prefix: KeyValues | None) -> int:
    """P, or 0 without a prefix."""
    return 0 if prefix is None else prefix.k.shape[1]


class Cache(NamedTuple):
    """Key/value slots of a batch; `index` is the slot where the next token is written.

    It may have more rows than the tokens that it is given with: those use its first rows.

    Attributes:
      index: int32 [].
      first: int32 [], the first slot that any row sees (`attention.attend_span`, of `HeadKeyValues`); None to read all.
    """

    kv: KeyValues | HeadKeyValues
    index: jax.Array
    first: jax.Array | None = None


def num_slots(kv: KeyValues | HeadKeyValues) -> int:
    """S of a cache's keys and values."""
    return jax.tree.leaves(kv.k)[0].shape[3 if isinstance(kv, HeadKeyValues) else 2]


def empty_states(config: ModelConfig, batch: int, prefix: KeyValues | None = None) -> States | None:
    """The states of rows that have read nothing, or a shared prefix; None where all layers are attention."""
    if not config.num_linear_layers:
        return None
    if prefix is not None:
        return States(*(jnp.broadcast_to(t[:, None], (t.shape[0], batch, *t.shape[1:])) for t in prefix.states))
    n, layers = config.delta_net, config.num_linear_layers
    conv = jnp.zeros((layers, batch, n.conv_width - 1, n.channels), config.dtype)
    return States(conv, jnp.zeros((layers, batch, n.num_value_heads, n.key_head_dim, n.value_head_dim), jnp.float32))


def empty_cache(config: ModelConfig, batch: int, slots: int, prefix: KeyValues | None = None) -> Cache:
    """A cache with no token in it, of rows that come after a prefix. Shapes: see `KeyValues`."""
    shape = (config.num_attention_layers, batch, slots, config.num_kv_heads, config.head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Cache(KeyValues(zeros, zeros, empty_states(config, batch, prefix)), jnp.zeros((), jnp.int32))
