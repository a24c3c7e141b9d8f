"""Reading texts that share their beginnings: each token once, with the keys and values of earlier ones in a pool.

    kv = load(pool, slots)                                        # what is known, per group of texts
    hidden, new = read(model, variables, tokens, ..., contexts)   # what is new: a forest, one token per node
    pool = store(pool, new, source, slots)

Letters: T tokens of a read, H width, G groups, C tokens of a context, Q entries that are stored or scored.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nlrl_jax.lm.attention import Context
from nlrl_jax.lm.transformer import KeyValues, Transformer


def empty_pool(model: Transformer, slots: int) -> KeyValues:
    """Keys and values [layers, K, slots, D]."""
    c = model.config
    zeros = jnp.zeros((c.num_layers, c.num_kv_heads, slots, c.head_dim), c.dtype)
    return KeyValues(zeros, zeros.copy())


def load(pool: KeyValues, slots: jax.Array) -> KeyValues:
    """The keys and values of `slots` int32 [G, C] -> [layers, K, G, C, D]."""

    def get(t):
        layers, K, S, D = t.shape
        # With one axis in front XLA's gather on the CPU is 2.5 times as fast as with two.
        rows = t.reshape(layers * K, S, D).at[:, slots].get(mode="promise_in_bounds")
        return rows.reshape(layers, K, *slots.shape, D)

    return KeyValues(*map(get, pool))


def store(pool: KeyValues, new: KeyValues, source: jax.Array, slots: jax.Array) -> KeyValues:
    """Puts token `source[q]` of `new` [layers, A, B, K, D] (counted over A * B) into slot `slots[q]`.

    A slot past the end of the pool is nowhere.
    """

    def put(old, t):
        layers, A, B, K, D = t.shape
        rows = t.reshape(layers, A * B, K, D)[:, source].swapaxes(1, 2)
        return old.at[:, :, slots].set(rows, mode="drop", unique_indices=False)

    return KeyValues(*map(put, pool, new))


def read(
    model: Transformer,
    variables: Any,
    tokens: jax.Array,
    positions: jax.Array,
    ends: jax.Array,
    contexts: tuple[Context, ...] = (),
) -> tuple[jax.Array, KeyValues]:
    """Reads a forest of tokens -> (hidden [T, H], keys and values [layers, 1, T, K, D]).

    Args:
      tokens: int32 [T], the nodes, parents first, each node directly followed by its descendants.
      positions: int32 [T], each node's place in its text.
      ends: int32 [T], one past each node's last descendant.
      contexts: what comes before the roots.
    """
    i = jnp.arange(tokens.shape[0])
    sees = (i <= i[:, None]) & (i[:, None] < ends)
    hidden, kv = model.apply(variables, tokens[None], positions[None], sees=sees[None], contexts=contexts, collect=True)
    return hidden[0], kv


def keep(kept: jax.Array, hidden: jax.Array, where: jax.Array) -> jax.Array:
    """Replaces row i of `kept` by row where[i] of `hidden`, unless that is -1."""
    return jnp.where((where >= 0)[:, None], hidden[where], kept)


def next_log_probs(
    model: Transformer, variables: Any, hidden: jax.Array, where: jax.Array, row: jax.Array, target: jax.Array
) -> jax.Array:
    """log p(target[q] | the text up to node where[row[q]]) -> float32 [Q].

    Args:
      hidden: [T, H]; where: int32 [U], the distinct nodes that are scored; row, target: int32 [Q].
    """
    logits = model.apply(variables, hidden[where], method="unembed")
    return logits[row, target] - jax.nn.logsumexp(logits, axis=-1)[row]
