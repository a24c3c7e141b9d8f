"""Generation that can stop, take new rows in and go on: `generate` for a host that always has more prompts waiting.

    block = prefill(model, variables, prompts, lengths)           # distinct prompts, once each
    rows = admit(empty_rows(...), block, source, ...)             # into free rows
    rows = decode(model, variables, rows, ..., stop_at=16)        # until 16 rows are free, or the slots are used up

All rows write into one cache slot per step, so a row that comes in later has its prompt put right before that slot.
What a row says depends on its own prompt and draw number only, not on its row, its neighbours or when it came in
(up to the rounding of matrix products of another shape).

Letters: R rows, M prompts of a prefill, S prompt bucket, W cache slots, N new tokens at most, P prefix tokens, H width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from nlrl_jax.lm import acting
from nlrl_jax.lm.attention import Context
from nlrl_jax.lm.sampling import sample_token
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.sharding import shardings, spec
from nlrl_jax.lm.transformer import Cache, KeyValues, Transformer, empty_cache, prefix_length
from nlrl_jax.types import Sampling

WAIT = 8  # tokens that `reply` writes at least while a row runs: bringing fewer rows together has its price


class Prefilled(NamedTuple):
    """Prompts that have been read.

    kv: [layers, M, S, K, D], at the right end of the bucket.
    last: int32 [M], each prompt's last token; hidden: [M, H], its final hidden state.
    lengths: int32 [M], tokens of each prompt (without the prefix).
    """

    kv: KeyValues
    last: jax.Array
    hidden: jax.Array
    lengths: jax.Array


class Rows(NamedTuple):
    """Replies in the making.

    kv: [layers, R, W, K, D]; index: int32 [], the slot that the next step writes, in all rows.
    start: int32 [R], the slot of a row's first prompt token; `index - start` slots of a row are in use.
    draw: int32 [R], the number that a row's randomness comes from.
    last: int32 [R], the newest token, which the next step reads and puts into the cache.
    tokens: int32 [R, N], zeros after the end; lengths: int32 [R], the end token included.
    log_probs: float32 [R, N], of the tokens at temperature 1, without top-k and top-p.
    limit: int32 [R], tokens at most.
    ended: bool [R], an end token was written.
    """

    kv: KeyValues
    index: jax.Array
    start: jax.Array
    draw: jax.Array
    last: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    log_probs: jax.Array
    limit: jax.Array
    ended: jax.Array


_KV = (None, "batch", None, "kv_heads", None)


def _placed(tree: Prefilled | Rows, mesh: Mesh | None) -> Any:
    """Keys and values on the devices of their rows and heads, as far as they divide; what a host reads, on all."""
    if mesh is None:
        return tree
    specs = jax.tree.map(lambda _: PartitionSpec(), tree)._replace(kv=jax.tree.map(lambda _: spec(_KV), tree.kv))
    return jax.lax.with_sharding_constraint(tree, shardings(tree, specs, mesh))


def running(rows: Rows) -> jax.Array:
    """bool [R]: neither ended nor at its limit."""
    return ~rows.ended & (rows.lengths < rows.limit)


def empty_rows(model: Transformer, num: int, slots: int, max_tokens: int) -> Rows:
    """R = `num` free rows with W = `slots` and N = `max_tokens`."""
    zeros = jnp.zeros((num,), jnp.int32)
    kv, index = empty_cache(model.config, num, slots)
    tokens = jnp.zeros((num, max_tokens), jnp.int32)
    log_probs, ended = jnp.zeros((num, max_tokens)), jnp.zeros((num,), bool)
    return _placed(Rows(kv, index, zeros, zeros, zeros, tokens, zeros, log_probs, zeros, ended), model.mesh)


def prefill(
    model: Transformer, variables: Any, prompts: jax.Array, lengths: jax.Array, prefix: KeyValues | None = None
) -> Prefilled:
    """Reads left-padded prompts int32 [M, S] of `lengths` [M] (each at least 1), after the prefix."""
    S = prompts.shape[1]
    slots, pad = jnp.arange(S), (S - lengths)[:, None]
    positions = prefix_length(prefix) + jnp.maximum(slots - pad, 0)
    hidden, kv = model.apply(variables, prompts, positions, valid=slots >= pad, prefix=prefix, collect=True)
    return _placed(Prefilled(kv, prompts[:, -1], hidden[:, -1], lengths), model.mesh)


def admit(
    rows: Rows,
    block: Prefilled,
    source: jax.Array,
    draw: jax.Array,
    limit: jax.Array,
    index: jax.Array,
    mesh: Mesh | None = None,
) -> Rows:
    """Puts prompts into rows and moves the cache so that the next step writes slot `index`.

    Args:
      source: int32 [R], the prompt of the block that a row takes; -1 keeps the row as it is.
      draw: int32 [R], see `Rows`. Read where `source` is not -1.
      limit: int32 [], tokens of a new row at most (N or fewer).
      mesh: the model's, where all of this lies.
      index: int32 [], S - 1 or more, and at least `rows.index - rows.start` of each row that still runs.
    """
    S = block.kv.k.shape[2]
    new, at = source >= 0, jnp.maximum(source, 0)
    move = index - rows.index

    def insert(old, read):
        # A prompt's last slot is the one that its first step writes again.
        begin = (0, 0, index + 1 - S, 0, 0)
        window = jax.lax.dynamic_slice(old, begin, (*old.shape[:2], S, *old.shape[3:]))
        window = jnp.where(new[:, None, None, None], read[:, at], window)
        return jax.lax.dynamic_update_slice(old, window, begin)

    def roll_layer(i, kv):
        # What wraps around lies outside of every running row.
        return [t.at[i].set(jnp.roll(t[i], move, axis=1)) for t in kv]

    # By layer and in place: with all layers at once, or under a `cond`, XLA copies the cache even if nothing moves.
    layers = jnp.where(move == 0, 0, rows.kv.k.shape[0])
    rolled = jax.lax.fori_loop(0, layers, roll_layer, list(rows.kv))
    fresh = lambda old, value: jnp.where(new.reshape(-1, *[1] * (old.ndim - 1)), value, old)
    after = Rows(
        kv=KeyValues(*map(insert, rolled, block.kv)),
        index=index,
        start=fresh(jnp.maximum(rows.start + move, 0), index + 1 - block.lengths[at]),
        draw=fresh(rows.draw, draw),
        last=fresh(rows.last, block.last[at]),
        tokens=fresh(rows.tokens, 0),
        lengths=fresh(rows.lengths, 0),
        log_probs=fresh(rows.log_probs, 0.0),
        limit=fresh(rows.limit, limit),
        ended=fresh(rows.ended, False),
    )
    return _placed(after, mesh)


def go_on(
    model: Transformer,
    variables: Any,
    rows: Rows,
    source: jax.Array,
    begin: jax.Array,
    kept: jax.Array,
    tokens: jax.Array,
    new: jax.Array,
    last: jax.Array,
    draw: jax.Array,
    limit: jax.Array,
    slots: int,
    max_tokens: int,
    prefix: KeyValues | None = None,
) -> Rows:
    """R rows, fresh ones, with the texts of some of `rows` and what comes after them.

    Args:
      source: int32 [R], the row that each takes its text from: `kept` [R] tokens, from slot `begin` [R] on.
      tokens: int32 [R, C], right-padded: what each reads after them, `new` [R] of them.
      last: int32 [R], the token after those, which the first step reads. draw, limit: int32 [R], see `Rows`.
      slots: what a text's end is moved to, at least `kept + new`; `max_tokens` more are free.
      prefix: what all of them come after.
    """
    (R, C), W = tokens.shape, rows.kv.k.shape[2]
    kv = KeyValues(*(jnp.pad(t[:, source], ((0, 0), (0, 0), (0, C), (0, 0), (0, 0))) for t in rows.kv))
    at, column = jnp.arange(W + C), lambda x: x[:, None]
    valid = (at >= column(begin)) & (at < column(begin + kept)) | (at >= W) & (at < W + column(new))
    positions = prefix_length(prefix) + column(kept) + jnp.arange(C)
    cache = Cache(kv, np.int32(W))
    _, cache = model.apply(variables, tokens, positions, valid=valid, cache=cache, prefix=prefix)
    place = jnp.arange(slots) - column(slots - kept - new)  # in the text
    where = jnp.clip(jnp.where(place < column(kept), column(begin) + place, W + place - column(kept)), 0, W + C - 1)
    moved = lambda t: jnp.pad(
        jax.vmap(lambda row, w: row[:, w], (1, 0), 1)(t, where), ((0, 0), (0, 0), (0, max_tokens), (0, 0), (0, 0))
    )
    fresh = empty_rows(model, R, 1, max_tokens)._replace(
        kv=KeyValues(*map(moved, cache.kv)), index=jnp.int32(slots), start=slots - kept - new, draw=draw, last=last
    )
    return _placed(fresh._replace(limit=limit), model.mesh)


def decode(
    model: Transformer,
    variables: Any,
    rows: Rows,
    key: jax.Array,
    stop_at: jax.Array,
    sampling: Sampling,
    ends: jax.Array,
    prefix: KeyValues | None = None,
    temperature: jax.Array | None = None,
    contexts: tuple[Context, ...] = (),
    read: jax.Array | None = None,
    wait: int = 0,
) -> Rows:
    """Writes tokens until `stop_at` of the R rows do not run, or all W slots are used.

    Args:
      key: of the whole call; token i of a row is drawn from fold_in(fold_in(key, draw), i). Or [draws, N]: from
        key[draw, i].
      stop_at: int32 [].
      sampling: `max_tokens` is not read: each row has its limit.
      ends: bool [V], tokens that end a reply.
      prefix: the one that comes before the prompts.
      temperature: float [], in place of `sampling.temperature`, unless that is greedy.
      contexts: what the rows' slots come after, in place of a prefix; then
      read: int32 [R], its tokens for each row.
      wait: slots that are used before it stops while any row runs.
    """
    W = rows.kv.k.shape[2]
    slots, before = jnp.arange(W), prefix_length(prefix) if read is None else read

    def more(rows):
        enough = jnp.where(rows.index < wait, len(rows.limit), stop_at) if wait else stop_at
        return (jnp.sum(~running(rows)) < enough) & (rows.index < W)

    def step(rows):
        positions = (before + rows.index - rows.start)[:, None]
        valid = slots >= rows.start[:, None]
        cache = Cache(rows.kv, rows.index)
        hidden, cache = model.apply(
            variables, rows.last[:, None], positions, valid=valid, cache=cache, prefix=prefix, contexts=contexts
        )
        rows = rows._replace(kv=cache.kv, index=cache.index)
        return _placed(write(model, variables, rows, hidden[:, -1], key, sampling, ends, temperature), model.mesh)

    kv, prefix = rows.kv, acting.own_prefix(variables, prefix)
    rows = jax.lax.while_loop(more, step, rows._replace(kv=acting.own_slots(variables, kv, rows.tokens.shape[0])))
    return _placed(rows._replace(kv=acting.joined_slots(kv, rows.kv)), model.mesh)


def finish(
    model: Transformer,
    variables: Any,
    rows: Rows,
    which: jax.Array,
    key: jax.Array,
    sampling: Sampling,
    ends: jax.Array,
    prefix: KeyValues | None = None,
    temperature: jax.Array | None = None,
) -> Rows:
    """`decode` to the end for the few rows that still run, without the others.

    Args:
      which: int32 [r], their numbers; R, the number of all, is none.
    """
    few = jax.tree.map(lambda x: x.at[which].get(mode="clip"), rows._replace(kv=None, index=None))
    few = few._replace(limit=jnp.where(which < len(rows.limit), few.limit, 0), index=rows.index)
    few = few._replace(kv=KeyValues(*(t.at[:, which].get(mode="clip") for t in rows.kv)))
    few = decode(model, variables, few, key, jnp.int32(len(which)), sampling, ends, prefix, temperature)
    put = lambda old, new: old.at[which].set(new, mode="drop")
    kv = KeyValues(*(old.at[:, which].set(new, mode="drop") for old, new in zip(rows.kv, few.kv)))
    back = jax.tree.map(put, rows._replace(kv=None, index=None), few._replace(kv=None, index=None))
    return back._replace(kv=kv, index=few.index)


def reply(
    model: Transformer,
    variables: Any,
    hidden: jax.Array,
    read: jax.Array,
    rows: Rows,
    key: jax.Array,
    stop_at: jax.Array,
    sampling: Sampling,
    ends: jax.Array,
    contexts: tuple[Context, ...] = (),
    temperature: jax.Array | None = None,
) -> Rows:
    """Goes on with replies whose prompts, and what has been written of them, are wholly in `contexts`.

    Args:
      hidden: [R, H], the final hidden state of each text's last token.
      read: int32 [R], tokens of each text.
      rows: replies as far as they go; kv and index are not read. A row with limit 0 stays empty.
      the others: see `decode`.

    Returns:
      Slot i of a row holds the i-th new token of its reply if i < `index`.
    """
    kv, index = empty_cache(model.config, *rows.tokens.shape)
    rows = _placed(rows._replace(kv=kv, index=index), model.mesh)
    rows = write(model, variables, rows, hidden, key, sampling, ends, temperature)
    return decode(model, variables, rows, key, stop_at, sampling, ends, None, temperature, contexts, read, WAIT)


def write(
    model: Transformer,
    variables: Any,
    rows: Rows,
    hidden: jax.Array,
    key: jax.Array,
    sampling: Sampling,
    ends: jax.Array,
    temperature: jax.Array | None = None,
) -> Rows:
    """Draws each running row's next token from `hidden` [R, H]; arguments as in `decode`."""

    def draw_token(draw, i, logits):
        own = key[draw, i] if key.ndim else jax.random.fold_in(jax.random.fold_in(key, draw), i)
        return sample_token(own, logits[None], sampling, temperature)[0]

    logits = model.apply(variables, hidden, method="unembed")
    runs, tokens = running(rows), jax.vmap(draw_token)(rows.draw, rows.lengths, logits)
    log_probs = jnp.take_along_axis(logits, tokens[:, None], axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    here = runs[:, None] & (jnp.arange(rows.tokens.shape[1]) == rows.lengths[:, None])
    return rows._replace(
        last=jnp.where(runs, tokens, rows.last),
        tokens=jnp.where(here, tokens[:, None], rows.tokens),
        lengths=rows.lengths + runs,
        log_probs=jnp.where(here, log_probs, rows.log_probs),
        ended=rows.ended | (runs & ends[tokens]),
    )


def score_continuations(
    model: Transformer,
    variables: Any,
    block: Prefilled,
    source: jax.Array,
    continuations: jax.Array,
    prefix: KeyValues | None = None,
) -> jax.Array:
    """log p of continuations of prompts that have been read -> float32 [R, C]; entries after a row's end are padding's.

    Args:
      source: int32 [R], the prompt of the block that each row continues.
      continuations: int32 [R, C], right-padded.
    """
    C, S = continuations.shape[1], block.kv.k.shape[2]
    hidden = block.hidden[source][:, None]
    if C > 1:
        room = ((0, 0), (0, 0), (0, C - 1), (0, 0), (0, 0))
        kv = KeyValues(*(jnp.pad(t[:, source], room) for t in block.kv))
        lengths = block.lengths[source][:, None]
        positions = prefix_length(prefix) + lengths + jnp.arange(C - 1)
        valid = jnp.arange(S + C - 1) >= S - lengths
        cache = Cache(kv, jnp.int32(S))
        tokens = continuations[:, :-1]
        later, _ = model.apply(variables, tokens, positions, valid=valid, cache=cache, prefix=prefix)
        hidden = jnp.concatenate([hidden, later], axis=1)
    return token_log_probs(model, variables, hidden, continuations)
