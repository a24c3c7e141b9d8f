"""Where the states of recurrent layers lie in a pool, by the tokens that they are after."""

from __future__ import annotations

from collections import OrderedDict


class Snapshots:
    """A table: slot of a token -> snapshot of the states after it. What was not used for longest is replaced.

    Snapshot 0 is for good that of no token.

    Attributes:
      number: snapshots at most; 0 where all layers are attention.
      num_used: those that have ever held a state, the first ones.
      permanent: the slot of a token whose snapshot is not replaced, the last one of the prefix; -1 without one.
    """

    def __init__(self, number: int):
        self.number, self.num_used, self.permanent = number, 1, -1
        self._snapshots: dict[int, int] = {}
        self._last_use: OrderedDict[int, int] = OrderedDict()  # slot: when, the oldest first
        self._free: list[int] = []

    def __contains__(self, slot: int) -> bool:
        return slot in self._snapshots

    def __getitem__(self, slot: int) -> int:
        return self._snapshots[slot]

    def use(self, slot: int, clock: int) -> None:
        """Marks a snapshot as used at this time."""
        self._last_use[slot] = clock
        self._last_use.move_to_end(slot)

    def oldest(self, tick: int) -> int | None:
        """The slot whose snapshot is to be replaced next, of those that were not used after `tick`."""
        slot = next((slot for slot in self._last_use if slot != self.permanent), None)
        return slot if slot is not None and self._last_use[slot] <= tick else None

    @property
    def full(self) -> bool:
        """Whether there is none for another token before one is dropped."""
        return not self._free and self.num_used == self.number

    def add(self, slot: int, clock: int) -> None:
        """Gives a token's states a snapshot that is free."""
        if not self._free:
            self._free.append(self.num_used)
            self.num_used += 1
        self._snapshots[slot] = self._free.pop()
        self.use(slot, clock)

    def drop(self, slot: int) -> None:
        """Frees a token's snapshot, if it has one."""
        if slot in self._snapshots:
            self._free.append(self._snapshots.pop(slot))
            del self._last_use[slot]
            self.permanent = -1 if slot == self.permanent else self.permanent
