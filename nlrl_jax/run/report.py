"""report.html: a run's question, its results and its episodes, in one file that needs no network."""

from __future__ import annotations

import base64
import datetime
import functools
import importlib.metadata
import os
import pathlib
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends.usage import Usage
from nlrl_jax.files import write_atomically
from nlrl_jax.run import processes
from nlrl_jax.run.flags import in_use
from nlrl_jax.run.markup import cell_colors, cells_of, draw_board, draw_cell, mark_reply
from nlrl_jax.run.metrics import words
from nlrl_jax.run.transcript import flaws, outcome, printable

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_ZERO = re.compile(r"([-0.→± ]|\(all equal\))*")
_NUMBER = re.compile(r"$|[-+−–]?[0-9.]|[-+−–]$|nan|inf")  # how a number on the page begins
_STARTED = time.monotonic()

Episode = Mapping[str, Any]  # a record of `transcript.transcripts`


class Table(NamedTuple):
    """A titled table: rows {column: value}, and a sentence below it."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


class Picture(NamedTuple):
    """A PNG or GIF file, which the page will contain, and a line that says how to read it."""

    path: pathlib.Path
    caption: str


class Exchanges(NamedTuple):
    """Prompts and replies of language models, see `exchanges.Exchange`."""

    exchanges: Sequence[Mapping[str, Any]]


class EpisodePairs(NamedTuple):
    """Episodes side by side; those with the same position should begin in the same state."""

    before: Sequence[Episode]
    after: Sequence[Episode]
    labels: tuple[str, str] = ("before", "after")


class Stories(NamedTuple):
    """Episodes decision by decision, as `reports.lac_stories.story` makes them, and how they were selected."""

    stories: Sequence[Mapping[str, Any]]
    note: str


Block = str | Table | Picture | Exchanges | EpisodePairs | Stories  # a string is a paragraph


def write_report(
    run_dir: str | os.PathLike,
    title: str,
    question: str,
    config: Mapping[str, Any],
    blocks: Sequence[Block],
    headline: str = "",
    legend: Mapping[str, str] | None = None,
    name: str = "report.html",
) -> pathlib.Path:
    """Writes one self-contained page into the run's folder. Of several processes the first writes.

    All text is escaped; nothing is loaded from elsewhere, and there is no script. The page ends with the configuration,
    the command, the version, the date and how long this process has run.

    Args:
      title, question: plain text. The title names the model.
      config: shown as a table, without options that are empty or that do nothing beside the others.
      blocks: the page in order; those without content are left out.
      headline: the result in large letters: one number and what it is compared with.
      legend: meaning of the characters on boards (`TextGame.legend`); only those that occur are shown.
      name: the file's name.

    Returns:
      The file's path.

    Raises:
      FileNotFoundError: a picture does not exist.
    """
    from markupsafe import Markup

    path = pathlib.Path(run_dir) / name
    if not processes.first():
        return path
    boards = [board for block in blocks for board in _boards(block)]
    colors = cell_colors(boards, legend or {})
    cells = {cell for board in boards for row in cells_of(board) or () for cell in row}
    named: dict[str, list[str]] = {}
    for cell, meaning in (legend or {}).items():
        if cell in cells:
            named.setdefault(meaning, []).append(cell)
    page = _template().render(
        title=title,
        question=question,
        config={option: value for option, value in in_use(config).items() if value != ""},
        blocks=[(type(block).__name__, block) for block in blocks if _has_content(block)],
        headline=headline.replace("->", "→"),
        legend=named,
        foot=_foot(),
        columns=_columns,
        opened=_first_changed,
        data_uri=_data_uri,
        outcome=outcome,
        flaws=flaws,
        path=lambda episode: [board for board in dict.fromkeys(_boards_of(episode)) if cells_of(board)],
        draw=lambda board: Markup(draw_board(board, colors)),
        draw_cell=lambda cell: Markup(f'<span class="board">{draw_cell(cell, colors)}</span>'),
        mark=lambda reply: Markup(mark_reply(reply)),
    )
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


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """(name of a column, whether it holds numbers), in the order of their first rows."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [(name, all(_NUMBER.match(str(row.get(name, ""))) for row in rows)) for name in names]


