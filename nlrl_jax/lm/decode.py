"""Replies in the making: rows that write one token per step, until enough of them have ended.

    rows = decode(model, variables, rows, ..., stop_at=16)    # until 16 rows are free, or the slots are used up

All rows write into one cache slot per step, so a row that comes in later has its prompt put right before that slot
(`kv_rows.admit`). What a row says depends on its own prompt and draw number only, not on its row, its neighbours or
when it came in (up to the rounding of matrix products of another shape).

Letters: R rows, W cache slots, N new tokens at most, P prefix tokens, H width, K key/value heads, D head size,
V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from nlrl_jax.lm import acting, products
from nlrl_jax.lm.cache import Cache, HeadKeyValues, KeyValues, States, empty_states, num_slots, prefix_length
from nlrl_jax.lm.sampling import DrawSampling, sample_draw, sample_token
from nlrl_jax.lm.sharding import shardings, spec
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling


class Rows(NamedTuple):
    """Replies in the making.

    kv: a cache of R rows with W slots; index: int32 [], the slot that the next step writes, in all rows.
    start: int32 [R], the slot of a row's first prompt token; `index - start` slots of a row are in use.
    draw: int32 [R], the number that a row's randomness comes from.
    last: int32 [R], the newest token, which the next step reads and puts into the cache.
    tokens: int32 [R, N], zeros after the end; lengths: int32 [R], the end token included.
    log_probs: float32 [R, N], of the tokens at temperature 1, without top-k and top-p.
    limit: int32 [R], tokens at most.
    ended: bool [R], an end token was written.
    """

    kv: KeyValues | HeadKeyValues
    index: jax.Array
    start: jax.Array
    draw: jax.Array
    last: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    log_probs: jax.Array
    limit: jax.Array
    ended: jax.Array


_KV_AXES = {
    KeyValues: (None, "batch", None, "kv_heads", None),
    HeadKeyValues: (None, "kv_heads", "batch", None, None),
}
_STATE_AXES = States((None, "batch", None, None), (None, "batch", "heads", None, None))


def placed_kv(kv: KeyValues | HeadKeyValues, mesh: Mesh | None) -> KeyValues | HeadKeyValues:
    """A cache on the devices of its rows and heads, as far as they divide."""
    if mesh is None:
        return kv

    def specs(axes, arrays):  # an array, or one for each layer
        return jax.tree.map(lambda _: spec(axes), arrays)

    axes = _KV_AXES[type(kv)]
    states = None if kv.states is None else States(*map(specs, _STATE_AXES, kv.states))
    kv_specs = type(kv)(specs(axes, kv.k), specs(axes, kv.v), states)
    return jax.lax.with_sharding_constraint(kv, shardings(kv, kv_specs, mesh))


def placed(rows: Rows, mesh: Mesh | None) -> Rows:
    """The same of rows; what a host reads is on all devices."""
    if mesh is None:
        return rows
    small = rows._replace(kv=None)
    specs = jax.tree.map(lambda _: PartitionSpec(), small)
    return jax.lax.with_sharding_constraint(small, shardings(small, specs, mesh))._replace(kv=placed_kv(rows.kv, mesh))


def running(rows: Rows) -> jax.Array:
    """bool [R]: neither ended nor at its limit."""
    return ~rows.ended & (rows.lengths < rows.limit)


def empty_rows(model: Transformer, num: int, slots: int, max_tokens: int) -> Rows:
    """R = `num` free rows with W = `slots` and N = `max_tokens`."""
    zeros = jnp.zeros((num,), jnp.int32)
    c = model.config
    kv = jnp.zeros((c.num_attention_layers, c.num_kv_heads, num, slots, c.head_dim), c.dtype)
    tokens = jnp.zeros((num, max_tokens), jnp.int32)
    log_probs, ended = jnp.zeros((num, max_tokens)), jnp.zeros((num,), bool)
    state = jnp.int32(0), zeros, zeros, zeros, tokens, zeros, log_probs, zeros, ended
    return placed(Rows(HeadKeyValues(kv, kv, empty_states(c, num)), *state), model.mesh)


def decode(
    model: Transformer,
    variables: Any,
    rows: Rows,
    key: jax.Array,
    stop_at: jax.Array,
    sampling: Sampling,
    end_tokens: jax.Array,
    prefix: KeyValues | None = None,
    temperature: jax.Array | None = None,
    draws: DrawSampling | None = None,
) -> Rows:
    """Writes tokens until `stop_at` of the R rows do not run, or all W slots are used.

    Args:
      key: of the whole call; token i of a row is drawn from fold_in(fold_in(key, draw), i). Or [draws, N]: from
        key[draw, i].
      stop_at: int32 [].
      sampling: `max_tokens` is not read: each row has its limit.
      end_tokens: bool [V], tokens that end a reply.
      prefix: the one that comes before the prompts.
      temperature: float [], in place of `sampling.temperature`, unless that is greedy.
      draws: how each draw is sampled, in place of `sampling` and `temperature`.
    """
    W, before = num_slots(rows.kv), prefix_length(prefix)
    # Where attention takes most of a step.
    in_span = isinstance(rows.kv, HeadKeyValues) and products.on_cpu(model.mesh) and not acting.is_large(model.config)

    def step(rows):
        positions, valid = next_inputs(model, rows, W, before)
        first = jnp.min(jnp.where(running(rows), rows.start, rows.index)) if in_span else None
        cache = Cache(rows.kv, rows.index, first)
        hidden, cache = model.apply(variables, rows.last[:, None], positions, valid=valid, cache=cache, prefix=prefix)
        rows = rows._replace(kv=cache.kv, index=cache.index)
        arguments = hidden[:, -1], key, sampling, end_tokens, temperature, draws
        return placed(write(model, variables, rows, *arguments), model.mesh)

    kv, prefix = rows.kv, acting.own_prefix(variables, prefix)
    rows = rows._replace(kv=acting.own_slots(variables, kv, rows.tokens.shape[0]))
    rows = jax.lax.while_loop(lambda rows: goes_on(rows, stop_at, W), step, rows)
    return placed(rows._replace(kv=acting.joined_slots(kv, rows.kv)), model.mesh)


def goes_on(rows: Rows, stop_at: jax.Array, W: int) -> jax.Array:
    """bool []: whether there is a next step."""
    return (jnp.sum(~running(rows)) < stop_at) & (rows.index < W)


def next_inputs(model: Transformer, rows: Rows, W: int, before: int) -> tuple[jax.Array, jax.Array]:
    """Positions int32 [R, 1] of the newest tokens, after so many of the prefix, and bool [R, W], which slots hold one.

    All rows write slot `index` in the same step: prompts are right-aligned, so positions differ by row.
    """
    slots = jnp.arange(W)
    valid = slots >= rows.start[:, None]  # slots after `index` are masked by the cache itself
    if model.config.num_linear_layers:  # rows that have ended are stepped beside others: their states stay
        valid &= running(rows)[:, None] | (slots != rows.index)
    return (before + rows.index - rows.start)[:, None], valid


def write(
    model: Transformer,
    variables: Any,
    rows: Rows,
    hidden: jax.Array,
    key: jax.Array,
    sampling: Sampling,
    end_tokens: jax.Array,
    temperature: jax.Array | None = None,
    draws: DrawSampling | None = None,
) -> Rows:
    """Draws each running row's next token from `hidden` [R, H]; arguments as in `decode`."""

    def draw_token(draw, i, logits):
        token_key = key[draw, i] if key.ndim else jax.random.fold_in(jax.random.fold_in(key, draw), i)
        if draws is not None:
            return sample_draw(token_key, logits, jax.tree.map(lambda values: values[draw], draws))
        return sample_token(token_key, logits[None], sampling, temperature)[0]

    logits = model.apply(variables, hidden, method="unembed")
    runs, tokens = running(rows), jax.vmap(draw_token)(rows.draw, rows.lengths, logits)
    log_probs = jnp.take_along_axis(logits, tokens[:, None], axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    here = runs[:, None] & (jnp.arange(rows.tokens.shape[1]) == rows.lengths[:, None])
    return rows._replace(
        last=jnp.where(runs, tokens, rows.last),
        tokens=jnp.where(here, tokens[:, None], rows.tokens),
        lengths=rows.lengths + runs,
        log_probs=jnp.where(here, log_probs, rows.log_probs),
        ended=rows.ended | (runs & end_tokens[tokens]),
    )
