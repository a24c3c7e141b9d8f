"""Token tables and the program that strings them together, on the device or with NumPy.

A compiled template is a row of *pieces*. A piece is a table of token strings, an index rule (a sum of
strided field values) and a gate (always there, there if its list has more than i items, there if its
list is empty). All token strings lie in one flat array, so the program is a handful of gathers
whatever the template's size: find every piece's row, sum up the lengths, and look up for every output
position which piece covers it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.text.cuts import Variable
from nlrl_jax.text.template import read


@dataclasses.dataclass(frozen=True)
class LastFlag:
    """A variable of two values: whether item `item` of list `number` is the list's last one."""

    number: int
    item: int
    low: int = 0
    size: int = 2


@dataclasses.dataclass(frozen=True)
class TemplatePiece:
    """`strings` in the mixed radix order of `variables`, the first one slowest.

    The piece is always there if `number` is None; otherwise with `item` of list `number`, or if that list is empty
    (`item` None). `begins`: no text stands before it.
    """

    strings: tuple[str, ...]
    variables: tuple[Variable | LastFlag, ...] = ()
    number: int | None = None
    item: int | None = None
    begins: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class TokenProgram:
    """The arrays of a compiled template. P pieces, R rows, M variables a piece, N tokens; all int32.

    Attributes:
      tokens: [N] all token strings, end to end.
      row_start, row_length: [R] where a token string lies in `tokens`.
      base: [P] the piece's first row.
      gate: [P] into the gates: always, then for each list its items and "empty".
      at, low, size, stride: [P, M] row = base + sum(clip(values[at] - low, 0, size - 1) * stride).
      layout: fields and how many values are read from each (None: it is a scalar), in the order of the values.
      lists: (count field, max_items) of each list; the last-item flags follow the fields' values.
      max_length: no rendering has more tokens.
    """

    tokens: np.ndarray
    row_start: np.ndarray
    row_length: np.ndarray
    base: np.ndarray
    gate: np.ndarray
    at: np.ndarray
    low: np.ndarray
    size: np.ndarray
    stride: np.ndarray
    layout: tuple[tuple[str, int | None], ...]
    lists: tuple[tuple[str, int], ...]
    max_length: int


def build(pieces: Sequence[TemplatePiece], lists: Sequence[tuple[str, int]], encode) -> TokenProgram:
    """Builds the tables for `pieces`; `lists` are (count field, max_items); `encode(text, continues)` gives ids."""
    sizes: dict[str, int | None] = {}
    for variable in (v for piece in pieces for v in piece.variables if isinstance(v, Variable)):
        previous, index = sizes.get(variable.field), variable.index
        sizes[variable.field] = None if index is None else max(previous or 1, 1 + index)
    layout, counts = tuple(sizes.items()), [size or 1 for size in sizes.values()]
    offsets = dict(zip(sizes, np.cumsum([0, *counts]), strict=False))
    num_values = sum(counts)
    flags = np.cumsum([0] + [n for _, n in lists]) + num_values
    gates = np.cumsum([1] + [n + 1 for _, n in lists])

    rows: dict[tuple[str, bool], int] = {}  # (string, whether it begins the text) -> where its tokens lie
    tokens: list[int] = []
    lengths: dict[tuple[str, bool], int] = {}
    tables: dict[tuple[tuple[str, ...], bool], int] = {}
    row_start: list[int] = []
    row_length: list[int] = []
    num_variables = max([1, *(len(piece.variables) for piece in pieces)])
    at, low, stride = (np.zeros((len(pieces), num_variables), np.int32) for _ in range(3))
    size = np.ones((len(pieces), num_variables), np.int32)
    base, gate = [], []
    for p, piece in enumerate(pieces):
        table = piece.strings, piece.begins
        if table not in tables:
            tables[table] = len(row_start)
            for text in piece.strings:
                row = text, piece.begins
                if row not in rows:
                    ids = encode(text, not piece.begins)
                    rows[row], lengths[row] = len(tokens), len(ids)
                    tokens.extend(ids)
                row_start.append(rows[row])
                row_length.append(lengths[row])
        base.append(tables[table])
        number, item = piece.number, piece.item
        gate.append(0 if number is None else gates[number] + (lists[number][1] if item is None else item))
        step = 1
        for m, variable in reversed(list(enumerate(piece.variables))):
            if isinstance(variable, LastFlag):
                at[p, m] = flags[variable.number] + variable.item
            else:
                at[p, m] = offsets[variable.field] + (variable.index or 0)
            low[p, m], size[p, m], stride[p, m] = variable.low, variable.size, step
            step *= variable.size
    array = functools.partial(np.array, dtype=np.int32)
    max_length = _max_length(pieces, lists, lengths)
    return TokenProgram(
        array(tokens or [0]), array(row_start), array(row_length), array(base), array(gate), at, low, size, stride,
        layout, tuple(lists), max_length,
    )  # fmt: skip


