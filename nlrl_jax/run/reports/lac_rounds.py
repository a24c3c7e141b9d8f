"""LAC's loop by round: the page of a run, and groups of seeds side by side, from the episodes in their folders.

All tasks of a run share its trained prior. So where there are several runs, a unit is a seed of training, the mean of
its tasks; the tasks of a single run are units that say nothing about another training.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.backends.usage import Usage
from nlrl_jax.run import results
from nlrl_jax.run.plots import compare
from nlrl_jax.run.report import Picture, Stories, Table, model_name, tokens, write_report
from nlrl_jax.run.reports.lac_stories import stories
from nlrl_jax.run.reports.lac_tables import Result, measure, overall, title
from nlrl_jax.run.reports.tidy import Column, Measurement, Measurements
from nlrl_jax.statistics import estimate, header

TEACHER = "teacher"
PRIOR = "lac_no_critic"
SUCCESS = f"{PRIOR}/success"
SPENT = "tokens before"
Row = Mapping[str, float]
Runs = Sequence[pathlib.Path]  # a folder per seed


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


def players(row: Row) -> list[str]:
    """Who played in a round, the teacher last: in round 0 everybody, later those that were due."""
    names = [name.removesuffix("/tasks") for name in row if name.endswith("/tasks")]
    return sorted(names, key=lambda name: name == TEACHER)


def measured(rows: Sequence[Row]) -> str:
    """What rounds are judged by: "success", or "reward" where a game has no such notion."""
    return "reward" if f"{TEACHER}/reward" in rows[0] else "success"


def measurements(runs: Runs) -> Measurements:
    """The tidy rows of a loop: methods are the rounds that all runs have finished, metrics who played, and tokens."""
    rows, stored = [], [results.read(run) for run in runs]
    done = min(len(result["rounds"]) for result in stored)
    for run, result in zip(runs, stored, strict=True):
        seed, field = " ".join(map(str, np.ravel(result["seeds"]))), measured(result["rounds"])
        for k, numbers in enumerate(result["rounds"][:done]):
            for player in players(numbers):
                name = f"round_{k}" if player == TEACHER else f"after_{k}_{player}"
                episodes = json.loads((run / "episodes" / f"{name}.json").read_text())["episodes"]
                for episode in episodes:
                    unit = seed if len(runs) > 1 else tuple(episode["task"])
                    rows.append(Measurement(str(k), unit, title(player), float(episode[field])))
            for metric, name in (("tokens per episode", f"{TEACHER}/tokens"), (SPENT, "tokens_before")):
                rows.append(Measurement(str(k), seed, metric, numbers[name]))
    names = {title(player) for player in players(stored[0]["rounds"][0])}
    return Measurements(rows, names if len(runs) == 1 and field == "success" else ())


def block(name: str, runs: Runs, note: str = "") -> Table:
    """A row per round: the mean of each player, and its gain over round 0 on the same held-out tasks."""
    start, columns = results.read(runs[0])["rounds"][0], {}
    for player in players(start):
        tasks, metric = start[f"{player}/tasks"], title(player)
        columns[f"{metric}, {tasks:.0f} {'fresh' if player == TEACHER else 'held-out'} tasks"] = Column(metric, ".3f")
        if player != TEACHER:
            columns[f"{metric}: gain"] = Column(metric, ".3f", baseline="0")
    columns |= {metric: Column(metric, ",.0f", interval=False) for metric in ("tokens per episode", SPENT)}
    units = ("seeds of training, each the mean of its tasks", len(runs)) if len(runs) > 1 else ("tasks", None, True)
    return Table(name, measurements(runs).table(columns, "rounds"), header(*units) + note)


def headline(rows: Sequence[Row], teacher: str) -> str:
    """ "LAC without critic 0.333 -> 0.483, LAC 0.442 -> 0.517"; the teacher, which plays fresh tasks, is last."""
    parts = []
    for name in players(rows[0]):
        first, last = (row[f"{name}/{measured(rows)}"] for row in (rows[0], rows[-1]))
        parts.append(f"{title(teacher if name == TEACHER else name)} {first:.3f} -> {last:.3f}")
    return ", ".join(parts)


def lead(group: Measurements, rival: Measurements, metric: str) -> str:
    """A group's prior minus a rival's last one, seed by seed, at no more tokens than the rival spent.

    Raises:
      ValueError: they have other seeds.
    """
    last = [k for k in rival.methods if rival.units(k, metric)][-1]
    budget = rival.mean(last, SPENT).mean
    k = [k for k in group.methods if group.units(k, metric) and group.mean(k, SPENT).mean <= budget][-1]
    scores, references = group.units(k, metric), rival.units(last, metric)
    if scores.keys() != references.keys():
        raise ValueError("these runs have different tasks; compare runs with the same --seed")
    gain = estimate([scores[unit] - references[unit] for unit in scores])
    return f"{gain.text('+.3f')} ({gain.verdict}): {k} rounds against {last}"


def blocks(groups: Mapping[str, Runs], picture: pathlib.Path) -> list[Table | Picture]:
    """A table per group of seeds, and the picture of all, which it draws."""
    numbers, metric = {name: measurements(runs) for name, runs in groups.items()}, title(PRIOR)
    (first, group), *rivals = numbers.items()
    tables = [block(first, groups[first])]
    for name, rival in rivals:
        note = f" {first} before {name}, at no more tokens: {lead(group, rival, metric)}."
        tables.append(block(name, groups[name], note))
    lines = [
        group.curve(name, metric, [group.mean(k, SPENT).mean / 1e6 for k in group.methods])
        for name, group in numbers.items()
    ]
    compare({"the bare prior on held-out tasks": lines}, picture, "million tokens spent before", "success", errors=True)
    return [*tables, Picture(picture, "Success of the prior by itself; bands are 95 % intervals.")]


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    rows: Sequence[Row],
    plays: Mapping[str, tuple[Result, Result]],
    usage: Usage,
    legend: Mapping[str, str] | None = None,
) -> pathlib.Path:
    """Writes rounds.png and report.html of a run with results.json, and returns the page's path.

    Args:
      config: flat, with "teacher", "model" and "game".
      plays: {METHOD: its first and last play of the held-out tasks}; the first method's episodes are shown.
    """
    teacher, field, numbers = config["teacher"], measured(rows), measurements([run_dir])
    numbers.write(run_dir)
    share = "Share of tasks solved" if field == "success" else "Mean return"
    lines = [numbers.curve(title(name), title(name), range(len(rows))) for name in players(rows[0])]
    picture = compare({field: lines}, run_dir / "rounds.png", "rounds of learning", field, errors=True)
    episodes = []
    for name, pair in list(plays.items())[:1]:
        for stage, result in zip(("before", "after"), pair, strict=True):
            episodes += stories({f"{title(name)} {stage} learning": result})
    about = (
        f" {share}. The prior was trained once, so the interval does not cover other trainings. Fresh tasks are new in "
        "each round; held-out tasks are the same in every round. Tokens are those read and written in play, with the "
        "whole prompt counted at each call, and those read in fine-tuning, times the passes over them; held-out tasks "
        "are not counted."
    )
    return write_report(
        run_dir,
        title=f"{title(teacher)} teaches its prior: {model_name(config['model'])} on {config['game']}",
        question="Does the prior learn what its critic prefers, and does the improved policy improve with it?",
        config=config,
        blocks=[
            block("Results", [run_dir], about),
            Picture(picture, f"{share} after each round of play and fine-tuning."),
            tokens(usage),
            Stories(episodes, "The first held-out task of each kind, before and after learning."),
        ],
        headline=f"{field} of {headline(rows, teacher).partition(', ')[0]}",
        legend=legend,
    )
