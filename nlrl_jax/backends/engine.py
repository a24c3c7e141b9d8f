"""Replies to prompts, from tokens to tokens: one engine for calls of any size, with a session and without.

    replies = write(network, session, prompts, queue, options, draw)

A call goes through these steps:

    1. shapes     from a short menu, so that few programs are compiled (`engine_shapes`)
    2. admit      into the rows that are free, prompts that begin alike together
    3. prefill    what no row of the session begins with, each token once, in chunks (`prefill`)
    4. decode     all rows together, until enough of them are free; then 2 again
    5. finish     replies to the caller; their keys and values into the session
    6. compact    the last rows that run go on in a smaller batch

Without a session a call has one of its own, with room for the prompts that are admitted together. What a row says
depends on the weights, its prompt and its draw number only, up to the rounding of matrix products of another shape.
`scoring` reads texts in the same way.

Letters: A texts, R rows, S slots of a text, N tokens of a reply at most, W = S + N slots of a row, P tokens of the
prefix, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from nlrl_jax.backends import batching
from nlrl_jax.backends import engine_shapes as shapes
from nlrl_jax.backends.prefill import Call, Network, Options, load, prefill, put_on_device, store
from nlrl_jax.backends.session import Session, Text, open_session
from nlrl_jax.lm import decode, kv_rows
from nlrl_jax.lm.programs import PROGRAMS
from nlrl_jax.lm.sharding import whole
from nlrl_jax.lm.transformer import KeyValues, num_slots
from nlrl_jax.types import Sampling, Written

# Programs are kept by shapes, model and options, never by parameters: all models of one config share them.
_empty_rows = jax.jit(decode.empty_rows, static_argnums=(0, 1, 2, 3))
_admit_texts = PROGRAMS.own(jax.jit(kv_rows.admit, static_argnums=6, donate_argnums=0))
_decode = PROGRAMS.own(jax.jit(decode.decode, static_argnums=(0, 5), donate_argnums=2))
_bring_together = PROGRAMS.own(jax.jit(kv_rows.bring_together, static_argnums=2))


class Draw(NamedTuple):
    """How tokens are drawn: sampling, end tokens (bool [V]) and the key of the whole call."""

    sampling: Sampling
    end_tokens: np.ndarray
    key: jax.Array

    def arguments(self, prefix: KeyValues | None) -> tuple[Sampling, np.ndarray, KeyValues | None, np.ndarray | None]:
        """The last arguments of `decode`, those that are compiled in without what may change from call to call."""
        sampling = self.sampling
        static = Sampling(1, float(sampling.temperature > 0), sampling.top_k, sampling.top_p)
        temperature = None if sampling.temperature == 0 else np.float32(sampling.temperature)
        return static, self.end_tokens, prefix, temperature


# 2. Admit


class RowBatch:
    """Rows that are written together, and who is in them.

    rows: `decode.Rows` [R], or None before the first admission. index: the slot that the next step writes.
    occupant: int [R], the draw number in each row, -1 in a free one. used: int [R], slots in use by each row.
    """

    def __init__(self, num_rows: int, slots: int):
        self.rows: decode.Rows | None = None
        self.slots, self.index = slots, slots - 1
        self.occupant, self.used = np.full(num_rows, -1), np.zeros(num_rows, np.int32)


def write(
    network: Network,
    session: Session | None,
    prompts: Sequence[Text],
    queue: Sequence[int],
    options: Options,
    draw: Draw,
) -> dict[int, Written]:
    """Replies to prompts[queue[i]] by i, which is also the number of the draw."""
    replies: dict[int, Written] = {}
    texts = [prompts[prompt] for prompt in queue]
    with open_session(session, network.model.config, network.weights, texts, options.rows) as opened:
        # 1. Shapes: of the whole call, then of each batch.
        call = Call(network, opened, options, texts, session is opened)
        P = len(call.prefix)
        widths = [shapes.text_slots(len(prompt) - P, call.room, call.grows) for prompt in prompts]
        counts = np.bincount(queue, minlength=len(prompts))
        for width, chosen in batching.plan(widths, counts.tolist(), options.rows):
            together = set(chosen)
            numbers = [i for i, prompt in enumerate(queue) if prompt in together]
            numbers.sort(key=texts.__getitem__)  # equal texts, and those that begin alike, are admitted together
            replies |= _write_batch(call, deque(numbers), texts, width, draw)
    return replies


def _write_batch(call: Call, queue: deque[int], texts: Sequence[Text], S: int, draw: Draw) -> dict[int, Written]:
    """Replies to texts[i] for the draw numbers i in the queue, none of them longer than S slots."""
    network, options = call.network, call.options
    R = shapes.row_count(len(queue), options.rows, call.exact_shapes)
    N = batching.bucket(draw.sampling.max_tokens)
    batch, replies = RowBatch(R, S), {}
    while queue or (batch.occupant >= 0).any():
        _admit(call, batch, queue, texts, N, draw.sampling.max_tokens)
        R = len(batch.occupant)
        smaller = shapes.smaller_row_count(R, call.exact_shapes)
        stop_at = max(1, round(options.refill * R)) if queue else R - smaller if smaller < R else R
        # 4. Decode
        first_index, arguments = batch.index, draw.arguments(call.prefix_kv)
        with PROGRAMS.once(network.model, "decode", R, S, N, len(call.prefix), arguments[0]):
            batch.rows = _decode(network.model, network.acting, batch.rows, draw.key, np.int32(stop_at), *arguments)
        replies |= _finish(call, batch, texts)
        options.row_steps.computed += R * (batch.index - first_index)
        runs = np.flatnonzero(batch.occupant >= 0)
        if not queue and 0 < len(runs) <= smaller < R:
            _compact(call, batch, runs, smaller)
    return replies


def _admit(call: Call, batch: RowBatch, queue: deque[int], texts: Sequence[Text], N: int, limit: int) -> None:
    """Fills free rows from the queue; rows that run keep their texts."""
    S, R, running = batch.slots, len(batch.occupant), batch.occupant >= 0
    # The cache moves down only when its slots are used up; then the row that needs most has room to its end.
    before = batch.index
    batch.index = max(S - 1, int(batch.used[running].max(initial=0))) if before == S + N else before
    free = deque(np.flatnonzero(~running).tolist())
    if not (queue and free) and batch.index == before:
        return
    if batch.rows is None:
        batch.rows = put_on_device(call.network, _empty_rows(call.network.model, R, S + N, N))
    # A large model's texts are loaded in parts: beside all rows they would take as much memory again.
    at_once = max(1, R // 4) if call.is_large else R
    while True:
        chosen = _choose(call, batch, queue, free, texts, at_once)
        # 3. Prefill: all but the last token, which the first step of decoding reads.
        prefill(call, [text[:-1] for text in chosen])
        _load_texts(call, batch, chosen, limit)
        if not (queue and free):
            return


def _choose(call: Call, batch: RowBatch, queue, free, texts: Sequence[Text], max_texts: int) -> dict[Text, list[int]]:
    """The next texts with their draw numbers, as many as rows are free and the session holds at once.

    Equal texts are neighbours in the queue: one text of the session, and a row for each of its draws.
    """
    call.session.tick()
    chosen: dict[Text, list[int]] = {}
    tokens = 0
    while queue and free and len(chosen) < max_texts:
        text = texts[queue[0]]
        tokens += 0 if text in chosen else len(text)
        if chosen and tokens > call.session.capacity:
            break
        number = queue.popleft()
        chosen.setdefault(text, []).append(number)
        batch.occupant[free.popleft()] = number
    return chosen


def _load_texts(call: Call, batch: RowBatch, chosen: dict[Text, list[int]], limit: int) -> None:
    """Puts texts of the session into the rows of their draws."""
    S, R, P, mesh = batch.slots, len(batch.occupant), len(call.prefix), call.network.model.mesh
    A = max(1, R // 4) if len(chosen) <= R // 4 else R
    slots_AS, last_A, lengths_A = np.full((A, S), -1, np.int32), np.zeros(A, np.int32), np.ones(A, np.int32)
    text_of_draw = {}
    for i, (text, numbers) in enumerate(chosen.items()):
        length = len(text) - P
        slots_AS[i, S - length : S - 1] = call.session.find(text[:-1])[P:]  # right-aligned
        last_A[i], lengths_A[i] = text[-1], length
        text_of_draw.update(dict.fromkeys(numbers, i))
    source_R = np.array([text_of_draw.get(number, -1) for number in batch.occupant.tolist()], np.int32)
    draw_R = np.maximum(batch.occupant, 0).astype(np.int32)
    loaded = kv_rows.Texts(load(call.session.pool, slots_AS, mesh), last_A, lengths_A)
    batch.rows = _admit_texts(batch.rows, loaded, source_R, draw_R, np.int32(limit), np.int32(batch.index), mesh)


# 5. Finish


def _finish(call: Call, batch: RowBatch, texts: Sequence[Text]) -> dict[int, Written]:
    """Replies of the rows that do not run any more, by draw number; their keys and values go into the session."""
    state, session, P = batch.rows, call.session, len(call.prefix)
    # One transfer: everything the host decides on.
    small = state.tokens, state.log_probs, state.lengths, state.ended, decode.running(state), state.start, state.index
    tokens, log_probs, lengths, ended, runs, starts, index = jax.device_get(whole(small))
    batch.index, batch.used = int(index), int(index) - starts
    replies, sources, new_slots, W = {}, [], [], num_slots(state.kv)
    session.tick()
    for row in np.flatnonzero((batch.occupant >= 0) & ~runs).tolist():
        number, size = int(batch.occupant[row]), lengths[row]
        replies[number] = Written(*(tuple(t[row, :size].tolist()) for t in (tokens, log_probs)), bool(ended[row]))
        call.options.row_steps.written += int(size)
        batch.occupant[row] = -1
        if not call.keeps:
            continue
        text = texts[number] + replies[number].tokens[:-1]  # the last token was not put through the network
        cached = session.find(text)
        # Without its prefix a row's keys and values are of no use; where there is no room they are left out.
        slots = session.add(text, cached) if P <= len(cached) < len(text) else None
        if slots is not None:
            first_slot = row * W + int(starts[row]) - P
            sources.append(np.arange(first_slot + len(cached), first_slot + len(text)))
            new_slots.append(slots[len(cached) :])
    if sources:
        store(call, state.kv, np.concatenate(sources), np.concatenate(new_slots))
    return replies


# 6. Compact


def _compact(call: Call, batch: RowBatch, runs: np.ndarray, size: int) -> None:
    """Brings the rows that run into a batch of `size`."""
    which_r = np.pad(runs, (0, size - len(runs)), constant_values=len(batch.occupant)).astype(np.int32)
    batch.rows = _bring_together(batch.rows, which_r, call.network.model.mesh)
    pad = (0, size - len(runs))
    batch.occupant = np.pad(batch.occupant[runs], pad, constant_values=-1)
    batch.used = np.pad(batch.used[runs], pad)
