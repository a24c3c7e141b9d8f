"""Tables of several seeds of `launch.iterate_lac`, from the episodes in their folders.

    PYTHONPATH=. python benchmarks/lac_loop.py LAC=runs/loop_3,runs/loop_4,runs/loop_5 own=runs/own_3,runs/own_4
    PYTHONPATH=. python benchmarks/lac_loop.py --picture loop.png LAC=runs/loop_3,runs/loop_4 own=runs/own_3,runs/own_4

A row per round: success of each method ± the standard error over all tasks of all seeds (± that over the means of the
seeds); the paired difference to round 0 on the same held-out tasks; tokens per episode of the teacher, and tokens spent
before the round: read and written in play, whole prompts counted each time, and read in fine-tuning, passes counted.
The picture: the prior's success on the held-out tasks over those tokens, mean and two standard errors over the seeds.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np

from nlrl_jax.run import results
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports.lac_tables import Estimate

PRIOR = "lac_no_critic"


def episodes(run_dir: pathlib.Path, name: str) -> dict[tuple, list[bool]]:
    """{(run, kind, seed of the task): successes} of one play."""
    found: dict[tuple, list[bool]] = {}
    for one in json.loads((run_dir / "episodes" / f"{name}.json").read_text())["episodes"]:
        found.setdefault((run_dir.name, *one["task"]), []).append(bool(one["success"]))
    return found


def over(runs: list[pathlib.Path], name: str) -> tuple[str, dict[tuple, float]]:
    """(mean ± error over tasks (± error over seeds), {task: its success}) of a play in all runs."""
    each = [{task: float(np.mean(row)) for task, row in episodes(run, name).items()} for run in runs]
    tasks = {task: value for one in each for task, value in one.items()}
    seeds = Estimate.of([np.mean(list(one.values())) for one in each])
    pooled = Estimate.of(list(tasks.values()))
    spread = f" (seeds ± {seeds.se:.3f})" if len(runs) > 1 else ""
    return f"{np.mean(list(tasks.values())):.3f} ± {pooled.se:.3f}{spread}", tasks


def table(runs: list[pathlib.Path]) -> list[dict[str, str]]:
    """A row per round that all the runs have finished."""
    rounds = [results.read(run)["rounds"] for run in runs]
    methods = [name.removesuffix("/success") for name in rounds[0][0] if name.endswith("/success")]
    first, rows = {}, []
    for k in range(min(map(len, rounds))):
        row = {"after rounds": str(k)}
        for method in methods:
            if any(f"{method}/success" not in row[k] for row in rounds):  # not evaluated after this round
                continue
            name = f"round_{k}" if method == "teacher" else f"after_{k}_{method}"
            row[method], tasks = over(runs, name)
            if method != "teacher":
                first.setdefault(method, tasks)
                gain = Estimate.of([tasks[task] - value for task, value in first[method].items()])
                row[f"{method}: gain"] = f"{gain.mean:+.3f} ± {gain.se:.3f}" if k else ""
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
    means = []
    for one, other in zip(first, runs, strict=True):
        (_, ours_on), (_, theirs_on) = over([one], f"after_{k}_{PRIOR}"), over([other], f"after_{last}_{PRIOR}")
        means.append({task: value - theirs_on[other.name, *task[1:]] for task, value in ours_on.items()})
    pooled = Estimate.of([value for one in means for value in one.values()])
    seeds = Estimate.of([np.mean(list(one.values())) for one in means])
    return f"{pooled.mean:+.3f} ± {pooled.se:.3f} (seeds ± {seeds.se:.3f}): {k} rounds against {last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="TITLE=FOLDER,FOLDER,...: one folder per seed")
    parser.add_argument("--picture", help="the PNG to draw; without it only tables")
    given = parser.parse_args()
    groups = {}
    for one in given.runs:
        title, _, folders = one.rpartition("=")
        groups[title or folders] = [pathlib.Path(folder) for folder in folders.split(",")]
    for title, runs in groups.items():
        print(f"{title}, {len(runs)} seeds\n\n{markdown(table(runs))}")
    (first, ours), *others = groups.items()
    for title, runs in others:
        print(f"{first} before {title}, at no more tokens: {behind(ours, runs)}")
    if given.picture:
        panel = {"the bare prior on held-out tasks": [curve(title, runs) for title, runs in groups.items()]}
        compare(panel, given.picture, "million tokens spent before", "success", errors=True)


if __name__ == "__main__":
    main()
