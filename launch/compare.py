"""Compares runs on one page: their numbers, where their settings differ, curves and episodes side by side.

    python -m launch.compare runs/a runs/b --out runs/comparison.html
    python -m launch.compare runs/a                      # writes runs/a/comparison.html

Reads what every training script leaves behind (config.json, metrics.jsonl, before.json and after.json where there
are any) and runs nothing; a run that is still going can be looked at too. Of a run with parts, such as those of
reproduce_ms_grpo, every part is a line; seeds are its mean and a band of one standard deviation.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
from absl import flags

from nlrl_jax.run import app
from nlrl_jax.run.directory import holds_run, read_config
from nlrl_jax.run.metrics import METRICS, read_metrics
from nlrl_jax.run.plots import Series, compare, deviation
from nlrl_jax.run.report import write_report
from nlrl_jax.run.transcript import read_evaluation

SHOWN = ("return", "success", "env_return", "eval/success", "eval/env_return", "kl", "loss")
LAST = 0.1  # share of the run that a final value is the mean of


def parts_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of a run that hold metrics or seeds (`seed_*`) that do: itself, or those of its parts."""
    if (folder / METRICS).is_file():
        return [folder]
    found = {path.parent for path in folder.rglob(METRICS)}
    return sorted({path.parent if path.match("seed_*") else path for path in found}) or [folder]


def read_run(run_dir: pathlib.Path) -> dict[str, Any]:
    """What a run, or a part of one, left.

    Returns:
      "name", "config" (for a part that of the whole run), "metrics" (of every seed, over the iterations that all have
      done), and "before" and "after" as they were evaluated, {} if not.

    Raises:
      ValueError: no run there, one that has not finished an iteration, or a damaged file.
    """
    whole = next((path for path in (run_dir, *run_dir.absolute().parents) if holds_run(path)), run_dir)
    config = read_config(whole)
    seeds = sorted(path.parent for path in run_dir.glob(f"seed_*/{METRICS}"))
    runs = [read_metrics(folder) for folder in seeds or [run_dir]]
    done = min(len(run["iteration"]) for run in runs)
    if not done:
        raise ValueError(f"{run_dir} has no metrics yet")
    metrics = [{name: values[:done] for name, values in run.items()} for run in runs]
    stored = {name: run_dir / f"{name}.json" for name in ("before", "after")}
    evaluated = {name: read_evaluation(path) if path.is_file() else {} for name, path in stored.items()}
    return {"name": str(run_dir), "config": config, "metrics": metrics, **evaluated}


def labels(names: list[str]) -> list[str]:
    """As much of the end of each path as tells them apart."""
    parts = [pathlib.Path(name).absolute().parts for name in names]
    short = lambda n: ["/".join(path[-n:]) for path in parts]
    different = len(set(parts))
    return next(short(n) for n in range(1, max(map(len, parts)) + 1) if len(set(short(n))) == different)


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a run: the settings that differ, the mean of each metric over the end of the run, evaluations."""
    names = list(dict.fromkeys(name for run in runs for name in run["config"]))
    differing = [name for name in names if len({json.dumps(run["config"].get(name)) for run in runs}) > 1]
    rows = []
    for run in runs:
        metrics = run["metrics"]
        row = {"run": run["name"]} | {name: run["config"].get(name, "") for name in differing}
        row["iterations done"] = int(metrics[0]["iteration"][-1]) + 1
        row |= {name: _final([seed[name] for seed in metrics]) for name in _shown(run)}
        for when in ("before", "after"):
            summary = run[when].get("summary", {})
            row |= {f"{name} {when}": summary[name] for name in ("success", "env_return") if name in summary}
        rows.append(row)
    return rows


def _shown(run: dict[str, Any]) -> list[str]:
    """The metrics of the page that a run has; the combinations of a sweep are too many for it."""
    evaluations = sorted(name for name in run["metrics"][0] if name.startswith("eval/") and "=" not in name)
    known = dict.fromkeys((*SHOWN, *evaluations))
    return [name for name in known if all(name in seed for seed in run["metrics"])]


def _final(seeds: list[np.ndarray]) -> float | str:
    """The mean of the end; with several seeds also the deviation between them."""
    ends = []
    for values in seeds:
        there = values[np.isfinite(values)]
        ends.append(there[-max(1, round(LAST * len(there))) :].mean() if len(there) else np.nan)
    return f"{np.mean(ends):.4g} ± {deviation(ends):.2g}" if len(ends) > 1 else float(ends[0])


def curves(runs: list[dict[str, Any]]) -> dict[str, list[Series]]:
    """A panel a metric, a line a run: with several seeds their mean and band."""
    panels: dict[str, list[Series]] = {}
    for run, label in zip(runs, labels([run["name"] for run in runs])):
        for name in _shown(run):
            ys = np.array([seed[name] for seed in run["metrics"]])
            there = np.isfinite(ys).all(axis=0)
            if there.any():
                x = run["metrics"][0]["iteration"][there] + 1
                panels.setdefault(name, []).append(Series(label, x, ys[:, there]))
    return panels


def main(argv: list[str]) -> None:
    if len(argv) < 2:
        raise ValueError("say which runs: python -m launch.compare runs/a runs/b")
    folders = [part for name in argv[1:] for part in parts_of(pathlib.Path(name))]
    runs = [read_run(folder) for folder in folders]
    out = pathlib.Path(flags.FLAGS.out or pathlib.Path(argv[1]) / "comparison.html")
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
    app.run(main, takes_names=True)
