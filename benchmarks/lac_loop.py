"""Tables of several seeds of `launch.iterate_lac`, from the episodes in their folders.

    PYTHONPATH=. python benchmarks/lac_loop.py LAC=runs/loop_3,runs/loop_4,runs/loop_5 own=runs/own_3,runs/own_4

A row per round: success of each method ± the standard error over all tasks of all seeds (± that over the means of the
seeds); the paired difference to round 0 on the same held-out tasks; tokens per episode of the teacher, and tokens spent
before the round: read and written in play, whole prompts counted each time, and read in fine-tuning, passes counted.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

from nlrl_jax.run import results
from nlrl_jax.run.report import markdown
from nlrl_jax.run.reports.lac_tables import Estimate


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


def main(argv: list[str]) -> None:
    for given in argv:
        title, _, folders = given.rpartition("=")
        runs = [pathlib.Path(folder) for folder in folders.split(",")]
        print(f"{title or folders}, {len(runs)} seeds\n\n{markdown(table(runs))}")


if __name__ == "__main__":
    main(sys.argv[1:])