def _max_length(pieces, lists, lengths) -> int:
    """Bounds the rendering's length as if slots were independent: for each list the longest over its counts."""
    total = 0
    middle = [np.zeros(n, int) for _, n in lists]  # longest form of item i when others follow
    last = [np.zeros(n, int) for _, n in lists]
    empty = [0] * len(lists)
    for piece in pieces:
        sizes = np.array([lengths[text, piece.begins] for text in piece.strings])
        number, item = piece.number, piece.item
        if number is None:
            total += sizes.max()
        elif item is None:
            empty[number] += sizes.max()
        elif any(isinstance(v, LastFlag) for v in piece.variables):  # the flag is the last variable
            middle[number][item] += sizes[0::2].max()
            last[number][item] += sizes[1::2].max()
        else:
            middle[number][item] += sizes.max()
            last[number][item] += sizes.max()
    for number in range(len(lists)):
        up_to_here = np.cumsum(middle[number]) - middle[number] + last[number]
        total += max(empty[number], *up_to_here)
    return int(total)


def assemble(xp, program: TokenProgram, fields: Mapping[str, Any], pad_id: int):
    """Assembles the tokens of one state: ([max_length] int32, right-padded with `pad_id`; their number, int32).

    `xp` is `jax.numpy` or `numpy`. Values outside a slot's range are clipped.
    """
    if program.base.size == 0:
        return xp.zeros((0,), xp.int32), xp.int32(0)
    constant = xp.asarray
    # 1. Every piece's row: its variables are digits of a number in mixed radix. 2. Its length; 0 if it is not there.
    values, gates = _values_and_gates(xp, program, fields)
    digits = xp.clip(values[constant(program.at)] - constant(program.low), 0, constant(program.size - 1))
    row = constant(program.base) + xp.sum(digits * constant(program.stride), axis=1)
    length = xp.where(gates[constant(program.gate)], constant(program.row_length)[row], 0)
    # 3. For every output position the piece that covers it, and the token there.
    end = xp.cumsum(length).astype(xp.int32)
    position = xp.arange(program.max_length, dtype=xp.int32)
    piece = xp.minimum(xp.searchsorted(end, position, side="right"), program.base.size - 1)
    shift = constant(program.row_start)[row] - (end - length)
    at = xp.clip(shift[piece] + position, 0, program.tokens.size - 1)
    tokens = xp.where(position < end[-1], constant(program.tokens)[at], pad_id)
    return tokens.astype(xp.int32), end[-1]


def refuse_values(program: TokenProgram, fields: Mapping[str, Any]) -> None:
    """Raises ValueError for a value on the host outside its slot's or its list's range, as `Template.render` does."""
    values, gates = _values_and_gates(np, program, fields)
    for count, max_items in program.lists:
        if not 0 <= (n := int(fields[count])) <= max_items:
            raise ValueError(f"{count} is {n}; this list holds 0 to {max_items} items")
    names = [name for name, size in program.layout for _ in range(size or 1)]
    digits = values[program.at] - program.low
    wrong = ((digits < 0) | (digits >= program.size)) & (program.stride > 0) & gates[program.gate][:, None]
    for place in np.argwhere(wrong)[:1]:
        at, low, size = (array[tuple(place)] for array in (program.at, program.low, program.size))
        raise ValueError(f"field {names[at]!r} is {values[at]}; its slot takes {low} to {low + size - 1}")


def _values_and_gates(xp, program: TokenProgram, fields):
    """Gathers all values the pieces read, int32 [values], and all gates, bool [gates]. Errors: see `template.read`."""
    values, gates = [], [xp.ones((1,), bool)]
    for name, size in program.layout:
        values.append(_int32(xp, read(fields, name, size).reshape(-1)[: size or 1]))
    for name, max_items in program.lists:
        count = xp.clip(_int32(xp, read(fields, name, None)), 0, max_items)
        item = xp.arange(max_items, dtype=xp.int32)
        values.append((item == count - 1).astype(xp.int32))
        gates += [item < count, (count == 0)[None]]
    return xp.concatenate(values or [xp.zeros((1,), xp.int32)]), xp.concatenate(gates)


def _int32(xp, value):
    """Converts integers to int32; larger ones become the largest, not others modulo 2^32."""
    lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if value.dtype != bool and np.iinfo(value.dtype).max > highest:
        namespace = np if isinstance(value, np.ndarray | np.generic) else xp
        value = namespace.minimum(value, highest)
        value = namespace.maximum(value, lowest) if np.iinfo(value.dtype).min < 0 else value
    return xp.asarray(value).astype(xp.int32)
