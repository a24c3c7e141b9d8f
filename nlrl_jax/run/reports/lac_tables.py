"""The numbers of a run of LAC and planners: success by mission, comparisons task by task, cost.

Pure functions of finished methods, as stored in RUN_DIR/episodes/METHOD.json:

    {"method": "lac", "seconds": 71.2, "problems": {"policy/no action": 3}, "calls": {"policy": 120},
     "tokens": {"read": 9000, "written": 800}, "episodes": [...]}

See `run.lac.episodes.as_json` for an episode. Intervals are over tasks (`nlrl_jax.statistics`), each counted once
however often it was played: the model is one, so they say nothing about another training of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.run.reports.tidy import Column, Measurement, Measurements
from nlrl_jax.statistics import Estimate, estimate

Result = Mapping[str, Any]
Results = Mapping[str, Result]
Rows = list[dict[str, Any]]
KIND = "kind: "  # a metric's name begins so where it is the measure in one kind of task
COSTS = {  # metric -> how the table writes it
    "moves": ".1f", "invalid moves": ".1f", "moves of successes": ".1f", "above the optimum": ".1f", "calls": ",.0f",
    "tokens read": ",.0f", "tokens written": ",.0f", "seconds": ".2f",
}  # fmt: skip


def tasks_of(episodes: Sequence[Mapping[str, Any]]) -> list[tuple]:
    """The task of each episode."""
    return [tuple(episode["task"]) for episode in episodes]


def over_tasks(episodes: Sequence[Mapping[str, Any]], field: str = "success") -> Estimate:
    """The mean of a field of the episodes; several episodes of one task are one number."""
    return estimate([episode[field] for episode in episodes], tasks_of(episodes), field == "success")


def measure(result: Result) -> str:
    """The field of episodes that says how well they went: "success", or "reward" where a game has no such notion."""
    return result.get("measure", "success")


def measure_name(results: Results) -> str:
    """Its name in tables: success, or the score's."""
    result = next(iter(results.values()), {})
    return "success" if measure(result) == "success" else result.get("score") or "return"


def score_name(results: Results) -> str:
    """The name of a score that tables show beside success; "" if there is none."""
    score = next(iter(results.values()), {}).get("score")
    return f"mean {score}" if score and measure_name(results) == "success" else ""


def overall(result: Result) -> Estimate:
    """The measure's mean over all tasks."""
    return over_tasks(result["episodes"], measure(result))


def title(name: str) -> str:
    """A method's name in tables."""
    return METHODS[name].title if name in METHODS else name


def measurements(results: Results) -> Measurements:
    """All numbers of a run as tidy rows: the measure, the score beside it, and costs per episode."""
    named, score, rows = measure_name(results), score_name(results), []
    for name, result in results.items():
        for number, episode in enumerate(result["episodes"]):
            task, value = tuple(episode["task"]), episode[measure(result)]
            rows += [Measurement(name, task, named, value), Measurement(name, task, f"{KIND}{task[0]}", value)]
            if score:
                rows.append(Measurement(name, task, score, episode["reward"]))
            costs = {"moves": episode["moves"], "invalid moves": episode.get("invalid", 0)}
            if episode["success"] and named == "success":
                costs["moves of successes"] = episode["moves"]
            if episode["success"] and episode["optimal"] >= 0:
                costs["above the optimum"] = episode["moves"] - episode["optimal"]
            rows += [Measurement(name, (*task, number), cost, value) for cost, value in costs.items()]
        # Methods play all episodes in lockstep, so these are known of all together.
        totals = {
            "calls": sum(result["calls"].values()),
            "tokens read": result["tokens"]["read"],
            "tokens written": result["tokens"]["written"],
            "tokens": result["tokens"]["read"] + result["tokens"]["written"],
            "seconds": result["seconds"],
        }
        episodes = max(len(result["episodes"]), 1)
        rows += [Measurement(name, "mean", cost, total / episodes) for cost, total in totals.items()]
    kinds = {row.metric for row in rows if row.metric.startswith(KIND)}
    return Measurements(rows, {"success", *kinds} if named == "success" else (), title)


