"""ULTRA's tables: both scores of every method, and its gain over continued PPO with a standard error.

The seeds of one base agent share that agent, so they are no independent trials of a method. A method is compared with
PPO on the same base agent and seed (the same new games and minibatches), these differences are averaged over the seeds,
and the standard error is that of the base agents' means. Where a run has a single base agent, it is that of the seeds,
and speaks of this agent alone; with a single trial there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.run.plots import standard_error

# method -> score -> [bases, seeds]
Scores = Mapping[str, Mapping[str, np.ndarray]]
_LEVEL = {"greedy": "most likely action", "sampled": "sampled action"}


class Gain(NamedTuple):
    """A mean difference, its standard error (nan of a single trial) and the number of trials it is of."""

    mean: float
    error: float
    trials: int

    @property
    def is_noise(self) -> bool:
        """Within two standard errors of 0, or not known."""
        return not abs(self.mean) > 2 * self.error

    def __str__(self) -> str:
        alone = math.isnan(self.error)
        mean = rounded(self.mean, self.mean if alone else self.error)
        error = "" if alone else f" ± {rounded(self.error)}"
        known = "within noise" if self.is_noise else f"{self.trials} trials"
        if self.trials < 3:  # two numbers may lie close together by chance
            known = "single trial" if self.trials < 2 else "2 trials, too few to tell"
        return f"{'' if mean.startswith('-') else '+'}{mean}{error} ({known})"


def trials(scores: np.ndarray) -> np.ndarray:
    """The independent numbers in scores [bases, seeds]: the bases' means, or the seeds of a single base."""
    return scores.mean(axis=1) if len(scores) > 1 else scores[0]


def gain(scores: np.ndarray, others: np.ndarray) -> Gain:
    """Of a method over another one, paired by base agent and seed: [bases, seeds] each."""
    each = trials(np.asarray(scores) - np.asarray(others))
    return Gain(float(each.mean()), standard_error(each), len(each))


def level(scores: np.ndarray) -> str:
    """Mean ± standard error over the independent trials."""
    each = trials(np.asarray(scores))
    error = f" ± {rounded(standard_error(each), each.mean())}" if len(each) > 1 else ""
    return f"{rounded(each.mean())}{error}"


def rounded(number: float, size: float | None = None) -> str:
    """A score as it is printed: in whole numbers where scores (`size`, by default this one) are of 10 and more."""
    return f"{number:.{0 if abs(number if size is None else size) >= 10 else 3}f}"


def headings(continuous: bool) -> dict[str, str]:
    """The scores' names in tables."""
    return _LEVEL | ({"greedy": "mean action"} if continuous else {})


def tables(
    scores: Scores, start: Mapping[str, np.ndarray], continuous: bool
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of tables 1 and 2 for the finished methods, and ULTRA-RA's gain over the mean of its baselines.

    The paper's percentages for the robots are such gains (Hopper 7.68, Walker2d 13.77, Ant 5.55), over a mean that
    includes PPO. Its Pong has 165 %, where its rounded scores give 156 %.

    Args:
      start: score -> [bases], of the base agents.
      continuous: the actions; it decides by which score gains are told (`main_score`).
    """
    names, main = headings(continuous), main_score(continuous)

    def row(name: str) -> dict[str, str]:
        cells = {"method": name, **{names[kind]: level(scores[name][kind]) for kind in names}}
        if "PPO" in scores:
            cells["over PPO"] = "" if name == "PPO" else str(gain(scores[name][main], scores["PPO"][main]))
        return cells

    empty = {"over PPO": ""} if "PPO" in scores else {}
    first = [{"method": "base agent", **{names[kind]: level(start[kind][:, None]) for kind in names}, **empty}]
    first += [row(name) for name in refiners.TABLE_1 if name in scores]
    baselines = [name for name in refiners.BASELINES if name in scores]
    if "ULTRA-RA" in scores and baselines:
        mean = {kind: np.mean([scores[name][kind].mean() for name in baselines]) for kind in names}
        more = {kind: scores["ULTRA-RA"][kind].mean() / mean[kind] - 1 for kind in names if mean[kind] > 0}
        if more:
            percent = {names[kind]: f"{100 * more[kind]:+.1f} %" if kind in more else "" for kind in names}
            first.append({"method": f"ULTRA-RA over the mean of {', '.join(baselines)}", **percent, **empty})
    return first, [row(name) for name in refiners.TABLE_2 if name in scores]


def main_score(continuous: bool) -> str:
    """The score by which methods are compared: robots by their mean action, without exploration noise, other games by
    the sampled one, as in the paper."""
    return "greedy" if continuous else "sampled"


def headline(scores: Scores, continuous: bool) -> str:
    """ULTRA-RA beside continued PPO; "" where one of them was not run."""
    if not {"PPO", "ULTRA-RA"} <= scores.keys():
        return ""
    ours, ppo = (scores[name][main_score(continuous)] for name in ("ULTRA-RA", "PPO"))
    return f"ULTRA-RA over PPO: {rounded(ppo.mean())} -> {rounded(ours.mean())}, {gain(ours, ppo)}"
