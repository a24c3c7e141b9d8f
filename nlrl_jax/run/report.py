"""report.html: what a run asked, what came out, and the episodes themselves, in one file without a network."""

from __future__ import annotations

import base64
import functools
import os
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import write_atomically
from nlrl_jax.run.transcript import flaws, outcome, printable

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_TAG = re.compile(r"(</?[A-Za-z][A-Za-z0-9_]*>)")
_NEUTRAL = "_.-#"  # floor and walls of the usual boards
_COLORS = 10  # cell colours of the style sheet
_TAG_COLORS = 6

Episode = dict[str, Any]


def write_report(
    run_dir: str | os.PathLike,
    title: str,
    question: str,
    config: Mapping[str, Any],
    summary: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    curves: Sequence[str | os.PathLike] = (),
    before: Sequence[Episode] = (),
    after: Sequence[Episode] = (),
    notes: str | Sequence[str] = (),
    exchanges: Sequence[Mapping[str, Any]] = (),
    labels: tuple[str, str] = ("Before", "After"),
    name: str = "report.html",
) -> pathlib.Path:
    """Writes one self-contained page into the run's folder.

    Everything is escaped; nothing is loaded from elsewhere, and there is no script.

    Args:
      title, question: what the page is about, in words.
      config: shown as a table.
      summary: the numbers: {metric: (before, after)}, {metric: number}, or rows {column: value} of any table.
      curves: PNG files, inlined; any other name is a metric, which is drawn from the run's metrics.jsonl.
      before, after: records of `transcript.transcripts`; those with the same position stand side by side, so they
        should be episodes from the same initial state.
      notes: paragraphs under the numbers.
      exchanges: what language models were asked and wrote: {"title", "board" or "", "parts": [(label, text), ...]}.
      labels: what the two sides of the episodes are called.
      name: the file.

    Returns:
      The file's path.

    Raises:
      FileNotFoundError: a PNG that is not there.
      ValueError: a metric that the run did not write.
    """
    from markupsafe import Markup

    run_dir = pathlib.Path(run_dir)
    pairs = [(before[i : i + 1], after[i : i + 1]) for i in range(max(len(before), len(after)))]
    boards = [board for episode in [*before, *after] for board in _boards(episode)]
    colors = cell_colors([*boards, *(exchange["board"] for exchange in exchanges)])
    columns, rows = _table(summary)
    page = _template().render(
        title=title,
        question=question,
        config=config,
        columns=columns,
        rows=rows,
        images=[_data_uri(path) for path in _pngs(run_dir, curves)],
        pairs=pairs,
        notes=[notes] if isinstance(notes, str) else notes,
        exchanges=exchanges,
        labels=labels,
        outcome=outcome,
        flaws=flaws,
        path=lambda episode: list(dict.fromkeys(_boards(episode))),
        draw=lambda board: Markup(draw_board(board, colors)),
        mark=lambda reply: Markup(mark_reply(reply)),
    )
    path = run_dir / name
    write_atomically(path, page)
    return path


@functools.cache
def _template():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=lambda x: _clean(x),
    )  # fmt: skip
    return environment.get_template("report.html")


def _clean(value: Any) -> Any:
    """Every value of the page passes here: text without control characters, short numbers."""
    if type(value) is str:
        return printable(value)
    return number(value) if type(value) is float else value


def number(value: Any) -> str:
    """A number to three or four digits; anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table; a row without a column's value leaves it empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in [columns, ["---"] * len(columns), *cells])


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


def cell_colors(boards: Sequence[str]) -> dict[str, int]:
    """Character -> colour number, for all characters that stand alone in a cell of these boards.

    Floor and walls, and the most frequent character, have none. The same boards in any order give the same colours.
    """
    count = Counter(cell for board in boards for row in _cells(board) or () for cell in row)
    if not count:
        return {}
    most = max(sorted(count), key=count.__getitem__)
    colored = sorted(c for c in count if c not in _NEUTRAL and c != most)
    return {cell: i % _COLORS for i, cell in enumerate(colored)}


def _cells(board: str) -> list[list[str]] | None:
    """The characters of a grid (separated by blanks or not), None where a board is not a rectangle of characters."""
    lines = board.splitlines()
    spaced = [line.split(" ") for line in lines]
    for rows in (spaced, [list(line) for line in lines]):
        if rows and len({len(row) for row in rows}) == 1 and all(len(cell) == 1 for row in rows for cell in row):
            return rows if len(rows) > 1 and len(rows[0]) > 1 else None
    return None


def draw_board(board: str, colors: Mapping[str, int]) -> str:
    """HTML of a board: a grid of coloured cells, or the text as it is."""
    rows = _cells(board)
    if rows is None:
        return f'<pre class="text-board">{_escape(board)}</pre>'
    cell = lambda c: f'<span class="c{colors[c]}">{_escape(c)}</span>' if c in colors else f"<span>{_escape(c)}</span>"
    lines = "".join(f"<div>{''.join(cell(c) for c in row)}</div>" for row in rows)
    size = " small" if max(len(rows), len(rows[0])) > 6 else ""
    return f'<div class="board{size}" role="img" aria-label="{_escape(board)}">{lines}</div>'


def _boards(episode: Episode) -> list[str]:
    return [turn["board"] for turn in episode["turns"]] + [episode["final_board"]]


def _table(summary) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text)."""
    if not isinstance(summary, Mapping):
        columns = list(dict.fromkeys(name for row in summary for name in row))
        return columns, [[number(row.get(name, "")) for name in columns] for row in summary]
    if all(not isinstance(value, Sequence) or isinstance(value, str) for value in summary.values()):
        return ["", "value"], [[name, number(value)] for name, value in summary.items()]
    rows = []
    for name, value in summary.items():
        old, new = value if isinstance(value, Sequence) and not isinstance(value, str) else ("", value)
        numeric = all(isinstance(x, int | float) for x in (old, new))
        rows.append([name, number(old), number(new), f"{new - old:+.3g}" if numeric and new != old else ""])
    return ["", "before", "after", "change"], rows


def _pngs(run_dir: pathlib.Path, curves) -> list[pathlib.Path]:
    from nlrl_jax.run.plots import learning_curve

    files = [pathlib.Path(curve) for curve in curves if str(curve).endswith(".png")]
    metrics = [str(curve) for curve in curves if not str(curve).endswith(".png")]
    return files + ([learning_curve([run_dir], metrics, run_dir / "curves.png")] if metrics else [])


def _data_uri(path: pathlib.Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
