"""ULTRA's tables: both scores of every method, and its gain over continued PPO with its interval.

The seeds of one base agent share that agent, so they are not independent trials of a method. A method is compared with
PPO on the same base agent and seed (the same new games and minibatches), these differences are averaged over the seeds,
and the interval is over the base agents' means. Where a run has a single base agent, it is over the seeds, and speaks
of this agent alone; with a single trial there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nlrl_jax.algorithms.refiners import methods as refiners
from nlrl_jax.run.reports.tidy import Measurement, Measurements
from nlrl_jax.statistics import Estimate, estimate, header, paired

# method -> score -> [bases, seeds]
Scores = Mapping[str, Mapping[str, np.ndarray]]
_LEVEL = {"greedy": "most likely action", "sampled": "sampled action"}


def _trials(scores: np.ndarray) -> np.ndarray:
    """[bases * seeds], the independent trial of each score: its base agent, or its seed of a single base agent."""
    return np.indices(np.shape(scores))[0 if len(scores) > 1 else 1].ravel()


def measurements(scores: Scores) -> Measurements:
    """The scores as tidy rows; units are the independent trials."""
    rows = []
    for method, kinds in scores.items():
        for kind, values in kinds.items():
            for trial, value in zip(_trials(values), np.ravel(values), strict=True):
                rows.append(Measurement(method, int(trial), kind, float(value)))
    return Measurements(rows)


def gain(scores: np.ndarray, baseline: np.ndarray) -> Estimate:
    """Of a method over another one, paired by base agent and seed: [bases, seeds] each."""
    return paired(scores, baseline, _trials(scores))


def gain_text(difference: Estimate) -> str:
    """ "+77 ± 89 (within noise)", "+4.000 ± 4.968 (not known)"; of clear gains the number of trials instead."""
    verdict = difference.verdict
    about = f"{difference.units} trials" if verdict in ("above", "below") else verdict
    spec = _format(difference.half if difference.half > 0 else difference.mean)
    about = "single trial" if difference.units < 2 else about
    return f"{difference.text('+' + spec, _format(difference.half))} ({about})"


def level(scores: np.ndarray) -> str:
    """The mean over the independent trials."""
    mean = estimate(scores, _trials(scores))
    return mean.text(_format(mean.mean))


def rounded(number: float) -> str:
    """A score as it is printed: whole numbers from 10 on."""
    return format(number, _format(number))


def _format(size: float) -> str:
    return ".0f" if abs(size) >= 10 else ".3f"


def trials_header(bases: int, seeds: int) -> str:
    """What ± means in these tables."""
    if bases > 1:
        return header("base agents, each the mean of its seeds", bases)
    return header("seeds of one base agent, so it speaks of this agent alone", seeds)


def headings(continuous: bool) -> dict[str, str]:
    """The scores' names in tables."""
    return _LEVEL | ({"greedy": "mean action"} if continuous else {})


def main_score(continuous: bool) -> str:
    """The score by which methods are compared: robots by their mean action, without exploration noise, other games by
    the sampled one, as in the paper."""
    return "greedy" if continuous else "sampled"


def tables(
    scores: Scores, start: Mapping[str, np.ndarray], continuous: bool
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of tables 1 and 2 for the finished methods, and ULTRA-RA's gain over the mean of its baselines.

    The paper's percentages are such gains, over a mean that includes PPO; there is none where a baseline is
    not above 0.

    Args:
      start: score -> [bases], of the base agents.
      continuous: the actions; it decides which score gains are measured by (`main_score`).
    """
    names, main = headings(continuous), main_score(continuous)

    def row(name: str) -> dict[str, str]:
        cells = {"method": name, **{names[kind]: level(scores[name][kind]) for kind in names}}
        if "PPO" in scores:
            cells["over PPO"] = "" if name == "PPO" else gain_text(gain(scores[name][main], scores["PPO"][main]))
        return cells

    empty = {"over PPO": ""} if "PPO" in scores else {}
    first = [{"method": "base agent", **{names[kind]: level(start[kind][:, None]) for kind in names}, **empty}]
    first += [row(name) for name in refiners.TABLE_1 if name in scores]
    baselines = [name for name in refiners.BASELINES if name in scores]
    if "ULTRA-RA" in scores and baselines:
        percent = {}
        for kind in names:
            means = [scores[name][kind].mean() for name in baselines]
            ratio = scores["ULTRA-RA"][kind].mean() / np.mean(means) if min(means) > 0 else np.nan
            percent[names[kind]] = f"{100 * (ratio - 1):+.1f} %" if np.isfinite(ratio) else ""
        if any(percent.values()):
            first.append({"method": f"ULTRA-RA over the mean of {', '.join(baselines)}", **percent, **empty})
    return first, [row(name) for name in refiners.TABLE_2 if name in scores]


def last_line(scores: Scores, continuous: bool) -> str:
    """ULTRA-RA's gain over continued PPO, for the terminal; "" where one of them was not run."""
    if not {"PPO", "ULTRA-RA"} <= scores.keys():
        return ""
    ours, ppo = (scores[name][main_score(continuous)] for name in ("ULTRA-RA", "PPO"))
    return f"ULTRA-RA over PPO: {rounded(ppo.mean())} -> {rounded(ours.mean())}, {gain_text(gain(ours, ppo))}"
