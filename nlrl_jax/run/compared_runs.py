"""Runs as `nlrl-jax compare` reads them: from config.json, metrics.jsonl, timings.jsonl and results.json."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.run.directory import holds_run, read_config
from nlrl_jax.run.metrics import METRICS, TIMINGS, read_metrics
from nlrl_jax.run.results import RESULTS, read

EVALUATED = "eval/"  # how the names of evaluations begin in metrics.jsonl


class ComparedRun(NamedTuple):
    """A run, a part of one, or the seeds of one setting.

    Attributes:
      name: the title, or the folder.
      config: of the whole run; of several, the settings in which they are equal.
      metrics: {metric: values [N]} of each seed, over the iterations that all have done; [] if there are none.
      results: as `results.read` gives them, {} if there are none.
      pace: seconds of an iteration that does not evaluate, nan if unknown.
    """

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, np.ndarray]]
    results: Mapping[str, Any]
    pace: float = math.nan

    def evaluation(self, stage: str) -> Mapping[str, Any]:
        """Results "before" or "after", {} if there are none."""
        return self.results.get(stage, {})


def parts_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The run's folder if it holds metrics, else every folder in it with metrics (or `seed_*` that have) or results."""
    if (folder / METRICS).is_file():
        return [folder]
    paths = {path.parent for name in (METRICS, RESULTS) for path in folder.rglob(name)}
    return sorted({path.parent if path.match("seed_*") else path for path in paths}) or [folder]


def read_run(run_dir: pathlib.Path) -> ComparedRun:
    """A run, or a part of one with all its seeds.

    Raises:
      ValueError: no run there, one with neither metrics nor results, or a damaged file.
    """
    whole = next((path for path in (run_dir, *run_dir.absolute().parents) if holds_run(path)), run_dir)
    config = read_config(whole)
    folders = sorted(path.parent for path in run_dir.glob(f"seed_*/{METRICS}")) or [run_dir]
    seeds = _shortened([read_metrics(folder) for folder in folders])
    stored = read(run_dir) if (run_dir / RESULTS).is_file() else {}
    if not seeds and not stored:
        raise ValueError(f"{run_dir} has no metrics yet")
    return ComparedRun(str(run_dir), config, seeds, stored, _pace(folders, seeds))


def read_group(title: str, folders: Sequence[pathlib.Path]) -> ComparedRun:
    """The seeds of one setting as `read_run` gives one run; settings in which they differ are left out."""
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    if len(runs) == 1:
        return first._replace(name=title)
    results = dict(first.results)
    for stage in ("before", "after"):
        evaluations = [run.evaluation(stage) for run in runs]
        shared = [name for name in evaluations[0] if all(name in evaluation for evaluation in evaluations)]
        results[stage] = {name: np.concatenate([np.ravel(part[name]) for part in evaluations]) for name in shared}
    results["beside"] = {}
    for name, scores in first.results.get("beside", {}).items():
        seeds = [run.results.get("beside", {}).get(name, {}) for run in runs]
        shared = [metric for metric in scores if all(metric in seed for seed in seeds)]
        results["beside"][name] = {metric: np.array([seed[metric] for seed in seeds]) for metric in shared}
    equal = [name for name in first.config if all(run.config.get(name) == first.config[name] for run in runs)]
    return ComparedRun(
        title,
        {name: first.config[name] for name in equal},
        _shortened([seed for run in runs for seed in run.metrics]),
        results,
        float(np.mean([run.pace for run in runs])),
    )


def _shortened(seeds: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Metrics of the iterations that all seeds have done; [] where one has none."""
    done = min((len(seed["iteration"]) for seed in seeds), default=0)
    return [{name: values[:done] for name, values in seed.items()} for seed in seeds] if done else []


def _pace(folders: Sequence[pathlib.Path], seeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    """The median seconds of an iteration without an evaluation; seeds that train together share an iteration."""
    timings = read_metrics(folders[0], TIMINGS)
    if not seeds or not len(timings.get("seconds", ())):
        return math.nan
    evaluated = [np.isfinite(values) for name, values in seeds[0].items() if name.startswith(EVALUATED)]
    at = seeds[0]["iteration"][np.any(evaluated, axis=0)] if evaluated else []
    plain = timings["seconds"][~np.isin(timings["iteration"], at)]
    return float(np.median(plain if len(plain) else timings["seconds"])) / len(folders)


def groups_of(names: Sequence[str]) -> dict[str, list[pathlib.Path]]:
    """{title: the folders of its seeds} of TITLE=A,B,C; a part of any other run is a group by itself, under its path.

    Folders may have "=" and "," in their names: what exists counts.

    Raises:
      ValueError: a title or a folder of a group comes twice.
    """
    groups: dict[str, list[pathlib.Path]] = {}
    for name in names:
        if not is_group(name):
            groups |= {str(part): [part] for part in parts_of(pathlib.Path(os.path.expanduser(name)))}
            continue
        signs = [i for i, character in enumerate(name) if character == "="]
        splits = [(name[:i], _listed(name[i + 1 :])) for i in signs]
        title, folders = next((split for split in splits if all(map(os.path.exists, split[1]))), splits[-1])
        if title in groups or len(set(folders)) < len(folders):
            raise ValueError(f"{name} names a group or a folder twice; a seed counts once")
        groups[title] = folders
    return groups


def is_group(name: str) -> bool:
    """Whether an argument is TITLE=A,B,C and not a folder."""
    return "=" in name and not os.path.exists(os.path.expanduser(name))


def _listed(text: str) -> list[pathlib.Path]:
    """The folders of a list with commas between them; a folder's own commas stay where it exists."""
    commas = [i for i, character in enumerate(text) if character == ","]
    for end in (len(text), *reversed(commas)):
        if os.path.exists(os.path.expanduser(text[:end])):
            rest = text[end + 1 :]
            return [pathlib.Path(os.path.expanduser(text[:end])), *(_listed(rest) if rest else [])]
    first, comma, rest = text.partition(",")
    return [pathlib.Path(os.path.expanduser(first)), *(_listed(rest) if comma else [])]
