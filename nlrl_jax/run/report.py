"""report.html: a run's question, its results and its episodes, in one file that needs no network."""

from __future__ import annotations

import base64
import functools
import os
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.files import write_atomically
from nlrl_jax.run import processes
from nlrl_jax.run.transcript import flaws, outcome, printable

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_TAG = re.compile(r"(</?[A-Za-z][A-Za-z0-9_]*>)")
_ZERO = re.compile(r"([-0.→± ]|\(all equal\))*")
_NEUTRAL = "_.-#"  # floor and walls of the usual boards
_COLORS = 10  # cell colours of the style sheet
_TAG_COLORS = 6

Episode = dict[str, Any]


class Table(NamedTuple):
    """A titled table: rows {column: value}, and a sentence below it."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


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
    headline: str = "",
    legend: Mapping[str, str] | None = None,
    tables: Sequence[Table] = (),
    stories: Sequence[Mapping[str, Any]] = (),
) -> pathlib.Path:
    """Writes one self-contained page into the run's folder. Of several processes the first writes.

    All text is escaped; nothing is loaded from elsewhere, and there is no script.

    Args:
      title, question: plain text.
      config: shown as a table.
      summary: {metric: (before, after)}, {metric: number}, or rows {column: value} of any table. Of pairs, those that
        are 0 and 0 or repeat another metric are folded away.
      curves: PNG and GIF files, inlined; any other name is a metric, drawn from the run's metrics.jsonl.
      before, after: records of `transcript.transcripts`; those with the same position stand side by side, so they
        should be episodes from the same initial state. The most telling pair is open (`telling`).
      notes: paragraphs below the table.
      exchanges: prompts and replies of language models: {"title", "board" or "", "parts": [(label, text), ...]}.
      labels: names of the two sides of an episode.
      name: the file's name.
      headline: the result in a few words, in large letters, e.g. "greedy success 0.224 → 0.820".
      legend: meaning of the characters on boards (`TextGame.legend`); only those that occur are shown.
      tables: more tables, between the notes and the pictures.
      stories: episodes decision by decision, as `reports.lac_stories.story` makes them.

    Returns:
      The file's path.

    Raises:
      FileNotFoundError: a picture does not exist.
      ValueError: the run wrote none of the metrics.
    """
    from markupsafe import Markup

    run_dir = pathlib.Path(run_dir)
    if not processes.first():
        return run_dir / name
    pairs = [(before[i : i + 1], after[i : i + 1]) for i in range(max(len(before), len(after)))]
    boards = [board for episode in [*before, *after] for board in _boards(episode)]
    boards += [exchange["board"] for exchange in exchanges]
    boards += [board for story in stories for board in (*(turn["board"] for turn in story["turns"]), story["board"])]
    colors = cell_colors(boards)
    cells = {cell for board in boards for row in _cells(board) or () for cell in row}
    columns, rows, hidden = _table(summary)
    pictures = _pictures(run_dir, curves)
    page = _template().render(
        title=title,
        question=question,
        config=config,
        columns=columns,
        rows=rows,
        hidden=hidden,
        headline=headline.replace("->", "→"),
        legend={cell: words for cell, words in (legend or {}).items() if cell in cells},
        images=[(path.stem, _data_uri(path)) for path in pictures if path.suffix == ".png"],
        films=[(path.stem, _data_uri(path)) for path in pictures if path.suffix == ".gif"],
        pairs=pairs,
        most_telling=telling(pairs),
        notes=[notes] if isinstance(notes, str) else notes,
        exchanges=exchanges,
        tables=[(*_table(table.rows)[:2], table) for table in tables],
        stories=stories,
        labels=labels,
        outcome=outcome,
        flaws=flaws,
        path=lambda episode: list(dict.fromkeys(_boards(episode))),
        draw=lambda board: Markup(draw_board(board, colors)),
        draw_cell=lambda cell: Markup(f'<span class="board">{_draw_cell(cell, colors)}</span>'),
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
    """Applied to each value on the page: text without control characters, short numbers."""
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
    """Character -> colour number, for the cells of these boards, in whatever order they come.

    Floor, walls and the most frequent character have no colour.
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


