"""Random cells of a board without loops and without sorting: few random words and counts of bits."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

WORD = 24  # bits of a packed mask in one word: a float32 holds them exactly


def computed_once(numbers: jax.Array) -> jax.Array:
    """Marks numbers from 0 to 2 ** 16 that are to be computed once, not anew for each cell that they are compared with.

    They do not change. XLA's CPU compiler drops `optimization_barrier` before it fuses, and repeats all but a few kinds
    of operation in each element of what they are broadcast to. A remainder is one that it does not repeat.
    """
    wide = numbers.astype(jnp.int32)
    return jax.lax.rem(wide, jnp.full_like(wide, 2**16 + 1)).astype(numbers.dtype)


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
    return computed_once(jnp.stack(drawn))


def pack(mask: jax.Array) -> jax.Array:
    """Packs a mask into words of `WORD` bits, its first element lowest: bool [N] -> uint32 [W]."""
    # As a product with the bits' values, which CPUs compute many times as fast as shifts and sums, and exactly.
    cells = np.arange(len(mask))
    is_in_word = cells[:, None] // WORD == np.arange(-(-len(mask) // WORD))
    values = np.where(is_in_word, 2.0 ** (cells[:, None] % WORD), 0).astype(np.float32)
    return (mask.astype(jnp.float32) @ values).astype(jnp.uint32)


def pack_cell(cell: jax.Array, words: int) -> jax.Array:
    """Packs the mask that is true at one cell, or nowhere if the cell is negative: int32 [] -> uint32 [words]."""
    bit = jnp.uint32(1) << (cell % WORD).astype(jnp.uint32)
    return jnp.where(np.arange(words) == cell // WORD, bit, jnp.uint32(0))


def random_cell(word: jax.Array, packed: jax.Array) -> jax.Array:
    """Draws a uniformly random set bit of packed words [W], from one uint32 word: int32 [], W * WORD or more if none.

    The cell is the `rank`-th set bit: first the word that holds it, then its place there, both by counting bits. All in
    steps of scalars, which a batch computes as vectors of games; reductions would be loops within each game.
    """
    counts = [jax.lax.population_count(bits).astype(jnp.int32) for bits in packed]
    rank = (word % jnp.maximum(sum(counts), 1).astype(jnp.uint32)).astype(jnp.int32)
    # 1. The last word before which at most `rank` bits are set, and its rank there.
    cell, bits, before = jnp.int32(len(packed) * WORD), jnp.uint32(0), jnp.int32(0)
    rank_in_word = rank
    for i, count in enumerate(counts):
        is_in_word = (before <= rank) & (rank < before + count)
        cell = jnp.where(is_in_word, i * WORD, cell)
        bits = jnp.where(is_in_word, packed[i], bits)
        rank_in_word = jnp.where(is_in_word, rank - before, rank_in_word)
        before += count
    # 2. Halve what is left of the word.
    for half in (16, 8, 4, 2, 1):
        lower = jax.lax.population_count(bits & np.uint32(2**half - 1)).astype(jnp.int32)
        is_upper = lower <= rank_in_word
        cell += jnp.where(is_upper, half, 0)
        bits = jnp.where(is_upper, bits >> half, bits)
        rank_in_word -= jnp.where(is_upper, lower, 0)
    return computed_once(cell)


def random_choice(word: jax.Array, allowed: jax.Array) -> jax.Array:
    """Draws a uniformly random index of a short mask with at least one true element, from one uint32 word: int32 []."""
    until = list(itertools.accumulate(flag.astype(jnp.int32) for flag in allowed))
    rank = (word % until[-1].astype(jnp.uint32)).astype(jnp.int32)
    return computed_once(sum((count <= rank).astype(jnp.int32) for count in until))
