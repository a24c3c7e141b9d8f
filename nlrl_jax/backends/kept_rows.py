"""Rows that wait for their texts to go on: keys and values of a call's rows, for prompts of the next call.

Episodes in lockstep ask again after each step, with the text so far and what is new in it. A prompt that begins with
the text of a row takes this row over and reads what is new; a row may be taken over by several prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.backends import batching
from nlrl_jax.backends.kv_cache import token_bytes
from nlrl_jax.backends.kv_generation import Draw
from nlrl_jax.lm import decode as steps
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.transformer import KeyValues, Transformer
from nlrl_jax.types import Written

GRAIN = 64  # tokens to which the length of rows is rounded up, or twice, four times, ... as many
LEAST = 32  # tokens to which what is new in a row is padded at least: a program for each pair of sizes is too many
FEW = 4  # a fourth of the rows goes on without the others, which have ended; of less than twice as many none

_prefix = jax.jit(compute_prefix, static_argnums=0)
_prefill = jax.jit(steps.prefill, static_argnums=0)
_empty = jax.jit(steps.empty_rows, static_argnums=(0, 1, 2, 3))
_admit = jax.jit(steps.admit, static_argnums=6, donate_argnums=0)
_go_on = jax.jit(steps.go_on, static_argnums=(0, 11, 12))
_decode = jax.jit(steps.decode, static_argnums=(0, 5), donate_argnums=2)
_finish = jax.jit(steps.finish, static_argnums=(0, 5), donate_argnums=2)


class Kept(NamedTuple):
    """The rows of a call.

    prefix, prefix_kv: what all of them come after. begins: int [R], the first slot of each row in use.
    texts: of each row, the tokens in its slots from there on, or () where it holds nothing of use.
    """

    rows: steps.Rows
    prefix: tuple[int, ...]
    prefix_kv: KeyValues | None
    begins: np.ndarray
    texts: list[tuple[int, ...]]


class Taken(NamedTuple):
    """Prompts, each in a row of its own, R of them with padding: those that take a row over, then those read anew.

    numbers: of the draws, by row. over: how many take a row over. slots: before the next token is read. source, begin,
    kept, new: int32 [R], the row that each takes over, its first slot, the tokens that it has, and those to read, in
    tokens: int32 [R, C]. last: int32 [R], each prompt's last token, which is not among them.
    """

    numbers: list[int]
    over: int
    slots: int
    source: np.ndarray
    begin: np.ndarray
    kept: np.ndarray
    new: np.ndarray
    tokens: np.ndarray
    last: np.ndarray


@dataclasses.dataclass
class KeptRows:
    """What a model keeps from one call to the next; mutable. last: the rows of the last call."""

    config: ModelConfig
    megabytes: float
    last: Kept | None = None

    def most(self, slots: int) -> int:
        """How many texts may be kept, each in a row of so many slots, padding included."""
        return int(self.megabytes * 1e6 / (slots * token_bytes(self.config)) / 1.5)

    def take(self, prompts: Sequence[tuple[int, ...]], rows: Mapping[int, int], room: int) -> tuple[Kept, Taken] | None:
        """The rows that prompts[rows[i]] take over, by draw i, and rows for the others: as many as may be kept.

        None, and nothing is kept any more, if it is less work to read all prompts anew.

        Args:
          room: tokens that a row is to have room for after its prompt.
        """
        have, self.last = self.last, None
        if have is None:
            return None
        P, owner = len(have.prefix), {text: row for row, text in enumerate(have.texts) if text}
        sizes = sorted({len(text) for text in owner}, reverse=True)
        found = {}
        for prompt in set(rows.values()):
            text = prompts[prompt][P:]
            if text and prompts[prompt][:P] == have.prefix:
                fits = (text[:size] for size in sizes if size < len(text))
                found[prompt] = next((owner[begin] for begin in fits if begin in owner), None)
        over = [i for i, prompt in rows.items() if found.get(prompt) is not None]
        slots = batching.bucket(max(map(len, prompts)) - P, GRAIN)
        numbers = over + [i for i, prompt in rows.items() if prompt in found and found[prompt] is None]
        numbers = numbers[: self.most(slots + room)]
        over = over[: len(numbers)]
        if not over:
            return None
        texts = [prompts[rows[i]][P:] for i in over]
        source = np.array([found[rows[i]] for i in over])
        kept = np.array([len(have.texts[row]) for row in source])
        new = np.array([len(text) for text in texts]) - 1 - kept
        R, C, n = _rows(len(numbers)), batching.bucket(int(new.max()), LEAST), len(over)
        if R * C > n * max(map(len, texts)):
            return None
        ints = lambda *shape: np.zeros(shape, np.int32)
        taken = Taken(numbers, n, slots, ints(R), ints(R), ints(R), ints(R), ints(R, C), ints(R))
        taken.source[:n], taken.begin[:n], taken.kept[:n], taken.new[:n] = source, have.begins[source], kept, new
        for row, text in enumerate(texts):
            taken.tokens[row, : new[row]], taken.last[row] = text[kept[row] : -1], text[-1]
        return have, taken


class Network(NamedTuple):
    """A model, its variables and the rows that were computed with them; `acting`: the variables as replies are written
    with them (`lm.acting.views`); `row_steps`: counts them."""

    model: Transformer
    variables: Any
    kept: KeptRows
    acting: Any
    row_steps: batching.RowSteps


def write(
    net: Network, prompts: Sequence[tuple[int, ...]], rows: Mapping[int, int], at_once: int, draw: Draw
) -> dict[int, Written]:
    """Replies to prompts[rows[i]] by i, as many as rows may be kept. `at_once`: prompts that are read together."""
    found = net.kept.take(prompts, rows, batching.bucket(draw.sampling.max_tokens))
    if found is None:
        return _begin(net, prompts, rows, at_once, draw)
    return _continue(net, prompts, rows, *found, at_once, draw)


def _begin(net: Network, prompts, rows: Mapping[int, int], at_once: int, draw: Draw) -> dict[int, Written]:
    """Replies in rows that begin with their prompts."""
    P = batching.shared_prefix(prompts)
    shared, rest = prompts[0][:P], [prompt[P:] for prompt in prompts]
    S, N = batching.bucket(max(map(len, rest))), batching.bucket(draw.sampling.max_tokens)
    numbers = list(rows)[: net.kept.most(S + N)]
    if not numbers:
        return {}
    prefix = _prefix(net.model, net.variables, np.array(shared, np.int32)) if P else None
    R = _rows(len(numbers))
    occupant, which = _padded(numbers, R, -1), _padded([rows[i] for i in numbers], R, -1)
    state = _read(net, None, rest, which, occupant, (R, S, N, S - 1), at_once, draw, prefix)
    texts = [rest[rows[i]] for i in numbers]
    return _written(net, state, S - 1, occupant, texts, draw, shared, prefix)


def _continue(net: Network, prompts, rows, have: Kept, taken: Taken, at_once: int, draw: Draw) -> dict[int, Written]:
    """Replies in rows that take others over, and in rows beside them that begin with their prompts."""
    R, N, P = len(taken.last), batching.bucket(draw.sampling.max_tokens), len(have.prefix)
    occupant, limits = _padded(taken.numbers, R, -1), _padded([draw.sampling.max_tokens] * taken.over, R, 0)
    new = taken.source, taken.begin, taken.kept, taken.tokens, taken.new, taken.last, np.maximum(occupant, 0), limits
    state = _go_on(net.model, net.variables, have.rows, *new, taken.slots, N, have.prefix_kv)
    anew, which = batching.distinct([rows[i] for i in taken.numbers[taken.over :]])
    if anew:
        rest = [prompts[prompt][P:] for prompt in anew]
        which = _padded([-1] * taken.over + which, R, -1)
        shape = R, batching.bucket(max(map(len, rest))), N, taken.slots
        state = _read(net, state, rest, which, occupant, shape, at_once, draw, have.prefix_kv)
    texts = [prompts[rows[i]][P:] for i in taken.numbers]
    return _written(net, state, taken.slots, occupant, texts, draw, have.prefix, have.prefix_kv)


def _read(net: Network, state, rest, which, occupant, shape, at_once: int, draw: Draw, prefix) -> steps.Rows:
    """`state`, or free rows, with the prompts rest[which[row]] in those rows where `which` is not -1.

    Args:
      shape: rows, tokens to which prompts are padded, tokens of a reply, the slot that the next step writes.
    """
    R, S, N, index = shape
    M = min(batching.bucket(len(rest), 4), at_once)  # few shapes
    for first in range(0, len(rest), M):
        source = np.where((which >= first) & (which < first + M), which - first, -1).astype(np.int32)
        if (source >= 0).any():
            block = batching.left_padded(rest[first : first + M], M, S)
            block = _prefill(net.model, net.variables, *block, prefix)
            if state is None:  # where the block is: else a program is compiled once more
                state = jax.device_put(_empty(net.model, R, index + 1 + N, N), block.last.sharding)
            more = np.int32(draw.sampling.max_tokens), np.int32(index), None
            state = _admit(state, block, source, np.maximum(occupant, 0), *more)
    return state


def _written(net: Network, state, index: int, occupant, texts, draw: Draw, shared, prefix) -> dict[int, Written]:
    """The replies of rows that go on at slot `index`, by draw number; the rows are kept.

    Args:
      occupant: int [R], the draw number of each row, -1 for free ones. texts: of the prompts, after the prefix.
    """
    R, how = len(occupant), draw.how(prefix)
    few = R // FEW if R >= 2 * FEW else 0
    state = _decode(net.model, net.acting, state, draw.key, np.int32(R - few), *how)
    runs, then = jax.device_get((steps.running(state), state.index))
    if runs.any():
        which = np.flatnonzero(runs)
        which = _padded(which, few := batching.rows_for(len(which)), R)
        state = _finish(net.model, net.acting, state, which, draw.key, *how)
    small = state.tokens, state.lengths, state.ended, state.start, state.log_probs, state.index
    tokens, lengths, ended, begins, probs, done = jax.device_get(small)
    written = {}
    for row in np.flatnonzero(occupant >= 0):
        own = (tuple(x[row, : lengths[row]].tolist()) for x in (tokens, probs))
        written[int(occupant[row])] = Written(*own, bool(ended[row]))
    net.row_steps.computed += int(R * (then - index) + few * (done - then))
    net.row_steps.written += int(lengths[occupant >= 0].sum())
    held = [text + tuple(tokens[row, : lengths[row] - 1].tolist()) for row, text in enumerate(texts)]
    net.kept.last = Kept(state, shared, prefix, begins, held)
    return written


def _rows(n: int) -> int:
    """Rows of a program for n: 1, 2, 4, 8, 16, 24, 32, 48, ... (`batching.rows_for`, with fewer small sizes)."""
    return batching.rows_for(n) if n > 16 else batching.bucket(n, 1)


def _padded(numbers: Sequence[int], R: int, value: int) -> np.ndarray:
    """int32 [R], `value` after the numbers."""
    return np.pad(np.asarray(numbers, np.int32), (0, R - len(numbers)), constant_values=value)
