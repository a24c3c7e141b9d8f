"""Episodes that the page shows decision by decision (Figures 10 and 11): the first task of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from nlrl_jax.roles.dialogues import BAD, GOOD, verdict
from nlrl_jax.run.reports.lac_q import Move, turns
from nlrl_jax.run.reports.lac_tables import Results, measure, title

NOTE = "The first task of each kind, as LAC played it, or the first method where LAC was not run."
_COLUMNS = {"log_prior": "prior", "q": "Q", "improved": "improved"}


def stories(results: Results) -> list[dict[str, Any]]:
    """The first episode of each kind of task, of LAC or else of the first method."""
    method = "lac" if "lac" in results else next(iter(results), "")
    first: dict[str, Mapping[str, Any]] = {}
    for episode in results[method]["episodes"] if method else ():
        first.setdefault(episode["task"][0], episode)
    result = results.get(method, {})
    named = "" if measure(result) == "success" else result.get("score") or "return"
    return [story(title(method), episode, named) for episode in first.values()]


def story(player: str, episode: Mapping[str, Any], score: str = "") -> dict[str, Any]:
    """What the page shows of an episode: "title", "success", "outcome", "lead", "turns", "board" and "end" (the last
    board and observation). The first turn is open. `score`: the reward's name, where there is no success."""
    moves_of_episode = turns(episode)
    kind, moves, optimal = episode["task"][0], episode["moves"], episode["optimal"]
    shortest = f", at best {optimal}" if optimal >= 0 else ""
    ended = f"{score} {episode['reward']:g}" if score else "success" if episode["success"] else "failure"
    return {
        "title": f"{player} on {kind}" if kind else player,
        "success": None if score else episode["success"],
        "outcome": f"{ended}, {moves} move{'s' * (moves != 1)}{shortest}",
        "lead": f"Goal: {episode['goal']}.",
        "turns": [_turn(turn, _largest(moves_of_episode), t == 0) for t, turn in enumerate(moves_of_episode)],
        "board": episode["boards"][-1] if episode["boards"] else "",
        "end": moves_of_episode[-1].result if moves_of_episode else "",
    }


def _prefers_other(turn: Move, name: str) -> bool:
    row = turn.row(name)
    return turn.taken is not None and len(row) > 1 and row[turn.taken] < row.max()


def _largest(moves: list[Move]) -> float:
    """The largest |Q| of an episode, the length of its bars."""
    q = np.abs(np.concatenate([turn.row("q") for turn in moves])) if moves else np.zeros(0)
    return float(max(q[np.isfinite(q)], default=1.0)) or 1.0


def _turn(turn: Move, largest: float, opened: bool) -> dict[str, Any]:
    word = verdict(turn.note)
    chips = [(f"last step: {word}", {GOOD: "good", BAD: "bad"}.get(word, ""))] if word else []
    chips += [("not the prior's best", "action")] if _prefers_other(turn, "log_prior") else []
    lines = [("observation", turn.observation), ("note on the last step", turn.note)]
    lines += [("thought", thought) for thought in turn.thoughts]
    columns = {name: label for name, label in _COLUMNS.items() if len(turn.row(name))}
    candidates = [
        {"action": action, "taken": i == turn.taken, "bars": [_bar(turn, name, i, largest) for name in columns]}
        for i, action in enumerate(turn.record.get("candidates", []))
        if columns
    ]
    futures = [
        (action, leaves)
        for action, leaves in zip(turn.record.get("candidates", []), turn.record.get("futures", []), strict=False)
        if any(leaves)
    ]
    return {
        "action": turn.action,
        "open": opened,
        "chips": chips,
        "board": turn.board,
        "lines": [(label, text) for label, text in lines if text],
        "columns": list(columns.values()),
        "candidates": candidates,
        "futures": futures,
    }


def _bar(turn: Move, name: str, i: int, largest: float) -> dict[str, Any]:
    """A number and its bar, in percent of the column: probabilities from the left, Q from the middle."""
    row = turn.row(name)
    if name != "q":
        share = float((softmax(row) if name == "log_prior" else row)[i])
        place = {"left": 0, "width": round(100 * share, 1), "kind": "", "middle": False}
        return {"text": f"{share:.2f}", "best": row[i] == row.max(), **place}
    width = round(50 * min(abs(row[i]) / largest, 1.0), 1)
    up = bool(row[i] > 0)
    place = {"left": 50 if up else 50 - width, "width": width, "kind": "up" if up else "down", "middle": True}
    return {"text": f"{row[i]:+.2f}", "best": row[i] == row.max(), **place}
