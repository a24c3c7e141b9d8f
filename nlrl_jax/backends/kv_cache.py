"""Which texts' keys and values are kept on the device, and where: a trie of tokens over a pool of slots.

One slot holds one token after one text, so texts that fork share the slots of what they have in common. A slot's
number is also its node's: {(parent's slot, token): slot}. Whoever uses a node has used all before it, so the slots that
were used longest ago, deepest first, can always be dropped without leaving a hole.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from nlrl_jax.backends.program_shapes import Shapes
from nlrl_jax.lm.config import ModelConfig


@dataclasses.dataclass
class KVCacheStats:
    """Tokens since the cache was made.

    read: put through the network as part of a prompt or of a scored continuation (not those written).
    reused: of distinct prompts, found in the cache.
    evicted: dropped to make room.
    """

    read: int = 0
    reused: int = 0
    evicted: int = 0


def token_bytes(config: ModelConfig) -> int:
    """Bytes of a token's keys and values."""
    itemsize = 2 if config.dtype in ("bfloat16", "float16") else 4
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize


class KVCache:
    """The index of the pool, and the pool itself; mutable, and not safe without `lock`.

    Attributes:
      capacity: slots at most.
      log_prob: float64 [capacity], of each slot's token after the text before it; nan where that was not computed.
      pool: `KeyValues` [layers, K, slots, D], or None while nothing is stored.
      stats: see `KVCacheStats`. shapes: of the programs that use it; they outlive what it holds.
    """

    def __init__(self, config: ModelConfig, megabytes: float):
        self.capacity = int(megabytes * 1e6 / token_bytes(config))
        self.vocab_size = config.vocab_size
        self.stats = KVCacheStats()
        self.shapes = Shapes(config)
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forgets everything (not the counts)."""
        self.pool = None
        self._slot: dict[int, int] = {}
        self._free: list[int] = []
        self._unused = 0  # slots from here on were never used
        self._clock = 0
        self._key = np.zeros(self.capacity, np.int64)
        self._used = np.zeros(self.capacity, np.int64)
        self._depth = np.zeros(self.capacity, np.int32)
        self.log_prob = np.full(self.capacity, np.nan)

    def __len__(self) -> int:
        return len(self._slot)

    def start(self) -> None:
        """What is found or added from now on stays until the next `start`."""
        self._clock += 1

    def find(self, tokens: Sequence[int], known: np.ndarray, first: int) -> np.ndarray:
        """Slots of the longest known beginning of `tokens`.

        Args:
          known: slots of another text that begins with the same `first` tokens.
        """
        if len(known) < first:
            return known
        path = known[:first]
        parent = int(path[-1]) if first else -1
        slot, size, more = self._slot.get, self.vocab_size, []
        for token in tokens[first:]:
            parent = slot((parent + 1) * size + token)
            if parent is None:
                break
            more.append(parent)
        if not more:
            return path
        more = np.array(more, np.int64)
        self._used[more] = self._clock
        return np.concatenate([path, more])

    def room(self, wanted: int) -> bool:
        """Whether `wanted` slots are free, after the oldest were dropped if they were not."""
        missing = wanted - len(self._free) - (self.capacity - self._unused)
        if missing <= 0:
            return True
        old = np.flatnonzero((self._used > 0) & (self._used < self._clock))
        if len(old) < missing:
            return False
        drop = old[np.lexsort((-self._depth[old], self._used[old]))[: max(missing, self.capacity // 16)]]
        for key in self._key[drop].tolist():
            del self._slot[key]
        self._used[drop] = 0
        self._free += drop.tolist()
        self.stats.evicted += len(drop)
        return True

    def add(self, tokens: Sequence[int], path: np.ndarray, first: int) -> np.ndarray:
        """Gives tokens[first:], which follow the slots `path` [first], slots of their own -> int64 [...].

        Those that have one already keep it. There must be `room`.
        """
        added, parent = [], int(path[first - 1]) if first else -1
        for depth in range(first, len(tokens)):
            key = (parent + 1) * self.vocab_size + tokens[depth]
            slot = self._slot.get(key)
            if slot is None:
                if self._free:
                    slot = self._free.pop()
                else:
                    slot, self._unused = self._unused, self._unused + 1
                self._slot[key] = slot
                self._key[slot], self._depth[slot], self.log_prob[slot] = key, depth, np.nan
            added.append(slot)
            parent = slot
        added = np.array(added, np.int64)
        self._used[added] = self._clock
        return added

    @property
    def device_slots(self) -> int:
        """Slots that the pool must have: four times as many whenever they run out, up to the capacity."""
        slots = min(4096, self.capacity)
        while slots < self._unused:
            slots = min(4 * slots, self.capacity)
        return slots
