"""Episodes of LAC that the page shows decision by decision, chosen by the program (Figures 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.roles.dialogues import BAD, GOOD, verdict
from nlrl_jax.run.reports.lac_q import Turn, softmax, turns
from nlrl_jax.run.reports.lac_tables import Results, title

Episode = Mapping[str, Any]
BASELINES = ("lac_no_critic", "react", "react_think")  # in this order; without them the one with the fewest successes
_COLUMNS = {"log_prior": "prior", "q": "Q", "improved": "improved"}


class Choice(NamedTuple):
    """An episode to show.

    Attributes:
      why: the title. step: the decisive one, counted from 0; None where there is none.
      other: the method that failed on the same task, "" where there is none.
    """

    why: str
    method: str
    episode: Episode
    step: int | None = None
    other: str = ""


def choose(results: Results) -> list[Choice]:
    """Up to three episodes: LAC is right against its prior, a success, a failure.

    The first is the first task that LAC solves and a baseline does not, where an action other than the prior's best was
    taken; its step is the first such decision that the critic's best action decided, else the first of all. Without LAC
    the method with the most successes stands in for it.
    """
    if not results:
        return []
    wins = {name: sum(e["success"] for e in result["episodes"]) for name, result in results.items()}
    method = "lac" if "lac" in results else max(wins, key=wins.__getitem__)
    episodes, chosen = results[method]["episodes"], []
    others = [name for name in results if name != method]
    corrected = [(e, step) for e in episodes if e["success"] and (step := against_the_prior(e)) is not None]
    for other in [name for name in BASELINES if name in others] + sorted(others, key=wins.__getitem__)[:1]:
        lost = {tuple(e["task"]) for e in results[other]["episodes"] if not e["success"]}
        found = [one for one in corrected if tuple(one[0]["task"]) in lost]
        if found:
            why = f"{title(method)} is right against its prior; {title(other)} fails"
            chosen.append(Choice(why, method, *found[0], other))
            break
    fresh = [episode for episode in episodes if not any(episode is one.episode for one in chosen)]
    won = [episode for episode in fresh if episode["success"]]
    won = [episode for episode in won if episode["moves"] > 2] or won
    lost = [episode for episode in fresh if not episode["success"]]
    chosen += [Choice(f"{title(method)} succeeds", method, episode) for episode in won[:1]]
    return chosen + [Choice(f"{title(method)} fails", method, episode) for episode in lost[:1]]


def against_the_prior(episode: Episode) -> int | None:
    """The first decision whose action is not the prior's best, if possible one where it is the critic's best."""
    made = turns(episode)
    found = [t for t, turn in enumerate(made) if _prefers_other(turn, "log_prior") and turn.record.get("q")]
    return next((t for t in found if not _prefers_other(made[t], "q")), found[0] if found else None)


def _prefers_other(turn: Turn, name: str) -> bool:
    row = turn.row(name)
    return turn.taken is not None and len(row) > 1 and row[turn.taken] < row.max()


def story(choice: Choice, results: Results) -> dict[str, Any]:
    """What the page shows of an episode: "title", "success", "outcome", "lead", "turns", "board" and "end" (the
    last board and observation), and "asides" ((label, text), folded away)."""
    episode, made = choice.episode, turns(choice.episode)
    kind, moves, optimal = episode["task"][0], episode["moves"], episode["optimal"]
    shortest = f", at best {optimal}" if optimal >= 0 else ""
    lead = f"Goal: {episode['goal']}. Mission: {kind}." if kind else f"Goal: {episode['goal']}."
    asides = []
    if choice.step is not None:
        turn = made[choice.step]
        best = lambda name: turn.record["candidates"][int(np.argmax(turn.row(name)))]
        lead += (
            f" At step {choice.step + 1} the prior prefers “{best('log_prior')}” and the critic “{best('q')}”; "
            f"{title(choice.method)} takes “{turn.action}”."
        )
    if choice.other:
        other = next(e for e in results[choice.other]["episodes"] if tuple(e["task"]) == tuple(episode["task"]))
        taken = ", ".join(turn.action for turn in turns(other))
        asides.append((f"{title(choice.other)} on the same task: failure after {other['moves']} moves", taken))
    opened = 0 if choice.step is None else choice.step
    return {
        "title": choice.why,
        "success": episode["success"],
        "outcome": f"{'success' if episode['success'] else 'failure'}, {moves} move{'s' * (moves != 1)}{shortest}",
        "lead": lead,
        "turns": [_turn(turn, _largest(made), t == opened) for t, turn in enumerate(made)],
        "board": episode["boards"][-1] if episode["boards"] else "",
        "end": made[-1].result if made else "",
        "asides": asides,
    }


def _largest(made: Sequence[Turn]) -> float:
    """The largest |Q| of an episode, the length of its bars."""
    q = np.abs(np.concatenate([turn.row("q") for turn in made])) if made else np.zeros(0)
    return float(max(q[np.isfinite(q)], default=1.0)) or 1.0


def _turn(turn: Turn, largest: float, opened: bool) -> dict[str, Any]:
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


def _bar(turn: Turn, name: str, i: int, largest: float) -> dict[str, Any]:
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
