"""Replies and scores for texts that grow: a token in the key/value cache is not computed again.

A call's texts are sorted, which puts those that share most side by side, and cut into chunks that fit the cache. A
chunk is one read of what is new, or several where that is long, and one loop that writes the replies. Attention reads
what several texts share once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.backends import batching, token_tree
from nlrl_jax.backends.kv_cache import KVCache
from nlrl_jax.lm import decode as steps
from nlrl_jax.lm import kv_pool
from nlrl_jax.lm.attention import Context
from nlrl_jax.lm.programs import PROGRAMS
from nlrl_jax.lm.sharding import whole
from nlrl_jax.lm.transformer import KeyValues, Transformer
from nlrl_jax.types import Sampling, Written

MOST = 512  # tokens of a read
SPLIT = 8  # rows that run from which on a large model's replies are split: half of them go on without the others
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)  # `token_tree.levels` is tried with each; the cheapest is taken
OPTIONS = 3  # sizes of groups that are considered in each level

_empty = jax.jit(kv_pool.empty_pool, static_argnums=(0, 1))
_load = PROGRAMS.own(jax.jit(kv_pool.load))
_store = PROGRAMS.own(jax.jit(kv_pool.store, donate_argnums=0))
_read = PROGRAMS.own(jax.jit(kv_pool.read, static_argnums=0))
_keep = PROGRAMS.own(jax.jit(kv_pool.keep))
_reply = PROGRAMS.own(jax.jit(steps.reply, static_argnums=(0, 7)))
_log_probs = PROGRAMS.own(jax.jit(kv_pool.next_log_probs, static_argnums=0))


class Network(NamedTuple):
    """A model, its variables and the key/value cache that belongs to them; `acting`: the variables as replies are
    written with them (`lm.acting.views`); `row_steps`: counts them."""

    model: Transformer
    variables: Any
    cache: KVCache
    acting: Any
    row_steps: batching.RowSteps


class Draw(NamedTuple):
    """How tokens are drawn: sampling, end tokens (bool [V]) and the key of the whole call."""

    sampling: Sampling
    ends: np.ndarray
    key: jax.Array

    def how(self, prefix: KeyValues | None) -> tuple[Sampling, np.ndarray, KeyValues | None, np.ndarray | None]:
        """The last arguments of `decode`, those that are compiled in without what may change from call to call."""
        own = self.sampling
        static = Sampling(1, float(own.temperature > 0), own.top_k, own.top_p)
        return static, self.ends, prefix, None if own.temperature == 0 else np.float32(own.temperature)


def write(
    net: Network, prompts: Sequence[tuple[int, ...]], queue: Sequence[int], rows: int, draw: Draw
) -> dict[int, Written]:
    """Replies to prompts[queue[i]] by i, as many as the cache has room for."""
    order = sorted(range(len(queue)), key=lambda i: prompts[queue[i]])
    written = {}
    with net.cache.lock:
        for chunk in _chunks(net.cache, [prompts[queue[i]] for i in order], rows, draw.sampling.max_tokens):
            numbers = [order[i] for i in chunk]
            written.update(_write_chunk(net, {i: prompts[queue[i]] for i in numbers}, draw))
    return written


def _write_chunk(net: Network, prompts: dict[int, tuple[int, ...]], draw: Draw) -> dict[int, Written]:
    """Replies by number; none if the cache has no room.

    Rows that have ended cost as much as those that run, so a large model's replies are written in rounds: when half of
    the rows have ended, the others go on in a program of fewer rows.
    """
    replies, running = {i: Written((), (), False) for i in prompts}, list(prompts)
    while running:
        texts = {i: prompts[i] + replies[i].tokens for i in running}
        running.sort(key=texts.get)
        until = len(running) // 2 if net.cache.shapes.large and len(running) >= SPLIT else 0
        with _whole(net.cache):
            found = _write_round(net, [texts[i] for i in running], [(i, replies[i]) for i in running], until, draw)
        if found is None:
            return {}
        replies.update(zip(running, found, strict=True))
        most = draw.sampling.max_tokens
        running = [i for i in running if not replies[i].ended and len(replies[i].tokens) < most]
    return replies


def log_probs(net: Network, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], rows: int) -> dict[int, float]:
    """log p(continuation | prompt) of each pair by its number, as many as the cache has room for."""
    order = sorted(range(len(pairs)), key=lambda n: pairs[n][0] + pairs[n][1][:-1])
    out = {}
    with net.cache.lock:
        for chunk in _chunks(net.cache, [pairs[n][0] + pairs[n][1][:-1] for n in order], 4 * rows, 0):
            numbers = [order[i] for i in chunk]
            with _whole(net.cache):
                found = _score_chunk(net, [pairs[n] for n in numbers])
            out.update(zip(numbers, found, strict=True) if found else ())
    return out


class _whole:
    """Empties the cache if it may lack entries that it claims to hold."""

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __enter__(self):
        self.cache.start()

    def __exit__(self, kind, *_):
        if kind is not None:
            self.cache.clear()


def _chunks(cache: KVCache, texts, rows: int, room: int) -> Iterator[list[int]]:
    """Numbers of sorted texts that are worked on together: `rows` at most, and no more than half the cache holds."""
    chunk, tokens = [], 0
    shared = token_tree.common([np.array(text) for text in texts])
    for i, text in enumerate(texts):
        new = len(text) + room - (int(shared[i]) if chunk else 0)
        if chunk and (len(chunk) == rows or tokens + new > cache.capacity // 2):
            yield chunk
            chunk, tokens, new = [], 0, len(text) + room
        if new <= cache.capacity:
            chunk.append(i)
            tokens += new
    if chunk:
        yield chunk


def _contexts(net, program: str, queries: int, paths, shared, path, sees) -> tuple[int, tuple[Context, ...]]:
    """The padded number of queries, and what they see of paths in the pool.

    Args:
      queries: what the program would pad its queries to at least.
      paths, shared: as of `token_tree.levels`; path, sees: int [queries before padding], as of `token_tree.members`.
    """
    cache = net.cache
    cuts = [token_tree.levels(paths, shared, share) for share in SHARES]
    sizes = [zip(*(_sizes(cache, program, level, path) for level in levels)) for levels in cuts]
    wanted = [
        (i, (queries, *(n for size in option for n in size))) for i, options in enumerate(sizes) for option in options
    ]
    which, (total, *sizes) = cache.shapes.choose(program, [shape for _, shape in wanted])
    pad = total - len(path)
    path, sees = np.pad(path, (0, pad), constant_values=-1), np.pad(sees, (0, pad))
    out = []
    for level, (G, C, N) in zip(cuts[wanted[which][0]], zip(*[iter(sizes)] * 3)):
        if G:
            pool = cache.pool if cache.pool is not None else _empty(net.model, cache.device_slots)
            rows = token_tree.rows_of(level.counts(path), N)
            kv = _load(pool, token_tree.table(level, rows, G, C))
            out.append(Context(*kv, *token_tree.members(level, path, sees, G, N)))
    return total, tuple(out)


def _sizes(cache: KVCache, program: str, level: token_tree.Level, path: np.ndarray) -> list[tuple[int, int, int]]:
    """G, C, N of a level, rounded up, the cheapest first: groups of other numbers of queries suit other programs.
    Zeros where it is empty."""
    if not level.parts:
        return [(0, 0, 0)] * OPTIONS
    counts, length = level.counts(path), cache.shapes.keys(max(map(len, level.parts)))
    powers = [1 << i for i in range(max(OPTIONS, int(counts.max(initial=1)).bit_length() + 1))]
    sizes = [(batching.bucket(int(token_tree.rows_of(counts, N).sum()), 1), length, N) for N in powers]
    return sorted(sizes, key=lambda size: cache.shapes.cost(program, (0, *size)))[:OPTIONS]


def _put(net: Network, kv: KeyValues, source: np.ndarray, slots: np.ndarray, Q: int) -> None:
    """Stores tokens `source` of kv [layers, A, B, K, D], padded to Q of them."""
    cache, size = net.cache, net.cache.device_slots
    have = 0 if cache.pool is None else cache.pool.k.shape[2]
    if have < size:
        larger = jax.device_put(_empty(net.model, size), _everywhere(kv.k.sharding))
        if have:
            at = (0, 0, 0, 0)
            larger = KeyValues(*(jax.lax.dynamic_update_slice(new, old, at) for new, old in zip(larger, cache.pool)))
        cache.pool = larger
    where, what = np.full(Q, np.iinfo(np.int32).max, np.int32), np.zeros(Q, np.int32)
    where[: len(slots)], what[: len(source)] = slots, source
    cache.pool = _store(cache.pool, kv, what, where)


def _everywhere(sharding):
    """Whole on each of the devices: programs are compiled once more for arguments that are bound to none."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


