"""A checksum of arrays that is a sum over their elements: processes that each hold a part add up theirs.

The bits of each element, in words of 32, times an odd number that follows from its position, modulo 2^32. So one word
that changes always changes the sum, and others do with probability 1 - 2^-32, as with a CRC. How an array is divided,
when it is saved or when it is read, does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax import multihost

_BLOCK = 1 << 24  # elements that are multiplied at once


def checksums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """The checksum of each array; all processes must call this with the same names."""
    sums = {name: _own_part(leaf) for name, leaf in leaves.items()}
    shared = [name for name, leaf in leaves.items() if _is_shared(leaf)]
    if shared:
        parts = multihost.every([sums[name] for name in shared])
        sums |= {name: sum(column) % 2**32 for name, column in zip(shared, zip(*parts, strict=True), strict=True)}
    return sums


def _is_shared(leaf: Any) -> bool:
    """Whether no process holds the whole array."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _own_part(leaf: Any) -> int:
    if not _is_shared(leaf):
        array = np.asarray(leaf)
        return part(array, (0,) * array.ndim)
    shards = [shard for shard in leaf.addressable_shards if shard.replica_id == 0]
    sums = (part(np.asarray(shard.data), [axis.start or 0 for axis in shard.index]) for shard in shards)
    return sum(sums) % 2**32


def part(array: np.ndarray, start: Sequence[int]) -> int:
    """What a block of an array adds to the checksum.

    Args:
      start: the block's first index along each axis.
    """
    if not array.ndim:
        return part(array[None], (0,))
    if array.size > _BLOCK and len(array) > 1:
        half = len(array) // 2
        later = (start[0] + half, *start[1:])
        return (part(array[:half], start) + part(array[half:], later)) % 2**32
    start, size = list(start), array.dtype.itemsize
    if size >= 4:
        words = np.ascontiguousarray(array).view(np.uint32)  # lengthens the last axis
        start[-1] *= size // 4
    else:
        words = np.ascontiguousarray(array).view(f"u{size}").astype(np.uint32)
    for axis in reversed(range(words.ndim)):
        words = words @ _factors(axis, start[axis], words.shape[axis])
    return int(words)


def _factors(axis: int, start: int, number: int) -> np.ndarray:
    """Odd numbers that follow from the positions along an axis: uint32 [number]. Mixed as in splitmix32."""
    x = np.arange(start, start + number, dtype=np.uint64).astype(np.uint32) * np.uint32(0x9E3779B9)
    x += np.uint32((axis + 1) * 0x85EBCA6B % 2**32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return (x ^ (x >> np.uint32(15))) | np.uint32(1)
