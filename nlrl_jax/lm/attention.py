"""Grouped-query attention over a shared prefix and a row's own keys, and rotary embeddings.

Letters: B batch, L queries, S own key slots, P prefix tokens, K key/value heads, R query heads per
key/value head, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import LinearRopeScaling, RopeScaling

SPANS = 5  # lengths of what `attend_span` reads, at most: each is compiled
MASKED = -1e30  # finite, so that a row with no visible key stays finite


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """What Llama-3.1's scaling multiplies each of the D / 2 rotary frequencies with, float64 [D / 2]."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (scaling.original_max_positions / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)  # 0: long wavelengths, divided; 1: short ones, kept
    return (1 - smooth) / scaling.factor + smooth


def rotary_tables(config: ModelConfig, positions: jax.Array, sliding: bool = False) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for `positions` [B, L] as float32 [B, L, 1, `rotary_dim` / 2], of a full or a sliding layer."""
    theta, scaling = config.rope_theta, config.rope_scaling
    if sliding and config.local_rope_theta is not None:
        theta, scaling = config.local_rope_theta, None
    frequencies = 1.0 / theta ** (np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim)
    if isinstance(scaling, LinearRopeScaling):
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        frequencies = frequencies * llama3_factors(scaling, theta, config.rotary_dim)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Half-split rotary embedding of x [B, L, heads, D], in float32, returned in x's dtype.

    Tables of fewer than D / 2 angles turn the first numbers of a head and leave the others as they are.
    """
    if (turned := 2 * cos.shape[-1]) < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :turned], cos, sin), x[..., turned:]], axis=-1)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None = None,
    prefix_mask: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """Softmax attention of q over (prefix, own keys) as one distribution.

    The prefix has no batch axis: its scores are one matrix product for the whole batch and its keys
    are never copied per row.

    Args:
      q: [B, L, K * R, D].
      k, v: [B, S, K, D].
      mask: bool [B, L, S], True where the query sees the key.
      prefix: k and v of the shared prefix, each [P, K, D].
      prefix_mask: bool [B, L, P], the same of the prefix; all see all of it if None.
      scale: of the products of queries and keys; D**-0.5 if None.

    Returns: [B, L, K * R, D] in q's dtype.
    """
    B, L, heads, D = q.shape
    K = k.shape[2]
    R = heads // K
    # Key/value heads first: every product below is then a plain batch of matrix products, with the
    # prefix too, and only the small operands are transposed, never the scores.
    q = q * jnp.asarray(scale or D**-0.5, q.dtype)
    q = q.reshape(B, L, K, R, D).transpose(2, 0, 3, 1, 4).reshape(K, B, R * L, D)
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
        if prefix_mask is not None:
            prefix_scores = jnp.where(jnp.tile(prefix_mask, (1, R, 1)), prefix_scores, MASKED)
        weights = jax.nn.softmax(jnp.concatenate([prefix_scores, scores], axis=-1), axis=-1).astype(v.dtype)
        out = jnp.einsum("kbqp,kpd->kbqd", weights[..., :P], prefix_v)
        out = out + jnp.einsum("kbqs,kbsd->kbqd", weights[..., P:], v)
    return out.reshape(K, B, R, L, D).transpose(1, 3, 0, 2, 4).reshape(B, L, heads, D)


class Span(NamedTuple):
    """Where the keys are that queries see, int32 [] each: a layer of the cache, and the first and the last slot."""

    layer: jax.Array
    first: jax.Array
    last: jax.Array


def attend_span(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    span: Span,
    prefix: tuple[jax.Array, jax.Array] | None = None,
    prefix_mask: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """`attend` to the slots of a cache that are in use.

    XLA:CPU copies what it reads of a layer out of the cache, which takes twice as long as the products themselves. So
    the time is in proportion to the slots that are read.

    Args:
      k, v: [layers, K, B, S, D]. The others: see `attend`.
    """
    K, B, S, D = k.shape[1:]
    step = -(-S // (64 * SPANS)) * 64
    sizes = [*range(step, S, step), S]

    def of_size(size):
        def read(first):
            start = jnp.minimum(first, S - size)
            corner, shape = (span.layer, 0, 0, start, 0), (1, K, B, size, D)
            # As `attend` takes them; it turns them back, and the compiler leaves out both.
            k_BSKD, v_BSKD = (jax.lax.dynamic_slice(t, corner, shape)[0].transpose(1, 2, 0, 3) for t in (k, v))
            seen = jax.lax.dynamic_slice_in_dim(mask, start, size, axis=2)
            return attend(q, k_BSKD, v_BSKD, seen, prefix, prefix_mask, scale)

        return read

    return jax.lax.switch((span.last - span.first) // step, [of_size(size) for size in sizes], span.first)
