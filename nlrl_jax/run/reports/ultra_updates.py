"""What an ablation shows of a setting of ULTRA: a line of its picture and a row of its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nlrl_jax.run import loop
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series
from nlrl_jax.run.reports import ultra_tables
from nlrl_jax.run.ultra.stages import stored_scores


def in_updates(label: str, runs: Sequence[Any]) -> tuple[Series, dict[str, str]]:
    """(ULTRA-RA's score against updates, a row of the table) of all base agents and seeds.

    Args:
      runs: of the base agents, as `run.ultra.stages` has them.
    """
    kind = ultra_tables.main_score(runs[0].agent.continuous)
    ys, x = [], np.zeros(1)
    for run in runs:
        start = run.before_learning()[0][kind]
        for one in loop.seed_dirs(run.folder / "ULTRA-RA", run.seeds):
            metrics = read_metrics(one)
            there = np.isfinite(metrics[f"eval/{kind}"])
            x = np.concatenate([[0], metrics["iteration"][there] + 1])
            ys.append([start, *metrics[f"eval/{kind}"][there]])
    scores = {name: scores[kind] for name, scores in stored_scores(runs).items()}
    row = {name: ultra_tables.level(scores[name]) for name in ("PPO", "ULTRA-RA")}
    row["gain"] = ultra_tables.gain_text(ultra_tables.gain(scores["ULTRA-RA"], scores["PPO"]))
    return Series(label, x, np.array(ys)), {"score": ultra_tables.headings(runs[0].agent.continuous)[kind], **row}
