"""LAC's Q-values over an episode (Table 1), and whether the improved policy follows prior or critic (Table 2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from nlrl_jax.roles.dialogues import THINK, THINK_REPLY
from nlrl_jax.run.reports.lac_tables import Result, Results, Rows, title
from nlrl_jax.run.reports.tidy import MISSING, Column, Measurement, Measurements
from nlrl_jax.statistics import deviation

MEASURES = {"q": "Q", "log_good": "P(GOOD)", "log_bad": "P(BAD)"}  # names in a record; of Table 1
SHORTEST = 3  # moves of the shortest trajectory that has a correlation
POINTS = 11  # of a curve of Q along an episode
CASES = {
    (True, True): "prior and Q prefer the action taken",
    (True, False): "the prior does, Q does not",
    (False, True): "Q does, the prior does not",
    (False, False): "neither does",
}


class Move(NamedTuple):
    """A move of an episode.

    Attributes:
      observation, note: what the agent saw, and the note that it wrote after it.
      thoughts: before the action. action: taken. result: the observation that followed.
      record: what the method stored of the decision. board: before the move, "" without pictures.
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
        return np.array([float(value) for value in self.record.get(name) or ()])


def turns(episode: Mapping[str, Any]) -> list[Move]:
    """The moves of an episode; thoughts are part of the move that they precede."""
    moves, thoughts, observation, note = [], [], episode["observation"], episode["note"]
    records, boards = episode["thinking"], episode["boards"]
    for action, result, next_note in episode["steps"]:
        if action.startswith(THINK) and result == THINK_REPLY:
            thoughts.append(action.removeprefix(THINK).strip())
            continue
        t = len(moves)
        board = boards[t] if t < len(boards) else ""
        moves.append(Move(observation, note, tuple(thoughts), action, result, records[t], board))
        thoughts, observation, note = [], result, next_note
    return moves


def q_along(episode: Mapping[str, Any], measure: str = "q") -> np.ndarray:
    """Q of the actions taken, or P(GOOD) or P(BAD), float64 [moves where it is finite]."""
    moves = [turn for turn in turns(episode) if turn.record.get(measure) and turn.taken is not None]
    q = np.array([turn.row(measure)[turn.taken] for turn in moves])
    return (q if measure == "q" else np.exp(q))[np.isfinite(q)]


def _along_by_outcome(result: Result, measure: str = "q") -> dict[str, list[tuple[tuple, np.ndarray]]]:
    """{"successful": [(task, Q of the actions taken)], "failed": ...}, of episodes of at least three moves."""
    curves: dict[str, list[tuple[tuple, np.ndarray]]] = {"successful": [], "failed": []}
    for episode in result["episodes"]:
        if len(q := q_along(episode, measure)) >= SHORTEST:
            curves["successful" if episode["success"] else "failed"].append((tuple(episode["task"]), q))
    return curves


def correlation_table(results: Results) -> Rows:
    """Table 1, a row per method and measure that it has: Pearson correlations of Q with time.

    Over trajectories of at least three moves in which it changes: elsewhere there is no correlation.
    """
    rows = []
    for (name, result), measure in itertools.product(results.items(), MEASURES):
        for outcome, curves in _along_by_outcome(result, measure).items():
            for task, q in ((task, q) for task, q in curves if np.ptp(q) > 1e-9):
                correlation = float(np.corrcoef(np.arange(len(q)), q)[0, 1])
                rows.append(Measurement(f"{title(name)}: {MEASURES[measure]}", task, outcome, correlation))
    numbers, outcomes = Measurements(rows), ("successful", "failed")
    columns = {f"{outcome} episodes": Column(outcome, "+.2f") for outcome in outcomes}
    table = numbers.table(columns, "correlation with time")
    for row, method in zip(table, numbers.methods, strict=True):
        for outcome in outcomes:
            values = list(numbers.units(method, outcome).values())
            spread = f"{deviation(values):.2f}" if len(values) > 1 else MISSING
            row[f"{outcome}: deviation, tasks"] = f"{spread}, {len(values)}"
    return table


def q_curves(result: Result, points: int = POINTS) -> dict[str, np.ndarray]:
    """Q against the share of the episode that is over: {"successful": [episodes, points], "failed": ...}.

    Linear between moves; the same episodes as in `correlation_table`, those with a constant Q too.
    """
    share, curves = np.linspace(0, 1, points), {}
    for name, episodes in _along_by_outcome(result).items():
        rows = [np.interp(share, np.linspace(0, 1, len(q)), q) for _, q in episodes]
        curves[name] = np.array(rows).reshape(-1, points)
    return curves


def confidence(p: np.ndarray) -> float:
    """The best minus the second best of at least two probabilities."""
    second, first = np.sort(p)[-2:]
    return float(first - second)


def confidence_table(result: Result) -> Rows:
    """Table 2: mean confidences over all decisions between at least two candidates, a row for each of `CASES`.

    A confidence is the best minus the second-best probability over the candidates: of the prior (softmax of its
    log-probabilities), of softmax(Q), of the improved policy. [] for a method without these numbers.
    """
    rows = []
    for number, turn in enumerate(itertools.chain.from_iterable(map(turns, result["episodes"]))):
        numbers = prior, q, improved = [turn.row(name) for name in ("log_prior", "q", "improved")]
        if turn.taken is None or len(prior) < 2 or len({len(row) for row in numbers}) > 1:
            continue
        case = CASES[tuple(bool(row[turn.taken] >= row.max()) for row in (prior, q))]
        for metric, p in (("prior", softmax(prior)), ("Q", softmax(q)), ("improved", improved)):
            rows.append(Measurement(case, number, metric, confidence(p)))
    if not rows:
        return []
    confidences, cases = Measurements(rows), list(CASES.values())
    columns = {metric: Column(metric, interval=False) for metric in confidences.metrics}
    table: Rows = confidences.table(columns, "which prefers the action taken", cases)
    decisions = [len(confidences.units(case, "prior")) for case in cases]
    for row, count in zip(table, decisions, strict=True):
        row |= {"decisions": count, "share": f"{count / sum(decisions):.1%}"}
    return table
