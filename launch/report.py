"""Compares runs on one page: their numbers, where their settings differ, curves and episodes side by side.

    python -m launch.report runs/a runs/b --out runs/comparison.html
    python -m launch.report runs/a                      # writes runs/a/comparison.html

Reads what every training script leaves behind (config.json, metrics.jsonl, before.json and after.json where there
are any) and runs nothing; a run that is still going can be looked at too.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
from absl import flags

from launch import setup
from nlrl_jax.run.directory import read_config
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.report import write_report

SHOWN = ("return", "success", "env_return", "eval/success", "eval/env_return", "kl", "loss")
LAST = 0.1  # share of the run that a final value is the mean of


def read_run(run_dir: pathlib.Path) -> dict[str, Any]:
    """What a run left: "name", "config", "metrics", and "before" and "after" as they were evaluated, {} if not.

    Raises:
      ValueError: no run there, or one that has not finished an iteration.
    """
    config, metrics = read_config(run_dir), read_metrics(run_dir)
    if not len(metrics["iteration"]):
        raise ValueError(f"{run_dir} has no metrics yet")
    stored = {name: run_dir / f"{name}.json" for name in ("before", "after")}
    evaluated = {name: json.loads(path.read_text()) if path.is_file() else {} for name, path in stored.items()}
    return {"name": str(run_dir), "config": config, "metrics": metrics, **evaluated}


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a run: the settings that differ, the mean of each metric over the end of the run, evaluations."""
    names = list(dict.fromkeys(name for run in runs for name in run["config"]))
    differing = [name for name in names if len({json.dumps(run["config"].get(name)) for run in runs}) > 1]
    rows = []
    for run in runs:
        row = {"run": run["name"]} | {name: run["config"].get(name, "") for name in differing}
        row["iterations done"] = int(run["metrics"]["iteration"][-1]) + 1
        row |= {name: _final(run["metrics"][name]) for name in SHOWN if name in run["metrics"]}
        for when in ("before", "after"):
            summary = run[when].get("summary", {})
            row |= {f"{name} {when}": summary[name] for name in ("success", "env_return") if name in summary}
        rows.append(row)
    return rows


def _final(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there[-max(1, round(LAST * len(there))) :].mean()) if len(there) else float("nan")


def curves(runs: list[dict[str, Any]]) -> dict[str, list[Series]]:
    """A panel a metric, a line a run."""
    panels: dict[str, list[Series]] = {}
    for name in SHOWN:
        for run in runs:
            if name in run["metrics"]:
                there = np.isfinite(run["metrics"][name])
                if there.any():
                    x = run["metrics"]["iteration"][there] + 1
                    line = Series(pathlib.Path(run["name"]).name, x, run["metrics"][name][None, there])
                    panels.setdefault(name, []).append(line)
    return panels


def main(argv: list[str]) -> None:
    if len(argv) < 2:
        raise ValueError("say which runs: python -m launch.report runs/a runs/b")
    folders = [pathlib.Path(name) for name in argv[1:]]
    runs = [read_run(folder) for folder in folders]
    out = pathlib.Path(flags.FLAGS.out or folders[0] / "comparison.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    picture = compare(curves(runs), out.with_suffix(".png"), "iteration", "")
    alone = len(runs) == 1
    left = runs[0]["before"] if alone else runs[0]["after"]
    right = runs[0]["after"] if alone else runs[1]["after"]
    page = write_report(
        out.parent,
        title=f"{runs[0]['name']}: before and after" if alone else f"{len(runs)} runs compared",
        question="What differs, and what came of it?",
        config={name: value for name, value in runs[0]["config"].items()},
        summary=table(runs),
        curves=[picture],
        before=left.get("transcripts", []),
        after=right.get("transcripts", []),
        notes=[
            f"Metrics are means over the last tenth of what was written. The settings at the end are those of "
            f"{runs[0]['name']}.",
            "" if alone else f"Episodes: left after {runs[0]['name']}, right after {runs[1]['name']}.",
        ],
        labels=("before", "after") if alone else (runs[0]["name"], runs[1]["name"]),
        name=out.name,
    )
    print(f"report: {page}\npicture: {picture}")


def define_flags() -> None:
    flags.DEFINE_string("out", "", "the page to write; comparison.html in the first run's folder if not given")


if __name__ == "__main__":
    define_flags()
    setup.run(main, takes_names=True)
