"""Rule-based stand-ins for the large model of language TD on breakthrough.

The aggregator reads the variations in its prompt: who won the finished ones, and what the evaluations of the others
say. It knows neither the rules nor the board. `blind` writes evaluations with a random advantage, which teach the reply
format only. `material` counts pawns, as a beginner would. `RULES` are controls: who is ahead, without words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from nlrl_jax.envs.breakthrough.prompts import read_advantage, squares
from nlrl_jax.roles.board_games import View

SIDES = ("white", "black")
SIGN = {"white": 1.0, "black": -1.0, None: 0.0}
CERTAIN = 2.0  # weight of a finished game against an evaluation's


def aggregate(context: Mapping[str, Any], rng: random.Random) -> str:
    """Aggregates (G1 over G2) by a vote of finished variations and evaluations.

    It suggests the first move of the best variation.
    """
    view, variations = context["view"], context["variations"]
    worth = [CERTAIN * SIGN[line.winner] if line.over else SIGN[read_advantage(text)] for line, text in variations]
    total = sum(worth)
    ahead = "white" if total > 0 else "black" if total < 0 else rng.choice(SIDES)
    side = SIGN[view.player]
    best = max(range(len(worth)), key=lambda n: side * worth[n])
    return evaluation(variations[best].line.steps[0].action, ahead)


def blind(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a random evaluation."""
    return evaluation(rng.choice(context["view"].legal), rng.choice(SIDES))


def material(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes an evaluation that counts pawns; ties are broken at random."""
    view = context["view"]
    move = rng.choice(view.legal)
    return evaluation(move, more_pawns(view) or rng.choice(SIDES))


def more_pawns(view: View) -> str | None:
    """Returns the side with more pawns; None where they are equal."""
    lead = len(squares(view.board, "w")) - len(squares(view.board, "b"))
    return "white" if lead > 0 else "black" if lead < 0 else None


def pawns_then_race(view: View) -> str:
    """Returns the side with more pawns, else the one whose foremost pawn is nearer to the end, else who is to move."""
    rows = len(view.board.splitlines()) - 1
    to_go = {
        "white": min((rows - int(name[1:]) for name in squares(view.board, "w")), default=rows),
        "black": min((int(name[1:]) - 1 for name in squares(view.board, "b")), default=rows),
    }
    nearer = min(SIDES, key=to_go.get) if to_go["white"] != to_go["black"] else view.player
    return more_pawns(view) or nearer


def evaluation(move: str, side: str) -> str:
    return f"*Suggested Moves*: {move}\n*Advantage*: <{side}>"


RULES = {
    "more pawns": more_pawns,
    "more pawns, then the race": pawns_then_race,
    "side to move": lambda view: view.player,
}
SCRIPTS = {"aggregator": aggregate, "blind": blind, "value": material}
