"""The numbers of a run of LAC and planners: success, comparisons task by task, Q along time, confidence cases.

Pure functions of finished methods, as they stand in RUN_DIR/episodes/METHOD.json:

    {"method": "lac", "seconds": 71.2, "problems": {"policy/no action": 3}, "calls": {"policy": 120},
     "tokens": {"read": 9000, "written": 800}, "episodes": [...]}

See `run.planning.as_json` for an episode. Standard errors are over tasks: deviation of the sample / sqrt(tasks), nan for
one task. They take a task's outcome for a random draw; a share of 0 or 1 has 0, which says nothing about other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.algorithms import lac
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.roles.dialogues import THINK, THINK_REPLY

Result = Mapping[str, Any]
Results = Mapping[str, Result]
Rows = list[dict[str, Any]]

NOISE = 2.0  # standard errors; a smaller difference is called noise
SHORTEST = 3  # moves of the shortest trajectory that has a correlation
# Tables 1 and 2: ALFWorld, 134 tasks. (Case, share, confidence of the prior, of Q, of the improved policy.)
PAPER_CORRELATION = {"successful": "0.34 ± 0.18", "failed": "-0.41 ± 0.18"}
PAPER_CASES = {
    (True, True): (0.4981, 0.49, 0.21, 0.74),
    (True, False): (0.2912, 0.34, 0.06, 0.28),
    (False, True): (0.1928, 0.21, 0.34, 0.22),
    (False, False): (0.0179, 0.06, 0.03, 0.07),
}
CASES = {
    (True, True): "prior and Q prefer the action taken",
    (True, False): "the prior does, Q does not",
    (False, True): "Q does, the prior does not",
    (False, False): "neither does",
}


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
        return cls(mean, float(x.std(ddof=1) / np.sqrt(x.size)) if x.size > 1 else np.nan, x.size)

    def __str__(self) -> str:
        if not self.n:
            return "–"
        return f"{self.mean:.2f} ± {self.se:.2f}" if np.isfinite(self.se) else f"{self.mean:.2f}"


class Turn(NamedTuple):
    """A move of an episode.

    Attributes:
      observation, note: what the agent saw, and the note that it wrote behind it.
      thoughts: before the action. action: taken. result: the observation that followed.
      record: what the method kept of the decision. board: before the move, "" without pictures.
    """

    observation: str
    note: str
    thoughts: tuple[str, ...]
    action: str
    result: str
    record: Mapping[str, Any]
    board: str

    @property
    def taken(self) -> int | None:
        """The position of the action among the candidates."""
        names = self.record.get("candidates", [])
        return names.index(self.action) if self.action in names else None

    def row(self, name: str) -> np.ndarray:
        """A number per candidate from the record, float64 [n]; [0] where the method has none."""
        return np.array([float(x) for x in self.record.get(name) or ()])


def turns(episode: Mapping[str, Any]) -> list[Turn]:
    """The moves of an episode; thoughts are part of the move that they precede."""
    made, thoughts, observation, note = [], [], episode["observation"], episode["note"]
    records, boards = episode["thinking"], episode["boards"]
    for action, result, next_note in episode["steps"]:
        if action.startswith(THINK) and result == THINK_REPLY:
            thoughts.append(action.removeprefix(THINK).strip())
            continue
        t = len(made)
        board = boards[t] if t < len(boards) else ""
        made.append(Turn(observation, note, tuple(thoughts), action, result, records[t], board))
        thoughts, observation, note = [], result, next_note
    return made


def title(name: str) -> str:
    """A method's name in tables."""
    return METHODS[name].title if name in METHODS else name


