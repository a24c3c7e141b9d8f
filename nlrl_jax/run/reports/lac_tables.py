"""The numbers of a run of LAC and planners: success by mission, comparisons task by task, cost, sweeps.

Pure functions of finished methods, as they stand in RUN_DIR/episodes/METHOD.json:

    {"method": "lac", "seconds": 71.2, "problems": {"policy/no action": 3}, "calls": {"policy": 120},
     "tokens": {"read": 9000, "written": 800}, "episodes": [...]}

See `run.planning.as_json` for an episode. Standard errors are over tasks: deviation of the sample / sqrt(tasks), nan
for one task. Where all outcomes are equal they are 0, which says nothing about other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms import lac
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.run.plots import standard_error

Result = Mapping[str, Any]
Results = Mapping[str, Result]
Rows = list[dict[str, Any]]

NOISE = 2.0  # standard errors; a smaller difference is called noise


class Estimate(NamedTuple):
    """A mean over n tasks and its standard error, nan where there are too few."""

    mean: float
    se: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The mean of values, one per task."""
        x = np.asarray(values, float)
        mean = float(x.mean()) if x.size else np.nan
        return cls(mean, standard_error(x), x.size)

    def __str__(self) -> str:
        if not self.n:
            return "–"
        return f"{self.mean:.2f} ± {self.se:.2f}" if np.isfinite(self.se) else f"{self.mean:.2f}"


def title(name: str) -> str:
    """A method's name in tables."""
    return METHODS[name].title if name in METHODS else name


def summarize(result: Result) -> dict[str, Any]:
    """The numbers of a method; nan where there are no successes, or where no optimum is known.

    Returns:
      success and success_se; reward and reward_se, of an episode; by_mission: {kind: [mean, standard error, tasks]};
      steps: moves per task; steps_of_successes; above_optimal: moves more than necessary, over successes; tokens (read
      and written) and seconds per task; tasks.
    """
    episodes = result["episodes"]
    won = [e for e in episodes if e["success"]]
    success, reward = (Estimate.of([e[name] for e in episodes]) for name in ("success", "reward"))
    kinds = dict.fromkeys(e["task"][0] for e in episodes)
    n = max(len(episodes), 1)
    return {
        "success": success.mean,
        "success_se": success.se,
        "reward": reward.mean,
        "reward_se": reward.se,
        "by_mission": {kind: list(Estimate.of(_successes(episodes, kind))) for kind in kinds},
        "steps": Estimate.of([e["moves"] for e in episodes]).mean,
        "steps_of_successes": Estimate.of([e["moves"] for e in won]).mean,
        "above_optimal": Estimate.of([e["moves"] - e["optimal"] for e in won if e["optimal"] >= 0]).mean,
        "tokens": (result["tokens"]["read"] + result["tokens"]["written"]) / n,
        "seconds": result["seconds"] / n,
        "tasks": len(episodes),
    }


def _successes(episodes: Sequence[Mapping[str, Any]], kind: str) -> list[bool]:
    return [e["success"] for e in episodes if e["task"][0] == kind]


class Comparison(NamedTuple):
    """Success of one method minus another's (or its reward), on the same tasks.

    Attributes:
      difference: with the standard error of the paired difference.
      only_first, only_second: tasks that only one of them solved.
    """

    difference: Estimate
    only_first: int
    only_second: int

    @property
    def verdict(self) -> str:
        """ "above", "below", or "within noise" (two standard errors, or an error that is not known)."""
        mean, se, _ = self.difference
        if not mean or not abs(mean) > NOISE * se:
            return "within noise"
        return "above" if mean > 0 else "below"

    def __str__(self) -> str:
        mean, se, _ = self.difference
        return f"{mean:+.2f} ± {se:.2f}" if np.isfinite(se) else f"{mean:+.2f}"


def paired(a: Result, b: Result, field: str = "success") -> Comparison:
    """Success (or `field`) of `a` minus `b`, over the tasks that both played.

    Raises:
      ValueError: there is none.
    """
    first, second = ({tuple(e["task"]): e for e in result["episodes"]} for result in (a, b))
    both = [(first[task], second[task]) for task in first if task in second]
    if not both:
        raise ValueError(f"{a['method']} and {b['method']} have no task in common; compare runs with the same --seed")
    won = [(x["success"], y["success"]) for x, y in both]
    difference = Estimate.of([float(x[field]) - float(y[field]) for x, y in both])
    return Comparison(difference, sum(x and not y for x, y in won), sum(y and not x for x, y in won))


