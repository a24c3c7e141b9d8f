"""Rule-based stand-ins for the large model of language TD on breakthrough.

The aggregator reads the variations in its prompt: who won the finished ones, and what the evaluations of the others
say. It knows neither the rules nor the board. `blind` writes evaluations with a random advantage, which teach the reply
format only. `material` counts pawns, as a beginner would.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from envs.breakthrough.prompts import read_advantage, squares

SIDES = ("white", "black")
SIGN = {"white": 1.0, "black": -1.0, None: 0.0}
CERTAIN = 2.0  # weight of a finished game against an evaluation's


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
    """A random evaluation."""
    return evaluation(rng.choice(context["view"].legal), rng.choice(SIDES))


def material(context: Mapping[str, Any], rng: random.Random) -> str:
    """An evaluation that counts pawns; ties are broken at random."""
    view = context["view"]
    lead = len(squares(view.board, "w")) - len(squares(view.board, "b"))
    return evaluation(rng.choice(view.legal), "white" if lead > 0 else "black" if lead < 0 else rng.choice(SIDES))


def evaluation(move: str, side: str) -> str:
    return f"*Suggested Moves*: {move}\n*Advantage*: <{side}>"


SCRIPTS = {"aggregator": aggregate, "blind": blind, "value": material}
