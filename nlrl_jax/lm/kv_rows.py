"""Device programs of `backends.engine`: keys and values of texts move between a pool and rows that are read or written.

    kv = load(pool, slots)                                          # what is known of some texts
    hidden, kv = read(model, variables, kv, tokens, index, start)   # their next tokens
    pool = store(pool, kv, source, slots)                           # what is new
    rows = begin(model, pool, slots, FreshRows(...), ...)           # rows with texts, to be continued by `decode`
    rows = admit(rows, load(pool, slots), FreshRows(...), ...)      # texts into rows that have become free
    rows = bring_together(rows, which)                              # the rows that still run, into a smaller batch

The pool holds one token per slot, and snapshots: the states of linear layers as they are after whole texts. Rows are
right-aligned: a text's last token stands in the last of its S slots, so that all rows of a program read or write the
same slot.

Letters: A texts, R rows, S slots of a text, C tokens of a chunk, W slots of a row, P prefix tokens, Z slots of the
pool, Q tokens that are stored or scored, U distinct hidden states, K key/value heads, D head size, H width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nlrl_jax.lm.cache import Cache, HeadKeyValues, KeyValues, empty_states, num_slots, prefix_length
from nlrl_jax.lm.decode import Rows, placed, placed_kv
from nlrl_jax.lm.transformer import Transformer


class FreshRows(NamedTuple):
    """What rows take, int32 [R] each.

    source: the text of each row; -1 keeps the row as it is, and what the others say of it is not read.
    lengths: tokens of its text, with the last one, without the prefix.
    last: its text's last token, which the first step of decoding reads.
    draw: see `Rows.draw`.
    """

    source: jax.Array
    lengths: jax.Array
    last: jax.Array
    draw: jax.Array


def empty_pool(model: Transformer, slots: int, prefix: KeyValues | None = None, snapshots: int = 1) -> HeadKeyValues:
    """Keys and values [layers, K, Z, D] of no token; on a mesh whole on each of its devices.

    Snapshots of states [layers, snapshots, ...] are those of a text without tokens, after the prefix; the first stays.
    """
    c = model.config
    zeros = jnp.zeros((c.num_attention_layers, c.num_kv_heads, slots, c.head_dim), c.dtype)
    pool = HeadKeyValues(zeros, zeros.copy(), empty_states(c, snapshots, prefix))
    if model.mesh is not None:
        pool = jax.lax.with_sharding_constraint(pool, NamedSharding(model.mesh, PartitionSpec()))
    return pool


def moved(larger: HeadKeyValues, pool: HeadKeyValues) -> HeadKeyValues:
    """A larger, empty pool with what is in another, in the same slots."""
    k, v = (new.at[:, :, : old.shape[2]].set(old) for new, old in zip(larger[:2], pool))
    states = jax.tree.map(lambda new, old: new.at[:, : old.shape[1]].set(old), larger.states, pool.states)
    return HeadKeyValues(k, v, states)


def load(
    pool: HeadKeyValues, slots_AS: jax.Array, mesh: Mesh | None = None, snapshots_A: jax.Array | None = None
) -> HeadKeyValues:
    """Keys and values [layers, K, A, S, D] of slots int32 [A, S]; any token's where a slot is -1.

    Args:
      snapshots_A: int32, of the states of each text; the first if None.
    """
    chex.assert_rank(slots_AS, 2)
    if pool.states is not None and snapshots_A is None:
        snapshots_A = jnp.zeros(len(slots_AS), jnp.int32)

    def gather(t):
        layers, K, Z, D = t.shape
        # With one axis in front XLA's gather on the CPU is 2.5 times as fast as with two.
        tokens = t.reshape(layers * K, Z, D).at[:, slots_AS].get(mode="clip")
        return tokens.reshape(layers, K, *slots_AS.shape, D)

    states = pool.states and jax.tree.map(lambda t: t.at[:, snapshots_A].get(mode="clip"), pool.states)
    return placed_kv(HeadKeyValues(gather(pool.k), gather(pool.v), states), mesh)


def store(
    pool: HeadKeyValues,
    kv: HeadKeyValues,
    source_Q: jax.Array,
    slots_Q: jax.Array,
    mesh: Mesh | None = None,
    snapshots_A: jax.Array | None = None,
) -> HeadKeyValues:
    """The pool with token `source_Q[q]` of kv [layers, K, A, S, D], counted over A * S, in slot `slots_Q[q]`.

    A slot, or a snapshot, past the end of the pool is nowhere: padding.

    Args:
      snapshots_A: int32, for the states of each text; none is stored if None.
    """
    chex.assert_rank([source_Q, slots_Q], 1)

    def whole(new):
        return new if mesh is None else jax.lax.with_sharding_constraint(new, NamedSharding(mesh, PartitionSpec()))

    def put(old, t):
        tokens = t.reshape(*t.shape[:2], -1, t.shape[-1])[:, :, source_Q]
        return whole(old.at[:, :, slots_Q].set(tokens, mode="drop"))

    def put_states(old, t):
        return whole(old.at[:, snapshots_A].set(t, mode="drop"))

    states = pool.states if snapshots_A is None else jax.tree.map(put_states, pool.states, kv.states)
    return HeadKeyValues(put(pool.k, kv.k), put(pool.v, kv.v), states)


def read(
    model: Transformer,
    variables: Any,
    kv: HeadKeyValues,
    tokens_AC: jax.Array,
    index: jax.Array,
    start_A: jax.Array,
    prefix: KeyValues | None = None,
    valid_AS: jax.Array | None = None,
) -> tuple[jax.Array, HeadKeyValues]:
    """Reads a chunk of each text -> (hidden states [A, C, H], `kv` with the chunk in it).

    Args:
      kv: [layers, K, A, S, D], what is known up to slot `index`, with the states at that slot.
      tokens_AC: int32, the tokens of slots `index` to `index` + C.
      index: int32 []. start_A: int32, the slot of each text's first token; what stands before it is padding.
      prefix: what comes before all texts.
      valid_AS: bool, the slots that hold a token, where there may be a gap between those that are known, which end
        before the first chunk, and the new ones, which end with the last; `start_A` is then the first token's slot as
        if there was none. A recurrent layer takes no token twice, so such a text's known tokens are in no chunk.
    """
    chex.assert_rank([tokens_AC, index, start_A], [2, 0, 1])
    start_A1, slots_C, slots_S = start_A[:, None], index + jnp.arange(tokens_AC.shape[1]), jnp.arange(num_slots(kv))
    positions_AC = prefix_length(prefix) + jnp.maximum(slots_C - start_A1, 0)
    valid_AS = slots_S >= start_A1 if valid_AS is None else valid_AS
    cache = Cache(kv, index)
    hidden_ACH, cache = model.apply(variables, tokens_AC, positions_AC, valid=valid_AS, cache=cache, prefix=prefix)
    return hidden_ACH, placed_kv(cache.kv, model.mesh)


def next_log_probs(
    model: Transformer, variables: Any, hidden_ACH: jax.Array, where_U: jax.Array, row_Q: jax.Array, target_Q: jax.Array
) -> jax.Array:
    """log p(target_Q[q] | the text up to its token where_U[row_Q[q]], counted over A * C) -> float32 [Q]."""
    chex.assert_rank([hidden_ACH, where_U, row_Q, target_Q], [3, 1, 1, 1])
    hidden_UH = hidden_ACH.reshape(-1, hidden_ACH.shape[-1])[where_U]
    logits_UV = model.apply(variables, hidden_UH, method="unembed")
    return logits_UV[row_Q, target_Q] - jax.nn.logsumexp(logits_UV, axis=-1)[row_Q]


def likeliest(
    model: Transformer, variables: Any, hidden_ACH: jax.Array, where_U: jax.Array, num: int
) -> tuple[jax.Array, jax.Array]:
    """The `num` likeliest tokens after each token where_U, counted over A * C -> ids int32 [U, num], log p of them."""
    chex.assert_rank([hidden_ACH, where_U], [3, 1])
    hidden_UH = hidden_ACH.reshape(-1, hidden_ACH.shape[-1])[where_U]
    logits_UV = model.apply(variables, hidden_UH, method="unembed")
    logits_UK, ids_UK = jax.lax.top_k(logits_UV, min(num, logits_UV.shape[-1]))
    # As in `next_log_probs`, so that a token in the list has there the number that it has by itself.
    return ids_UK, logits_UK - jax.nn.logsumexp(logits_UV, axis=-1, keepdims=True)


def admit(
    rows: Rows, kv: HeadKeyValues, new: FreshRows, limit: jax.Array, index: jax.Array, mesh: Mesh | None = None
) -> Rows:
    """Puts texts into rows and moves the cache so that the next step writes slot `index`.

    Args:
      kv: [layers, K, A, S, D], the texts, right-aligned; what stands in a text's last slot is not read, and its states
        are those before that slot.
      limit: int32 [], tokens of a new reply at most (N or fewer).
      index: int32 [], S - 1 or more, and at least `rows.index - rows.start` of each row that still runs.
      mesh: the model's, where all of this lies.
    """
    chex.assert_rank([*new, limit, index], [1, 1, 1, 1, 0, 0])
    S = num_slots(kv)
    is_new_R, text_R, move = new.source >= 0, jnp.maximum(new.source, 0), index - rows.index

    def insert(old, texts):
        # A text's last slot is the one that its first step writes again.
        corner = (0, 0, 0, index + 1 - S, 0)
        window = jax.lax.dynamic_slice(old, corner, (*old.shape[:3], S, old.shape[4]))
        window = jnp.where(is_new_R[:, None, None], texts[:, :, text_R], window)
        return jax.lax.dynamic_update_slice(old, window, corner)

    def insert_states(old, texts):  # [layers, R, ...] and [layers, A, ...]: a state has no slots to move
        return jnp.where(is_new_R.reshape(1, -1, *[1] * (old.ndim - 2)), texts[:, text_R], old)

    def roll_layer(i, kv):
        # What wraps around lies outside of every running row.
        return [t.at[i].set(jnp.roll(t[i], move, axis=2)) for t in kv]

    def fresh(old, value):
        return jnp.where(is_new_R.reshape(-1, *[1] * (old.ndim - 1)), value, old)

    # By layer and in place: with all layers at once, or under a `cond`, XLA copies the cache even if nothing moves.
    layers = jnp.where(move == 0, 0, rows.kv.k.shape[0])
    rolled = jax.lax.fori_loop(0, layers, roll_layer, list(rows.kv[:2]))
    states = rows.kv.states and jax.tree.map(insert_states, rows.kv.states, kv.states)
    after = Rows(
        kv=HeadKeyValues(*map(insert, rolled, kv[:2]), states),
        index=index,
        start=fresh(jnp.maximum(rows.start + move, 0), index + 1 - new.lengths),
        draw=fresh(rows.draw, new.draw),
        last=fresh(rows.last, new.last),
        tokens=fresh(rows.tokens, 0),
        lengths=fresh(rows.lengths, 0),
        log_probs=fresh(rows.log_probs, 0.0),
        limit=fresh(rows.limit, limit),
        ended=fresh(rows.ended, False),
    )
    return placed(after, mesh)


def begin(
    model: Transformer,
    pool: HeadKeyValues,
    slots_RS: jax.Array,
    new: FreshRows,
    limit: jax.Array,
    max_tokens: int,
    snapshots_R: jax.Array | None = None,
) -> Rows:
    """Rows with texts in them, as `admit` makes them of `empty_rows` and `load`, in one pass over the cache.

    Args:
      slots_RS: int32, of each row's text, right-aligned; -1 where there is no token, and in all of a free row.
      limit: see `admit`. max_tokens: N.
      snapshots_R: see `load`.
    """
    R, S = slots_RS.shape
    known = load(pool, slots_RS, snapshots_A=snapshots_R)
    k, v = (jnp.pad(t, ((0, 0), (0, 0), (0, 0), (0, max_tokens), (0, 0))) for t in known[:2])
    is_new, zeros = new.source >= 0, jnp.zeros(R, jnp.int32)
    return Rows(
        kv=HeadKeyValues(k, v, known.states),
        index=jnp.int32(S - 1),
        start=jnp.where(is_new, S - new.lengths, S - 1),
        draw=jnp.where(is_new, new.draw, 0),
        last=jnp.where(is_new, new.last, 0),
        tokens=jnp.zeros((R, max_tokens), jnp.int32),
        lengths=zeros,
        log_probs=jnp.zeros((R, max_tokens)),
        limit=jnp.where(is_new, limit, 0),
        ended=jnp.zeros(R, bool),
    )


def bring_together(rows: Rows, which_r: jax.Array, mesh: Mesh | None = None) -> Rows:
    """The rows of these numbers, int32 [r], as a smaller batch; R, the number of all, is a row that does not run."""
    chosen = jax.tree.map(lambda t: t.at[which_r].get(mode="clip"), rows._replace(kv=None, index=None))
    chosen = chosen._replace(limit=jnp.where(which_r < len(rows.limit), chosen.limit, 0), index=rows.index)
    k, v = (t.at[:, :, which_r].get(mode="clip") for t in rows.kv[:2])
    states = rows.kv.states and jax.tree.map(lambda t: t.at[:, which_r].get(mode="clip"), rows.kv.states)
    return placed(chosen._replace(kv=HeadKeyValues(k, v, states)), mesh)
