"""Texts into a session: what no row of it begins with is read, each token once, in chunks of a few shapes.

Letters: A texts, S slots of a text, C tokens of a chunk, P tokens of the prefix, Q tokens that are stored, K key/value
heads, D head size, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.backends import batching
from nlrl_jax.backends import engine_shapes as shapes
from nlrl_jax.backends.session import Session, Text, common_length
from nlrl_jax.lm import acting, kv_rows
from nlrl_jax.lm.programs import PROGRAMS
from nlrl_jax.lm.transformer import HeadKeyValues, KeyValues, Transformer

_empty_pool = jax.jit(kv_rows.empty_pool, static_argnums=(0, 1))
load = PROGRAMS.own(jax.jit(kv_rows.load, static_argnums=2))
_store = PROGRAMS.own(jax.jit(kv_rows.store, static_argnums=4, donate_argnums=0))
_read = PROGRAMS.own(jax.jit(kv_rows.read, static_argnums=0, donate_argnums=2))

SHARED = 16  # tokens that texts must share, beyond what is cached, for one of them to be read before the others


class Network(NamedTuple):
    """model, variables: what reads. acting: the variables as replies are written with them (`lm.acting.views`).
    weights: the object that a session's rows belong to."""

    model: Transformer
    variables: Any
    acting: Any
    weights: Any


class Options(NamedTuple):
    """rows: replies written, and texts read, at once. refill: see `LocalModel`. row_steps: counts the rows' steps."""

    rows: int
    refill: float
    row_steps: batching.RowSteps


class Call:
    """What is the same for all texts of a call: the network, the session, the prefix and the choice of shapes.

    prefix: tokens that all texts begin with, and prefix_kv [layers, P, K, D] of them; () and None without.
    keeps: whether the session outlives the call.
    exact_shapes, grows: see `engine_shapes`. room: positions of the model.
    """

    def __init__(self, network: Network, session: Session, options: Options, texts: Sequence[Text], keeps: bool):
        self.network, self.session, self.options, self.keeps = network, session, options, keeps
        config = network.model.config
        self.is_large = acting.is_large(config)
        self.exact_shapes = self.is_large or jax.default_backend() != "cpu"
        self.grows = keeps and not self.exact_shapes
        self.room = config.max_positions
        self.prefix, self.prefix_kv = (), None
        self.grow_pool()
        if prefix := self._choose_prefix(texts):
            prefill(self, [prefix])
            kv = load(session.pool, session.find(prefix)[None], network.model.mesh)
            # [layers, K, 1, P, D] to [layers, P, K, D]
            self.prefix, self.prefix_kv = prefix, KeyValues(*(t[:, :, 0].swapaxes(1, 2) for t in kv))

    def grow_pool(self) -> None:
        """Gives the session's pool as many slots as its rows use."""
        session, model, size = self.session, self.network.model, self.session.device_slots
        slots = 0 if session.pool is None else session.pool.k.shape[2]
        if slots < size:
            larger = put_on_device(self.network, _empty_pool(model, size))
            if slots:
                larger = HeadKeyValues(*(new.at[:, :, :slots].set(old) for new, old in zip(larger, session.pool)))
            session.pool = larger

    def _choose_prefix(self, texts: Sequence[Text]) -> Text:
        """What all texts of the session's first call with several begin with, or () where this call's do not."""
        if len(texts) < 2:
            return ()
        first, last = min(texts), max(texts)  # the two that differ first
        shared = min(common_length(first, last), min(map(len, texts)) - 1)
        if self.session.prefix is None:
            self.session.prefix = first[: shapes.prefix_length(shared, self.exact_shapes)]
        prefix = self.session.prefix
        return prefix if len(prefix) <= shared and first[: len(prefix)] == prefix else ()


class HiddenChunk(NamedTuple):
    """Hidden states [A, C, H] of a chunk; texts: numbers of the texts in its rows; offsets: int [A], the place in its
    text of each row's first token."""

    states: jax.Array
    texts: list[int]
    offsets: np.ndarray


class Unread(NamedTuple):
    """A text whose end is to be read.

    text: its number. new: tokens to read. cached: tokens of its beginning that the pool holds, at least all before
    them. slots: int32 [tokens] in the pool.
    """

    text: int
    new: int
    cached: int
    slots: np.ndarray


