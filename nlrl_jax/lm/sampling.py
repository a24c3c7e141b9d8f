"""The choice of a token from logits. V vocabulary.

From a large vocabulary a token is drawn by one random number: a V-th of what the Gumbel trick of
`jax.random.categorical` needs, whose numbers take nearly as long as the product with the head on a CPU.
Logits of half precision are drawn from in float32: Gumbel noise of their type never draws most of the words
(findings/jax_categorical_in_half_precision.sh), and sums of their type lose some.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nlrl_jax.arrays import single_or_wider
from nlrl_jax.types import Sampling

LARGE = 8192  # words from which on one random number is drawn, not one for each
_PARTS = 512  # at most, in which a large vocabulary is summed up


class DrawSampling(NamedTuple):
    """How each of several draws is sampled, in one program for all values.

    temperature: float32 [draws]; 0 is greedy.
    top_k: int32 [draws], 0 is no limit; top_p: float32 [draws]. Both None where no draw has a limit, as sorting a
      vocabulary costs more than anything else here.
    """

    temperature: jax.Array
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None


def sample_draw(key: jax.Array, logits_V: jax.Array, sampling: DrawSampling) -> jax.Array:
    """One token, int32 []; `sampling` is that of one draw, without its leading axis."""
    greedy = jnp.argmax(logits_V, axis=-1)
    scaled_V, ids_V = single_or_wider(logits_V) / jnp.where(sampling.temperature > 0, sampling.temperature, 1), None
    if sampling.top_k is not None:
        V = logits_V.shape[-1]
        scaled_V, ids_V = jax.lax.top_k(scaled_V, V)
        most = jnp.where(sampling.top_k > 0, sampling.top_k, V)
        scaled_V = jnp.where(jnp.arange(V) < most, scaled_V, -jnp.inf)
        scaled_V = _within_top_p(scaled_V, sampling.top_p)
    choice = _choose(key, scaled_V[None])[0]
    if ids_V is not None:
        choice = ids_V[choice]
    return jnp.where(sampling.temperature > 0, choice, greedy).astype(jnp.int32)


def sample_token(
    key: jax.Array, logits: jax.Array, sampling: Sampling, temperature: jax.Array | None = None
) -> jax.Array:
    """One token a row, logits [B, V] -> int32 [B].

    `temperature` replaces that of `sampling`, unless it is greedy; 0 is greedy too, in the program of the others.
    """
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if temperature is not None:
        greedy = jnp.argmax(logits, axis=-1)
    logits = single_or_wider(logits)
    logits = logits / (sampling.temperature if temperature is None else jnp.where(temperature > 0, temperature, 1))
    ids = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, ids = jax.lax.top_k(logits, sampling.top_k)
    elif sampling.top_p < 1:
        logits, ids = jax.lax.top_k(logits, logits.shape[-1])
    if sampling.top_p < 1:
        logits = _within_top_p(logits, sampling.top_p)
    choice = _choose(key, logits)
    if ids is not None:
        choice = jnp.take_along_axis(ids, choice[:, None], axis=-1)[:, 0]
    if temperature is not None:
        choice = jnp.where(temperature > 0, choice, greedy)
    return choice.astype(jnp.int32)


def _within_top_p(sorted_logits: jax.Array, top_p: jax.Array | float) -> jax.Array:
    """Keeps a token while the probability *before* it is below top_p: the first one always stays."""
    probs = jax.nn.softmax(sorted_logits, axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs
    return jnp.where(before < top_p, sorted_logits, -jnp.inf)


def _choose(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Draws from softmax(logits [B, V]) -> [B]."""
    return (_draw if logits.shape[-1] >= LARGE else jax.random.categorical)(key, logits)


def _draw(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Draws from softmax(logits [B, V]) by the inverse of its cumulative sums: a part of the vocabulary, then a word.

    The parts of a vocabulary that is a multiple of a power of two lie on one device each where devices share it.
    """
    B, V = logits.shape
    # Two levels: cumulative sums of K parts and of one part's words, not of all V words.
    K = min(V & -V, _PARTS)  # parts: the largest power of two that divides V
    if K < 16:
        K = 128
        logits = jnp.pad(logits, ((0, 0), (0, -V % K)), constant_values=-jnp.inf)
    # Without dividing by the sum: the random number is scaled instead.
    p = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True)).reshape(B, K, -1)
    sums = jnp.sum(p, axis=-1)
    part, rest = _place(sums, jax.random.uniform(key, (B, 1)) * jnp.sum(sums, axis=-1, keepdims=True))
    chosen = jnp.sum(jnp.where(jnp.arange(K)[:, None] == part[..., None], p, 0), axis=1)  # its p [B, V / K]
    return (part * p.shape[-1] + _place(chosen, rest)[0])[:, 0]


def _place(p: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where x [B, 1] lies in the cumulative sums of p [B, n] -> (place [B, 1], never where p is 0; x from there on)."""
    upto = jnp.cumsum(p, axis=-1)
    last = p.shape[-1] - 1 - jnp.argmax(jnp.flip(p, axis=-1) > 0, axis=-1, keepdims=True)  # for rounding
    at = jnp.minimum(jnp.sum(upto <= x, axis=-1, keepdims=True), last)
    return at, x - jnp.take_along_axis(upto - p, at, axis=-1)
