"""The maps of FrozenLake: which are held out, and a table to draw those of a small board from.

There are only some thousand likely 4x4 maps, so a learner sees most of them. `maps="held_out"` draws
from a fixed eighth of the maps with two holes or more (by a hash of the holes) and `maps="train"` from
the others: what was trained on one can be tested on the other. The held-out maps are harder on average, as
the few maps with no hole or one, 23 % of all draws, stay with "train". The paper makes no such split;
"all" is its setting.
"""

from __future__ import annotations

import functools

import numpy as np

TABLE_SIZE = 4  # the largest board whose 2 ** (size * size - 2) maps are tabulated
CANDIDATES = 8  # maps drawn at once on larger boards
_CANDIDATE_TILES = 2**20  # in how many one of them must be found
MAPS = ("all", "train", "held_out")


def held_out(xp, holes):
    """Whether a map is held out: bool [..., N] -> bool [...], with numpy or jax.numpy as `xp`."""
    # A hash of the holes modulo 2^32: odd multiples of Knuth's constant, then a xorshift and a product with a prime of
    # xxHash; its top three bits are 0 for an eighth of all maps.
    weights = ((2 * np.arange(holes.shape[-1]) + 1) * 2654435761 % 2**32).astype(np.uint32)
    mixed = xp.sum(xp.where(holes, weights, np.uint32(0)), axis=-1, dtype=np.uint32)
    return ((mixed ^ mixed >> 15) * np.uint32(2246822519) >> 29 == 0) & (holes.sum(-1) >= 2)


def in_split(xp, holes, maps: str):
    """Whether maps belong to "all", "train" or "held_out": bool [..., N] -> bool [...]."""
    is_held_out = held_out(xp, holes)
    return xp.ones_like(is_held_out) if maps == "all" else is_held_out == (maps == "held_out")


def spread(xp, reached, free):
    """Grows a flood fill by one step: bool [..., size, size], with numpy or jax.numpy as `xp`."""
    padded = xp.pad(reached, [(0, 0)] * (reached.ndim - 2) + [(1, 1), (1, 1)])
    rows = padded[..., :-2, 1:-1] | padded[..., 2:, 1:-1]
    columns = padded[..., 1:-1, :-2] | padded[..., 1:-1, 2:]
    return free & (reached | rows | columns)


def _solvable(holes: np.ndarray, size: int) -> np.ndarray:
    """`frozen_lake.solvable` on the host: bool [M, N] -> bool [M]."""
    free = ~holes.reshape(-1, size, size)
    reached, grown = np.zeros_like(free), free & (np.arange(size * size) == 0).reshape(size, size)
    while (reached != grown).any():
        reached, grown = grown, spread(np, grown, free)
    return reached[:, -1, -1]


@functools.lru_cache
def map_table(size: int, hole_probability: float, maps: str = "all") -> np.ndarray:
    """Builds the alias table over the maps of a small board: uint32 [2 ** (size * size - 2), 2].

    Bit k of a row's index says whether tile k + 1 is a hole. A row holds (threshold, alias): a uniform
    row index stands for itself if a uniform 32-bit word is below the threshold, else for the alias.

    Raises:
      ValueError: no map is solvable and of this set.
    """
    inner = size * size - 2  # start and goal are never holes
    codes = np.arange(2**inner)
    holes = np.zeros((len(codes), size * size), bool)
    holes[:, 1:-1] = codes[:, None] >> np.arange(inner) & 1
    count = holes.sum(1)
    allowed = _solvable(holes, size) & in_split(np, holes, maps)
    weight = np.where(allowed, hole_probability**count * (1 - hole_probability) ** (inner - count), 0.0)
    if not weight.any():
        raise _no_map(size, hole_probability, maps, "no map")
    return _alias_table(weight / weight.sum())


@functools.lru_cache
def check_candidates(size: int, hole_probability: float, maps: str) -> None:
    """Draws candidate maps of a large board, as a reset does but from fixed random numbers, until one would do.

    Raises:
      ValueError: none did in `_CANDIDATE_TILES` tiles, 16,384 maps of 8x8: a reset would not end.
    """
    tiles, rng = size * size, np.random.default_rng(0)
    number = max(_CANDIDATE_TILES // tiles, CANDIDATES)
    for _ in range(0, number, CANDIDATES):
        holes = np.pad(rng.random((CANDIDATES, tiles - 2)) < hole_probability, [(0, 0), (1, 1)])
        if (_solvable(holes, size) & in_split(np, holes, maps)).any():
            return
    raise _no_map(size, hole_probability, maps, f"of {number} candidates none")


def _no_map(size: int, hole_probability: float, maps: str, problem: str) -> ValueError:
    return ValueError(
        f"size {size}, hole_probability {hole_probability} and maps {maps!r}: {problem} is solvable and of this set; "
        "change one of the three"
    )


def _alias_table(probability: np.ndarray) -> np.ndarray:
    """Builds an alias table by Vose's method: probabilities, float64 [M] -> (threshold, alias), uint32 [M, 2]."""
    share = probability * len(probability)  # 1 where a row's own probability just fills it
    keep, alias = np.ones_like(share), np.arange(len(share))
    small, large = list(np.flatnonzero(share < 1)), list(np.flatnonzero(share >= 1))
    while small and large:
        # A row that is not full is filled up from a larger one, its alias.
        lesser, greater = small.pop(), large.pop()
        keep[lesser], alias[lesser] = share[lesser], greater
        share[greater] -= 1 - share[lesser]
        (small if share[greater] < 1 else large).append(greater)
    return np.stack([np.minimum(keep * 2.0**32, 2.0**32 - 1), alias], axis=1).astype(np.uint32)