def summarize(result: Result) -> dict[str, Any]:
    """The numbers of a method for results.json; nan where there are no successes, or where no optimum is known.

    Returns:
      success and success_se; reward and reward_se, of an episode; by_mission: {kind: [mean, standard error, tasks]};
      steps: moves per task; steps_of_successes; above_optimal: moves more than necessary, over successes; tokens (read
      and written) and seconds per task; tasks.
    """
    numbers = measurements({"": result})
    success, reward = over_tasks(result["episodes"]), over_tasks(result["episodes"], "reward")
    kinds = [metric for metric in numbers.metrics if metric.startswith(KIND)]
    costs = {
        "steps": "moves", "steps_of_successes": "moves of successes", "above_optimal": "above the optimum",
        "tokens": "tokens", "seconds": "seconds",
    }  # fmt: skip
    return {
        "success": success.mean,
        "success_se": success.error,
        "reward": reward.mean,
        "reward_se": reward.error,
        "by_mission": {kind.removeprefix(KIND): list(numbers.mean("", kind)[:3]) for kind in kinds},
        **{name: numbers.mean("", cost).mean for name, cost in costs.items()},
        "tasks": success.units,
    }


def line_of(result: Result) -> str:
    """A method's scores in a line."""
    results, numbers = {"": result}, measurements({"": result})
    names = [name for name in (measure_name(results), score_name(results)) if name]
    means = "".join(f"{name} {numbers.mean('', name).text('.3f')}, " for name in names)
    moves, tokens = (numbers.mean("", metric).mean for metric in ("moves", "tokens"))
    return f"{means}{moves:.1f} steps and {tokens:.0f} tokens per task"


def kinds_of(numbers: Measurements) -> dict[str, str]:
    """{kind of task: its metric}, {} if there is one kind only."""
    kinds = {name.removeprefix(KIND): name for name in numbers.metrics if name.startswith(KIND)}
    return kinds if len(kinds) > 1 else {}


def main_table(results: Results) -> Rows:
    """Success by mission, a row per method (Figures 2 and 6), and the mean score where the game has one (Figure 3)."""
    numbers, named, score = measurements(results), measure_name(results), score_name(results)

    def counted(label: str, metric: str) -> str:
        return f"{label} ({max(numbers.mean(method, metric).units for method in numbers.methods)})"

    columns = {counted("all", named): Column(named)} | ({score: Column(score)} if score else {})
    columns |= {counted(kind, metric): Column(metric) for kind, metric in kinds_of(numbers).items()}
    return numbers.table(columns)


def comparison_table(results: Results) -> Rows:
    """The other methods against LAC, task by task (Figures 2 and 4). [] where nothing is to be compared."""
    if "lac" not in results or len(results) < 2:
        return []
    numbers, named, score = measurements(results), measure_name(results), score_name(results)
    columns = {named: Column(named), "minus LAC's": Column(named, baseline="lac")}
    columns |= {f"{score} minus LAC's": Column(score, baseline="lac")} if score else {}
    names = [name for name in results if name != "lac"]
    rows: Rows = numbers.table(columns, methods=["lac", *names])
    for name, row in zip(names, rows[1:]) if named == "success" else ():
        pairs = numbers.pairs("lac", name, named)
        row["only LAC solved"] = sum(lac_value > value for lac_value, value in pairs)
        row["only it solved"] = sum(lac_value < value for lac_value, value in pairs)
    return rows


def cost_table(results: Results) -> Rows:
    """Tokens, seconds and moves per task (Figures 5 and 9)."""
    numbers, named = measurements(results), measure_name(results)
    columns = {named: Column(named, interval=False)}
    columns |= {cost: Column(cost, spec, interval=False) for cost, spec in COSTS.items()}
    return numbers.table(columns, "per task")
