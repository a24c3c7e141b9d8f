"""Breakthrough for one player, with the opponent inside `step`, and its text.

The rules are those of `rules.py`, which the algorithms of NLRL play from both sides. An action is the index of a move
word such as `a2b3` (`b4a3*` captures); words that no position allows are left out.
"""

from __future__ import annotations

import numpy as np

from nlrl_jax.envs import one_player
from nlrl_jax.envs.breakthrough.rules import board_game
from nlrl_jax.envs.one_player import OnePlayer
from nlrl_jax.types import TextGame


def fewest_moves(cells: np.ndarray, side: int) -> int:
    """Counts the fewest moves in which a player could reach the far row or capture all pawns.

    `cells` are [rows, columns]: 0 free, 1 player 0's, 2 player 1's.
    """
    pawns = np.flatnonzero((cells == side + 1).any(1))
    far = len(cells) - 1 - pawns.max(initial=0) if side == 0 else pawns.min(initial=len(cells))
    return int(min(far, (cells == 2 - side).sum()))


def text_game(
    rows: int = 5,
    columns: int = 5,
    pawn_rows: int = 2,
    opponent: str = "random",
    side: str = "both",
    prompt: str = "paper",
    max_steps: int = 40,
) -> TextGame:
    """Makes breakthrough against an opponent as a text game; one reply is one move.

    Args:
      rows, columns, pawn_rows: as in `rules.board_game`.
      opponent, side: as in `OnePlayer`.
      prompt: "paper" (rules and board) or "compact" (the board and whose turn it is).
      max_steps: moves until truncation, illegal ones included.

    Raises:
      ValueError: an argument outside its range.
    """
    game = board_game(rows, columns, pawn_rows)
    env = OnePlayer(game, (rows, columns), opponent, side, max_steps)
    return one_player.text_game(
        env,
        opponent,
        prompt,
        rules={"compact": "Breakthrough: choose a legal move.", "paper": f"{game.rules}\nReply with one move."},
        optimal=lambda state: fewest_moves(np.asarray(env.fields(state)["cells"]).reshape(rows, columns), state.side),
        legend={"b": "black pawn", "w": "white pawn", ".": "free"},
    )
