"""Tic-tac-toe (NLRL, section 5.3): the rules as a board game, its text, and perfect play.

0 | 1 | 2      O | X | 3      A position is a board, int8 [9]: -1 free, 0 an O, 1 an X. Action i marks cell i.
---------      ---------      In the text a free cell shows its number, i + 1 (right). Whose turn it is
3 | 4 | 5      4 | O | 6      follows from the counts of the marks, since O moves first.
---------      ---------
6 | 7 | 8      7 | 8 | 9
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs import grid_text
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import BoardGame

PLAYERS = ("O", "X")
ACTIONS = tuple("123456789")
WINNERS = ("nobody yet", *PLAYERS, "nobody")  # what the field "winner" indexes
MAX_MOVES = 9
EMPTY = -1
# Rows, columns and diagonals as cells: int32 [8, 3].
LINES = np.array([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)], np.int32)
_CODES = 3 ** np.arange(9)


def init() -> jax.Array:
    """Returns the empty board: int8 [9]."""
    return jnp.full((9,), EMPTY, jnp.int8)


def current_player(board: jax.Array) -> jax.Array:
    """Tells whose turn it is by the counts, also after the end: int8 [9] -> int32 []."""
    return ((board == 0).sum(-1) - (board == 1).sum(-1)).astype(np.int32)


def has_line(board: jax.Array, player: int) -> jax.Array:
    """Whether a player has three in a line: int8 [..., 9] -> bool [...]. NumPy or JAX."""
    return (board[..., LINES] == player).all(-1).any(-1)


def returns(board: jax.Array) -> jax.Array:
    """Pays 1 if O has won, -1 if X has, else 0: int8 [..., 9] -> float32 [...]."""
    return has_line(board, 0).astype(np.float32) - has_line(board, 1).astype(np.float32)


def is_terminal(board: jax.Array) -> jax.Array:
    """Whether a player has won or all cells are taken: int8 [..., 9] -> bool [...]."""
    return (returns(board) != 0) | (board != EMPTY).all(-1)


def legal_action_mask(board: jax.Array) -> jax.Array:
    """Marks the free cells; none once the game is over: int8 [..., 9] -> bool [..., 9]."""
    return (board == EMPTY) & ~is_terminal(board)[..., None]


def step(board: jax.Array, action: jax.Array) -> jax.Array:
    """Marks a cell for the player to move: int8 [9] -> int8 [9]."""
    return jnp.where(np.arange(9) == action, current_player(board).astype(jnp.int8), board)


def fewest_marks(board: np.ndarray, player: int) -> int | None:
    """Counts the fewest marks with which a player has a line; None where all lines are blocked.

    The board is int8 [9], on the host.
    """
    lines = np.asarray(board)[LINES]
    return min((3 - int((line == player).sum()) for line in lines if not (line == 1 - player).any()), default=None)


def code(board: jax.Array) -> jax.Array:
    """Encodes a board as one number below 3 ** 9: int8 [..., 9] -> int32 [...]."""
    return ((board.astype(np.int32) + 1) * _CODES.astype(np.int32)).sum(-1)


@functools.lru_cache
def minimax() -> tuple[np.ndarray, np.ndarray]:
    """Solves the game by `code` of a position.

    Returns (the outcome under perfect play, int8 [3 ** 9]; the moves that reach it, bool [3 ** 9, 9]).

    Rows of positions that cannot occur mean nothing.
    """
    codes = np.arange(3**9)
    boards = (codes[:, None] // _CODES % 3 - 1).astype(np.int8)  # digit i of a code, base 3, is cell i
    marks = (boards != EMPTY).sum(1)
    player = (boards == 0).sum(1) - (boards == 1).sum(1)
    values = returns(boards).astype(np.int8)
    optimal = np.zeros(boards.shape, bool)
    # Backwards from full boards: positions with n marks need the values of those with n + 1.
    for n in range(MAX_MOVES - 1, -1, -1):
        rows = codes[(marks == n) & ((player == 0) | (player == 1)) & ~is_terminal(boards)]
        free, mover = boards[rows] == EMPTY, player[rows, None]
        after = np.where(free, codes[rows, None] + _CODES * (mover + 1), 0)
        gains = np.where(free, np.where(mover == 0, 1, -1) * values[after], -2)  # [rows, 9], for the mover
        best = gains.max(1, keepdims=True)
        values[rows] = np.where(mover == 0, best, -best)[:, 0]
        optimal[rows] = gains == best
    return values, optimal


def fields(board: jax.Array) -> dict[str, jax.Array]:
    """Computes the fields of a position's text, all int32.

    Returns:
      cells [9]: 0 free, 1 O, 2 X. player []: who is to move. winner []: an index into `WINNERS`.
      legal [9]: 1 where the action is legal. num_legal [], legal_move [9]: the same as a list.
    """
    mask = legal_action_mask(board)
    # 0 before the end, 1 O, 2 X, 3 a draw.
    winner = (
        jnp.where(is_terminal(board), 3, 0) - jnp.where(has_line(board, 0), 2, 0) - jnp.where(has_line(board, 1), 1, 0)
    )
    return {
        "cells": board.astype(jnp.int32) + 1,
        "player": current_player(board),
        "winner": winner.astype(jnp.int32),
        "legal": mask.astype(jnp.int32),
        "num_legal": mask.sum(dtype=jnp.int32),
        "legal_move": grid_text.first_cells(mask, MAX_MOVES),
    }


def threat_fields(cells: jax.Array) -> dict[str, jax.Array]:
    """Finds the free cells that would complete a player's row.

    Returns threat_O int32 [9], of which the first num_threat_O [] count; and the same for X.

    Args:
      cells: the field of `fields`, int32 [9].
    """
    result = {}
    for mark, player in enumerate(PLAYERS, start=1):
        has_pair, free = (cells[LINES] == mark).sum(1) == 2, (cells[LINES] == 0)
        mask = jnp.zeros(9, bool).at[LINES].max(has_pair[:, None] & free)
        result[f"threat_{player}"] = grid_text.first_cells(mask, MAX_MOVES)
        result[f"num_threat_{player}"] = mask.sum(dtype=jnp.int32)
    return result


def board_template() -> Template:
    """Draws three rows such as `O | X | 3`, a free cell showing its number, with dashes between."""
    cells = [Choice("cells", (number, *PLAYERS), cell) for cell, number in enumerate(ACTIONS)]
    return grid_text.drawn(cells, 3, " | ", "\n---------\n")


def legal_moves_template(empty: str = "") -> Template:
    """Lists the legal moves, as in `[3, 5, 9]`."""
    item = (Choice("legal_move", ACTIONS),)
    return Template((Literal("["), Repeat("num_legal", MAX_MOVES, item, separator=", ", empty=empty), Literal("]")))


def impossible(board: np.ndarray) -> str | None:
    """Explains why no game reaches this board, int8 [9]; None if one does."""
    board = np.asarray(board)
    lead = int(current_player(board))
    if lead not in (0, 1):
        return f"there are {(board == 0).sum()} O and {(board == 1).sum()} X, but O moves first and they take turns"
    if has_line(board, 0) and has_line(board, 1):
        return "both O and X have three in a line, but the first line ends the game"
    if has_line(board, 1 - lead) or not has_line(board, lead):
        return None
    return f"{PLAYERS[lead]} has three in a line, but {PLAYERS[1 - lead]} has moved after that"


def parse(text: str, player: str) -> jax.Array:
    """Reads the position that `board_template` draws as `text` with `player` to move. Host only.

    Blanks, bars and dashes separate cells and mean nothing else.

    Args:
      player: "O" or "X". After the end, who would be next.

    Raises:
      ValueError: not nine cells, a cell that is neither O, X nor its own number, or a position that cannot occur.
    """
    if player not in PLAYERS:
        raise ValueError(f"player is {player!r}; it must be one of {', '.join(PLAYERS)}")
    cells = text.replace("|", " ").replace("-", " ").split()
    if len(cells) != 9:
        raise ValueError(f"a board has 9 cells; this one has {len(cells)}: {text!r}")
    for cell, (word, number) in enumerate(zip(cells, ACTIONS)):
        if word not in (*PLAYERS, number):
            raise ValueError(f"cell {cell + 1} is {word!r}; it must be O, X or, where it is free, {number}")
    board = np.array([PLAYERS.index(word) if word in PLAYERS else EMPTY for word in cells], np.int8)
    if reason := impossible(board):
        raise ValueError(f"this position cannot occur: {reason}")
    if player != PLAYERS[current_player(board)]:
        raise ValueError(f"it is {PLAYERS[current_player(board)]}'s turn on this board, not {player}'s")
    return jnp.asarray(board)


RULES = """\
Tic-tac-toe is played by O and X on a 3x3 board.
Rules:
- O moves first. The players take turns marking one free position each.
- The first player to get three marks in a row, horizontally, vertically or diagonally, wins.
- If all nine positions are taken and neither player has three in a row, the game is a draw.
- The board shows O, X and, for each free position, its number from 1 to 9."""


def board_game() -> BoardGame:
    """Makes the game of both players."""
    return BoardGame(
        name="tic_tac_toe",
        players=PLAYERS,
        actions=ACTIONS,
        max_moves=MAX_MOVES,
        init=init,
        legal_action_mask=legal_action_mask,
        step=step,
        current_player=current_player,
        is_terminal=is_terminal,
        returns=returns,
        rules=RULES,
        board=board_template(),
        fields=fields,
        parse=parse,
    )
