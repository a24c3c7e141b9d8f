"""How the rows of a call are packed: duplicates and length buckets. Plain Python on the host."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Batch(NamedTuple):
    """Prompts that are processed together.

    bucket: the number of tokens each is padded to.
    prompts: their indices, in the caller's order.
    """

    bucket: int
    prompts: tuple[int, ...]


def bucket(n: int, smallest: int = 16) -> int:
    """n rounded up to `smallest` or twice, four times, ... as much: few shapes."""
    return smallest << max(0, -(-n // smallest) - 1).bit_length()


def distinct(items: Sequence[T]) -> tuple[list[T], list[int]]:
    """The different items in the order of their first appearance, and for each item its place among them."""
    places: dict[T, int] = {}
    place_of_item = [places.setdefault(item, len(places)) for item in items]
    return list(places), place_of_item


def plan(lengths: Sequence[int], counts: Sequence[int], rows: int) -> list[Batch]:
    """Which prompts go together: those of a length bucket; one that does not fill the rows joins the next longer.

    Args:
      lengths: tokens of each prompt.
      counts: rows that each prompt takes.
      rows: rows of the program.
    """
    by_bucket: dict[int, list[int]] = {}
    for prompt, length in enumerate(lengths):
        by_bucket.setdefault(bucket(length), []).append(prompt)
    batches, waiting = [], []
    for size in sorted(by_bucket):
        waiting += by_bucket[size]
        if sum(counts[prompt] for prompt in waiting) >= rows or size == max(by_bucket):
            batches.append(Batch(size, tuple(sorted(waiting))))
            waiting = []
    return batches
