"""Grouped-query attention over a shared prefix and a row's own keys, and rotary embeddings.

Letters: B batch, L queries, S own key slots, P prefix tokens, K key/value heads, R query heads per
key/value head, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.config import ModelConfig, RopeScaling

MASKED = -1e30  # finite, so that a row with no visible key stays finite


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """What Llama-3.1's scaling multiplies each of the D / 2 rotary frequencies with, float64 [D / 2]."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_max_positions / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)  # 0: long wavelengths, divided; 1: short ones, kept
    return (1 - smooth) / scaling.factor + smooth


def rotary_tables(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for `positions` [B, L] as float32 [B, L, 1, D / 2]."""
    frequencies = 1.0 / config.rope_theta ** (np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    if config.rope_scaling is not None:
        frequencies = frequencies * llama3_factors(config.rope_scaling, config.rope_theta, config.head_dim)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Half-split rotary embedding of x [B, L, heads, D], in float32, returned in x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """Softmax attention of q over (prefix, own keys) as one distribution.

    The prefix has no batch axis: its scores are one matrix product for the whole batch and its keys
    are never copied per row.

    Args:
      q: [B, L, K * R, D].
      k, v: [B, S, K, D].
      mask: bool [B, L, S], True where the query sees the key. The prefix is visible to all.
      prefix: k and v of the shared prefix, each [P, K, D].

    Returns: [B, L, K * R, D] in q's dtype.
    """
    B, L, heads, D = q.shape
    K = k.shape[2]
    R = heads // K
    # Key/value heads first: every product below is then a plain batch of matrix products, with the
    # prefix too, and only the small operands are transposed, never the scores.
    q = (q * jnp.asarray(D**-0.5, q.dtype)).reshape(B, L, K, R, D).transpose(2, 0, 3, 1, 4).reshape(K, B, R * L, D)
    k, v = k.transpose(2, 0, 1, 3), v.transpose(2, 0, 1, 3)
    scores = jnp.einsum("kbqd,kbsd->kbqs", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(jnp.tile(mask, (1, R, 1)), scores, MASKED)
    if prefix is None:
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        out = jnp.einsum("kbqs,kbsd->kbqd", weights, v)
    else:
        prefix_k, prefix_v = (t.transpose(1, 0, 2) for t in prefix)
        P = prefix_k.shape[1]
        prefix_scores = jnp.einsum("kbqd,kpd->kbqp", q, prefix_k, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.concatenate([prefix_scores, scores], axis=-1), axis=-1).astype(v.dtype)
        out = jnp.einsum("kbqp,kpd->kbqd", weights[..., :P], prefix_v)
        out = out + jnp.einsum("kbqs,kbsd->kbqd", weights[..., P:], v)
    return out.reshape(K, B, R, L, D).transpose(1, 3, 0, 2, 4).reshape(B, L, heads, D)


class Context(NamedTuple):
    """Keys and values that groups of queries share, each query a beginning of them.

    Queries are numbered `row * L + place in the row`. In a model call k and v have a leading layers axis.

    k, v: [K, G, C, D].
    members: int32 [G, N], the queries of each group; any number where `visible` is 0.
    visible: int32 [G, N], how many of the C keys each of them sees.
    place: int32 [B * L], where each query stands in `members` (group * N + member); -1: in no group.
    """

    k: jax.Array
    v: jax.Array
    members: jax.Array
    visible: jax.Array
    place: jax.Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """G, C, N."""
        return *self.members.shape[:1], self.k.shape[-2], *self.members.shape[1:]


def attend_contexts(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, contexts: tuple[Context, ...]
) -> jax.Array:
    """`attend` over (contexts, own keys) as one distribution. Keys of a context are read once for a whole group.

    Args:
      q, k, v, mask: see `attend`; every query must see one of its own keys.
    """
    B, L, heads, D = q.shape
    K = k.shape[2]
    R = heads // K
    q = (q * jnp.asarray(D**-0.5, q.dtype)).reshape(B * L, K, R, D)
    rows = q.reshape(B, L, K, R, D).transpose(2, 0, 1, 3, 4).reshape(K, B, L * R, D)
    out, top, total = _partial(rows, k.transpose(2, 0, 1, 3), v.transpose(2, 0, 1, 3), jnp.repeat(mask, R, axis=1))
    # [K, B, L * R, ...] to [B * L, K, R, ...]
    parts = [tuple(t.reshape(K, B * L, R, *t.shape[3:]).swapaxes(0, 1) for t in (out, top, total))]
    for context in contexts:
        G, N = context.members.shape
        own = q[context.members].transpose(2, 0, 1, 3, 4).reshape(K, G, N * R, D)
        visible = jnp.arange(context.k.shape[2]) < context.visible[..., None]
        out, top, total = _partial(own, context.k, context.v, jnp.repeat(visible, R, axis=1))
        out, top, total = (
            t.reshape(K, G * N, R, *t.shape[3:])[:, context.place].swapaxes(0, 1) for t in (out, top, total)
        )
        parts.append((out, jnp.where((context.place >= 0)[:, None, None], top, MASKED), total))
    highest = jnp.stack([top for _, top, _ in parts]).max(0)
    shares = [jnp.exp(top - highest) for _, top, _ in parts]
    total = sum(part[2] * share for part, share in zip(parts, shares))
    out = sum(part[0] * share[..., None] for part, share in zip(parts, shares)) / total[..., None]
    return out.astype(q.dtype).reshape(B, L, heads, D)


def _partial(q, k, v, mask):
    """Softmax without its division: (sum of weighted values, highest score, sum of weights), all float32.

    q [K, G, Q, D]; k, v [K, G, S, D]; mask [G, Q, S]. Without a visible key the highest score is `MASKED`.
    """
    scores = jnp.einsum("kgqd,kgsd->kgqs", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores, MASKED)
    top = scores.max(-1)
    weights = jnp.exp(scores - top[..., None])
    out = jnp.einsum("kgqs,kgsd->kgqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out, top, weights.sum(-1)