def summarize(result: Result) -> dict[str, Any]:
    """The numbers of a method; nan where there are no successes, or where no optimum is known.

    Returns:
      success and success_se; by_mission: {kind: [mean, standard error, tasks]}; steps: moves per task;
      steps_of_successes; above_optimal: moves more than necessary, over successes; tokens (read and written) and
      seconds per task; tasks.
    """
    episodes = result["episodes"]
    won = [e for e in episodes if e["success"]]
    success = Estimate.of([e["success"] for e in episodes])
    kinds = dict.fromkeys(e["task"][0] for e in episodes)
    n = max(len(episodes), 1)
    return {
        "success": success.mean,
        "success_se": success.se,
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
    """Success of one method minus another's, on the same tasks.

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


def paired(a: Result, b: Result) -> Comparison:
    """Success of `a` minus `b`, over the tasks that both played.

    Raises:
      ValueError: there is none.
    """
    first, second = ({tuple(e["task"]): e["success"] for e in result["episodes"]} for result in (a, b))
    both = [(first[task], second[task]) for task in first if task in second]
    if not both:
        raise ValueError(f"{a['method']} and {b['method']} have no task in common; compare runs with the same --seed")
    difference = Estimate.of([int(x) - int(y) for x, y in both])
    return Comparison(difference, sum(x and not y for x, y in both), sum(y and not x for x, y in both))


def main_table(results: Results) -> Rows:
    """Success by mission, a row per method (Figures 2 and 6)."""
    rows = []
    for name, result in results.items():
        summary = summarize(result)
        by = {f"{kind} ({n})": str(Estimate(mean, se, n)) for kind, (mean, se, n) in summary["by_mission"].items()}
        whole = Estimate(summary["success"], summary["success_se"], summary["tasks"])
        rows.append({"": title(name), f"all ({whole.n})": str(whole), **(by if len(by) > 1 else {})})
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
        compared = paired(results[first], results[name])
        rows.append(
            {
                "": title(name),
                "success": str(_success(results[name])),
                f"{title(first)} − it": str(compared),
                f"only {title(first)} solved": compared.only_first,
                "only it solved": compared.only_second,
                f"{title(first)} is": compared.verdict,
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
        rows.append(
            {
                "per task": title(name),
                "success": f"{summary['success']:.2f}",
                "moves": f"{summary['steps']:.1f}",
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


def q_along(episode: Mapping[str, Any]) -> np.ndarray:
    """Q of the actions taken, float64 [moves with a finite Q]."""
    moves = [turn for turn in turns(episode) if turn.record.get("q") and turn.taken is not None]
    q = np.array([turn.row("q")[turn.taken] for turn in moves])
    return q[np.isfinite(q)]


class Correlation(NamedTuple):
    """Pearson correlation of Q with time: mean and deviation over n trajectories, which have `moves` moves together."""

    mean: float
    std: float
    n: int
    moves: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.std:.2f}" if self.n > 1 else f"{self.mean:+.2f}" if self.n else "–"


def q_with_time(result: Result) -> dict[str, Correlation]:
    """Table 1: {"successful": ..., "failed": ...}.

    Over trajectories of at least three moves in which Q changes: elsewhere there is no correlation.
    """
    found = {}
    for name, success in (("successful", True), ("failed", False)):
        curves = [q_along(e) for e in result["episodes"] if e["success"] == success]
        curves = [q for q in curves if len(q) >= SHORTEST and np.ptp(q) > 1e-9]
        values = [float(np.corrcoef(np.arange(len(q)), q)[0, 1]) for q in curves]
        mean, std = (
            (np.mean(values), np.std(values, ddof=1) if len(values) > 1 else np.nan) if values else (np.nan,) * 2
        )
        found[name] = Correlation(float(mean), float(std), len(values), sum(map(len, curves)))
    return found


def correlation_table(results: Results) -> Rows:
    """Table 1, a row per method that has Q-values, and the paper's."""
    rows: Rows = []
    for name, result in results.items():
        found = q_with_time(result)
        if not any(one.n for one in found.values()):
            continue
        row: dict[str, Any] = {"correlation of Q with time": title(name)}
        for kind, one in found.items():
            row |= {f"{kind} episodes": str(one), f"{kind}: episodes, moves": f"{one.n}, {one.moves}"}
        rows.append(row)
    paper = {f"{kind} episodes": text for kind, text in PAPER_CORRELATION.items()}
    return [*rows, {"correlation of Q with time": "LAC in the paper (ALFWorld)", **paper}] if rows else []


def q_curves(result: Result, points: int = 11) -> dict[str, np.ndarray]:
    """Q against the share of the episode that is over: {"successful": [episodes, points], "failed": ...}.

    Linear between moves; the same episodes as in `q_with_time`, those with a constant Q too.
    """
    share = np.linspace(0, 1, points)
    found = {}
    for name, success in (("successful", True), ("failed", False)):
        curves = [q_along(e) for e in result["episodes"] if e["success"] == success]
        curves = [q for q in curves if len(q) >= SHORTEST]
        rows = [np.interp(share, np.linspace(0, 1, len(q)), q) for q in curves]
        found[name] = np.array(rows).reshape(len(rows), points)
    return found


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x) / sum exp(x), float64 [n]."""
    p = np.exp(x - np.max(x))
    return p / p.sum()


def confidence(p: np.ndarray) -> float:
    """The best minus the second best of at least two probabilities."""
    second, first = np.sort(p)[-2:]
    return float(first - second)


def confidence_cases(result: Result) -> Rows:
    """Table 2: four rows {"case", "n", "share", "prior", "q", "improved"}, the last three mean confidences.

    Over all decisions between at least two candidates. A confidence is the best minus the second-best probability over
    the candidates: of the prior (softmax of its log-probabilities), of softmax(Q), of the improved policy. nan in a case
    that does not occur; [] for a method without these numbers.
    """
    cases: dict[tuple[bool, bool], list[tuple[float, ...]]] = {case: [] for case in CASES}
    for episode in result["episodes"]:
        for turn in turns(episode):
            rows = prior, q, improved = [turn.row(name) for name in ("log_prior", "q", "improved")]
            if turn.taken is None or len(prior) < 2 or len({len(row) for row in rows}) > 1:
                continue
            case = tuple(bool(row[turn.taken] >= row.max()) for row in (prior, q))
            cases[case].append((confidence(softmax(prior)), confidence(softmax(q)), confidence(improved)))
    total = sum(map(len, cases.values()))
    if not total:
        return []
    means = {case: np.mean(found, axis=0).tolist() if found else [np.nan] * 3 for case, found in cases.items()}
    return [
        {"case": case, "n": len(found), "share": len(found) / total}
        | dict(zip(("prior", "q", "improved"), means[case], strict=True))
        for case, found in cases.items()
    ]


def confidence_table(result: Result) -> Rows:
    """Table 2 in words, with the paper's numbers."""
    number = lambda x: f"{x:.2f}" if np.isfinite(x) else "–"
    columns = {"prior": "prior", "q": "Q", "improved": "improved"}
    return [
        {
            "which prefers the action taken": CASES[row["case"]],
            "decisions": row["n"],
            "share": f"{row['share']:.1%}",
            **{label: number(row[key]) for key, label in columns.items()},
            "paper: share": f"{PAPER_CASES[row['case']][0]:.1%}",
            **{f"paper: {label}": number(x) for label, x in zip(columns.values(), PAPER_CASES[row["case"]][1:])},
        }
        for row in confidence_cases(result)
    ]


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