def _read_all(net: Network, woods: token_tree.Forest) -> Iterator[tuple[int, int, jax.Array]]:
    """Reads a forest and stores it, in pieces: (first entry, one past the last, hidden [T, H])."""
    cache = net.cache
    cache.stats.reused += int((woods.known - np.minimum(woods.known, woods.shared)).sum())
    for start in range(0, len(woods.token), MOST):
        stop = min(start + MOST, len(woods.token))
        n = stop - start
        seen, text = token_tree.seen(woods, start, stop)
        # Of the texts that have entries here: what any of these sees of it.
        used = np.unique(text)
        most = np.zeros(len(woods.paths), np.int64)
        np.maximum.at(most, text, seen)
        shared = np.array([woods.shared[a + 1 : b + 1].min() for a, b in zip(used[:-1], used[1:])], np.int64)
        paths = [woods.paths[i][: most[i]] for i in used]
        between = (paths, np.concatenate([[0], shared]), np.searchsorted(used, text), seen)
        T, contexts = _contexts(net, "read", cache.shapes.queries("read", n), *between)
        tokens, positions, ends = np.zeros(T, np.int32), np.zeros(T, np.int32), np.arange(1, T + 1, dtype=np.int32)
        tokens[:n], positions[:n] = woods.token[start:stop], woods.depth[start:stop]
        ends[:n] = np.minimum(woods.end[start:stop], stop) - start
        with PROGRAMS.once(net.model, "read", T, *(context.shape for context in contexts)):
            hidden, kv = _read(net.model, net.variables, tokens, positions, ends, contexts)
        fresh = np.flatnonzero(woods.slot[start:stop] >= 0)
        if len(fresh):
            _put(net, kv, fresh, woods.slot[start + fresh], T)
        cache.stats.read += n
        yield start, stop, hidden


