"""Texts into a cache: what it does not hold is read, each token once, in chunks of a few shapes.

Letters: A texts, S slots of a text, C tokens of a chunk, P tokens of the prefix, Q tokens that are stored, K key/value
heads, D head size, H width.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.backends import engine_shapes as shapes
from nlrl_jax.backends.session import Session, Text, TextCache, common_length, token_bytes, weight_bytes
from nlrl_jax.lm import acting, kv_rows
from nlrl_jax.lm.cache import HeadKeyValues, KeyValues
from nlrl_jax.lm.programs import PROGRAMS, OfModel
from nlrl_jax.lm.transformer import Transformer

_empty_pool = jax.jit(kv_rows.empty_pool, static_argnums=(0, 1, 3))
load = PROGRAMS.own(jax.jit(kv_rows.load, static_argnums=2))
_moved = PROGRAMS.own(jax.jit(kv_rows.moved, donate_argnums=0))
_store = PROGRAMS.own(jax.jit(kv_rows.store, static_argnums=4, donate_argnums=0))
_read = PROGRAMS.own(OfModel(kv_rows.read, donate_argnums=2))

NOWHERE = np.iinfo(np.int32).max  # a slot or snapshot past the end of any pool
SHARED = 16  # tokens that texts must share, beyond what is cached, for one of them to be read before the others


class Network(NamedTuple):
    """What answers a call.

    model, variables: what reads. acting: the variables as replies are written with them (`lm.acting.views`).
    weights: the object that a session's texts belong to.
    rows: replies written, and texts read, at once. refill, fewest_rows: see `LocalModel`.
    """

    model: Transformer
    variables: Any
    acting: Any
    weights: Any
    rows: int
    refill: float
    fewest_rows: int = 1


class CachedText(NamedTuple):
    """A text with its slots int32 [tokens] in the cache, and the numbers of the draws or scores that it is for."""

    text: Text
    slots: np.ndarray
    numbers: list[int]


class Call:
    """What is the same for all texts of a call: the network, the cache, the prefix and the choice of shapes.

    P: tokens of the prefix, which all texts begin with, and prefix_kv [layers, P, K, D] of them; 0 and None without.
    exact_shapes, fine_rows, grows: see `engine_shapes`. room: positions of the model.
    fewest_rows: the smallest batch, where shapes are few; else 1.
    loads_all: the texts of all rows are read and loaded together, not a quarter of them at a time.
    is_recurrent: a text goes on only from a snapshot of its states (see `TextCache`).
    """

    def __init__(self, network: Network, session: Session, cache: TextCache, beginnings: Sequence[Text]):
        self.network, self.cache, self.counts = network, cache, session.counts
        config = network.model.config
        self.is_recurrent = config.num_linear_layers > 0
        self.is_large = acting.is_large(config)
        on_cpu = jax.default_backend() == "cpu"
        self.exact_shapes, self.fine_rows = self.is_large or not on_cpu, self.is_large and on_cpu
        self.fewest_rows = 1
        if network.fewest_rows > 1 and not self.exact_shapes:
            self.fewest_rows = shapes.row_count(network.fewest_rows, network.rows, False)
        slots_bytes = min(len(beginnings), network.rows) * shapes.CHEAP * token_bytes(config)
        are_cheap = not self.exact_shapes or (on_cpu and 8 * slots_bytes <= weight_bytes(config))
        self.grows = cache.lasting and (session.few_lengths or are_cheap)
        # Else all rows' texts would take as much memory again beside them.
        self.loads_all = not self.is_large or (on_cpu and are_cheap)
        self.room = config.max_positions
        self.P, self.prefix_kv = 0, None
        self.grow_pool()
        if prefix := self._choose_prefix(beginnings):
            (cached,) = self.take(deque([0]), [prefix], 1, 1)
            prefill(self, [cached])
            kv = load(cache.pool, cached.slots[None], network.model.mesh)
            # [layers, K, 1, P, D] to [layers, P, K, D]; the states before a row's tokens are in its own cache.
            self.P, self.prefix_kv = len(prefix), KeyValues(*(t[:, :, 0].swapaxes(1, 2) for t in kv[:2]))
            if self.is_recurrent:  # a row begins after the prefix at the earliest
                cache.snapshots.permanent = int(cached.slots[-1])

    def _choose_prefix(self, beginnings: Sequence[Text]) -> Text:
        """What all texts of the cache's first call with several begin with, or () where this call's do not."""
        if len(beginnings) < 2 and self.cache.prefix is None:
            return ()
        first = min(beginnings)
        shared = common_length(first, max(beginnings))  # the two that differ first
        if self.cache.prefix is None:
            self.cache.prefix = first[: shapes.prefix_length(shared, self.exact_shapes)]
        prefix = self.cache.prefix
        return prefix if first[:shared][: len(prefix)] == prefix else ()

    def row_count(self, n: int) -> int:
        """See `engine_shapes.row_count`."""
        return max(shapes.row_count(n, self.network.rows, self.exact_shapes, self.fine_rows), self.fewest_rows)

    def block(self, n: int, new: int, slots: int) -> tuple[int, int, int]:
        """See `engine_shapes.block`."""
        one = self.fewest_rows > 1
        return shapes.block(n, new, slots, self.network.rows, self.exact_shapes, self.fine_rows, one)

    def take(
        self, queue: deque[int], texts: Sequence[Text], max_numbers: int, max_texts: int, continued: bool = True
    ) -> list[CachedText]:
        """The next numbers of a queue by their texts[number], which get slots: as many as the cache holds at once.

        Equal texts are neighbours in the queue.

        Args:
          continued: the texts will be, so their states get snapshots.
        """
        self.cache.tick()
        chosen: list[CachedText] = []
        while queue and max_numbers:
            text = texts[queue[0]]
            if not chosen or text != chosen[-1].text:
                slots = self.cache.add(text) if len(chosen) < max_texts else None
                if slots is None or (continued and self.is_recurrent and not self.cache.add_snapshot(slots)):
                    break
                chosen.append(CachedText(text, slots, []))
            chosen[-1].numbers.append(queue.popleft())
            max_numbers -= 1
        self.counts.asked += sum(len(cached.text) for cached in chosen)
        return chosen

    def grow_pool(self) -> None:
        """Gives the pool as many slots and snapshots as the cache uses."""
        cache, (size, snapshots) = self.cache, self.cache.device_sizes
        slots = 0 if cache.pool is None else cache.pool.k.shape[2]
        if slots < size or (self.is_recurrent and cache.pool.states.conv.shape[1] < snapshots):
            larger = put_on_device(self.network, _empty_pool(self.network.model, size, None, snapshots))
            cache.pool = _moved(larger, cache.pool) if slots else larger

    def store(
        self, kv: HeadKeyValues, source: np.ndarray, slots: np.ndarray, snapshots_A: np.ndarray | None = None
    ) -> None:
        """Stores tokens `source` of kv [layers, K, A, S, D], counted over A * S, in slots of the pool.

        Args:
          snapshots_A: for the states of each text, `NOWHERE` to store none; None if there are no states.
        """
        if not len(slots) and snapshots_A is None:
            return
        Q, times = shapes.stored_tokens(len(slots), self.exact_shapes or snapshots_A is not None)
        # Padding goes to a slot past the end of the pool, which is nowhere.
        source_Q, slots_Q = np.zeros((times, Q), np.int32), np.full((times, Q), NOWHERE, np.int32)
        source_Q.flat[: len(source)], slots_Q.flat[: len(slots)] = source, slots
        self.grow_pool()
        for some in zip(source_Q, slots_Q):
            self.cache.pool = _store(self.cache.pool, kv, *some, self.network.model.mesh, snapshots_A)


class HiddenChunk(NamedTuple):
    """Hidden states [A, C, H] of a chunk of `texts`, and the place in its text of each row's first token, int [A]."""

    states: jax.Array
    texts: list[CachedText]
    offsets: np.ndarray


