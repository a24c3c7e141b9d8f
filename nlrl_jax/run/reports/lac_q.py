"""LAC's Q-values over an episode (Table 1), and whether the improved policy follows prior or critic (Table 2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from nlrl_jax.roles.dialogues import THINK, THINK_REPLY
from nlrl_jax.run.reports.lac_tables import Result, Results, Rows, title
from nlrl_jax.run.reports.tidy import MISSING
from nlrl_jax.statistics import Estimate, by_unit, deviation, estimate

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


class Correlation(NamedTuple):
    """Pearson correlation of Q with time, of n trajectories, which have `moves` moves together.

    Attributes:
      mean: over tasks. std: the deviation over them.
    """

    mean: Estimate
    std: float
    n: int
    moves: int

    def __str__(self) -> str:
        return self.mean.text("+.2f") + f", deviation {self.std:.2f}" * (self.mean.units > 1)


def q_with_time(result: Result, measure: str = "q") -> dict[str, Correlation]:
    """Table 1: {"successful": ..., "failed": ...} of one of `MEASURES`.

    Over trajectories of at least three moves in which it changes: elsewhere there is no correlation.
    """
    correlations = {}
    for name, curves in _along_by_outcome(result, measure).items():
        curves = [(task, q) for task, q in curves if np.ptp(q) > 1e-9]
        values = [float(np.corrcoef(np.arange(len(q)), q)[0, 1]) for _, q in curves]
        tasks = [task for task, _ in curves]
        std = float(deviation(list(by_unit(values, tasks).values())))
        correlations[name] = Correlation(estimate(values, tasks), std, len(values), sum(len(q) for _, q in curves))
    return correlations


def correlation_table(results: Results) -> Rows:
    """Table 1, a row per method and measure that it has."""
    rows: Rows = []
    for (name, result), measure in itertools.product(results.items(), MEASURES):
        correlations = q_with_time(result, measure)
        if not any(correlation.n for correlation in correlations.values()):
            continue
        row: dict[str, Any] = {"correlation with time": f"{title(name)}: {MEASURES[measure]}"}
        for kind, correlation in correlations.items():
            row[f"{kind} episodes"] = str(correlation)
            row[f"{kind}: episodes, moves"] = f"{correlation.n}, {correlation.moves}"
        rows.append(row)
    return rows


def q_curves(result: Result, points: int = POINTS) -> dict[str, np.ndarray]:
    """Q against the share of the episode that is over: {"successful": [episodes, points], "failed": ...}.

    Linear between moves; the same episodes as in `q_with_time`, those with a constant Q too.
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


def confidence_cases(result: Result) -> Rows:
    """Table 2: four rows {"case", "n", "share", "prior", "q", "improved"}, the last three mean confidences.

    Over all decisions between at least two candidates. A confidence is the best minus the second-best probability over
    the candidates: of the prior (softmax of its log-probabilities), of softmax(Q), of the improved policy. nan in a
    case that does not occur; [] for a method without these numbers.
    """
    cases: dict[tuple[bool, bool], list[tuple[float, ...]]] = {case: [] for case in CASES}
    for turn in itertools.chain.from_iterable(map(turns, result["episodes"])):
        rows = prior, q, improved = [turn.row(name) for name in ("log_prior", "q", "improved")]
        if turn.taken is None or len(prior) < 2 or len({len(row) for row in rows}) > 1:
            continue
        case = tuple(bool(row[turn.taken] >= row.max()) for row in (prior, q))
        cases[case].append((confidence(softmax(prior)), confidence(softmax(q)), confidence(improved)))
    total = sum(map(len, cases.values()))
    table = []
    for case, confidences in cases.items() if total else ():
        prior, q, improved = np.mean(confidences, axis=0).tolist() if confidences else [np.nan] * 3
        row = {"case": case, "n": len(confidences), "share": len(confidences) / total}
        table.append(row | {"prior": prior, "q": q, "improved": improved})
    return table


def confidence_table(result: Result) -> Rows:
    """Table 2 in words."""
    columns, table = {"prior": "prior", "q": "Q", "improved": "improved"}, []
    for row in confidence_cases(result):
        cells = {label: f"{row[key]:.2f}" if np.isfinite(row[key]) else MISSING for key, label in columns.items()}
        share = f"{row['share']:.1%}"
        table.append(
            {"which prefers the action taken": CASES[row["case"]], "decisions": row["n"], "share": share} | cells
        )
    return table