def _write_round(net: Network, texts, begun: list[tuple[int, Written]], until: int, draw: Draw):
    """Goes on with replies until at most `until` of them run; None if the cache has no room.

    Args:
      texts: prompts with what has been written, in lexical order; begun: the number and the reply of each.
    """
    sampling, n = draw.sampling, len(texts)
    texts, which = batching.distinct(texts)
    woods = token_tree.grow(net.cache, texts, [len(text) - 1 for text in texts])
    if woods is None:
        return None
    which = np.array(which)
    last = np.array([woods.at[i][-1] for i in which])
    pieces = list(_read_all(net, woods))
    lengths = np.array([len(text) for text in texts])[which]
    R, N = net.cache.shapes.queries("reply", n), -(-sampling.max_tokens // 8) * 8
    R, contexts = _contexts(net, "reply", R, woods.paths, woods.shared, which, lengths)
    hidden = jnp.zeros((R, net.model.config.hidden_size), pieces[0][2].dtype)
    for start, stop, states in pieces:
        where = np.full(R, -1, np.int32)
        where[:n] = np.where((start <= last) & (last < stop), last - start, -1)
        hidden = _keep(hidden, states, where)
    read = np.zeros(R, np.int32)
    read[:n] = lengths
    rows = _begun_rows(begun, R, N, sampling.max_tokens)
    static, *_, temperature = draw.how(None)
    with PROGRAMS.once(net.model, "reply", R, N, static, *(context.shape for context in contexts)):
        inputs = (net.model, net.acting, hidden, read, rows, draw.key)
        state = _reply(*inputs, np.int32(R - until), static, draw.ends, contexts, temperature)
    results = state.tokens, state.lengths, state.ended, state.index, state.log_probs
    tokens, sizes, ended, steps_done, probs = jax.device_get(whole(results))
    new = sizes[:n] - [len(reply.tokens) for _, reply in begun]
    net.row_steps.computed += R * int(steps_done)
    net.row_steps.written += int(np.maximum(new - 1, 0).sum())  # reading gives the first token
    replies = [Written(*(tuple(x[i, : sizes[i]].tolist()) for x in (tokens, probs)), bool(ended[i])) for i in range(n)]
    _keep_replies(net, state.kv, woods.paths, texts, which, begun, replies, int(steps_done))
    return replies


def _begun_rows(begun: list[tuple[int, Written]], R: int, N: int, most: int) -> steps.Rows:
    """`Rows` without keys and values; the rows after the last reply stay empty."""
    n, no = len(begun), np.zeros(R, bool)
    draw, zeros, lengths, limit = (np.zeros(R, np.int32) for _ in range(4))
    tokens, log_probs = np.zeros((R, N), np.int32), np.zeros((R, N), np.float32)
    draw[:n], limit[:n] = [number for number, _ in begun], most
    for row, (_, reply) in enumerate(begun):
        lengths[row] = size = len(reply.tokens)
        tokens[row, :size], log_probs[row, :size] = reply.tokens, reply.log_probs
    return steps.Rows(None, None, zeros, draw, zeros, tokens, lengths, log_probs, limit, no)


def _keep_replies(net: Network, kv, paths, texts, which, begun, replies: list[Written], steps_done: int) -> None:
    """Stores the new tokens of replies that were put through the network, with their log-probabilities.

    Args:
      kv: [layers, R, N, K, D], by row from its first new token on.
      paths: slots of each text's tokens; `which` is each reply's.
    """
    source, slots, N = [], [], kv.k.shape[2]
    for row, (text, (_, old), reply) in enumerate(zip(which, begun, replies, strict=True)):
        had, path = len(old.tokens), paths[text]
        if had:  # this one was read as the text's last
            net.cache.log_prob[path[-1]] = old.log_probs[-1]
        new = reply.tokens[had : had + steps_done]
        if not net.cache.room(len(new)):
            break
        source.append(row * N + np.arange(len(new)))
        slots.append(net.cache.add(texts[text] + new, path, len(path)))
        net.cache.log_prob[slots[-1]] = reply.log_probs[had : had + len(new)]
    source, slots = (np.concatenate(x) if x else token_tree.NOTHING for x in (source, slots))
    slots, first = np.unique(slots, return_index=True)  # equal replies to one prompt are kept once
    if len(slots):
        _put(net, kv, source[first], slots, batching.bucket(len(slots), 64))


def _known_log_probs(cache: KVCache, pairs) -> np.ndarray:
    """Log-probabilities of the tokens of all continuations, those that the model has written; nan from the first other
    token of each on."""
    shared = token_tree.common([np.array(prompt + ids) for prompt, ids in pairs])
    path, found = token_tree.NOTHING, []
    for (prompt, ids), first in zip(pairs, shared.tolist(), strict=True):
        path = cache.find(prompt + ids, path, first)
        known, have = np.full(len(ids), np.nan), path[len(prompt) :]
        known[: len(have)] = cache.log_prob[have]
        found.append(np.where(np.logical_or.accumulate(np.isnan(known)), np.nan, known))
    return np.concatenate(found)


def _score_chunk(net: Network, pairs):
    """log p of each pair; None if the cache has no room. Pairs come sorted by prompt + continuation[:-1]."""
    texts, which = batching.distinct([prompt + ids[:-1] for prompt, ids in pairs])
    begins = np.cumsum([0] + [len(ids) for _, ids in pairs])[:-1]
    found = _known_log_probs(net.cache, pairs)
    known = np.add.reduceat(~np.isnan(found), begins, dtype=np.int64).tolist()
    wanted = [len(text) for text in texts]
    for i, (prompt, _), n in zip(which, pairs, known, strict=True):
        wanted[i] = min(wanted[i], len(prompt) - 1 + n)
    woods = token_tree.grow(net.cache, texts, wanted)
    if woods is None:
        return None
    entry = np.concatenate(
        [woods.at[i][len(prompt) - 1 : len(prompt) - 1 + len(ids)] for i, (prompt, ids) in zip(which, pairs)]
    )
    entry[~np.isnan(found)] = -1
    target = np.concatenate([ids for _, ids in pairs])
    for start, stop, hidden in _read_all(net, woods):
        here = np.flatnonzero((start <= entry) & (entry < stop))
        if not len(here):
            continue
        needed, row = np.unique(entry[here] - start, return_inverse=True)
        U, Q = batching.bucket(len(needed)), batching.bucket(len(here))
        where, rows, targets = np.zeros(U, np.int32), np.zeros(Q, np.int32), np.zeros(Q, np.int32)
        where[: len(needed)], rows[: len(here)], targets[: len(here)] = needed, row, target[here]
        found[here] = np.asarray(whole(_log_probs(net.model, net.variables, hidden, where, rows, targets)))[: len(here)]
    return np.add.reduceat(found, begins).tolist()
