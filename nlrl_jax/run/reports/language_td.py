"""The page of a language TD run: the curve, evaluations before and after, and examples that it learned from."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.plots import Series, compare
from nlrl_jax.run.records import Exchange
from nlrl_jax.run.report import write_report
from nlrl_jax.run.results import Evaluation


def write(
    run_dir: pathlib.Path,
    config: Mapping[str, Any],
    before: Evaluation,
    after: Evaluation,
    exchanges: Sequence[Exchange],
    notes: Sequence[str],
) -> pathlib.Path:
    """The page of a finished run.

    Args:
      before, after: "accuracy", "answered", "positions" and "level".
    """
    run = read_metrics(run_dir)
    evaluated = np.isfinite(run["eval/accuracy"])
    x = [0, *(run["iteration"][evaluated] + 1)]
    lines = [
        Series(label, x, np.array([[before[name], *run[f"eval/{name}"][evaluated]]]))
        for label, name in (("correct, of those answered", "accuracy"), ("answered", "answered"))
    ]
    picture = compare({"Advantage on held-out positions": lines}, run_dir / "curve.png", "iteration", "share")
    return write_report(
        run_dir,
        title="Language TD on breakthrough",
        question="Does a value model learn to say which side is ahead from evaluations of where the game leads?",
        config=config,
        summary={name: (before[name], after[name]) for name in after},
        curves=[picture],
        notes=notes,
        exchanges=exchanges,
    )
