"""What a local model remembers from call to call: texts, and their keys and values in a pool on the device.

A row is a text and the pool's slot of each of its tokens. Rows that begin alike share the slots of what they have in
common, so a text that goes on takes only the slots of its new tokens. A row is dropped once a newer one extends it,
after `CALLS` calls without use, or when its place is needed, the oldest first.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import HeadKeyValues

CALLS = 32  # calls that a row outlives without being used
FIRST_SLOTS = 4096  # of the pool; four times as many whenever they run out, as each size has programs of its own

Text = tuple[int, ...]
NO_SLOTS = np.zeros(0, np.int32)


@dataclasses.dataclass
class Counts:
    """Tokens since a session was made.

    asked: of the texts that were to be continued or scored, each text once per call.
    read: put through the network for that, with what was read again for its hidden states, without padding.
    """

    asked: int = 0
    read: int = 0


def token_bytes(config: ModelConfig) -> int:
    """Bytes of a token's keys and values."""
    itemsize = 2 if config.dtype in ("bfloat16", "float16") else 4
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    n = min(len(first), len(second))
    if first[:n] == second[:n]:
        return n
    low = 0  # they are equal up to here, and differ before n
    while n - low > 1:
        middle = (low + n) // 2
        low, n = (middle, n) if first[low:middle] == second[low:middle] else (low, middle)
    return low


class Session:
    """The rows of one set of weights. It changes with every call, and decides how long a call takes, not what it
    returns, up to rounding: what it holds follows from the weights and the texts alone.

    Attributes:
      capacity: tokens at most.
      pool: `HeadKeyValues` [layers, K, slots, D], or None while nothing is stored.
      prefix: tokens that all texts of the first call with several began with; None before it.
      counts: see `Counts`.
      lock: held during a call.
    """

    def __init__(self, config: ModelConfig, megabytes: float, first_slots: int = FIRST_SLOTS):
        if not megabytes > 0:
            raise ValueError(f"a session of {megabytes} MB; it must be above 0 (without a session nothing is kept)")
        self.config, self.megabytes = config, megabytes
        self.capacity = int(megabytes * 1e6 / token_bytes(config))
        self.first_slots = min(first_slots, self.capacity)
        self.counts, self.lock = Counts(), threading.Lock()
        self._weights: Any = None
        self.clear()

    @classmethod
    def of_size(cls, config: ModelConfig, megabytes: float) -> Session | None:
        """A session with so much memory; None for 0."""
        return cls(config, megabytes) if megabytes else None

    @classmethod
    def for_a_call(cls, config: ModelConfig, tokens: int) -> Session:
        """A session with room for so many tokens, or a little more."""
        slots = 1 << max(0, tokens - 1).bit_length()
        return cls(config, (slots + 0.5) * token_bytes(config) / 1e6, slots)

    def fresh(self, parts: int = 1) -> Session:
        """An empty session with the same memory, or a part of it."""
        return Session(self.config, self.megabytes / parts)

    def clear(self) -> None:
        """Forgets all rows (not the counts)."""
        self.pool: HeadKeyValues | None = None
        self.prefix: Text | None = None
        self._texts: list[Text] = []  # sorted: the longest common beginning is a neighbour's
        self._slots: dict[Text, np.ndarray] = {}
        self._used: dict[Text, int] = {}  # when
        self._rows_of = np.zeros(self.capacity, np.int32)  # rows that share each slot
        self._free: list[int] = []
        self._unused = 0  # slots from here on were never used
        self._clock, self._calls = 0, deque([0], CALLS)

    @property
    def num_tokens(self) -> int:
        """Tokens that it holds."""
        return self._unused - len(self._free)

    def begin_call(self, weights: Any) -> None:
        """Forgets rows of other weights and those that were not used for long."""
        if self._weights is not weights:
            self.clear()
            self._weights = weights
        self.tick()
        self._calls.append(self._clock)
        if len(self._calls) == CALLS:
            for text in [text for text, clock in self._used.items() if clock < self._calls[0]]:
                self._drop(text)

    def tick(self) -> None:
        """What is added from now on stays until the next tick."""
        self._clock += 1

    def find(self, text: Text) -> np.ndarray:
        """Slots int32 [n] of the longest beginning of a text that some row has."""
        at = bisect.bisect_left(self._texts, text)
        best, row = 0, None
        for neighbour in self._texts[max(0, at - 1) : at + 1]:
            if (n := common_length(text, neighbour)) > best:
                best, row = n, neighbour
        if row is None:
            return NO_SLOTS
        self._used[row] = max(self._used[row], self._clock - 1)  # of use, and yet it may go if there is no other place
        return self._slots[row][:best]

    def add(self, text: Text, cached: np.ndarray) -> np.ndarray | None:
        """Makes a row -> its slots int32 [tokens]; None if there is no room for it.

        Args:
          cached: slots of its beginning, from `find`.
        """
        if text in self._slots:
            self._used[text] = self._clock
            return self._slots[text]
        self._rows_of[cached] += 1  # before others are dropped for it
        new = self._take(len(text) - len(cached))
        if new is None:
            self._rows_of[cached] -= 1
            return None
        self._rows_of[new] += 1
        slots = np.concatenate([cached, new])
        at = bisect.bisect_left(self._texts, text)
        if at and text[: len(self._texts[at - 1])] == self._texts[at - 1]:  # which the new row extends
            self._drop(self._texts[at - 1])
            at -= 1
        self._texts.insert(at, text)
        self._slots[text], self._used[text] = slots, self._clock
        return slots

    def _take(self, number: int) -> np.ndarray | None:
        """Free slots int32 [number], for which the oldest rows are dropped; None if those in use leave less."""
        if self.capacity - self.num_tokens < number:
            for text in sorted(self._texts, key=lambda text: (self._used[text], text)):
                if self._used[text] == self._clock or self.capacity - self.num_tokens >= number:
                    break
                self._drop(text)
        if self.capacity - self.num_tokens < number:
            return None
        reused = min(number, len(self._free))
        slots = self._free[len(self._free) - reused :]
        del self._free[len(self._free) - reused :]
        slots += range(self._unused, self._unused + number - reused)
        self._unused += number - reused
        return np.array(slots, np.int32)

    def _drop(self, text: Text) -> None:
        del self._texts[bisect.bisect_left(self._texts, text)], self._used[text]
        slots = self._slots.pop(text)
        self._rows_of[slots] -= 1
        self._free += slots[self._rows_of[slots] == 0].tolist()

    @property
    def device_slots(self) -> int:
        """Slots that the pool must have."""
        slots = self.first_slots
        while slots < self._unused:
            slots = min(4 * slots, self.capacity)
        return slots


@contextlib.contextmanager
def open_session(
    session: Session | None, config: ModelConfig, weights: Any, texts: Sequence[Text], rows: int
) -> Iterator[Session]:
    """The session for a call, if it can hold each text, or else one for this call alone, with room for `rows` texts.

    What a failed call leaves is not used again: rows may lack tokens that they claim to hold.
    """
    longest = max(map(len, texts))
    if session is None or session.capacity < longest:
        session = Session.for_a_call(config, min(sum(map(len, set(texts))), longest * rows))
    with session.lock:
        session.begin_call(weights)
        try:
            yield session
        except BaseException:
            session.clear()
            raise
