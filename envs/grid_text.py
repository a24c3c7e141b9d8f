"""What the text of every square grid game shares: coordinates, the drawn grid, lists of points.

A cell is one integer, row-major from the top left: `cell = row * size + column`. Text speaks of
(x, y) with (0, 0) at the bottom left, so x = column and y = size - 1 - row (MS-GRPO, appendix,
"Dynamic Observation Text").

Action ids are those of the paper's action list: 0 Up, 1 Down, 2 Left, 3 Right.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template

ACTIONS = ("Up", "Down", "Left", "Right")
UP, DOWN, LEFT, RIGHT = range(4)
ACTION_RULE = 'Available actions: Up, Down, Left, Right. Reply with 1 to 3 actions, separated by " || ".'


def offset(action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the (row, column) change of actions, int32 [...] each; other ids do not move."""
    action = jnp.asarray(action)
    rows = (action == DOWN).astype(jnp.int32) - (action == UP).astype(jnp.int32)
    columns = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    return rows, columns


def xy(cell: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Converts cell indices [...] to the text's coordinates (x [...], y [...])."""
    return cell % size, size - 1 - cell // size


def first_cells(mask: jax.Array, count: int) -> jax.Array:
    """Returns the first `count` true cells of a bool [N], in reading order; cell 0 fills up: int32 [count]."""
    return jnp.nonzero(mask, size=count, fill_value=0)[0].astype(jnp.int32)


def grid(symbols: tuple[str, ...], size: int, field: str = "cells") -> Template:
    """Draws a square grid of characters: `field`, int [size * size], indexes `symbols`; blanks between columns."""
    return drawn([Choice(field, symbols, cell) for cell in range(size * size)], size)


def drawn(cells: Sequence[Choice], columns: int, across: str = " ", down: str = "\n") -> Template:
    """Draws cells row by row, with `across` between columns and `down` between rows."""
    parts: list[Literal | Choice] = [cells[0]]
    for i, cell in enumerate(cells[1:], 1):
        parts += [Literal(across if i % columns else down), cell]
    return Template(tuple(parts))


def point(prefix: str, size: int) -> tuple:
    """`(x, y)` from the fields `<prefix>_x` and `<prefix>_y`."""
    last = size - 1
    return (
        Literal("("),
        Number(f"{prefix}_x", 0, last),
        Literal(", "),
        Number(f"{prefix}_y", 0, last),
        Literal(")"),
    )


def points(prefix: str, max_items: int, size: int, empty: str) -> Repeat:
    """`(x, y), (x, y)` from `num_<prefix>s`, `<prefix>_x` and `<prefix>_y`."""
    return Repeat(f"num_{prefix}s", max_items, point(prefix, size), separator=", ", empty=empty)


def conventions(size: int) -> str:
    """Returns the paper prompt's sentences on board size and coordinates."""
    last = size - 1
    return (
        f"The board has {size}x{size} cells. A cell is written as (X, Y), where X is the column and Y is the row; "
        f"(0, 0) is the bottom left corner and ({last}, {last}) the top right one. "
        "Up adds 1 to Y, Down subtracts 1 from Y, Right adds 1 to X, Left subtracts 1 from X."
    )


def legend(entries: tuple[tuple[str, str], ...]) -> str:
    """Lists the symbols, with the heading of the grid below."""
    lines = "\n".join(f"- {symbol}: {meaning}" for symbol, meaning in entries)
    return f"Symbols used in the state:\n{lines}\nState:\n"
