"""Breakthrough for one player, with the opponent inside `step`, and its text.

The rules are those of `rules.py`, which the algorithms of NLRL play from both sides. An action is the index of a move
word such as `a2b3` (`b4a3*` captures); words that no position allows are left out.
"""

from __future__ import annotations

import numpy as np

from nlrl_jax.envs.breakthrough.rules import board_game
from nlrl_jax.envs.one_player import OnePlayer
from nlrl_jax.envs.options import check_text_game
from nlrl_jax.text.template import Choice, Literal, Template
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
    check_text_game(prompt)
    game = board_game(rows, columns, pawn_rows)
    env, turn = OnePlayer(game, (rows, columns), opponent, side, max_steps), Choice("player", game.players)
    if prompt == "compact":
        rules = "Breakthrough: choose a legal move."
        observation = game.board + Template((Literal("\n"), turn, Literal(" to move")))
    else:
        rules = f"{game.rules}\nReply with one move."
        observation = (
            "Board:\n" + game.board + Template((Literal("\nYou play "), turn, Literal(", and it is your turn.")))
        )
    return TextGame(
        name="breakthrough" if opponent == "random" else f"breakthrough_{opponent}",
        env=env,
        params=env.default_params,
        rules=rules,
        actions=env.words,
        observation=observation,
        fields=env.fields,
        board=game.board,
        success=env.success,
        max_actions_per_turn=1,
        optimal=lambda state: fewest_moves(np.asarray(env.fields(state)["cells"]).reshape(rows, columns), state.side),
        legend={"b": "black pawn", "w": "white pawn", ".": "free"},
    )