def _first_changed(block: EpisodePairs) -> int:
    """The position of the pair to show open: the first whose success changed, else whose return did, else 0."""
    pairs = list(zip(block.before, block.after))
    for key in ("success", "env_return"):
        for i, (before, after) in enumerate(pairs):
            if before[key] != after[key]:
                return i
    return 0


def _has_content(block: Block) -> bool:
    """Whether there is anything to show."""
    if isinstance(block, Table):
        return bool(block.rows)
    if isinstance(block, EpisodePairs):
        return bool(block.before or block.after)
    return isinstance(block, Picture) or bool(block if isinstance(block, str) else block[0])


def _boards(block: Block) -> list[str]:
    """The boards that a block shows."""
    if isinstance(block, Exchanges):
        return [exchange["board"] for exchange in block.exchanges]
    if isinstance(block, EpisodePairs):
        return [board for episode in [*block.before, *block.after] for board in _boards_of(episode)]
    if isinstance(block, Stories):
        return [part["board"] for story in block.stories for part in (*story["turns"], story)]
    return []


def _boards_of(episode: Episode) -> list[str]:
    return [turn["board"] for turn in episode["turns"]] + [episode["final_board"]]


def _foot() -> dict[str, str]:
    """The date, the command, the version and the time taken, for the end of a page."""
    script = pathlib.Path(sys.argv[0])
    words = ["nlrl-jax", script.stem] if script.parent.name == "launch" else [script.name]
    try:
        version = importlib.metadata.version("nlrl_jax")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        version = "of a checkout"
    minutes, seconds = divmod(round(time.monotonic() - _STARTED), 60)
    return {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "command": shlex.join([*words, *sys.argv[1:]]),
        "version": f"nlrl_jax {version}",
        "time since the last start": f"{minutes} min {seconds} s" if minutes else f"{seconds} s",
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """An evaluation before and after, a row per metric; those that are 0 or repeat another are named in the note."""
    shared = [name for name in after if name in before]  # a run of an earlier version may lack some before it
    order = sorted(shared, key=lambda name: name != "success")
    names, hidden = distinct({name: (before[name], after[name]) for name in order})
    rows = []
    for name in names:
        change = after[name] - before[name]
        row = {"metric": words(name), "before": before[name], "after": after[name]}
        rows.append(row | {"change": f"{change:+.3g}" if change else ""})
    return Table("Results", rows, f"Not shown: {'; '.join(hidden)}." if hidden else "")


def tokens(usage: Usage) -> Table:
    """The calls and tokens of a run by role, all sections together."""
    sums: dict[str, Counter] = {}
    for row in usage.rows():
        sums.setdefault(row.pop("role").rpartition("/")[2], Counter()).update(row)
    rare = [
        name for name in ("refused", "retries", "estimated", "unanswered") if any(row[name] for row in sums.values())
    ]
    rows = [
        {
            "role": role,
            "calls": f"{row['calls']:,}",
            "tokens read": f"{row['prompt_tokens']:,}",
            "tokens written": f"{row['tokens']:,}",
            "seconds": f"{row['seconds']:,.0f}",
            "from the cache": f"{row['cache_hits']:,}",
            "cut": row["cut"],
            **{name: row[name] for name in rare},
        }
        for role, row in sums.items()
    ]
    return Table("Language-model calls", rows, "Replies from the cache count no tokens; cut: reached the token limit.")


def model_name(name: str) -> str:
    """A model as a title names it: of a local folder or file the last part of its path."""
    path = pathlib.Path(os.path.expanduser(name))
    return path.name if path.exists() else name


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


def distinct(table: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[str]]:
    """(rows worth reading, sentences that name the others): rows of zeros, and rows that repeat an earlier one."""
    first: dict[tuple[str, ...], str] = {}  # text of the values -> the first row that has it
    zero, same = [], {}
    for name, values in table.items():
        text = tuple(map(number, values))
        if all(_ZERO.fullmatch(value) for value in text):
            zero.append(name)
        elif text in first:
            same.setdefault(first[text], []).append(words(name))
        else:
            first[text] = name
    hidden = [f"always 0: {', '.join(map(words, zero))}"] if zero else []
    hidden += [f"equal to {words(name)}: {', '.join(repeated)}" for name, repeated in same.items()]
    return list(first.values()), hidden


def _data_uri(path: pathlib.Path) -> str:
    return f"data:image/{path.suffix[1:]};base64," + base64.b64encode(path.read_bytes()).decode()
