"""Tables of several seeds of `launch.iterate_lac`, from the episodes in their folders.

    PYTHONPATH=. python benchmarks/lac_loop.py LAC=runs/loop_3,runs/loop_4,runs/loop_5 own=runs/own_3,runs/own_4
    PYTHONPATH=. python benchmarks/lac_loop.py --picture loop.png LAC=runs/loop_3,runs/loop_4 own=runs/own_3,runs/own_4

A row per round: success of each method; the paired difference to round 0 on the same held-out tasks; tokens per episode
of the teacher, and tokens spent before the round: read and written in play, whole prompts counted each time, and read
in fine-tuning, passes counted. All tasks of a seed share its trained prior, so intervals are over the seeds, each the
mean of its tasks. The picture: the prior's success on the held-out tasks over those tokens, mean and 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np

from nlrl_jax.run import results
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports.lac_tables import tasks_of
from nlrl_jax.statistics import Estimate, by_unit, estimate, header, paired

PRIOR = "lac_no_critic"


def tasks(run_dir: pathlib.Path, name: str) -> dict[tuple, float]:
    """{(kind, seed of the task): its success} of one play."""
    found = json.loads((run_dir / "episodes" / f"{name}.json").read_text())["episodes"]
    return by_unit([one["success"] for one in found], tasks_of(found))


def over_seeds(runs: list[pathlib.Path], name: str) -> Estimate:
    """Success of a play in all runs."""
    return estimate([np.mean([*tasks(run, name).values()]) for run in runs])


def difference(plays: list[tuple[pathlib.Path, str]], others: list[tuple[pathlib.Path, str]]) -> Estimate:
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


def table(runs: list[pathlib.Path]) -> list[dict[str, str]]:
    """A row per round that all the runs have finished."""
    rounds = [results.read(run)["rounds"] for run in runs]
    methods = [name.removesuffix("/success") for name in rounds[0][0] if name.endswith("/success")]
    rows = []
    for k in range(min(map(len, rounds))):
        row = {"after rounds": str(k)}
        for method in methods:
            if any(f"{method}/success" not in row[k] for row in rounds):  # not evaluated after this round
                continue
            name = f"round_{k}" if method == "teacher" else f"after_{k}_{method}"
            row[method] = over_seeds(runs, name).text(".3f")
            if method != "teacher":
                gain = difference([(run, name) for run in runs], [(run, f"after_0_{method}") for run in runs])
                row[f"{method}: gain"] = f"{gain.text('+.3f')} ({gain.verdict})" if k else ""
        mean = lambda key, k=k: np.mean([row[k][key] for row in rounds])
        row["tokens per episode"] = f"{mean('teacher/tokens'):,.0f}"
        row["tokens before"] = f"{mean('tokens_before'):,.0f}"
        rows.append(row)
    return rows


def curve(title: str, runs: list[pathlib.Path]) -> Series:
    """Success of the bare prior in each run over the tokens spent before, in millions (mean of the runs)."""
    key = f"{PRIOR}/success"
    evaluated = [[row for row in results.read(run)["rounds"] if key in row] for run in runs]
    length = min(map(len, evaluated))
    x = np.mean([[row["tokens_before"] / 1e6 for row in rows[:length]] for rows in evaluated], axis=0)
    return Series(title, x, [[row[key] for row in rows[:length]] for rows in evaluated])


def behind(first: list[pathlib.Path], runs: list[pathlib.Path]) -> str:
    """The first runs' prior minus these runs' last one on the same tasks, at no more tokens than these had spent."""
    key = f"{PRIOR}/success"
    spent = lambda rows, k: np.mean([one[k]["tokens_before"] for one in rows])
    theirs, ours = ([results.read(run)["rounds"] for run in group] for group in (runs, first))
    last = max(k for k in range(min(map(len, theirs))) if key in theirs[0][k])
    k = max(k for k in range(min(map(len, ours))) if key in ours[0][k] and spent(ours, k) <= spent(theirs, last))
    found = difference([(run, f"after_{k}_{PRIOR}") for run in first], [(run, f"after_{last}_{PRIOR}") for run in runs])
    return f"{found.text('+.3f')} ({found.verdict}): {k} rounds against {last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="TITLE=FOLDER,FOLDER,...: one folder per seed")
    parser.add_argument("--picture", help="the PNG to draw; without it only tables")
    given = parser.parse_args()
    groups = {}
    for one in given.runs:
        title, _, folders = one.rpartition("=")
        groups[title or folders] = [pathlib.Path(folder) for folder in folders.split(",")]
        if len(set(groups[title or folders])) < len(folders.split(",")):
            parser.error(f"{one} names a folder twice; a seed counts once")
    for title, runs in groups.items():
        held_out = len(tasks(runs[0], f"after_0_{PRIOR}"))
        explained = header(f"seeds of training, each the mean of its tasks ({held_out} held out)", len(runs))
        print(f"{title}. {explained}\n\n{markdown(table(runs))}")
    (first, ours), *others = groups.items()
    for title, runs in others:
        print(f"{first} before {title}, at no more tokens: {behind(ours, runs)}")
    if given.picture:
        panel = {"the bare prior on held-out tasks": [curve(title, runs) for title, runs in groups.items()]}
        compare(panel, given.picture, "million tokens spent before", "success", errors=True)


if __name__ == "__main__":
    main()
