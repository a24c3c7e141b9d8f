"""Finished or unfinished runs side by side: a table of settings and results, a panel per metric, and episodes.

See `run.compared_runs` for what is read.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.run import plots
from nlrl_jax.run.compared_runs import EVALUATED, ComparedRun, read_group
from nlrl_jax.run.metrics import words
from nlrl_jax.run.plots import SMOOTHING, Series, metric_line
from nlrl_jax.run.report import EpisodePairs, Picture, Table, distinct, number, write_report
from nlrl_jax.run.reports import lac_rounds
from nlrl_jax.statistics import estimate, header

Folders = Mapping[str, Sequence[pathlib.Path]]  # title of a group -> a folder per seed
QUESTIONS = ("How did this run end?", "How do these runs differ, and how did they end?")  # of one run, of several
SHOWN = ("return", "success", "env_return", "kl", "loss")  # and all evaluations
LAST = 0.1  # share of the run that a final value is the mean of
WIDE = 6  # a table with more columns has a column per run instead of a row
PACE = "seconds per iteration"


def labels(names: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [pathlib.Path(name).absolute().parts for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        suffixes = ["/".join(path[-length:]) for path in parts]
        if len(set(suffixes)) == len(set(parts)):
            break
    return suffixes


def table(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """A row per run: the settings that differ, evaluations, the mean of each metric over the end of the run."""
    names = list(dict.fromkeys(name for run in runs for name in run.config))
    differing = [name for name in names if len({json.dumps(run.config.get(name)) for run in runs}) > 1]
    rows = []
    for run, label in zip(runs, labels([run.name for run in runs])):
        before, after = run.evaluation("before"), run.evaluation("after")
        row = {"run": label} | {name: run.config.get(name, "") for name in differing}
        if run.metrics:
            row["iterations done"] = int(run.metrics[0]["iteration"][-1]) + 1
        for name in sorted(dict.fromkeys([*before, *after]), key=lambda name: name != "success"):
            cells = [_spread(np.ravel(evaluation[name])) for evaluation in (before, after) if name in evaluation]
            row[f"{words(name.removeprefix(EVALUATED))} (before → after)"] = " → ".join(cells)
        row |= {words(name): _final([seed[name] for seed in run.metrics]) for name in _shown(run)}
        if math.isfinite(run.pace):
            row[PACE] = f"{run.pace:.3g}"
        rows.append(row)
    return rows


def _shown(run: ComparedRun) -> list[str]:
    """The metrics of the page that a run has; the combinations of a sweep are too many for it."""
    common = set.intersection(*map(set, run.metrics)) if run.metrics else set()
    evaluations = sorted(name for name in common if name.startswith(EVALUATED) and "=" not in name)
    return [name for name in (*SHOWN, *evaluations) if name in common]


def _final(seeds: Sequence[np.ndarray]) -> str:
    """The mean of the end, over seeds."""
    means = []
    for values in seeds:
        finite = values[np.isfinite(values)]
        means.append(finite[-max(1, round(LAST * len(finite))) :].mean() if len(finite) else np.nan)
    return _spread(np.array(means))


def _spread(values: np.ndarray) -> str:
    return estimate(values).text(".4g", ".2g") if len(values) > 1 else number(float(values[0]))


def curves(runs: Sequence[ComparedRun], in_seconds: bool = False) -> tuple[dict[str, list[Series]], list[str]]:
    """(a panel per metric with a line per run, a running mean; the metrics left out because they have one value in all
    runs).

    Args:
      in_seconds: x is the time that training took without compiling and evaluating, not the iterations done.
    """
    panels: dict[str, list[Series]] = {}
    for run, label in zip(runs, labels([run.name for run in runs])):
        before = {name.removeprefix(EVALUATED): value for name, value in run.evaluation("before").items()}
        for name in _shown(run):
            start = before.get(name.removeprefix(EVALUATED)) if name.startswith(EVALUATED) else None
            line = metric_line(run.metrics, name, label, start, SMOOTHING)._replace(raw=None)
            if len(line.x):
                panels.setdefault(name, []).append(line._replace(x=run.pace * line.x) if in_seconds else line)
    values = {name: np.concatenate([line.ys.ravel() for line in lines]) for name, lines in panels.items()}
    constant = [name for name in panels if np.nanmin(values[name]) == np.nanmax(values[name])]
    return {words(name): lines for name, lines in panels.items() if name not in constant}, [*map(words, constant)]


def baselines(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Rows of what does not learn, evaluated beside a run (`language_td`); of equal rows the first."""
    rows: list[dict[str, Any]] = []
    for run, label in zip(runs, labels([run.name for run in runs])):
        for name, scores in run.results.get("beside", {}).items():
            row = {"who": name} | {words(metric): _spread(np.ravel(values)) for metric, values in scores.items()}
            if not any(row.items() <= earlier.items() for earlier in rows):
                rows.append({"beside": label, **row})
    return rows


