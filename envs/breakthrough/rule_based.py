"""Rule-based stand-ins for the large model of language TD on breakthrough.

The aggregator reads the variations in front of it: who won those that end the game, what the evaluations of the others
say. It knows neither the rules nor the board. `blind` writes evaluations in the right form with an advantage drawn by
lot: what a model is taught that should know the form and nothing else. `material` counts pawns, as somebody would who
  knows little.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from envs.breakthrough.prompts import read_advantage, squares

SIDES = ("white", "black")
SIGN = {"white": 1.0, "black": -1.0, None: 0.0}
CERTAIN = 2.0  # how much more a finished game says than an evaluation


def aggregate(context: Mapping[str, Any], rng: random.Random) -> str:
    """G1 over G2: finished variations and evaluations vote; the first move of the best one is suggested."""
    view, variations = context["view"], context["variations"]
    worth = [CERTAIN * SIGN[line.winner] if line.over else SIGN[read_advantage(text)] for line, text in variations]
    total = sum(worth)
    ahead = "white" if total > 0 else "black" if total < 0 else rng.choice(SIDES)
    side = SIGN[view.player]
    best = max(range(len(worth)), key=lambda n: side * worth[n])
    return evaluation(variations[best].line.steps[0].action, ahead)


def blind(context: Mapping[str, Any], rng: random.Random) -> str:
    """An evaluation that looks at nothing."""
    return evaluation(rng.choice(context["view"].legal), rng.choice(SIDES))


def material(context: Mapping[str, Any], rng: random.Random) -> str:
    """An evaluation that counts pawns; a tie is drawn by lot."""
    view = context["view"]
    lead = len(squares(view.board, "w")) - len(squares(view.board, "b"))
    return evaluation(rng.choice(view.legal), "white" if lead > 0 else "black" if lead < 0 else rng.choice(SIDES))


def evaluation(move: str, side: str) -> str:
    return f"*Suggested Moves*: {move}\n*Advantage*: <{side}>"


SCRIPTS = {"aggregator": aggregate, "blind": blind, "value": material}
