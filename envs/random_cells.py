"""Random cells of a board without loops and without sorting: few random words and counts of bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def distinct_cells(words: jax.Array, cells: int) -> jax.Array:
    """Draws K different cells from random uint32 words [K], every order equally likely: int32 [K].

    A Fisher-Yates shuffle of `range(cells)` cut off after K swaps, of which only the swaps are kept.
    """
    swapped, displaced, drawn = [], [], []

    def at(position):
        value = position
        for place, content in zip(swapped, displaced, strict=True):
            value = jnp.where(place == position, content, value)
        return value

    for i in range(len(words)):
        place = i + (words[i] % (cells - i)).astype(jnp.int32)
        value, content = at(place), at(jnp.int32(i))
        drawn.append(value)
        swapped.append(place)
        displaced.append(content)
    return jnp.stack(drawn)


def pack(mask: jax.Array, width: int) -> jax.Array:
    """Packs the rows of a mask into bits, column 0 lowest: bool [R * width] -> uint32 [R]."""
    columns = np.arange(width, dtype=np.uint32)
    return (mask.reshape(-1, width).astype(jnp.uint32) << columns).sum(1, dtype=jnp.uint32)


def random_cell(word: jax.Array, rows: jax.Array, width: int) -> jax.Array:
    """Draws a uniformly random set bit of packed rows, from one uint32 word: int32 [], R * width if there is none."""
    row_numbers = np.arange(rows.shape[0])
    per_row = jax.lax.population_count(rows).astype(jnp.int32)
    # The cell is the `rank`-th set bit: first the row that holds it, then the column, both by counting bits.
    rank = (word % jnp.maximum(per_row.sum(), 1).astype(jnp.uint32)).astype(jnp.int32)
    until_row = jnp.where(np.tri(len(row_numbers), dtype=bool), per_row, 0).sum(1)
    row = (until_row <= rank).sum(dtype=jnp.int32)
    rank -= jnp.where(row_numbers < row, per_row, 0).sum()
    line = jnp.where(row_numbers == row, rows, 0).sum(dtype=jnp.uint32)
    up_to_column = np.array([2 ** (column + 1) - 1 for column in range(width)], np.uint32)
    column = (jax.lax.population_count(line & up_to_column).astype(jnp.int32) <= rank).sum(dtype=jnp.int32)
    # The barrier keeps XLA from computing the cell anew for every element that is compared with it.
    return jax.lax.optimization_barrier(row * width + jnp.where(row < len(row_numbers), column, 0))
