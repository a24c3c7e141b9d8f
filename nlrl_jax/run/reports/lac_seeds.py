"""Several seeds of LAC's loop (`nlrl-jax iterate_lac`) side by side, from the episodes in their folders.

A row per round: success of each method; the paired difference to round 0 on the same held-out tasks; tokens per episode
of the teacher, and tokens spent before the round: read and written in play, whole prompts counted each time, and read
in fine-tuning, passes counted. All tasks of a seed share its trained prior, so intervals are over the seeds, each the
mean of its tasks.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from nlrl_jax.run import results
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import Picture, Table
from nlrl_jax.run.reports.lac_iteration import TEACHER, methods
from nlrl_jax.run.reports.lac_tables import tasks_of, title
from nlrl_jax.statistics import Estimate, by_unit, estimate, header, paired

PRIOR = "lac_no_critic"
SUCCESS = f"{PRIOR}/success"
Runs = Sequence[pathlib.Path]  # a folder per seed


def rounds_of(runs: Runs) -> list[list[dict[str, float]]]:
    """The rounds of each run."""
    return [results.read(run)["rounds"] for run in runs]


def tasks(run_dir: pathlib.Path, name: str) -> dict[tuple, float]:
    """{(kind, seed of the task): its success} of one play."""
    found = json.loads((run_dir / "episodes" / f"{name}.json").read_text())["episodes"]
    return by_unit([one["success"] for one in found], tasks_of(found))


def difference(plays: Sequence[tuple[pathlib.Path, str]], others: Sequence[tuple[pathlib.Path, str]]) -> Estimate:
    """Success of plays minus that of others, seed by seed, each pair on the same tasks.

    Raises:
      ValueError: the tasks of a pair are not the same, or not as many seeds.
    """
    if len(plays) != len(others):
        raise ValueError(f"a difference is paired by seed, but there are {len(plays)} and {len(others)} runs")
    gains = []
    for one, other in zip(plays, others, strict=True):
        ours, theirs = tasks(*one), tasks(*other)
        if ours.keys() != theirs.keys():
            raise ValueError(f"{one[0]} and {other[0]} have different tasks; compare runs with the same --seed")
        gains.append(paired(ours.values(), (theirs[task] for task in ours)).mean)
    return estimate(gains)


def table(runs: Runs) -> list[dict[str, str]]:
    """A row per round that all the runs have finished."""
    rounds, rows = rounds_of(runs), []
    for k, found in enumerate(zip(*rounds)):
        row = {"after rounds": str(k)}
        for method in methods(rounds[0]):
            if any(f"{method}/success" not in one for one in found):  # not evaluated after this round
                continue
            name = f"round_{k}" if method == TEACHER else f"after_{k}_{method}"
            row[title(method)] = estimate([np.mean([*tasks(run, name).values()]) for run in runs]).text(".3f")
            if method != TEACHER:
                gain = difference([(run, name) for run in runs], [(run, f"after_0_{method}") for run in runs])
                row[f"{title(method)}: gain"] = f"{gain.text('+.3f')} ({gain.verdict})" if k else ""
        mean = lambda key, found=found: f"{np.mean([one[key] for one in found]):,.0f}"
        rows.append(row | {"tokens per episode": mean("teacher/tokens"), "tokens before": mean("tokens_before")})
    return rows


def curve(label: str, runs: Runs) -> Series:
    """Success of the bare prior in each run over the tokens spent before, in millions (mean of the runs)."""
    evaluated = [[row for row in rounds if SUCCESS in row] for rounds in rounds_of(runs)]
    columns = [*zip(*evaluated)]
    x = np.array([np.mean([row["tokens_before"] / 1e6 for row in column]) for column in columns])
    return Series(label, x, np.array([[row[SUCCESS] for row in column] for column in columns]).T)


def lead(first: Runs, runs: Runs) -> str:
    """The first group's prior minus another's last one on the same tasks, at no more tokens than the other spent."""
    theirs, ours = ([*zip(*rounds_of(group))] for group in (runs, first))
    spent = lambda rounds, k: np.mean([one["tokens_before"] for one in rounds[k]])
    last = max(k for k, found in enumerate(theirs) if SUCCESS in found[0])
    k = max(k for k, found in enumerate(ours) if SUCCESS in found[0] and spent(ours, k) <= spent(theirs, last))
    found = difference([(run, f"after_{k}_{PRIOR}") for run in first], [(run, f"after_{last}_{PRIOR}") for run in runs])
    return f"{found.text('+.3f')} ({found.verdict}): {k} rounds against {last}"


def blocks(groups: Mapping[str, Runs], picture: pathlib.Path) -> list[Table | Picture]:
    """A table per group of seeds, and the picture of all, which it draws."""
    (first, ours), *others = groups.items()
    found: list[Table | Picture] = []
    for name, runs in groups.items():
        held_out = len(tasks(runs[0], f"after_0_{PRIOR}"))
        note = header(f"seeds of training, each the mean of its tasks ({held_out} held out)", len(runs))
        if name != first:
            note += f" {first} before {name}, at no more tokens: {lead(ours, runs)}."
        found.append(Table(name, table(runs), note))
    panel = {"the bare prior on held-out tasks": [curve(name, runs) for name, runs in groups.items()]}
    compare(panel, picture, "million tokens spent before", "success", errors=True)
    return [*found, Picture(picture, "Success of the prior by itself; bands are 95 % intervals over the seeds.")]
