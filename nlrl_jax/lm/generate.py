"""Sampling of replies to a batch of prompts that begin together, one program in which little is computed for nothing.

Equal prompts are read once. The rows that still write are kept in front, and decoding goes on with the next smaller
size as soon as they fit: each of a few sizes is one loop of the program. What a row says depends on its prompt, the key
and its number in the batch only (up to the rounding of matrix products of another shape).

Letters: B batch, S prompt bucket, N new tokens at most, P prefix tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nlrl_jax.lm.cache import KeyValues, States, empty_cache, prefix_length
from nlrl_jax.lm.decode import Rows, decode, placed_kv, running, write
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling

SHRINK = 0.6  # a size by the one before it: smaller steps save a few row steps, and every loop takes time to compile
SMALLEST = 6  # the smallest size is about a 6th of the batch
READ = 8  # prompts are read in blocks of an 8th of the batch


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
    """Keys and values [layers, P, K, D], and states, of a prefix that all rows share; None for an empty one.

    Differentiable: gradients with respect to `variables` flow through it exactly.
    """
    tokens = jnp.asarray(tokens, jnp.int32)
    if tokens.shape[0] == 0:
        return None
    positions = jnp.arange(tokens.shape[0])
    _, kv = model.apply(variables, tokens[None], positions[None], collect=True)
    return jax.tree.map(lambda t: t[:, 0], kv)


def prefill(
    model: Transformer, variables: Any, prompts: jax.Array, lengths: jax.Array, prefix: KeyValues | None = None
) -> tuple[KeyValues, jax.Array]:
    """Reads left-padded prompts int32 [M, S] of `lengths` [M] (each at least 1), after the prefix.

    Returns: keys and values [layers, M, S, K, D], with the states, and the hidden states [M, H] of the last tokens.
    """
    S = prompts.shape[1]
    slots, pad = jnp.arange(S), (S - lengths)[:, None]
    positions = prefix_length(prefix) + jnp.maximum(slots - pad, 0)
    hidden, kv = model.apply(variables, prompts, positions, valid=slots >= pad, prefix=prefix, collect=True)
    return placed_kv(kv, model.mesh), hidden[:, -1]


def row_sizes(batch: int, mesh: Mesh | None = None) -> tuple[int, ...]:
    """The numbers of rows that decoding goes through, from `batch` down.

    Only `batch` on several devices: if they share the rows, bringing these together would move keys and values.
    """
    if mesh is not None and mesh.size > 1:
        return (batch,)
    sizes = [batch]
    while sizes[-1] > max(1, batch // SMALLEST):
        size = sizes[-1] * SHRINK
        sizes.append(16 * round(size / 16) if size > 16 else int(size))
    return tuple(sizes)


def row_steps(lengths: jax.Array, mesh: Mesh | None = None) -> jax.Array:
    """Rows that `generate` computed in all of its decoding steps, int32 [...], for replies of `lengths` [..., B].

    Of these, max(lengths - 1, 0) were needed: reading a prompt gives a reply's first token.
    """
    sizes = jnp.array(row_sizes(lengths.shape[-1], mesh)[::-1])
    ranked = jnp.sort(lengths, axis=-1, descending=True)  # more than n rows write while there are ranked[n] tokens
    at_least = jnp.maximum(ranked[..., jnp.concatenate([jnp.zeros(1, int), sizes[:-1]])] - 1, 0)
    steps = at_least - jnp.concatenate([at_least[..., 1:], jnp.zeros_like(at_least[..., :1])], axis=-1)
    return jnp.sum(steps * sizes, axis=-1)


def row_use(lengths: jax.Array, mesh: Mesh | None = None) -> jax.Array:
    """Share of `row_steps` that wrote a token of a reply, float32 []; 1 without any step."""
    computed = jnp.sum(row_steps(lengths, mesh))
    return jnp.where(computed > 0, jnp.sum(jnp.maximum(lengths - 1, 0)) / jnp.maximum(computed, 1), 1.0)


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
      key: split into one for each row and token.
      eos_ids: tokens that end a reply.
      prefix: keys and values of what comes before every prompt.
      active: bool [B]; rows that are False generate nothing (length 0).
    """
    B, S = prompts.shape
    N, sizes = sampling.max_tokens, row_sizes(B, model.mesh)
    active = jnp.ones((B,), bool) if active is None else active
    end_tokens = jnp.isin(jnp.arange(model.config.vocab_size), jnp.asarray(eos_ids))
    if len(sizes) == 1:
        order = jnp.arange(B)
        kv, hidden = _read_all(model, variables, prompts, lengths, N, prefix)
    else:
        order = jnp.argsort(~active)  # rows that write first: the smaller loops decode the front of the batch
        kv, hidden = _read_distinct(model, variables, prompts, lengths, N, prefix, active, order)
    keys = jax.random.split(key, (B, N))  # here: each of the loops below would compile it again
    zeros = jnp.zeros((B,), jnp.int32)
    rows = Rows(
        kv=kv,
        index=jnp.int32(S),
        start=(S - lengths)[order],
        draw=order,
        last=zeros,
        tokens=jnp.zeros((B, N), jnp.int32),
        lengths=zeros,
        log_probs=jnp.zeros((B, N)),
        limit=jnp.where(active, N, 0)[order],
        ended=zeros > 0,
    )
    rows = write(model, variables, rows, hidden, keys, sampling, end_tokens)
    # Each loop ends when its running rows fit the next size; the last one when none runs.
    for size, smaller in zip(sizes, (*sizes[1:], 0)):
        rows = _bring_to_front(rows, size) if size < B else rows
        front = decode(
            model, variables, _first(rows, size), keys, jnp.int32(size - smaller), sampling, end_tokens, prefix
        )
        rows = _join(rows, front)
    back = jnp.argsort(rows.draw)  # a row's draw is its number in the batch
    return Completion(*(x[back] for x in (rows.tokens, rows.lengths, rows.log_probs, rows.ended)))


