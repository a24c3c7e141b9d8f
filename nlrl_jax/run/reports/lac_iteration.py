"""The page of a run of LAC's loop: success and tokens by round, and episodes of the prior before and after."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.backends.usage import Usage
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Picture, Stories, Table, model_name, tokens, write_report
from nlrl_jax.run.reports.lac_stories import stories
from nlrl_jax.run.reports.lac_tables import Result, Rows, measure, overall, title
from nlrl_jax.statistics import Estimate, header

TEACHER = "teacher"
Row = Mapping[str, float]


def row_of(played: Mapping[str, Result], lesson: Mapping[str, float], spent: float) -> dict[str, float]:
    """The numbers of a round.

    Args:
      played: {TEACHER: its play of fresh tasks, METHOD: its play of the held-out ones}.
      lesson: what the fine-tuning after it reports, {} after the last round; "tokens" are those it read.
      spent: tokens of all teachers' play and lessons before.
    """
    row = {"tokens_before": spent}
    for name, result in played.items():
        mean, field = overall(result), measure(result)
        row |= {f"{name}/{field}": mean.mean, f"{name}/{field}_se": mean.error, f"{name}/tasks": mean.units}
        row[f"{name}/steps"] = float(np.mean([episode["moves"] for episode in result["episodes"]]))
        row[f"{name}/tokens"] = sum(result["tokens"].values()) / len(result["episodes"])
    row["played_tokens"] = float(sum(played[TEACHER]["tokens"].values()))
    return row | {f"lesson/{name}": value for name, value in lesson.items() if name != "seconds"}


def methods(rows: Sequence[Row]) -> list[str]:
    """Who played in round 0; who plays held-out tasks may be missing in later ones."""
    return [name.removesuffix("/tasks") for name in rows[0] if name.endswith("/tasks")]


def measured(rows: Sequence[Row]) -> str:
    """What rounds are judged by: "success", or "reward" where a game has no such notion."""
    return "reward" if f"{TEACHER}/reward" in rows[0] else "success"


def _label(name: str, teacher: str) -> str:
    """Who plays what, in tables and pictures."""
    return f"{title(teacher)}, fresh tasks" if name == TEACHER else f"{title(name)}, held-out tasks"


def table(rows: Sequence[Row], teacher: str) -> Rows:
    """A row per round."""
    field, lines = measured(rows), []
    for k, row in enumerate(rows):
        line: dict[str, Any] = {"rounds": k}
        for name in methods(rows):
            played = f"{name}/{field}" in row
            numbers = [row[f"{name}/{key}"] for key in (field, f"{field}_se", "tasks")] if played else []
            heading = f"{_label(name, teacher)} ({rows[0][f'{name}/tasks']:.0f})"
            line[heading] = str(Estimate(*numbers, field == "success")) if played else ""
        line["tokens per episode"] = f"{row[f'{TEACHER}/tokens']:,.0f}"
        line["tokens spent before"] = f"{row['tokens_before']:,.0f}"
        lines.append(line)
    return lines


def headline(rows: Sequence[Row], teacher: str) -> str:
    """ "LAC without critic 0.333 -> 0.483, LAC 0.442 -> 0.517"; the teacher, which plays fresh tasks, is last."""
    field, parts = measured(rows), []
    for name in sorted(methods(rows), key=lambda name: name == TEACHER):
        first, last = (row[f"{name}/{field}"] for row in (rows[0], rows[-1]))
        parts.append(f"{title(teacher if name == TEACHER else name)} {first:.3f} -> {last:.3f}")
    return ", ".join(parts)


def curves(rows: Sequence[Row], teacher: str) -> list[Series]:
    """A line per player over the rounds in which it played."""
    field, lines = measured(rows), []
    for name in methods(rows):
        played = {k: row[f"{name}/{field}"] for k, row in enumerate(rows) if f"{name}/{field}" in row}
        lines.append(Series(_label(name, teacher), list(played), np.array([list(played.values())])))
    return lines


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    rows: Sequence[Row],
    ends: Mapping[str, tuple[Result, Result]],
    usage: Usage,
    legend: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """Writes rounds.png and report.html, and returns the page's path.

    Args:
      config: flat, with "teacher", "model" and "game".
      ends: {METHOD: its first and last play of the held-out tasks}; the first method's episodes are shown.
    """
    teacher, field = config["teacher"], measured(rows)
    share = "Share of tasks solved" if field == "success" else "Mean return"
    picture = compare({field: curves(rows, teacher)}, run_dir / "rounds.png", "rounds of learning", field)
    episodes = []
    for name, plays in list(ends.items())[:1]:
        for stage, result in zip(("before", "after"), plays, strict=True):
            episodes += stories({f"{title(name)} {stage} learning": result})
    about = (
        f"{share}. {header('tasks', shares=True)} The prior was trained once, so the interval does not "
        "cover other trainings. Fresh tasks are new in each round; held-out tasks are the same in every round. Tokens "
        "are those read and written in play, with the whole prompt counted at each call, and those read in "
        "fine-tuning, times the passes over them; held-out tasks are not counted."
    )
    return write_report(
        run_dir,
        title=f"{title(teacher)} teaches its prior: {model_name(config['model'])} on {config['game']}",
        question="Does the prior learn what its critic prefers, and does the improved policy improve with it?",
        config=config,
        blocks=[
            Table("Results", table(rows, teacher), about),
            Picture(picture, f"{share} after each round of play and fine-tuning."),
            tokens(usage),
            Stories(episodes, "The first held-out task of each kind, before and after learning."),
        ],
        headline=f"{field} of {headline(rows, teacher).partition(', ')[0]}",
        legend=legend,
    )
