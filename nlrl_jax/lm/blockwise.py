"""Attention in blocks of queries and keys: the scores [L, S] of a long text never exist at once, forwards or backwards.

The softmax over the keys is summed up block by block: M. Rabe and C. Staats, "Self-attention does not need O(n^2)
memory", 2021, arXiv:2112.05682. Its gradient makes each block of scores again, from queries, keys and the logarithm of
the sum of a query's weights: T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135, algorithms 1 and 4. Here they are
plain XLA, for any device, mesh and `vmap`, and pairs of blocks beyond the diagonal are left out, or beyond a window.

Letters: B batch, L queries, S own key slots, P prefix tokens, K key/value heads, R query heads per key/value head,
D head size; N blocks of C queries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nlrl_jax.lm.attention import MASKED
from nlrl_jax.lm.sharding import RULES, devices_of, platform_of

LONG = {"cpu": 500}  # queries and keys from which on it is done in blocks: on a CPU rows of 512 tokens take half the
LONG_ELSEWHERE = 2000  # time; on an H100 rows of 2,048 read and write less memory, rows of 1,024 more (docs/lab)
SCORES = {"cpu": 2**20}  # scores of a block that a device makes at once: they stay in a core's cache
SCORES_ELSEWHERE = 2**25  # 128 MiB in float32: products that fill a GPU
SHORTEST, LONGEST = 64, 1024  # queries and keys of a block


class Sight(NamedTuple):
    """What each of L queries sees of S slots: all before it and its own, of those the valid ones, of its own segment.

    first: int32 [], the slot of the first query. None: all slots, whatever their order.
    valid: bool [B, S], [1, S] or None.
    segments: int [B, L] or None; then S = L.
    sees: bool [B, L, S] or None; in place of all this.
    window: int32 [] or None; of all this what is less than so many positions before the query.
    query_positions: int32 [B, L] or [1, L]; slots count as positions if None, as in a cache: its rows lie without gaps.
    key_positions: int32 [B, S] or [1, S]; slots count as positions if None, as in a prefix.
    """

    first: jax.Array | int | None
    valid: jax.Array | None = None
    segments: jax.Array | None = None
    sees: jax.Array | None = None
    window: jax.Array | int | None = None
    query_positions: jax.Array | None = None
    key_positions: jax.Array | None = None

    def mask(self, query: jax.Array | int, queries: int, slot: jax.Array | int, slots: int) -> jax.Array:
        """bool [B or 1, queries, slots] of so many queries from number `query` on, and slots from `slot` on."""

        def rows(x):
            return jax.lax.dynamic_slice_in_dim(x, query, queries, axis=1)

        def columns(x):
            return jax.lax.dynamic_slice_in_dim(x, slot, slots, axis=-1)

        mask = jnp.ones((1, queries, slots), bool)
        if self.sees is not None:
            mask = columns(rows(self.sees))
        else:
            if self.first is not None:
                # Causal: slot numbers are positions in the cache, so a query sees slots up to its own.
                mask = (slot + jnp.arange(slots) <= self.first + query + jnp.arange(queries)[:, None])[None]
            if self.valid is not None:
                mask &= columns(self.valid)[:, None, :]
            if self.segments is not None:
                mask &= rows(self.segments)[:, :, None] == columns(self.segments)[:, None, :]
        if self.window is not None:
            of_queries = self.query_positions
            of_queries = self.first + query + jnp.arange(queries) if of_queries is None else rows(of_queries)
            of_keys = slot + jnp.arange(slots) if self.key_positions is None else columns(self.key_positions)
            mask &= of_keys[..., None, :] > of_queries[..., :, None] - self.window
        return mask

    def near(self, blocks: Blocks, i: np.ndarray, j: np.ndarray) -> jax.Array:
        """bool [pairs]: whether the window of a query of block i [pairs] may reach a key of block j [pairs]."""
        # By a block's nearest positions in any row: a pair counts if it counts for one of them.
        if self.query_positions is None:
            first = self.first + i * blocks.queries
        else:
            first = _blocks(self.query_positions, blocks.queries).min((0, 2))[i]
        if self.key_positions is None:
            last = (j + 1) * blocks.keys - 1
        else:
            last = _blocks(self.key_positions, blocks.keys).max((0, 2))[j]
        return last > first - self.window


class Blocks(NamedTuple):
    """queries, keys: of a block. first: the slot of the first query if it is known when the program is built."""

    queries: int
    keys: int
    first: int | None


def blocks_for(
    mesh: Mesh | None, batch: int, heads: int, queries: int, keys: int, first: jax.Array | int | None
) -> Blocks | None:
    """The blocks in which queries attend to keys (prefix and own); None where they are fewer than `LONG` x `LONG`.

    The numbers of rows and devices move the size of a block only: no row changes its path with them.
    """
    platform = platform_of(mesh)
    if queries * keys < LONG.get(platform, LONG_ELSEWHERE) ** 2 or queries == 1:
        return None

    def parts(axis):
        return 1 if mesh is None else devices_of(mesh, RULES[axis])

    # Scores [rows, heads, side, side] of a block on one device; a power of two, so that blocks divide buckets.
    each = -(-batch // parts("batch")) * -(-heads // parts("heads"))
    side = 2 ** int(np.log2(max(1, SCORES.get(platform, SCORES_ELSEWHERE) // each)) / 2)
    side = min(max(side, SHORTEST), LONGEST)
    offset = None if isinstance(first, jax.core.Tracer) or first is None else int(first)
    return Blocks(min(side, queries), min(side, keys), offset)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sight: Sight,
    blocks: Blocks,
    prefix: tuple[jax.Array, jax.Array] | None = None,
    prefix_sight: Sight | None = None,
    scale: float | None = None,
) -> jax.Array:
    """`attention.attend`, in blocks. A query that sees nothing gets something finite.

    Args:
      q: [B, L, K * R, D].
      k, v: [B, S, K, D].
      prefix: k and v of the shared prefix, each [P, K, D].
      prefix_sight: what each query sees of it, by a window; all see all of it if None.
      scale: of the products of queries and keys; D**-0.5 if None.

    Returns: [B, L, K * R, D] in q's dtype.
    """
    B, L, heads, D = q.shape
    K = k.shape[2]
    # Scaled once here, not in every block of scores.
    q = _filled(q * jnp.asarray(scale or D**-0.5, q.dtype), 1, blocks.queries)
    # [B, N, C, K, R, D] -> [N, K, B, R, C, D]: blocks first, to be picked one by one; grouped heads next to each other.
    q = q.reshape(B, -1, blocks.queries, K, heads // K, D).transpose(1, 3, 0, 4, 2, 5)
    k, v = (_filled(t.transpose(2, 0, 1, 3), 2, blocks.keys) for t in (k, v))
    both = ((0, 0), (0, blocks.queries + blocks.keys))  # queries and keys are filled up to different lengths
    sight = sight._replace(
        valid=None if sight.valid is None else _filled(sight.valid, 1, blocks.keys),
        segments=None if sight.segments is None else jnp.pad(sight.segments, both),
        sees=None if sight.sees is None else _filled(_filled(sight.sees, 1, blocks.queries), 2, blocks.keys),
        query_positions=_filled_positions(sight.query_positions, blocks.queries),
        key_positions=_filled_positions(sight.key_positions, blocks.keys),
    )
    out, weight = _attend(blocks if sight.sees is None else blocks._replace(first=None), q, k, v, sight)
    if prefix is not None:
        P = prefix[0].shape[0]
        prefix_k, prefix_v = (_filled(t.transpose(1, 0, 2), 1, blocks.keys) for t in prefix)
        everyone = Sight(None, _filled(jnp.ones((1, P), bool), 1, blocks.keys))
        if prefix_sight is not None:
            positions = _filled_positions(prefix_sight.query_positions, blocks.queries)
            everyone = everyone._replace(window=prefix_sight.window, query_positions=positions)
        prefix_out, prefix_weight = _attend(blocks._replace(first=None), q, prefix_k, prefix_v, everyone)
        # Two softmaxes into one: each result counts by its share of the sum of weights.
        both = jnp.logaddexp(weight, prefix_weight)

        def share(part):
            return jnp.exp(part - both)[..., None]

        out = out * share(weight) + prefix_out * share(prefix_weight)
    return out.astype(q.dtype).transpose(2, 0, 4, 1, 3, 5).reshape(B, -1, heads, D)[:, :L]


def _filled(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """x padded with zeros at the end of an axis, up to a multiple."""
    return jnp.pad(x, [(0, -size % multiple if n == axis else 0) for n, size in enumerate(x.shape)])


def _filled_positions(x: jax.Array | None, multiple: int) -> jax.Array | None:
    """Positions [B or 1, L] padded with the last one, so that the padding is as far from the rest as it is."""
    return None if x is None else jnp.pad(x, ((0, 0), (0, -x.shape[1] % multiple)), mode="edge")


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """[B, L] -> [B, blocks, size]."""
    return x.reshape(x.shape[0], -1, size)


def _pairs(blocks: Blocks, q: jax.Array, k: jax.Array, sight: Sight) -> tuple[Any, ...]:
    """Numbers of the query and the key block of each pair that may see each other, int32 [pairs] each.

    With a window also, bool [pairs], whether a window reaches so far.
    """
    i, j = np.indices((q.shape[0], k.shape[-2] // blocks.keys), np.int32).reshape(2, -1)
    if blocks.first is not None:
        # A pair counts if its first key is at or before its last query.
        near = j * blocks.keys < blocks.first + (i + 1) * blocks.queries
        i, j = i[near], j[near]
    return (i, j) if sight.window is None else (i, j, sight.near(blocks, i, j))


def _if_near(near: list[jax.Array], add: Callable[..., Any], parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """add(*parts); the parts as they are, without any work, where no window reaches so far."""
    return jax.lax.cond(near[0], add, lambda *parts: parts, *parts) if near else add(*parts)


def _at(x: jax.Array, i: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _put(x: jax.Array, i: jax.Array, new: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(x, new, i, 0)


def _keys(blocks: Blocks, x: jax.Array, j: jax.Array) -> jax.Array:
    """Block j of keys or values [K, B, S, D] or [K, P, D]."""
    return jax.lax.dynamic_slice_in_dim(x, j * blocks.keys, blocks.keys, axis=-2)


def _product(left: str, right: str, out: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """einsum, summed in float32; keys and values (`right`) may have no batch axis."""
    right = right if y.ndim == len(right) else right.replace("b", "")
    return jnp.einsum(f"{left},{right}->{out}", x, y, preferred_element_type=jnp.float32)


def _scores(blocks: Blocks, q: jax.Array, k: jax.Array, sight: Sight, i: jax.Array, j: jax.Array) -> jax.Array:
    """Of block i [K, B, R, C, D] of the queries and block j of the keys: float32 [K, B, R, C, keys]."""
    scores = _product("kbrcd", "kbsd", "kbrcs", q, k)
    mask = sight.mask(i * blocks.queries, blocks.queries, j * blocks.keys, blocks.keys)
    return jnp.where(mask[:, None], scores, MASKED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(blocks: Blocks, q: jax.Array, k: jax.Array, v: jax.Array, sight: Sight) -> tuple[jax.Array, jax.Array]:
    """Values weighted by softmax(q @ k), and the logarithm of what its weights sum to before they are divided.

    Args:
      q: [N, K, B, R, C, D], scaled.
      k, v: [K, B, S, D], or [K, P, D] without a batch; S or P a multiple of a block.

    Returns: float32 [N, K, B, R, C, D] and [N, K, B, R, C].
    """

    def add(i, j, out, top, total):
        scores = _scores(blocks, _at(q, i), _keys(blocks, k, j), sight, i, j)
        # The running maximum may grow: what has been summed so far shrinks by exp(old - new).
        higher = jnp.maximum(top, scores.max(-1))
        weights, share = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
        new = _product("kbrcs", "kbsd", "kbrcd", weights.astype(v.dtype), _keys(blocks, v, j))
        return out * share[..., None] + new, higher, total * share + weights.sum(-1)

    def step(state, pair):
        i, j, *near = pair
        before = tuple(_at(t, i) for t in state)
        parts = _if_near(near, functools.partial(add, i, j), before)
        return tuple(_put(t, i, part) for t, part in zip(state, parts)), None

    # MASKED is finite, so that a row that has seen nothing yet gives exp(0) and not NaN.
    zeros = jnp.zeros(q.shape, jnp.float32)
    state = (zeros, jnp.full(q.shape[:-1], MASKED), zeros[..., 0])
    (out, top, total), _ = jax.lax.scan(step, state, _pairs(blocks, q, k, sight))
    if sight.window is not None:
        total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)  # 0 where all pairs of a query's block were left out
    return out / total[..., None], top + jnp.log(total)


def _attend_fwd(blocks, q, k, v, sight):
    out, weight = _attend(blocks, q, k, v, sight)
    return (out, weight), (q, k, v, sight, out, weight)


def _attend_bwd(blocks, residuals, gradients):
    q, k, v, sight, out, weight = residuals
    dout, dweight = gradients
    mean = jnp.sum(dout * out, -1) - dweight  # of the scores' gradients, by the weights
    dout = dout.astype(v.dtype)

    def add(i, j, dq, dk, dv):
        query, keys, values, d = _at(q, i), _keys(blocks, k, j), _keys(blocks, v, j), _at(dout, i)
        # The softmax again from its scores and its saved logarithm; d softmax = p (dp - sum p dp).
        weights = jnp.exp(_scores(blocks, query, keys, sight, i, j) - _at(weight, i)[..., None])
        dscores = weights * (_product("kbrcd", "kbsd", "kbrcs", d, values) - _at(mean, i)[..., None])
        dscores = dscores.astype(q.dtype)
        dq = dq + _product("kbrcs", "kbsd", "kbrcd", dscores, keys)
        dk = dk + _product("kbrcs", "kbrcd", "kbsd", dscores, query)
        dv = dv + _product("kbrcs", "kbrcd", "kbsd", weights.astype(v.dtype), d)
        return dq, dk, dv

    def step(state, pair):
        i, j, *near = pair
        places = i, j, j
        before = tuple(_at(t, place) for t, place in zip(state, places))
        parts = _if_near(near, functools.partial(add, i, j), before)
        return tuple(_put(t, place, part) for t, place, part in zip(state, places, parts)), None

    # A prefix has a gradient per row until the end: rows that are on several devices are then summed once.
    _, K, B, _, _, D = q.shape
    empty = jnp.zeros((k.shape[-2] // blocks.keys, K, B, blocks.keys, D), jnp.float32)
    state = (jnp.zeros(q.shape, jnp.float32), empty, empty)
    (dq, *dkv), _ = jax.lax.scan(step, state, _pairs(blocks, q, k, sight))
    dkv = (jnp.moveaxis(t, 0, 2).reshape(K, B, -1, D) for t in dkv)
    dk, dv = ((t if k.ndim == 4 else t.sum(1)).astype(k.dtype) for t in dkv)
    return dq.astype(q.dtype), dk, dv, None


_attend.defvjp(_attend_fwd, _attend_bwd)
