"""Tic-tac-toe (NLRL, section 5.3) for one player, with the opponent inside `step`, and its text.

The rules are those of `rules.py`. Action i marks cell i, and its word is i + 1. O moves first, as in the paper's
reference environment. Additions to the paper: our wording of the rules, a random side at every reset ("both"), and a
third opponent, "minimax", which draws from the moves that are best under perfect play.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nlrl_jax.envs import one_player
from nlrl_jax.envs.one_player import OnePlayer
from nlrl_jax.envs.tic_tac_toe.rules import (
    ACTIONS,
    RULES,
    board_game,
    code,
    fewest_marks,
    legal_moves_template,
    minimax,
)
from nlrl_jax.types import TextGame


def _best_moves(board: jax.Array) -> jax.Array:
    """Returns the moves that are best under perfect play: int8 [9] -> bool [9]."""
    return jnp.asarray(minimax()[1])[code(board)]


def text_game(opponent: str = "random", side: str = "both", prompt: str = "paper", max_steps: int = 9) -> TextGame:
    """Makes tic-tac-toe against an opponent as a text game; one reply is one move.

    A game takes at most 5 moves of the agent; the others are for actions on taken cells.

    Args:
      opponent: "random", "first_move" or "minimax". side: "O", "X" or "both".
      prompt: "paper" (rules, board and the list of free positions) or "compact" (the board and whose turn it is).
      max_steps: moves until truncation, those on taken cells included.

    Raises:
      ValueError: an argument outside its range.
    """
    env = OnePlayer(board_game(), (3, 3), opponent, side, max_steps, {"minimax": _best_moves})
    return one_player.text_game(
        env,
        opponent,
        prompt,
        rules={
            "compact": "Tic-tac-toe: choose a free cell.",
            "paper": f"{RULES}\nAvailable actions: {', '.join(ACTIONS)}; only free positions are legal. Reply with one "
            "of them.",
        },
        last=" Free positions: " + legal_moves_template("none"),
        optimal=lambda state: fewest_marks(state.position, int(state.side)),
        legend={"O": "moves first", "X": "moves second"},
    )