def _read_all(model, variables, prompts, lengths, N, prefix) -> tuple[KeyValues, jax.Array]:
    """Keys and values of all prompts, with N more slots, and the hidden states [B, H] of their last tokens."""
    B, S = prompts.shape
    slots, pad = jnp.arange(S + N), (S - lengths)[:, None]
    positions = prefix_length(prefix) + jnp.maximum(slots[:S] - pad, 0)
    cache = empty_cache(model.config, B, S + N, prefix)._replace(index=np.int32(0))  # known: see `blockwise.Blocks`
    hidden, cache = model.apply(variables, prompts, positions, valid=slots >= pad, cache=cache, prefix=prefix)
    return cache.kv, hidden[:, -1]


def _read_distinct(model, variables, prompts, lengths, N, prefix, active, order) -> tuple[KeyValues, jax.Array]:
    """The same in the given order of rows; each distinct prompt of the active rows is read once, in blocks."""
    B, S = prompts.shape
    block = -(-B // READ)
    identities = jnp.concatenate([prompts, lengths[:, None]], axis=1)
    equal = jnp.all(identities[:, None] == identities, axis=-1) & active
    first = jnp.argmax(equal, axis=1)  # the first row with this prompt
    distinct = active & (first == jnp.arange(B))
    reading_order, place = jnp.argsort(~distinct), jnp.cumsum(distinct) - 1

    def unread(carry):
        return carry[0] < jnp.sum(distinct)

    def read_block(carry):
        n, kv, hidden = carry
        at = jnp.minimum(n, B - block)  # the last block is moved back to be whole; it reads some prompts again
        these = jax.lax.dynamic_slice_in_dim(reading_order, at, block)
        block_kv, block_hidden = prefill(model, variables, prompts[these], lengths[these], prefix)

        def put(cache, new):
            return jax.lax.dynamic_update_slice(cache, new, (0, at) + (0,) * (cache.ndim - 2))

        return n + block, jax.tree.map(put, kv, block_kv), hidden.at[at + jnp.arange(block)].set(block_hidden)

    config = model.config
    kv, hidden = empty_cache(config, B, S + N).kv, jnp.zeros((B, config.hidden_size), config.dtype)
    _, kv, hidden = jax.lax.while_loop(unread, read_block, (jnp.int32(0), kv, hidden))
    source = jnp.maximum(place[first[order]], 0)  # inactive rows take anything: their limit is 0
    return _take_rows(kv, source, slots=S), hidden[source]


def _take_rows(
    kv: KeyValues, source: jax.Array, size: int | None = None, moves: jax.Array | None = None, slots: int | None = None
) -> KeyValues:
    """Puts the first `size` rows of `source` in front, in place: all layers at once would take the memory twice.

    Args:
      moves: bool [], whether to; always if None.
    """

    def each_layer(take, stacks):
        n = len(stacks[0])
        return n if moves is None else jnp.where(moves, n, 0), take, list(stacks)

    def take(i, t, slots=None):
        rows = jax.lax.dynamic_index_in_dim(t, i)[:, :, :slots].take(source, axis=1, mode="clip")
        return jax.lax.dynamic_update_slice(t, rows, (i, *[0] * (t.ndim - 1)))

    loops = [each_layer(lambda i, kv: [take(i, t, slots) for t in kv], kv[:2])]
    if kv.states is not None:
        loops.append(each_layer(lambda i, states: [take(i, t) for t in states], kv.states))
    source = source[:size]
    (k, v), *states = (jax.lax.fori_loop(0, *loop) for loop in loops)
    return KeyValues(k, v, States(*states[0]) if states else None)


def _bring_to_front(rows: Rows, size: int) -> Rows:
    """Brings the running rows, at most `size`, into the first `size` places."""
    runs = running(rows)
    moves = jnp.any(runs[size:])
    order = jnp.where(moves, jnp.argsort(~runs), jnp.arange(len(runs)))
    kv = _take_rows(rows.kv, order, size, moves)
    return jax.tree.map(lambda x: x[order], rows._replace(kv=None, index=None))._replace(kv=kv, index=rows.index)


def _first(rows: Rows, size: int) -> Rows:
    """The first rows. All keys and values stay where they are: the model uses those of the rows it is given."""
    front = jax.tree.map(lambda x: x[:size], rows._replace(kv=None, index=None))
    return front._replace(kv=rows.kv, index=rows.index)


def _join(rows: Rows, front: Rows) -> Rows:
    """`rows` with the first ones as they are in `front`."""
    joined = jax.tree.map(
        lambda all_rows, new: all_rows.at[: len(new)].set(new),
        rows._replace(kv=None, index=None),
        front._replace(kv=None, index=None),
    )
    return joined._replace(kv=front.kv, index=front.index)
