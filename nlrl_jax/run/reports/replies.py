"""What a page says of replies that collapse: sentences where a measure of `algorithms/collapse.py` has fallen off."""

from __future__ import annotations

import os

import numpy as np

from nlrl_jax.run.metrics import read_metrics

MEASURES = ("surprisal", "distinct_replies", "state_dependence", "return_spread")
_ENOUGH = 20  # iterations: fewer have no ends to compare


def warnings(run_dir: str | os.PathLike) -> list[str]:
    """Compares the last tenth of a run with its first; [] where nothing fell off, or the run is short."""
    metrics = read_metrics(run_dir)
    if len(metrics["iteration"]) < _ENOUGH:
        return []
    n = max(len(metrics["iteration"]) // 10, 5)
    ends = {name: (np.mean(metrics[name][:n]), np.mean(metrics[name][-n:])) for name in MEASURES if name in metrics}
    found = []

    def check(name: str, bad: bool, sentence: str) -> None:
        if bad:
            first, last = ends[name]
            found.append(f"{sentence} ({name} {first:.3g} in the first {n} iterations, {last:.3g} in the last {n}).")

    if "surprisal" in ends:
        first, last = ends["surprisal"]
        check("surprisal", last < 0.05 * first, "The model hardly explores any more: almost every token is certain")
        check("surprisal", last > 2 * first + 0.5, "Replies turn into noise: their tokens have become unlikely")
    if "distinct_replies" in ends:
        first, last = ends["distinct_replies"]
        check("distinct_replies", last < first / 4, "Replies have become alike")
    if "state_dependence" in ends:
        first, last = ends["state_dependence"]
        best = max(first, float(np.max(metrics["state_dependence"])))
        check("state_dependence", last < 0.1 * best, "Replies hardly depend on the state any more")
    if "return_spread" in ends:
        first, last = ends["return_spread"]
        check("return_spread", last < 0.1 * first, "Episodes of a group end alike, so there is little to learn from")
    return found
