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
Round = Sequence[Mapping[str, float]]  # a round's row of each run; see `lac_iteration.row_of`


def rounds_of(runs: Runs) -> list[Round]:
    """The rounds that all the runs have finished."""
    return [*zip(*(results.read(run)["rounds"] for run in runs))]


def tasks(run_dir: pathlib.Path, name: str) -> dict[tuple, float]:
    """{(kind, seed of the task): its success} of one play."""
    episodes = json.loads((run_dir / "episodes" / f"{name}.json").read_text())["episodes"]
    return by_unit([episode["success"] for episode in episodes], tasks_of(episodes))


def difference(plays: Sequence[tuple[pathlib.Path, str]], baselines: Sequence[tuple[pathlib.Path, str]]) -> Estimate:
    """Success of plays minus that of baselines, seed by seed, each pair on the same tasks.

    Raises:
      ValueError: the tasks of a pair are not the same, or not as many seeds.
    """
    if len(plays) != len(baselines):
        raise ValueError(f"a difference is paired by seed, but there are {len(plays)} and {len(baselines)} runs")
    gains = []
    for play, baseline in zip(plays, baselines, strict=True):
        scores, references = tasks(*play), tasks(*baseline)
        if scores.keys() != references.keys():
            raise ValueError(f"{play[0]} and {baseline[0]} have different tasks; compare runs with the same --seed")
        gains.append(paired(scores.values(), (references[task] for task in scores)).mean)
    return estimate(gains)


def table(runs: Runs) -> list[dict[str, str]]:
    """A row per round that all the runs have finished."""
    rounds, rows = rounds_of(runs), []
    for k, seeds in enumerate(rounds):
        row = {"after rounds": str(k)}
        for method in methods(rounds[0]):
            if any(f"{method}/success" not in seed for seed in seeds):  # not evaluated after this round
                continue
            name = f"round_{k}" if method == TEACHER else f"after_{k}_{method}"
            row[title(method)] = estimate([np.mean([*tasks(run, name).values()]) for run in runs]).text(".3f")
            if method != TEACHER:
                gain = difference([(run, name) for run in runs], [(run, f"after_0_{method}") for run in runs])
                row[f"{title(method)}: gain"] = f"{gain.text('+.3f')} ({gain.verdict})" if k else ""
        row["tokens per episode"] = f"{_mean(seeds, 'teacher/tokens'):,.0f}"
        row["tokens before"] = f"{_mean(seeds, 'tokens_before'):,.0f}"
        rows.append(row)
    return rows


def _mean(seeds: Round, key: str) -> float:
    return float(np.mean([seed[key] for seed in seeds]))


def curve(label: str, runs: Runs) -> Series:
    """Success of the bare prior in each run over the tokens spent before, in millions (mean of the runs)."""
    evaluated = [seeds for seeds in rounds_of(runs) if all(SUCCESS in seed for seed in seeds)]
    x = [_mean(seeds, "tokens_before") / 1e6 for seeds in evaluated]
    return Series(label, x, np.array([[seed[SUCCESS] for seed in seeds] for seeds in evaluated]).T)


def lead(first: Runs, runs: Runs) -> str:
    """The first group's prior minus another's last one on the same tasks, at no more tokens than the other spent."""
    rounds, baseline = rounds_of(first), rounds_of(runs)
    last = max(k for k, seeds in enumerate(baseline) if SUCCESS in seeds[0])
    budget = _mean(baseline[last], "tokens_before")
    k = max(k for k, seeds in enumerate(rounds) if SUCCESS in seeds[0] and _mean(seeds, "tokens_before") <= budget)
    gain = difference([(run, f"after_{k}_{PRIOR}") for run in first], [(run, f"after_{last}_{PRIOR}") for run in runs])
    return f"{gain.text('+.3f')} ({gain.verdict}): {k} rounds against {last}"


def blocks(groups: Mapping[str, Runs], picture: pathlib.Path) -> list[Table | Picture]:
    """A table per group of seeds, and the picture of all, which it draws."""
    first, sections = next(iter(groups)), []
    for name, runs in groups.items():
        held_out = len(tasks(runs[0], f"after_0_{PRIOR}"))
        note = header(f"seeds of training, each the mean of its tasks ({held_out} held out)", len(runs))
        if name != first:
            note += f" {first} before {name}, at no more tokens: {lead(groups[first], runs)}."
        sections.append(Table(name, table(runs), note))
    panel = {"the bare prior on held-out tasks": [curve(name, runs) for name, runs in groups.items()]}
    compare(panel, picture, "million tokens spent before", "success", errors=True)
    return [*sections, Picture(picture, "Success of the prior by itself; bands are 95 % intervals over the seeds.")]
