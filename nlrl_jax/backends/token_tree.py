"""The token tree of a call: what must be computed of texts that share beginnings with each other and the cache.

The texts come sorted, so that each shares most with the one before it. New tokens form a forest: its roots follow
known tokens, and no token stands in it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.backends.kv_cache import KVCache

NOTHING = np.zeros(0, np.int64)


class Forest(NamedTuple):
    """E entries: first the tokens that are known but whose hidden state is wanted, then the new ones, parents first.

    token, depth, text, end: int [E]; `text` is one that an entry belongs to, `end` one past its last descendant.
    slot: int [E], where a new token is kept; -1 for known ones.
    paths: for each text the slots of all its tokens.
    shared: int [texts], tokens that each text shares with the one before it.
    known: int [texts], tokens of each text that were known.
    at: for each text the entries of its tokens; -1 where it is not needed.
    """

    token: np.ndarray
    depth: np.ndarray
    text: np.ndarray
    end: np.ndarray
    slot: np.ndarray
    paths: list[np.ndarray]
    shared: np.ndarray
    known: np.ndarray
    at: list[np.ndarray]


class Level(NamedTuple):
    """Parts of paths that groups of paths share.

    parts: slots of each group's part.
    group: int [paths], the group of each path, -1 for none; begin: int [paths], the depth where its part begins.
    """

    parts: list[np.ndarray]
    group: np.ndarray
    begin: np.ndarray

    def counts(self, path: np.ndarray) -> np.ndarray:
        """Queries in each group, int [parts], of queries that each see a path: int [queries], -1 for none."""
        group = np.where(path >= 0, self.group[path], -1)
        return np.bincount(group[group >= 0], minlength=len(self.parts))


def common(texts: Sequence[np.ndarray]) -> np.ndarray:
    """Tokens that each text shares with the one before it, int [texts]; 0 for the first."""
    shared = np.zeros(len(texts), np.int64)
    for i in range(1, len(texts)):
        n = min(len(texts[i - 1]), len(texts[i]))
        differ = texts[i - 1][:n] != texts[i][:n]
        at = int(differ.argmax()) if n else 0
        shared[i] = at if n and differ[at] else n
    return shared


def grow(cache: KVCache, texts: Sequence[tuple[int, ...]], wanted: Sequence[int]) -> Forest | None:
    """Looks texts up, gives what is new its slots, and says what must be read; None if the cache has no room.

    Args:
      texts: distinct and in lexical order.
      wanted: the depth from which on the hidden states of a text's tokens are wanted.
    """
    arrays = [np.array(text) for text in texts]
    shared = common(arrays)
    found, path = [], NOTHING
    for text, first in zip(texts, shared.tolist(), strict=True):
        path = cache.find(text, path, first)
        found.append(path)
    known = np.array([len(path) for path in found])
    lengths = np.array([len(text) for text in texts])
    new = lengths - np.maximum(known, shared)
    if not cache.room(int(new.sum())):
        return None
    # Entries are numbered apart, new ones from 0 and known ones from -2 downwards, until both counts are known.
    paths, at, again = [], [], []
    end, path, chain, count = np.zeros(new.sum(), np.int64), NOTHING, np.zeros(0, np.int64), 0
    for i, text in enumerate(texts):
        first = int(max(known[i], shared[i]))
        path = path[:first] if shared[i] > known[i] else found[i]
        path = np.concatenate([path, cache.add(text, path, first)])
        open_before = chain[shared[i] :]
        end[open_before[open_before >= 0]] = count
        last, chain = chain, np.full(len(text), -1)
        chain[: shared[i]] = last[: shared[i]]
        chain[first:] = np.arange(count, count + len(text) - first)
        count += len(text) - first
        for depth in range(wanted[i], known[i]):
            if chain[depth] == -1:
                chain[depth] = -2 - len(again)
                again.append((text[depth], depth, i))
        paths.append(path)
        at.append(chain)
    end[chain[chain >= 0]] = count
    E = len(again)
    token, depth, owner, slot = (np.zeros(E + count, np.int64) for _ in range(4))
    if E:
        token[:E], depth[:E], owner[:E] = np.array(again).T
    slot[:E] = -1
    for i, first in enumerate(np.maximum(known, shared)):
        mine = at[i][first:] + E
        token[mine], depth[mine], owner[mine] = arrays[i][first:], np.arange(first, lengths[i]), i
        slot[mine] = paths[i][first:]
    at = [np.where(a >= 0, a + E, np.where(a == -1, -1, -2 - a)) for a in at]
    return Forest(token, depth, owner, np.concatenate([np.arange(1, E + 1), end + E]), slot, paths, shared, known, at)


def seen(forest: Forest, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens each of the entries start .. stop, read together, sees in the pool; and its text. int [entries].

    What was read before is in the pool; a new token's ancestors from `start` on are not.
    """
    text = forest.text[start:stop]
    old = forest.slot[start:stop] < 0
    sees = np.zeros(len(forest.paths), np.int64)
    for i in np.unique(text[~old]):
        known = int(forest.known[i])
        sees[i] = known + np.searchsorted(forest.at[i][known:], start)
    return np.where(old, forest.depth[start:stop], sees[text]), text


