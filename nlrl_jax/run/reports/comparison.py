"""Runs side by side: a table of settings and results, and a panel per metric.

A run, or a group of seeds, is {"name", "config", "metrics": [{metric: values} of each seed], "results"}, as
`nlrl-jax compare` reads it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.run.metrics import words
from nlrl_jax.run.plots import SMOOTHING, Series, running_mean
from nlrl_jax.run.report import distinct, number
from nlrl_jax.statistics import estimate

Run = Mapping[str, Any]
SHOWN = ("return", "success", "env_return", "kl", "loss")  # and all evaluations
LAST = 0.1  # share of the run that a final value is the mean of
EVALUATED = "eval/"  # how the names of evaluations begin in metrics.jsonl
WIDE = 6  # a table with more columns has a column per run instead of a row


def labels(names: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [pathlib.Path(name).absolute().parts for name in names]
    short = lambda n: ["/".join(path[-n:]) for path in parts]
    different = len(set(parts))
    return next(short(n) for n in range(1, max(map(len, parts)) + 1) if len(set(short(n))) == different)


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row per run: the settings that differ, evaluations, the mean of each metric over the end of the run."""
    names = list(dict.fromkeys(name for run in runs for name in run["config"]))
    differing = [name for name in names if len({json.dumps(run["config"].get(name)) for run in runs}) > 1]
    rows = []
    for run, label in zip(runs, labels([run["name"] for run in runs])):
        metrics, before, after = run["metrics"], *(run["results"].get(when, {}) for when in ("before", "after"))
        row = {"run": label} | {name: run["config"].get(name, "") for name in differing}
        if metrics:
            row["iterations done"] = int(metrics[0]["iteration"][-1]) + 1
        for name in sorted(dict.fromkeys([*before, *after]), key=lambda name: name != "success"):
            ends = [_spread(np.ravel(evaluation[name])) for evaluation in (before, after) if name in evaluation]
            row[f"{words(name.removeprefix(EVALUATED))} (before → after)"] = " → ".join(ends)
        row |= {words(name): _final([seed[name] for seed in metrics]) for name in _shown(run)}
        rows.append(row)
    return rows


def _shown(run: Run) -> list[str]:
    """The metrics of the page that a run has; the combinations of a sweep are too many for it."""
    every = set.intersection(*map(set, run["metrics"])) if run["metrics"] else set()
    evaluations = sorted(name for name in every if name.startswith(EVALUATED) and "=" not in name)
    return [name for name in (*SHOWN, *evaluations) if name in every]


def _final(seeds: list[np.ndarray]) -> str:
    """The mean of the end, over seeds."""
    ends = []
    for values in seeds:
        there = values[np.isfinite(values)]
        ends.append(there[-max(1, round(LAST * len(there))) :].mean() if len(there) else np.nan)
    return _spread(np.array(ends))


def _spread(values: np.ndarray) -> str:
    return estimate(values).text(".4g", ".2g") if len(values) > 1 else number(float(values[0]))


def curves(runs: Sequence[Run]) -> tuple[dict[str, list[Series]], list[str]]:
    """(a panel per metric with a line per run, a running mean; the metrics left out because they have one value in all
    runs). A metric that repeats an earlier one has no panel."""
    panels: dict[str, list[Series]] = {}
    for run, label in zip(runs, labels([run["name"] for run in runs])):
        before = {name.removeprefix(EVALUATED): value for name, value in run["results"].get("before", {}).items()}
        for name in _shown(run):
            ys = np.array([seed[name] for seed in run["metrics"]])
            there = np.isfinite(ys).all(axis=0)
            x, ys = run["metrics"][0]["iteration"][there] + 1, ys[:, there]
            if name.startswith(EVALUATED) and name.removeprefix(EVALUATED) in before:
                start = np.broadcast_to(before[name.removeprefix(EVALUATED)], len(ys))
                x, ys = np.concatenate([[0], x]), np.concatenate([start[:, None], ys], axis=1)
            if len(x):
                panels.setdefault(name, []).append(Series(label, x, ys))
    values = {name: np.concatenate([line.ys.ravel() for line in lines]) for name, lines in panels.items()}
    flat = [name for name in panels if np.ptp(values[name]) == 0]
    drawn: dict[str, list[Series]] = {}
    for name, lines in panels.items():
        if name not in flat and not any(_same(lines, others) for others in drawn.values()):
            drawn[name] = lines
    return {words(name): [_smooth(line) for line in lines] for name, lines in drawn.items()}, [*map(words, flat)]


def _smooth(line: Series) -> Series:
    width = round(SMOOTHING * len(line.x))
    return line._replace(ys=np.array([running_mean(row, width) for row in line.ys]))


def _same(lines: Sequence[Series], others: Sequence[Series]) -> bool:
    pairs = list(zip(lines, others))
    return len(lines) == len(others) and all(np.array_equal(a.ys, b.ys) and np.array_equal(a.x, b.x) for a, b in pairs)


def summary(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """(the table without metrics that are 0 or repeat another, transposed if wide; sentences about these metrics)."""
    rows = table(runs)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    settings = {"run", "iterations done"}.union(*(run["config"] for run in runs))
    metrics, hidden = distinct({n: [row.get(n, "") for row in rows] for n in columns if n not in settings})
    visible = [name for name in columns if name in settings or name in metrics]
    if len(visible) <= max(WIDE, len(rows)):
        return [{name: row.get(name, "") for name in visible} for row in rows], hidden
    return [{"": name} | {row["run"]: row.get(name, "") for row in rows} for name in visible if name != "run"], hidden