def main_table(results: Results) -> Rows:
    """Success by mission, a row per method (Figures 2 and 6), and the mean score where the game has one (Figure 3)."""
    rows = []
    for name, result in results.items():
        summary = summarize(result)
        by = {f"{kind} ({n})": str(Estimate(mean, se, n)) for kind, (mean, se, n) in summary["by_mission"].items()}
        whole = Estimate(summary["success"], summary["success_se"], summary["tasks"])
        score = Estimate(summary["reward"], summary["reward_se"], summary["tasks"])
        scored = {f"mean {result['score']}": str(score)} if result.get("score") else {}
        rows.append({"": title(name), f"all ({whole.n})": str(whole), **scored, **(by if len(by) > 1 else {})})
    return rows


def ablations(results: Results) -> list[str]:
    """The variants of LAC in a run; the others are planners."""
    return [name for name in results if name in lac.METHODS and name != "lac"]


def comparison_table(results: Results, names: Sequence[str], first: str = "lac") -> Rows:
    """LAC against other methods, task by task (Figures 2 and 4). [] where nothing is to be compared."""
    if first not in results or not names:
        return []
    rows: Rows = [{"": title(first), "success": str(_success(results[first]))}]
    for name in names:
        compared, score = paired(results[first], results[name]), results[first].get("score")
        rewards = paired(results[first], results[name], "reward") if score else None
        rows.append(
            {
                "": title(name),
                "success": str(_success(results[name])),
                f"{title(first)} − it": str(compared),
                f"only {title(first)} solved": compared.only_first,
                "only it solved": compared.only_second,
                f"{title(first)} is": compared.verdict,
                **({f"{score}: {title(first)} − it": str(rewards)} if rewards else {}),
            }
        )
    return rows


def _success(result: Result) -> Estimate:
    return Estimate.of([e["success"] for e in result["episodes"]])


def cost_table(results: Results) -> Rows:
    """Tokens, seconds and moves per task (Figures 5 and 9)."""
    rows = []
    for name, result in results.items():
        summary, n = summarize(result), max(len(result["episodes"]), 1)
        tokens = {key: result["tokens"][key] / n for key in ("read", "written")}
        known = any(e["optimal"] >= 0 for e in result["episodes"])
        invalid = sum(e.get("invalid", 0) for e in result["episodes"]) / n
        rows.append(
            {
                "per task": title(name),
                "success": f"{summary['success']:.2f}",
                "moves": f"{summary['steps']:.1f}",
                "invalid moves": f"{invalid:.1f}",
                "moves of successes": _or_dash(summary["steps_of_successes"]),
                **({"above the optimum": _or_dash(summary["above_optimal"])} if known else {}),
                "calls": f"{sum(result['calls'].values()) / n:,.0f}",
                "tokens read": f"{tokens['read']:,.0f}",
                "tokens written": f"{tokens['written']:,.0f}",
                "seconds": f"{summary['seconds']:.2f}",
            }
        )
    return rows


def _or_dash(x: float) -> str:
    return f"{x:.1f}" if np.isfinite(x) else "–"


def problems_table(results: Results) -> Rows:
    """What was wrong with replies, counted, a row per method that had any."""
    return [{"": title(name), **result["problems"]} for name, result in results.items() if result["problems"]]


def sweep_table(summaries: Mapping[tuple[str, str], Mapping[str, Any]], variant: str = "") -> Rows:
    """Success of many runs, a row per variant and a column per model (Tables 9 to 12).

    Args:
      summaries: (model, variant) -> what `summarize` returned, e.g. ("smollm2", "alpha = 0.5").
      variant: heading of the first column.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (model, name), one in summaries.items():
        row = rows.setdefault(name, {variant: name})
        row[model] = str(Estimate(one["success"], one["success_se"], one["tasks"]))
    return list(rows.values())
