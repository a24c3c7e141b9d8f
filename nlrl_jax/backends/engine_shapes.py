"""The shapes of the engine's programs: a short menu, as each shape is compiled, and each step beyond need is computed.

Where computing is cheap beside compiling (a small model on a CPU) there are few shapes. Where each wasted row is dear
(a large model, an accelerator) there are more: `exact`. A shape follows from the call alone, so that a run repeats
itself to the bit.
"""

from __future__ import annotations

from nlrl_jax.backends import batching

SHORTEST = 64  # slots of a text at least
GROWING = 256  # the same in a session, whose texts grow, where slots cost little
CHEAP = 1024  # slots a row, to which texts may grow where those of all rows take an eighth of the weights at most
# Tokens of a text that are read at once, and of how many texts, where few are left: some 64 tokens fill a core.
CHUNKS = {4: 8, 32: 2}
ONE_CHUNK = {32: 2}  # those of a caller with one size of batches
EXACT_CHUNKS = {4: 8, 32: 8, 256: 8}  # those of a large model or an accelerator
# Rows of a large model on a CPU: each takes a tenth of a step of 8, but programs of another number take as long to
# compile as some ten steps.
FINE_ROWS = (1, 2, 4, 6, 8)
# Tokens that such a model reads at once, of each of so many rows: a chunk costs a copy of all weights, a token of
# padding as much as one of text, and a program to read with is compiled in a second or two.
FINE_CHUNKS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
STORED = (128, 1024)  # tokens that are stored at once where a program takes longer to compile than to run
FEW, MANY = 24, 64  # texts up to which they are few, and how many of more are read at once
LEAST_PREFIX, EXACT_LEAST_PREFIX = 256, 32  # tokens: shorter prefixes are part of each row


def text_slots(longest: int, room: int, grows: bool) -> int:
    """S for texts of at most `longest` tokens: 64, 128, 256, ..., and where texts grow 256, 1024, ...; `room` is the
    model's."""
    slots = GROWING if grows else SHORTEST
    while slots < longest:
        slots *= 4 if grows else 2
    return max(min(slots, batching.bucket(room, SHORTEST)), batching.bucket(longest, SHORTEST))


def row_count(n: int, max_rows: int, exact: bool, fine: bool = False) -> int:
    """R for n rows: 8, 24, 64, 192, ...; where each wasted row is dear (`exact`) powers of two, and `fine` 6 too. Never
    above `max_rows`, and that where it is less than twice as many, unless `exact`."""
    if fine and n <= max(FINE_ROWS):
        return min(next(rows for rows in FINE_ROWS if rows >= n), max_rows)
    rows, factors = (1, (2, 2)) if exact else (8, (3, 8 / 3))
    at = 0
    while rows < min(n, max_rows):
        rows, at = round(rows * factors[at % 2]), at + 1
    almost_all = not exact and rows < max_rows < 2 * rows and rows > 8
    return max_rows if almost_all else min(rows, max_rows)


def smaller_row_count(rows: int, exact: bool, fine: bool = False) -> int:
    """Rows of the batch in which the last of so many rows go on; `rows` where a smaller one does not pay.

    Args:
      fine: down to a single row in several steps.
    """
    if fine:
        return max((size for size in (*FINE_ROWS, rows // 4) if 0 < size < rows), default=rows)
    if exact:
        return rows // 4 if rows >= 8 else rows
    return max((size for size in (8, 24, 64, 192, 512) if size <= rows // 2), default=rows)


def stored_tokens(n: int, exact: bool) -> tuple[int, int]:
    """(Q, how many times): n tokens are stored Q at a time, and all at once where each call is dear (`exact`)."""
    size = batching.bucket(n, 64) if exact else STORED[n > 4 * STORED[0]]
    return size, max(1, -(-n // size))


def prefix_length(shared: int, exact: bool) -> int:
    """P where all texts begin with `shared` tokens: 0 or a power of two."""
    return 1 << (shared.bit_length() - 1) if shared >= (EXACT_LEAST_PREFIX if exact else LEAST_PREFIX) else 0


def block(
    n: int, new: int, slots: int, max_rows: int, exact: bool, fine: bool = False, one: bool = False
) -> tuple[int, int, int]:
    """(A, C, how many chunks) in which the next of n texts, of which `new` tokens are to be read, are read together:
    at most two chunks of a size, else the next larger size. Two texts are read one by one where a third would be dear
    (`exact`). `fine`: as few chunks as can be, with little padding. `one`: chunks of one size."""
    if fine:
        texts = row_count(n, min(max_rows, max(FINE_ROWS)), exact=True, fine=True)
        num_chunks = -(-new // max(FINE_CHUNKS))
        size = next(size for size in FINE_CHUNKS if size >= -(-new // num_chunks))
    else:
        sizes = EXACT_CHUNKS if exact else ONE_CHUNK if one else CHUNKS
        size = next((size for size in sizes if new <= 2 * size), max(sizes))
        texts = 1 if exact and n <= 2 else sizes[size] if n <= FEW else MANY
    size = min(size, slots)
    return min(max_rows, texts), size, -(-new // size)
