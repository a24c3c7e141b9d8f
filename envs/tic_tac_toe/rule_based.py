"""Rule-based stand-ins for the large model of the natural-language actor-critic on tic-tac-toe.

They use their prompts alone: the aggregators count the games or read the evaluations, the improver compares the
evaluations. None knows what anything is worth. What they write beside the number is a choice (`scripts`):

- "threats": the positions that would complete a row, read off the board (the paper's field "Threat"), and the counts;
- "counts": the counts alone;
- "number": nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from nlrl_jax.envs.tic_tac_toe.prompts import read_value, squares
from nlrl_jax.envs.tic_tac_toe.rules import ACTIONS, LINES
from nlrl_jax.roles.board_games import View

ROWS = tuple("".join(ACTIONS[cell] for cell in line) for line in LINES)
SIGN = {"O": 1.0, "X": -1.0, None: 0.0}
WORDS = ("threats", "counts", "number")

Script = Callable[[Mapping[str, Any], random.Random], str]


def scripts(words: str = "threats") -> dict[str, Script]:
    """Returns the rule of each role; `words` is one of `WORDS`."""

    def monte_carlo(context: Mapping[str, Any], rng: random.Random) -> str:
        """Aggregates complete games (G1): who won how often."""
        del rng
        lines = context["lines"]
        won = {side: sum(line.winner == side for line in lines) for side in SIGN}
        counts = f"{won['O']} of {len(lines)} games are won by O, {won['X']} by X, {won[None]} drawn."
        return _evaluation(_thought(words, context, counts), sum(SIGN[line.winner] for line in lines) / len(lines))

    def temporal_difference(context: Mapping[str, Any], rng: random.Random) -> str:
        """Aggregates continuations (G1 over G2): finished games count by their results, others by their evaluations."""
        del rng
        values = [SIGN[line.winner] if line.over else read_value(text) for line, text in context["reached"]]
        numbers = [value for value in values if value is not None]
        ended = sum(line.over for line, _ in context["reached"])
        counts = (
            f"{len(values)} ways to go on, {ended} of them end the game, {len(numbers) - ended} have an evaluation."
        )
        return _evaluation(_thought(words, context, counts), sum(numbers) / len(numbers) if numbers else 0.0)

    def improve(context: Mapping[str, Any], rng: random.Random) -> str:
        """Improves the policy (I): the move with the best number for the side to move, the mean of its evaluations.

        Ties are broken at random; a number that cannot be read is 0.
        """
        view, evaluations = context["view"], context["evaluations"]
        side = SIGN[view.player]
        numbers: dict[str, list[float]] = {}
        for action, text in evaluations:
            numbers.setdefault(action, []).append(read_value(text) or 0.0)
        worth = {action: side * sum(values) / len(values) for action, values in numbers.items()}
        best = max(worth.values())
        action = rng.choice([action for action, value in worth.items() if value == best])
        prefix = f"{threats(view)} " if words == "threats" else ""
        return json.dumps(
            {"thought": f"{prefix}{action} is worth {round(worth[action], 1):g}.", "best_move": int(action)}
        )

    return {"monte_carlo": monte_carlo, "temporal_difference": temporal_difference, "improver": improve}


def _thought(words: str, context: Mapping[str, Any], counts: str) -> str:
    """Writes the text beside an evaluation's number."""
    if words == "number":
        return ""
    return counts if words == "counts" else f"{threats(context['view'], context['action'])} {counts}"


def random_policy(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a random legal move in the improver's reply format; it teaches the format only."""
    view, worth = context["view"], rng.randint(-10, 10) / 10
    action = rng.choice(view.legal)
    return json.dumps({"thought": f"{threats(view)} {action} is worth {worth:g}.", "best_move": int(action)})


def random_value(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a random evaluation in the aggregator's reply format; it teaches the format only."""
    won = rng.randint(0, 5)
    lost = rng.randint(0, 5 - won)
    counts = f"{won} of 5 games are won by O, {lost} by X, {5 - won - lost} drawn."
    return _evaluation(f"{threats(context['view'], context['action'])} {counts}", (won - lost) / 5)


def threats(view: View, action: str = "") -> str:
    """Lists the positions of a board, after a move if one is given, that complete a row, or the complete row.

    It is read off the board and does not say who is better.
    """
    cells = squares(view.board)
    cells = cells.replace(action, view.player) if action else cells
    parts = []
    for side in "OX":
        rows = ["".join(cells[int(n) - 1] for n in row) for row in ROWS]
        done = [row for row, marks in zip(ROWS, rows) if marks == 3 * side]
        if done:
            return f"{side}: {' '.join(done[0])}."
        open_ = {marks.strip("OX") for marks in rows if marks.count(side) == 2 and marks.strip("OX")}
        parts.append(f"{side} {' '.join(sorted(open_)) or 'nobody'}")
    return f"Threat: {', '.join(parts)}."


def _evaluation(thought: str, number: float) -> str:
    return json.dumps({"thought": thought, "final_evaluation": round(number, 1)})


SCRIPTS = scripts()
