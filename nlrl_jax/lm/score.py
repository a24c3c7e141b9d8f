"""Log-probabilities of given replies, without ever building a [B, L, V] array.

Letters: B batch, S prompt bucket, N reply tokens, H model width, V vocabulary, C chunk.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nlrl_jax.lm.generate import prefix_length
from nlrl_jax.lm.transformer import KeyValues, Transformer

CHUNK_ELEMENTS = 2**24  # logits held at once: 64 MiB in float32


def score(
    model: Transformer,
    variables: Any,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    replies: jax.Array,
    prefix: KeyValues | None = None,
    temperature: float = 1.0,
) -> jax.Array:
    """log p(reply token | prompt, earlier reply tokens) -> float32 [B, N]. Differentiable.

    Entries after a reply's end are the log-probabilities of its padding: mask them.

    Args:
      prompts: int32 [B, S], left-padded; with a prefix, the part after it.
      prompt_lengths: int32 [B], at least 1 (the token before the reply predicts its first token).
      replies: int32 [B, N], right-padded.
      temperature: divides the logits.
    """
    S, P = prompts.shape[1], prefix_length(prefix)
    tokens = jnp.concatenate([prompts, replies], axis=1)[:, :-1]  # the last token predicts nothing we need
    pad = (S - prompt_lengths)[:, None]
    slots = jnp.arange(tokens.shape[1])[None, :]
    positions = P + jnp.maximum(slots - pad, 0)
    hidden, _ = model.apply(variables, tokens, positions, valid=slots >= pad, prefix=prefix)
    return token_log_probs(model, variables, hidden[:, S - 1 :], replies, temperature)


def token_log_probs(
    model: Transformer,
    variables: Any,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> jax.Array:
    """log softmax(unembed(hidden) / temperature)[targets] -> float32 [B, N], in chunks of tokens.

    The backward pass recomputes a chunk's logits instead of keeping them.

    Args:
      hidden: [B, N, H].
      targets: int32 [B, N].
      chunk: tokens at a time; by default as many as keep C * V below `CHUNK_ELEMENTS`.
    """

    def of_chunk(hidden_c, targets_c):
        logits = model.apply(variables, hidden_c, method="unembed") / temperature
        picked = jnp.take_along_axis(logits, targets_c[:, None], axis=-1)[:, 0]
        return picked - jax.nn.logsumexp(logits, axis=-1)

    B, N, H = hidden.shape
    total = B * N
    chunk = chunk or max(1, CHUNK_ELEMENTS // model.config.vocab_size)
    hidden, targets = hidden.reshape(total, H), targets.reshape(total)
    if total <= chunk:
        return of_chunk(hidden, targets).reshape(B, N)
    chunks = -(-total // chunk)
    hidden = jnp.pad(hidden, ((0, chunks * chunk - total), (0, 0))).reshape(chunks, chunk, H)
    targets = jnp.pad(targets, (0, chunks * chunk - total)).reshape(chunks, chunk)
    remat = jax.checkpoint(of_chunk, prevent_cse=False)
    _, log_probs = jax.lax.scan(lambda _, x: (None, remat(*x)), None, (hidden, targets))
    return log_probs.reshape(-1)[:total].reshape(B, N)
