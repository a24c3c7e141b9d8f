"""The numbers of a run of LAC and planners: success by mission, comparisons task by task, cost.

Pure functions of finished methods, as stored in RUN_DIR/episodes/METHOD.json:

    {"method": "lac", "seconds": 71.2, "problems": {"policy/no action": 3}, "calls": {"policy": 120},
     "tokens": {"read": 9000, "written": 800}, "episodes": [...]}

See `run.lac.episodes.as_json` for an episode. Intervals are over tasks (`nlrl_jax.statistics`), each counted once
however often it was played: the model is one, so they say nothing about another training of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax import statistics
from nlrl_jax.algorithms import lac
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.statistics import Estimate, by_unit, estimate

Result = Mapping[str, Any]
Results = Mapping[str, Result]
Rows = list[dict[str, Any]]


def tasks_of(episodes: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """The task of each episode."""
    return [tuple(e["task"]) for e in episodes]


def over_tasks(episodes: Sequence[Mapping[str, Any]], field: str = "success") -> Estimate:
    """The mean of a field of the episodes; several episodes of one task are one number."""
    return estimate([e[field] for e in episodes], tasks_of(episodes), field == "success")


def measure(result: Result) -> str:
    """The field of episodes that says how well they went: "success", or "reward" where a game has no such notion."""
    return result.get("measure", "success")


def measure_name(results: Results) -> str:
    """Its name in tables: success, or the score's."""
    result = next(iter(results.values()), {})
    return "success" if measure(result) == "success" else result.get("score") or "return"


def overall(result: Result) -> Estimate:
    """The measure's mean over all tasks."""
    return over_tasks(result["episodes"], measure(result))


def by_mission(result: Result) -> dict[str, Estimate]:
    """The measure's mean in each kind of task."""
    episodes, field = result["episodes"], measure(result)
    kinds = dict.fromkeys(e["task"][0] for e in episodes)
    return {kind: over_tasks([e for e in episodes if e["task"][0] == kind], field) for kind in kinds}


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
    success, reward = over_tasks(episodes), over_tasks(episodes, "reward")
    n = max(len(episodes), 1)
    mean = lambda values: estimate(values).mean
    return {
        "success": success.mean,
        "success_se": success.error,
        "reward": reward.mean,
        "reward_se": reward.error,
        "by_mission": {kind: list(found[:3]) for kind, found in by_mission(result).items()},
        "steps": mean([e["moves"] for e in episodes]),
        "steps_of_successes": mean([e["moves"] for e in won]),
        "above_optimal": mean([e["moves"] - e["optimal"] for e in won if e["optimal"] >= 0]),
        "tokens": (result["tokens"]["read"] + result["tokens"]["written"]) / n,
        "seconds": result["seconds"] / n,
        "tasks": success.units,
    }


class Comparison(NamedTuple):
    """Success of one method minus another's (or its reward), on the same tasks.

    Attributes:
      difference: paired task by task.
      only_first, only_second: tasks that only one of them solved, or solved more often.
    """

    difference: Estimate
    only_first: int
    only_second: int


def line_of(result: Result, score: str) -> str:
    """A method's scores in a line; `score` is the reward's name, "" where it says no more than success."""
    summary, episodes = summarize(result), result["episodes"]
    fields = {"success": "success"} if measure(result) == "success" else {}
    fields |= {"reward": score or "return"} if score or not fields else {}
    means = "".join(f"{name} {over_tasks(episodes, field).text('.3f')}, " for field, name in fields.items())
    return f"{means}{summary['steps']:.1f} steps and {summary['tokens']:.0f} tokens per task"


def paired(a: Result, b: Result, field: str = "") -> Comparison:
    """The measure (or `field`) of `a` minus `b`, over the tasks that both played.

    Raises:
      ValueError: there is none.
    """
    by_task = lambda result, name: by_unit([e[name] for e in result["episodes"]], tasks_of(result["episodes"]))
    won, values = ([by_task(result, name or measure(a)) for result in (a, b)] for name in ("", field))
    both = [task for task in values[0] if task in values[1]]
    if not both:
        raise ValueError(f"{a['method']} and {b['method']} have no task in common; compare runs with the same --seed")
    difference = statistics.paired(*([side[task] for task in both] for side in values))
    return Comparison(difference, *(sum(x[task] > y[task] for task in both) for x, y in (won, won[::-1])))


def main_table(results: Results) -> Rows:
    """Success by mission, a row per method (Figures 2 and 6), and the mean score where the game has one (Figure 3)."""
    rows = []
    for name, result in results.items():
        by = {f"{kind} ({one.units})": str(one) for kind, one in by_mission(result).items()}
        whole, reward = overall(result), over_tasks(result["episodes"], "reward")
        scored = {f"mean {result['score']}": str(reward)} if _has_both(result) else {}
        rows.append({"": title(name), f"all ({whole.units})": str(whole), **scored, **(by if len(by) > 1 else {})})
    return rows


def ablations(results: Results) -> list[str]:
    """The variants of LAC in a run; the others are planners."""
    return [name for name in results if name in lac.METHODS and name != "lac"]


def comparison_table(results: Results, names: Sequence[str], first: str = "lac") -> Rows:
    """LAC against other methods, task by task (Figures 2 and 4). [] where nothing is to be compared."""
    if first not in results or not names:
        return []
    measured = measure_name(results)
    rows: Rows = [{"": title(first), measured: str(overall(results[first]))}]
    for name in names:
        compared, score = paired(results[first], results[name]), results[first].get("score")
        rewards = paired(results[first], results[name], "reward") if _has_both(results[first]) else None
        rows.append(
            {
                "": title(name),
                measured: str(overall(results[name])),
                f"{title(first)} − it": compared.difference.text("+.2f"),
                **(
                    {f"only {title(first)} solved": compared.only_first, "only it solved": compared.only_second}
                    if measured == "success"
                    else {}
                ),
                f"{title(first)} is": compared.difference.verdict,
                **({f"{score}: {title(first)} − it": rewards.difference.text("+.2f")} if rewards else {}),
            }
        )
    return rows


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
                measure_name(results): f"{overall(result).mean:.2f}",
                "moves": f"{summary['steps']:.1f}",
                "invalid moves": f"{invalid:.1f}",
                **(
                    {"moves of successes": _or_dash(summary["steps_of_successes"])}
                    if measure(result) == "success"
                    else {}
                ),
                **({"above the optimum": _or_dash(summary["above_optimal"])} if known else {}),
                "calls": f"{sum(result['calls'].values()) / n:,.0f}",
                "tokens read": f"{tokens['read']:,.0f}",
                "tokens written": f"{tokens['written']:,.0f}",
                "seconds": f"{summary['seconds']:.2f}",
            }
        )
    return rows


def _has_both(result: Result) -> bool:
    """Whether tables show a score beside success."""
    return bool(result.get("score")) and measure(result) == "success"


def _or_dash(x: float) -> str:
    return f"{x:.1f}" if np.isfinite(x) else "–"


def problems_table(results: Results) -> Rows:
    """What was wrong with replies, counted, a row per method that had any."""
    return [{"": title(name), **result["problems"]} for name, result in results.items() if result["problems"]]
