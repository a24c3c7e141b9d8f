"""HTML of what agents see and write: boards as coloured cells, replies with their tags marked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from nlrl_jax.run.transcript import printable

_TAG = re.compile(r"(</?[A-Za-z][A-Za-z0-9_]*>)")
_NEUTRAL = "_.-#"  # floor and walls of the usual boards
_COLORS = 10  # cell colours of the style sheet
_NAMED = {"green": 0, "blue": 2, "red": 3, "yellow": 4, "purple": 5, "grey": 6}  # those a thing may be named after
_TAG_COLORS = 6


def _escape(text: str) -> str:
    import markupsafe

    return str(markupsafe.escape(printable(text)))


def mark_reply(reply: str) -> str:
    """HTML of a reply: escaped, its tags and the text of its action tag in spans."""
    pieces, open_tag, colors = [], "", {}
    for piece in _TAG.split(reply):
        if not piece:
            continue
        if _TAG.fullmatch(piece):
            tag = piece.strip("</>")
            color = colors.setdefault(tag, len(colors) % _TAG_COLORS)
            kind = "action" if tag == "action" else f"t{color}"
            pieces.append(f'<span class="tag {kind}">{_escape(piece)}</span>')
            open_tag = "" if piece.startswith("</") else tag
        elif open_tag == "action":
            pieces.append(f"<b>{_escape(piece)}</b>")
        else:
            pieces.append(_escape(piece))
    return "".join(pieces)


def cell_colors(boards: Sequence[str], legend: Mapping[str, str] | None = None) -> dict[str, int]:
    """Character -> colour number, for the cells of these boards, in whatever order they come.

    Floor, walls and the most frequent character have no colour. A thing whose name in the legend contains a colour has
    that colour; characters of the same name have the same.
    """
    count = Counter(cell for board in boards for row in cells_of(board) or () for cell in row)
    if not count:
        return {}
    legend, background = legend or {}, max(sorted(count), key=count.__getitem__)
    colored = sorted(c for c in count if c not in _NEUTRAL and c != background)
    named = {c: _NAMED[w] for c in colored for w in legend.get(c, "").split() if w in _NAMED}
    free = [i for i in range(_COLORS) if i not in named.values()]
    kinds = list(dict.fromkeys(legend.get(c, c) for c in colored if c not in named))
    return {c: named[c] if c in named else free[kinds.index(legend.get(c, c)) % len(free)] for c in colored}


def cells_of(board: str) -> list[list[str]] | None:
    """The characters of a grid (separated by blanks or not), None where a board is not a rectangle of characters."""
    lines = board.splitlines()
    spaced = [line.split(" ") for line in lines]
    for rows in (spaced, [list(line) for line in lines]):
        if rows and len({len(row) for row in rows}) == 1 and all(len(cell) == 1 for row in rows for cell in row):
            return rows if len(rows) > 1 and len(rows[0]) > 1 else None
    return None


def draw_cell(cell: str, colors: Mapping[str, int]) -> str:
    """HTML of a board's character."""
    color = f' class="c{colors[cell]}"' if cell in colors else ' class="wall"' * (cell == "#")
    return f"<span{color}>{_escape(cell)}</span>"


def draw_board(board: str, colors: Mapping[str, int]) -> str:
    """HTML of a board: a grid of coloured cells, or the text as it is."""
    rows = cells_of(board)
    if rows is None:
        kind = "text-board" if "\n" in board else "text-board prose"  # a drawing keeps its lines
        return f'<pre class="{kind}">{_escape(board)}</pre>'
    lines = "".join(f"<div>{''.join(draw_cell(cell, colors) for cell in row)}</div>" for row in rows)
    size = " small" if max(len(rows), len(rows[0])) > 6 else ""
    return f'<div class="board{size}" role="img" aria-label="{_escape(board)}">{lines}</div>'
