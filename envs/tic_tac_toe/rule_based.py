"""Rule-based stand-ins for the large model of the natural-language actor-critic on tic-tac-toe.

They use their prompts alone: the aggregators count the games or read the evaluations, the improver compares the
evaluations. None knows what anything is worth. What they write beside the number is a choice (`scripts`):

- "threats": the positions that would complete a row, read off the board (the paper's field "Threat"), and the counts;
- "deciding": the positions on which the games in the prompt were won, and the counts. The improver reads them: a
  position on which the other side wins after many moves speaks for taking it;
- "counts": the counts alone;
- "number": nothing.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.tic_tac_toe.prompts import read_value, squares
from nlrl_jax.roles.board_games import View

ROWS = ("123", "456", "789", "147", "258", "369", "159", "357")
SIGN = {"O": 1.0, "X": -1.0, None: 0.0}
WORDS = ("threats", "deciding", "counts", "number")
NAMED = 2  # deciding positions of a side that an evaluation names
SPOIL = 0.5  # worth of a position on which the other side wins after every other move, beside its number

Script = Callable[[Mapping[str, Any], random.Random], str]


def scripts(words: str = "threats") -> dict[str, Script]:
    """Role -> rule.

    Raises:
      ValueError: unknown words.
    """
    if words not in WORDS:
        raise ValueError(f"words is {words!r}; choose one of {', '.join(WORDS)}")

    def monte_carlo(context: Mapping[str, Any], rng: random.Random) -> str:
        """G1 over complete games: who won how often, and where."""
        del rng
        lines = context["lines"]
        won = {side: sum(line.winner == side for line in lines) for side in SIGN}
        counts = f"{won['O']} of {len(lines)} games are won by O, {won['X']} by X, {won[None]} drawn."
        where = Counter((line.winner, line.steps[-1].action) for line in lines if line.winner)
        thought = _thought(words, context, where, counts)
        return _evaluation(thought, sum(SIGN[line.winner] for line in lines) / len(lines))

    def temporal_difference(context: Mapping[str, Any], rng: random.Random) -> str:
        """G1 over G2: a finished game counts by its result, another one by the evaluation of its last position."""
        del rng
        values = [SIGN[line.winner] if line.over else read_value(text) for line, text in context["reached"]]
        known = [value for value in values if value is not None]
        ended = sum(line.over for line, _ in context["reached"])
        counts = f"{len(values)} ways to go on, {ended} of them end the game, {len(known) - ended} have an evaluation."
        where: Counter = Counter()
        for line, text in context["reached"]:
            ends = {(line.winner, line.steps[-1].action)} if line.over and line.winner else set()
            where.update(ends or {(side, one) for side in "OX" for one in decides(text, side)})
        thought = _thought(words, context, where, counts)
        return _evaluation(thought, sum(known) / len(known) if known else 0.0)

    def improve(context: Mapping[str, Any], rng: random.Random) -> str:
        """I: the move with the best number for the side to move, the mean where a move has several evaluations.

        Ties are broken at random; a number that cannot be read is 0.
        """
        view, evaluations = context["view"], context["evaluations"]
        side = SIGN[view.player]
        read: dict[str, list[float]] = {}
        for action, text in evaluations:
            read.setdefault(action, []).append(read_value(text) or 0.0)
        worth = {action: side * sum(values) / len(values) for action, values in read.items()}
        spoils = spoiled(view.player, evaluations) if words == "deciding" else {}
        score = {action: value + SPOIL * spoils.get(action, 0.0) for action, value in worth.items()}
        best = max(score.values())
        action = rng.choice([action for action, value in score.items() if value == best])
        said = {"threats": f"{threats(view)} ", "deciding": _most(view.player, spoils)}.get(words, "")
        return json.dumps(
            {"thought": f"{said}{action} is worth {round(worth[action], 1):g}.", "best_move": int(action)}
        )

    return {"monte_carlo": monte_carlo, "temporal_difference": temporal_difference, "improver": improve}


def _thought(words: str, context: Mapping[str, Any], where: Mapping[tuple[str, str], int], counts: str) -> str:
    """The text beside an evaluation's number."""
    if words == "number":
        return ""
    if words == "counts":
        return counts
    if words == "threats":
        return f"{threats(context['view'], context['action'])} {counts}"
    named = []
    for side in "OX":
        most = sorted((-n, square) for (winner, square), n in where.items() if winner == side)[:NAMED]
        named.append(f"{side} {' '.join(square for _, square in most) or 'nobody'}")
    return f"Decided: {', '.join(named)}. {counts}"


def decides(text: str, side: str) -> list[str]:
    """The positions on which, as an evaluation with "deciding" words says, a side wins."""
    match = re.search(r"Decided: O ([\d ]*|nobody), X ([\d ]*|nobody)\.", text)
    said = match.group("OX".index(side) + 1) if match else ""
    return [] if said == "nobody" else said.split()


def spoiled(player: str, evaluations: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Move -> the share of the other moves' evaluations that name it as where the other side then wins."""
    other = "X" if player == "O" else "O"
    named = [(action, decides(text, other)) for action, text in evaluations]
    moves = dict.fromkeys(action for action, _ in named)
    elsewhere = {move: [squares for action, squares in named if action != move] for move in moves}
    return {move: sum(move in found for found in lists) / max(len(lists), 1) for move, lists in elsewhere.items()}


def _most(player: str, spoils: Mapping[str, float]) -> str:
    """What the improver says of the position that is named most: "Decided: X 5. "."""
    named = [move for move, share in spoils.items() if share and share == max(spoils.values())]
    return f"Decided: {'X' if player == 'O' else 'O'} {named[0] if named else 'nobody'}. "


def random_policy(context: Mapping[str, Any], rng: random.Random) -> str:
    """A random legal move in the improver's reply format; it teaches the format only."""
    view, worth = context["view"], rng.randint(-10, 10) / 10
    action = rng.choice(view.legal)
    return json.dumps({"thought": f"{threats(view)} {action} is worth {worth:g}.", "best_move": int(action)})


def random_value(context: Mapping[str, Any], rng: random.Random) -> str:
    """A random evaluation in the reply format of the aggregator; it teaches the format only."""
    won = rng.randint(0, 5)
    lost = rng.randint(0, 5 - won)
    counts = f"{won} of 5 games are won by O, {lost} by X, {5 - won - lost} drawn."
    return _evaluation(f"{threats(context['view'], context['action'])} {counts}", (won - lost) / 5)


def threats(view: View, action: str = "") -> str:
    """The positions of a board, after a move if one is given, that complete a row, or the complete row.

    It is read off the board and does not say who is better.
    """
    cells = squares(view.board)
    cells = cells.replace(action, view.player) if action else cells
    parts = []
    for side in "OX":
        rows = ["".join(cells[int(n) - 1] for n in row) for row in ROWS]
        done = [row for row, held in zip(ROWS, rows) if held == 3 * side]
        if done:
            return f"{side}: {' '.join(done[0])}."
        open_ = {held.strip("OX") for held in rows if held.count(side) == 2 and held.strip("OX")}
        parts.append(f"{side} {' '.join(sorted(open_)) or 'nobody'}")
    return f"Threat: {', '.join(parts)}."


def _evaluation(thought: str, number: float) -> str:
    return json.dumps({"thought": thought, "final_evaluation": round(number, 1)})


SCRIPTS = scripts()
