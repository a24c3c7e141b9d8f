"""The choice of a token from logits. V vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nlrl_jax.types import Sampling


def sample_token(
    key: jax.Array, logits: jax.Array, sampling: Sampling, temperature: jax.Array | None = None
) -> jax.Array:
    """One token a row, logits [B, V] -> int32 [B]. `temperature` replaces that of `sampling`, unless it is greedy."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / (sampling.temperature if temperature is None else temperature)
    ids = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, ids = jax.lax.top_k(logits, sampling.top_k)
    elif sampling.top_p < 1:
        logits, ids = jax.lax.top_k(logits, logits.shape[-1])
    if sampling.top_p < 1:
        # Keep a token while the probability *before* it is below top_p: the first one always stays.
        probs = jax.nn.softmax(logits, axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs
        logits = jnp.where(before < sampling.top_p, logits, -jnp.inf)
    choice = jax.random.categorical(key, logits, axis=-1)
    if ids is not None:
        choice = jnp.take_along_axis(ids, choice[:, None], axis=-1)[:, 0]
    return choice.astype(jnp.int32)