def prefill(call: Call, texts: Sequence[Text], first_hidden: Sequence[int] | None = None) -> list[HiddenChunk]:
    """Reads what the session does not know of distinct texts, and keeps it there.

    Of texts that go on alike from what is cached, one is read first, the others in a later round, which knows its
    beginning. From the back of the sorted texts: a text that another one extends is then never read by itself.

    Args:
      first_hidden: the place in each text from which on hidden states are returned.
    """
    session, hidden = call.session, []
    waiting = sorted(range(len(texts)), key=texts.__getitem__, reverse=True)
    call.session.counts.asked += sum(map(len, texts))
    while waiting:
        # What is known before any text of this round has its slots: they are filled at its end.
        cached_lengths = {i: len(session.find(texts[i])) for i in waiting}
        todo, later, last = [], [], ()
        for i in waiting:
            text, n = texts[i], cached_lengths[i]
            if common_length(text, last) >= n + SHARED:
                later.append(i)
                continue
            cached = session.find(text)[:n]
            start = n if first_hidden is None else min(n, first_hidden[i])
            slots = session.add(text, cached)
            if slots is None:
                raise RuntimeError(f"the session has no room for {len(text)} tokens")  # `capacity` was not heeded
            if start < len(text):
                todo.append(Unread(i, len(text) - start, n, slots))
                last = text
        todo.sort(reverse=True, key=lambda unread: unread.new)  # ends of a length together
        size = shapes.block_size(len(todo), call.options.rows, call.exact_shapes)
        for first in range(0, len(todo), size):
            hidden += _read_block(call, texts, todo[first : first + size], size, first_hidden is not None)
        waiting = later
    return hidden


def _read_block(call: Call, texts: Sequence[Text], todo: list[Unread], A: int, keep: bool) -> list[HiddenChunk]:
    """Reads the ends of at most A texts together, chunk by chunk; `keep`: return the hidden states."""
    network, session, P = call.network, call.session, len(call.prefix)
    S = shapes.text_slots(max(len(unread.slots) for unread in todo) - P, call.room, call.grows)
    C, chunks = shapes.chunk_plan(max(unread.new for unread in todo), S, call.exact_shapes)
    slots_AS, tokens_AS = np.full((A, S), -1, np.int32), np.zeros((A, S), np.int32)
    start_A = np.full(A, S - 1, np.int32)
    sources, new_slots = [], []
    for row, (i, _, cached, slots) in enumerate(todo):
        start_A[row] = start = S - (len(slots) - P)  # right-aligned, after the prefix
        slots_AS[row, start : start + cached - P] = slots[P:cached]
        tokens_AS[row, start:] = texts[i][P:]
        sources.append(np.arange(row * S + start + cached - P, (row + 1) * S))
        new_slots.append(slots[cached:])
    kv, hidden = load(session.pool, slots_AS, network.model.mesh), []
    # The last chunk ends with the texts. A row with fewer new tokens reads some again, or padding.
    for at in range(S - chunks * C, S, C):
        with PROGRAMS.once(network.model, "read", A, S, C, P):
            inputs = kv, tokens_AS[:, at : at + C], np.int32(at), start_A, call.prefix_kv
            states, kv = _read(network.model, network.variables, *inputs)
        if keep:
            hidden.append(HiddenChunk(states, [unread.text for unread in todo], P + at - start_A))
    store(call, kv, np.concatenate(sources), np.concatenate(new_slots))
    session.counts.read += sum(unread.new for unread in todo)
    return hidden


def store(call: Call, kv: HeadKeyValues, source: np.ndarray, slots: np.ndarray) -> None:
    """Stores tokens `source` of kv [layers, K, A, S, D], counted over A * S, in slots of the session's pool."""
    if len(slots):
        Q = batching.bucket(len(slots), 64)
        source_Q, slots_Q = np.zeros(Q, np.int32), np.full(Q, np.iinfo(np.int32).max, np.int32)
        source_Q[: len(source)], slots_Q[: len(slots)] = source, slots
        call.grow_pool()
        call.session.pool = _store(call.session.pool, kv, source_Q, slots_Q, call.network.model.mesh)


def put_on_device(network: Network, tree: Any) -> Any:
    """Arrays on the device of the variables: a program is compiled once more for arguments that are bound to none."""
    if network.model.mesh is not None:
        return tree
    return jax.device_put(tree, jax.tree.leaves(network.variables)[0].sharding)