class Unread(NamedTuple):
    """A text of which the last `new` tokens are to be read.

    The pool holds the first `cached` ones, at least all before the new ones (with recurrent layers none of these);
    those from place `first_stored` on are to be stored.
    """

    cached_text: CachedText
    new: int
    cached: int
    first_stored: int


def prefill(
    call: Call, texts: Sequence[CachedText], first_hidden: Mapping[Text, int] | None = None
) -> list[HiddenChunk]:
    """Reads what the pool does not hold of distinct texts, and stores it there.

    Of texts that go on alike from there, one is read first, the others in a later round, which knows its beginning.
    From the back of the sorted texts: a text that another one extends is then never read by itself. With recurrent
    layers it is, and first, as is what several begin with: others go on after its end, and from nowhere else.

    Args:
      first_hidden: the place in each text from which on hidden states are returned; without it, none are.
    """
    cache, chunks = call.cache, []
    if call.is_recurrent and first_hidden is None:
        texts = [*texts, *_stems(cache, texts)]
    waiting = sorted(texts, key=lambda cached_text: cached_text.text, reverse=not call.is_recurrent)
    while waiting:
        # What is known before any text of this round claims its slots: they are filled at its end.
        lengths = []
        for text, slots, _ in waiting:
            limit = None if first_hidden is None else first_hidden[text]
            lengths.append((cache.known_length(slots), cache.known_length(slots, limit)))
        unread, later = [], []
        for cached_text, (cached, start) in zip(waiting, lengths):
            text, slots, _ = cached_text
            if cache.known_length(slots) - cached >= SHARED:
                later.append(cached_text)
                continue
            claimed = int(cache.filled[slots].sum())
            cache.claim(slots)
            if start < len(text):
                unread.append(Unread(cached_text, len(text) - start, start if call.is_recurrent else cached, claimed))
        unread.sort(reverse=True, key=lambda ending: ending.new)  # ends of a length together
        while unread:
            longest = max(len(ending.cached_text.text) for ending in unread) - call.P
            S = shapes.text_slots(longest, call.room, call.grows)
            A, C, num_chunks = call.block(len(unread), unread[0].new, S)
            if call.is_recurrent:  # the chunks take no slot of a cached token
                cached = max(ending.cached for ending in unread[:A]) - call.P
                S = max(S, shapes.text_slots(cached + C * num_chunks, call.room, call.grows))
            hidden = _read_block(call, unread[:A], A, S, C, num_chunks)
            chunks += hidden if first_hidden is not None else ()
            del unread[:A]
        waiting = later
    return chunks


