"""Sampling: prefill, an early-exit decode loop, and the shared prefix computed once.

Letters: B batch, S prompt bucket, N new tokens at most, P prefix tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm import acting
from nlrl_jax.lm.transformer import KeyValues, Transformer, empty_cache
from nlrl_jax.types import Sampling


class Completion(NamedTuple):
    """Sampled replies.

    tokens: int32 [B, N], zeros after a row's end.
    lengths: int32 [B], tokens of each reply, its end token included.
    log_probs: float32 [B, N], the model's log-probability of each token (temperature 1, no top-k or
      top-p), zeros after the end.
    ended: bool [B], whether the row wrote an end token (else it met max_tokens).
    """

    tokens: jax.Array
    lengths: jax.Array
    log_probs: jax.Array
    ended: jax.Array


def left_pad(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """Moves each row of right-padded tokens [B, S] to the right end of its bucket."""
    S = tokens.shape[-1]
    source = jnp.arange(S) - (S - lengths)[..., None]
    moved = jnp.take_along_axis(tokens, jnp.maximum(source, 0), axis=-1)
    return jnp.where(source >= 0, moved, 0)


def compute_prefix(model: Transformer, variables: Any, tokens: jax.Array) -> KeyValues | None:
    """Keys and values [layers, P, K, D] of a prefix that all rows share; None for an empty one.

    Differentiable: gradients with respect to `variables` flow through it exactly.
    """
    tokens = jnp.asarray(tokens, jnp.int32)
    if tokens.shape[0] == 0:
        return None
    positions = jnp.arange(tokens.shape[0])
    _, kv = model.apply(variables, tokens[None], positions[None], collect=True)
    return KeyValues(kv.k[:, 0], kv.v[:, 0])


def prefix_length(prefix: KeyValues | None) -> int:
    """P, or 0 without a prefix."""
    return 0 if prefix is None else prefix.k.shape[1]


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


def generate(
    model: Transformer,
    variables: Any,
    prompts: jax.Array,
    lengths: jax.Array,
    key: jax.Array,
    sampling: Sampling,
    eos_ids: tuple[int, ...],
    prefix: KeyValues | None = None,
    active: jax.Array | None = None,
) -> Completion:
    """Samples a reply to each prompt; stops as soon as every row has ended. Pure; jit it with the model static.

    Args:
      variables: {"params": ...} or {"params": ..., "lora": ...}.
      prompts: int32 [B, S], left-padded (see `left_pad`); with a prefix, the part after it.
      lengths: int32 [B], tokens of each prompt.
      key: split once per token.
      eos_ids: tokens that end a reply.
      prefix: keys and values of what comes before every prompt.
      active: bool [B]; rows that are False generate nothing (length 0).
    """
    B, S = prompts.shape
    N, P = sampling.max_tokens, prefix_length(prefix)
    pad = S - lengths  # [B] first real slot of a row
    slots = jnp.arange(S + N)
    valid = slots[None, :] >= pad[:, None]
    eos = jnp.asarray(eos_ids, jnp.int32)
    done = jnp.zeros((B,), bool) if active is None else ~active

    def forward(tokens, first_slot, cache):
        positions = P + jnp.maximum(first_slot + jnp.arange(tokens.shape[1]) - pad[:, None], 0)
        hidden, cache = model.apply(variables, tokens, positions, valid=valid, cache=cache, prefix=prefix)
        return model.apply(variables, hidden[:, -1], method="unembed"), cache

    def pick(i, logits, out):
        tokens = sample_token(jax.random.fold_in(key, i), logits, sampling)
        log_probs = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)
        running = ~out.ended & ~done
        tokens = jnp.where(running, tokens, 0)
        return Completion(
            tokens=out.tokens.at[:, i].set(tokens),
            lengths=out.lengths + running,
            log_probs=out.log_probs.at[:, i].set(jnp.where(running, log_probs, 0.0)),
            ended=out.ended | (running & jnp.isin(tokens, eos)),
        ), tokens

    out = Completion(jnp.zeros((B, N), jnp.int32), jnp.zeros((B,), jnp.int32), jnp.zeros((B, N)), jnp.zeros((B,), bool))
    cache = empty_cache(model.config, B, S + N)._replace(index=np.int32(0))  # known here: see `blockwise.Blocks`
    logits, cache = forward(prompts, 0, cache)
    cache = cache._replace(kv=acting.own_slots(variables, cache.kv, B))
    prefix = acting.own_prefix(variables, prefix)
    out, last = pick(0, logits, out)

    def unfinished(carry):
        i, out, _, _ = carry
        return (i < N) & ~jnp.all(out.ended | done)

    def step(carry):
        i, out, last, cache = carry
        logits, cache = forward(last[:, None], S + i - 1, cache)
        out, last = pick(i, logits, out)
        return i + 1, out, last, cache

    _, out, _, _ = jax.lax.while_loop(unfinished, step, (jnp.int32(1), out, last, cache))
    return out