def levels(paths: Sequence[np.ndarray], shared: np.ndarray, share: float, least: int = 64) -> list[Level]:
    """Cuts paths into what all begin with, what clusters of neighbours share, and what each has for itself: 3 levels.

    Args:
      paths: in lexical order; shared: what each shares with the one before it.
      share: of a path, after the beginning common to all, that neighbours in a cluster have in common at least.
      least: what all begin with stands by itself from this length on.
    """
    lengths = np.array([len(path) for path in paths])
    shared = np.minimum(shared, np.minimum(lengths, np.roll(lengths, 1)))
    everywhere = int(min(lengths.min(), shared[1:].min())) if len(paths) > 1 else 0
    everywhere = everywhere if everywhere >= least else 0
    shorter = np.minimum(lengths, np.roll(lengths, 1)) - everywhere
    first = shared - everywhere < share * shorter
    first[0] = True
    starts = np.flatnonzero(first)
    cluster = np.cumsum(first) - 1
    inside = np.minimum(lengths, np.where(first, lengths, shared))
    ends = np.maximum(np.minimum.reduceat(inside, starts), everywhere)
    zeros = np.zeros(len(paths), np.int64)
    found = [_level([paths[0][:everywhere]], zeros, zeros)]
    found.append(_level([paths[s][everywhere:e] for s, e in zip(starts, ends)], cluster, zeros + everywhere))
    own = [path[e:] for path, e in zip(paths, ends[cluster])]
    found.append(_level(own, np.arange(len(paths)), ends[cluster]))
    return found


def _level(parts, group, begin) -> Level:
    """Without the empty parts."""
    kept = np.array([len(part) > 0 for part in parts])
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    return Level([part for part in parts if len(part)], number[group], begin)


def rows_of(counts: np.ndarray, N: int) -> np.ndarray:
    """How many rows of `N` members each group takes, int [parts]: a large one several, a group without members one."""
    return np.maximum(-(-counts // N), 1)


def table(level: Level, rows: np.ndarray, groups: int, length: int) -> np.ndarray:
    """Slots as int32 [groups, length], padded with 0: part i stands in rows[i] rows."""
    out, row = np.zeros((groups, length), np.int32), 0
    for part, times in zip(level.parts, rows.tolist(), strict=True):
        out[row : row + times, : len(part)] = part
        row += times
    return out


def members(
    level: Level, path: np.ndarray, sees: np.ndarray, groups: int, N: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`members`, `visible`, `place` of a `Context` for queries that each see the first `sees` tokens of a path.

    Args:
      path: int [queries], -1 where a query sees no path; sees: int [queries].
      groups, N: rows of `table`, and members of each, with padding.
    """
    sizes, counts = np.array([len(part) for part in level.parts]), level.counts(path)
    first_row = np.cumsum(rows_of(counts, N)) - rows_of(counts, N)
    group = np.where(path >= 0, level.group[path], -1)
    order = np.flatnonzero(group >= 0)
    order = order[np.argsort(group[order], kind="stable")]
    of = group[order]
    rank = np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
    row, column = first_row[of] + rank // N, rank % N
    who, visible = np.zeros((groups, N), np.int32), np.zeros((groups, N), np.int32)
    place = np.full(len(path), -1, np.int32)
    who[row, column] = order
    visible[row, column] = np.clip(sees[order] - level.begin[path[order]], 0, sizes[of])
    place[order] = row * N + column
    return who, visible, place