def summary(runs: Sequence[ComparedRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """(the table without metrics that are 0 or repeat another, transposed if wide; sentences about these metrics)."""
    rows = table(runs)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    settings = {"run", "iterations done"}.union(*(run.config for run in runs))
    metrics, hidden = distinct({n: [row.get(n, "") for row in rows] for n in columns if n not in settings})
    visible = [name for name in columns if name in settings or name in metrics]
    if len(visible) <= max(WIDE, len(rows)):
        return [{name: row.get(name, "") for name in visible} for row in rows], hidden
    return [{"": name} | {row["run"]: row.get(name, "") for row in rows} for name in visible if name != "run"], hidden


def rounds_picture(out: pathlib.Path) -> pathlib.Path:
    """The picture of LAC's loop beside a page."""
    return out.with_name(f"{out.stem}_rounds.png")


def write(
    groups: Folders, out: pathlib.Path, titled: bool, in_seconds: bool = False, title: str = ""
) -> tuple[list[Table], list[pathlib.Path]]:
    """Writes the page and its pictures.

    Args:
      groups: at least one; see `groups_of`. out: the page.
      titled: the groups are seeds of settings; those of LAC's loop also get a table by round.
      in_seconds: curves are against seconds of training.
      title: by default the names of the runs.

    Returns:
      (its tables, the page and the pictures).
    """
    runs = [read_group(title, folders) for title, folders in groups.items()]
    first, alone = runs[0], len(runs) == 1
    panels, constant = curves(runs, in_seconds)
    axis = "seconds of training" if in_seconds else "iteration"
    drawn = [plots.compare(panels, out.with_suffix(".png"), axis, "", errors=True)] if panels else []
    rows, hidden = summary(runs)
    names = labels([run.name for run in runs])
    compared = " and ".join(names) if len(runs) < 4 else f"{len(runs)} runs"
    title = title or (f"{first.name}: before and after" if alone else f"{compared} compared")
    games = {run.config.get("game", "") for run in runs}
    title += f" on {games.pop()}" if len(games) == 1 and any(games) else ""
    notes = [
        f"{header('the seeds of a run')} Metrics without an arrow are means over the last tenth of the run. The "
        f"configuration below is that of {first.name}.",
        *([f"Constant in all runs, so not drawn: {', '.join(constant)}."] if constant else []),
        *([f"Not shown: {'; '.join(hidden)}."] if hidden else []),
    ]
    loops = titled and all(lac_rounds.SUCCESS in run.results.get("rounds", [()])[0] for run in runs)
    rounds = lac_rounds.blocks(groups, rounds_picture(out)) if loops else []
    results = Table("Results", rows, " ".join(notes))
    without = Table("Without learning", baselines(runs), "Evaluated beside the runs, on the same data.")
    sides = [(first, "before"), (first, "after")] if alone else [(run, "after") for run in runs[:2]]
    episodes = [run.results.get("transcripts", {}).get(stage, []) for run, stage in sides]
    caption = f"Running means of metrics by {axis}; bands: 95 % intervals of the mean over seeds."
    page = write_report(
        out.parent,
        title=title,
        question=QUESTIONS[not alone],
        config=first.config,
        blocks=[
            *rounds,
            results,
            *(Picture(path, caption) for path in drawn),
            without,
            EpisodePairs(*episodes, ("before", "after") if alone else (names[0], names[1])),
        ],
        legend=first.results.get("legend", {}),
        name=out.name,
    )
    return [*(block for block in (*rounds, without) if isinstance(block, Table)), results], [page, *drawn]