def _draw_cell(cell: str, colors: Mapping[str, int]) -> str:
    color = f' class="c{colors[cell]}"' if cell in colors else ""
    return f"<span{color}>{_escape(cell)}</span>"


def draw_board(board: str, colors: Mapping[str, int]) -> str:
    """HTML of a board: a grid of coloured cells, or the text as it is."""
    rows = _cells(board)
    if rows is None:
        return f'<pre class="text-board">{_escape(board)}</pre>'
    lines = "".join(f"<div>{''.join(_draw_cell(cell, colors) for cell in row)}</div>" for row in rows)
    size = " small" if max(len(rows), len(rows[0])) > 6 else ""
    return f'<div class="board{size}" role="img" aria-label="{_escape(board)}">{lines}</div>'


def _boards(episode: Episode) -> list[str]:
    return [turn["board"] for turn in episode["turns"]] + [episode["final_board"]]


def telling(pairs: Sequence[tuple[Sequence[Episode], Sequence[Episode]]]) -> int:
    """Position of the pair that fails before and succeeds after; among several, or without one, the largest gain."""

    def gain(i: int) -> tuple[bool, float]:
        if not all(pairs[i]):
            return False, 0.0
        (before,), (after,) = pairs[i]
        return bool(after["success"] and not before["success"]), after["env_return"] - before["env_return"]

    return max(range(len(pairs)), key=gain, default=0)


def distinct(table: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[str]]:
    """(rows worth reading, sentences that name the others): rows of zeros, and rows that repeat an earlier one."""
    shown: dict[tuple[str, ...], str] = {}
    zero, same = [], {}
    for name, values in table.items():
        text = tuple(map(number, values))
        if all(_ZERO.fullmatch(value) for value in text):
            zero.append(name)
        elif text in shown:
            same.setdefault(shown[text], []).append(name)
        else:
            shown[text] = name
    hidden = [f"always 0: {', '.join(zero)}"] if zero else []
    return list(shown.values()), hidden + [f"equal to {name}: {', '.join(names)}" for name, names in same.items()]


def _table(summary) -> tuple[list[str], list[list[str]], list[str]]:
    """(column names, rows of text, what was left out)."""
    if not isinstance(summary, Mapping):
        columns = list(dict.fromkeys(name for row in summary for name in row))
        return columns, [[number(row.get(name, "")) for name in columns] for row in summary], []
    if all(not isinstance(value, Sequence) or isinstance(value, str) for value in summary.values()):
        return ["", "value"], [[name, number(value)] for name, value in summary.items()], []
    pair = lambda value: value if isinstance(value, Sequence) and not isinstance(value, str) else ("", value)
    table = {name: pair(summary[name]) for name in sorted(summary, key=lambda name: name != "success")}
    names, hidden = distinct(table)
    rows = []
    for name in names:
        old, new = table[name]
        numeric = all(isinstance(x, int | float) for x in (old, new))
        rows.append([name, number(old), number(new), f"{new - old:+.3g}" if numeric and new != old else ""])
    return ["", "before", "after", "change"], rows, hidden


def _pictures(run_dir: pathlib.Path, curves) -> list[pathlib.Path]:
    from nlrl_jax.run.plots import learning_curve

    files = [pathlib.Path(curve) for curve in curves if str(curve).endswith((".png", ".gif"))]
    metrics = [str(curve) for curve in curves if not str(curve).endswith((".png", ".gif"))]
    return files + ([learning_curve([run_dir], metrics, run_dir / "curves.png")] if metrics else [])


def _data_uri(path: pathlib.Path) -> str:
    return f"data:image/{path.suffix[1:]};base64," + base64.b64encode(path.read_bytes()).decode()