def _stems(cache: TextCache, texts: Sequence[CachedText]) -> list[CachedText]:
    """What several of these texts, and later ones maybe, begin with: texts whose states get snapshots as far as there
    is room, each `SHARED` tokens or more beyond the one that it goes on after."""
    texts = sorted(texts, key=lambda cached_text: cached_text.text)
    end_slots = [cached_text.slots[-1] for cached_text in texts if cached_text.text]
    lengths = [common_length(one.text, other.text) for one, other in itertools.pairwise(texts)]
    stems = []
    for length, (text, slots, _) in sorted(zip(lengths, texts), key=lambda pair: pair[0]):
        planned = np.max(1 + np.flatnonzero(np.isin(slots[:length], end_slots)), initial=0)
        beginning = max(cache.known_length(slots, length), planned)
        if length - beginning >= SHARED and cache.add_snapshot(slots[:length]):
            stems.append(CachedText(text[:length], slots[:length], []))
            end_slots.append(slots[length - 1])
    return stems


def _read_block(call: Call, unread: Sequence[Unread], A: int, S: int, C: int, num_chunks: int) -> list[HiddenChunk]:
    """Reads the ends of at most A texts together, chunk by chunk."""
    network, P, cache, first_chunk = call.network, call.P, call.cache, S - num_chunks * C
    slots_AS, tokens_AS = np.full((A, S), -1, np.int32), np.zeros((A, S), np.int32)
    start_A, valid_AS = np.full(A, S - 1, np.int32), np.zeros((A, S), bool)
    snapshots_A, next_snapshots_A = np.zeros(A, np.int32), np.full(A, NOWHERE, np.int32)
    sources, stored_slots = [], []
    for row, ((text, slots, _), new, cached, first_stored) in enumerate(unread):
        start_A[row] = start = S - (len(text) - P)  # right-aligned, after the prefix
        # [cached][gap][new] where a layer takes no token twice: the chunks begin after the cached ones.
        end = first_chunk if call.is_recurrent else start + cached - P
        slots_AS[row, end - (cached - P) : end] = slots[P:cached]
        valid_AS[row, end - (cached - P) : end] = valid_AS[row, S - new :] = True
        tokens_AS[row, start:] = text[P:]
        sources.append(np.arange(row * S + start + first_stored - P, (row + 1) * S))
        stored_slots.append(slots[first_stored:])
        snapshots_A[row] = cache.snapshot(slots[:cached], 0)
        next_snapshots_A[row] = cache.snapshot(slots, NOWHERE)
    if not call.is_recurrent:
        valid_AS = snapshots_A = next_snapshots_A = None
    kv, chunks = load(cache.pool, slots_AS, network.model.mesh, snapshots_A), []
    texts = [ending.cached_text for ending in unread]
    # The last chunk ends with the texts. A row with fewer new tokens reads some again, or padding.
    for at in range(first_chunk, S, C):
        with PROGRAMS.once(network.model, "read", A, S, C, P):
            inputs = kv, tokens_AS[:, at : at + C], np.int32(at), start_A, call.prefix_kv, valid_AS
            hidden, kv = _read(network.model, network.variables, *inputs)
        chunks.append(HiddenChunk(hidden, texts, P + at - start_A))
    call.store(kv, np.concatenate(sources), np.concatenate(stored_slots), next_snapshots_A)
    call.counts.read += sum(ending.new for ending in unread)
    return chunks


def put_on_device(network: Network, tree: Any) -> Any:
    """Arrays on the device of the variables: a program is compiled once more for arguments that are bound to none."""
    if network.model.mesh is not None:
        return tree
    return jax.device_put(tree, jax.tree.leaves(network.variables)[0].sharding)
