"""Tic-tac-toe (NLRL, section 5.3): its rules as a board game, and one player's view of it as a text game.

O moves first, as in the paper's reference environment. A position is the board alone: int8 [9] in reading order, -1
for a free cell, 0 for O, 1 for X; the counts tell whose turn it is. Action i marks cell i, and its word is i + 1.

What is ours: the wording of the rules, the side drawn at every reset ("both"), and a third opponent, "minimax". It
plays perfectly, with no preference between a quick and a slow win.

An action on a taken cell changes nothing but the time; `info["illegal_move"]` counts it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from envs import grid_text
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import BoardGame, TextGame

PLAYERS = ("O", "X")
ACTIONS = tuple("123456789")
OPPONENTS = ("random", "first_move", "minimax")
SIDES = (*PLAYERS, "both")
WINNERS = ("nobody yet", *PLAYERS, "nobody")  # what the field "winner" indexes
MAX_MOVES = 9

EMPTY = -1
LINES = np.array([(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)])
_CODES = 3 ** np.arange(9)


def initial() -> jax.Array:
    """The empty board: int8 [9]."""
    return jnp.full((9,), EMPTY, jnp.int8)


def to_move(board: jax.Array) -> jax.Array:
    """Whose turn the counts say it is, also after the end: int8 [9] -> int32 []."""
    return ((board == 0).sum(-1) - (board == 1).sum(-1)).astype(np.int32)


def has_line(board: jax.Array, player: int) -> jax.Array:
    """Whether a player has three in a line: int8 [..., 9] -> bool [...]. NumPy or JAX."""
    return (board[..., LINES] == player).all(-1).any(-1)


def outcome(board: jax.Array) -> jax.Array:
    """1 if O has won, -1 if X has, else 0: int8 [..., 9] -> float32 [...]."""
    return has_line(board, 0).astype(np.float32) - has_line(board, 1).astype(np.float32)


def over(board: jax.Array) -> jax.Array:
    """Somebody has won or all cells are taken: int8 [..., 9] -> bool [...]."""
    return (outcome(board) != 0) | (board != EMPTY).all(-1)


def legal(board: jax.Array) -> jax.Array:
    """The free cells; none once the game is over: int8 [..., 9] -> bool [..., 9]."""
    return (board == EMPTY) & ~over(board)[..., None]


def play(board: jax.Array, action: jax.Array) -> jax.Array:
    """The board after the player to move has marked a cell: int8 [9]."""
    return jnp.where(np.arange(9) == action, to_move(board).astype(jnp.int8), board)


def code(board: jax.Array) -> jax.Array:
    """A board as one number below 3 ** 9: int8 [..., 9] -> int32 [...]."""
    return ((board.astype(np.int32) + 1) * _CODES.astype(np.int32)).sum(-1)


@functools.lru_cache
def minimax() -> tuple[np.ndarray, np.ndarray]:
    """Perfect play: the outcome under it, int8 [3 ** 9], and the moves that reach it, bool [3 ** 9, 9], by `code`.

    Rows of positions that cannot occur say nothing.
    """
    codes = np.arange(3**9)
    boards = (codes[:, None] // _CODES % 3 - 1).astype(np.int8)
    marks = (boards != EMPTY).sum(1)
    player = (boards == 0).sum(1) - (boards == 1).sum(1)
    values = outcome(boards).astype(np.int8)
    optimal = np.zeros(boards.shape, bool)
    for n in range(MAX_MOVES - 1, -1, -1):
        rows = codes[(marks == n) & ((player == 0) | (player == 1)) & ~over(boards)]
        free, mover = boards[rows] == EMPTY, player[rows, None]
        after = np.where(free, codes[rows, None] + _CODES * (mover + 1), 0)
        gains = np.where(free, np.where(mover == 0, 1, -1) * values[after], -2)  # the mover's, of each move
        best = gains.max(1, keepdims=True)
        values[rows] = np.where(mover == 0, best, -best)[:, 0]
        optimal[rows] = gains == best
    return values, optimal


def fields(board: jax.Array) -> dict[str, jax.Array]:
    """What the text of a position reads, all int32.

    Returns:
      cells [9]: 0 free, 1 O, 2 X. player []: who is to move. winner []: an index into `WINNERS`.
      legal [9]: 1 where the action is legal. num_legal [], legal_move [9]: the same as a list.
    """
    mask = legal(board)
    winner = jnp.where(over(board), 3, 0) - jnp.where(has_line(board, 0), 2, 0) - jnp.where(has_line(board, 1), 1, 0)
    return {
        "cells": board.astype(jnp.int32) + 1,
        "player": to_move(board),
        "winner": winner.astype(jnp.int32),
        "legal": mask.astype(jnp.int32),
        "num_legal": mask.sum(dtype=jnp.int32),
        "legal_move": grid_text.first_cells(mask, MAX_MOVES),
    }


def board_template() -> Template:
    """Three rows such as `O | X | 3`, a free cell showing its number, with dashes between."""
    parts = []
    for cell in range(9):
        if cell:
            parts.append(Literal(" | " if cell % 3 else "\n---------\n"))
        parts.append(Choice("cells", (ACTIONS[cell], *PLAYERS), cell))
    return Template(tuple(parts))


def legal_moves_template(empty: str = "") -> Template:
    """The legal moves, as in `[3, 5, 9]`."""
    item = (Choice("legal_move", ACTIONS),)
    return Template((Literal("["), Repeat("num_legal", MAX_MOVES, item, separator=", ", empty=empty), Literal("]")))


def impossible(board: np.ndarray) -> str | None:
    """Why no game reaches this board, int8 [9]; None if one does."""
    board = np.asarray(board)
    lead = int(to_move(board))
    if lead not in (0, 1):
        return f"there are {(board == 0).sum()} O and {(board == 1).sum()} X, but O moves first and they take turns"
    if has_line(board, 0) and has_line(board, 1):
        return "both O and X have three in a line, but the first line ends the game"
    if has_line(board, 1 - lead) or not has_line(board, lead):
        return None
    return f"{PLAYERS[lead]} has three in a line, but {PLAYERS[1 - lead]} has moved after that"


def parse(text: str, player: str) -> jax.Array:
    """The position that `board_template` draws as `text` with `player` to move. Host only.

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
    if player != PLAYERS[to_move(board)]:
        raise ValueError(f"it is {PLAYERS[to_move(board)]}'s turn on this board, not {player}'s")
    return jnp.asarray(board)


RULES = """\
Tic-tac-toe is played by O and X on a board of 3x3 positions.
Rules:
- O moves first. The players take turns and mark one free position each.
- Three marks of one's own in a line, across, down or along a diagonal, win the game.
- If all nine positions are taken and nobody has such a line, the game is a tie.
- The board shows O, X and, where a position is free, its number from 1 to 9."""


def board_game() -> BoardGame:
    """The rules of both players."""
    return BoardGame(
        name="tic_tac_toe",
        players=PLAYERS,
        actions=ACTIONS,
        max_moves=MAX_MOVES,
        initial=initial,
        legal=legal,
        play=play,
        to_move=to_move,
        over=over,
        outcome=outcome,
        rules=RULES,
        board=board_template(),
        fields=fields,
        parse=parse,
    )


@struct.dataclass
class EnvState(environment.EnvState):
    """time: int32 []. board: int8 [9]. side: int32 [], 0 if the agent plays O, 1 if X."""

    board: jax.Array
    side: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """max_steps_in_episode: an agent has 5 moves at most; more are left for actions on taken cells."""

    max_steps_in_episode: int = 9


class TicTacToe(environment.Environment[EnvState, EnvParams]):
    """gymnax environment of one player; observations are float32 [3, 3, 2]: own marks, the opponent's.

    Args:
      opponent: "random" (uniform over free cells), "first_move" (the lowest free cell) or "minimax" (uniform over
        the moves that are best under perfect play).
      side: "O", "X" or "both" (drawn at reset). The opponent of an X has moved when the game is handed over.

    Raises:
      ValueError: an unknown opponent or side.
    """

    def __init__(self, opponent: str = "random", side: str = "both"):
        if opponent not in OPPONENTS:
            raise ValueError(f"opponent is {opponent!r}; choose one of {', '.join(OPPONENTS)}")
        if side not in SIDES:
            raise ValueError(f"side is {side!r}; choose one of {', '.join(SIDES)}")
        self.opponent, self.side = opponent, side

    @property
    def default_params(self) -> EnvParams:
        return EnvParams()

    @property
    def num_actions(self) -> int:
        return len(ACTIONS)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """An empty board, or one with the opponent's first O."""
        key_side, key_move = jax.random.split(key)
        if self.side == "both":
            side = (jax.random.bits(key_side) & 1).astype(jnp.int32)
        else:
            side = jnp.int32(PLAYERS.index(self.side))
        board = jnp.where(side == 0, initial(), self.answer(key_move, initial()))
        state = EnvState(time=jnp.int32(0), board=board, side=side)
        return self.observe(key, state, None, params), state

    def answer(self, key: jax.Array, board: jax.Array) -> jax.Array:
        """The board after the opponent's move: int8 [9]."""
        allowed = legal(board)
        if self.opponent == "first_move":
            allowed &= jnp.cumsum(allowed) == 1
        elif self.opponent == "minimax":
            allowed = jnp.asarray(minimax()[1])[code(board)]
        return play(board, jnp.argmax(jnp.where(allowed, jax.random.uniform(key, (9,)), -1.0)))

    def step_env(self, key, state, action, params):
        """(obs, state, reward, terminated, info); the reward is 1 for a win, -1 for a loss, else 0."""
        done = legal(state.board)[action]
        board = jnp.where(done, play(state.board, action), state.board)
        board = jnp.where(done & ~over(board), self.answer(key, board), board)
        reward = jnp.where(done, outcome(board) * (1 - 2 * state.side), 0.0)
        state = state.replace(board=board, time=state.time + 1)
        return self.observe(key, state, action, params), state, reward, over(board), {"illegal_move": ~done}

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        """The game is over by its rules."""
        return over(state.board)

    def success(self, state: EnvState) -> jax.Array:
        """Whether the agent has won: bool []."""
        return outcome(state.board) * (1 - 2 * state.side) == 1

    def observe(self, key, state, action, params) -> jax.Array:
        """float32 [3, 3, 2]: own marks, the opponent's."""
        planes = jnp.stack([state.board == state.side, state.board == 1 - state.side], axis=-1)
        return planes.reshape(3, 3, 2).astype(jnp.float32)

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        return spaces.Discrete(len(ACTIONS))

    def observation_space(self, params: EnvParams) -> spaces.Box:
        return spaces.Box(0, 1, (3, 3, 2), jnp.float32)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        return spaces.Dict(
            {
                "time": spaces.Discrete(params.max_steps_in_episode + 1),
                "board": spaces.Box(-1, 1, (9,), jnp.int8),
                "side": spaces.Discrete(2),
            }
        )


def text_game(opponent: str = "random", side: str = "both", prompt: str = "paper", max_steps: int = 9) -> TextGame:
    """Tic-tac-toe against an opponent as a text game; one reply is one move.

    Args:
      opponent, side: as in `TicTacToe`.
      prompt: "paper" (rules, board and the list of free positions) or "compact" (the board and whose turn it is).
      max_steps: moves until truncation, those on taken cells included.

    Raises:
      ValueError: an argument outside its range.
    """
    grid_text.check_prompt(prompt)
    env = TicTacToe(opponent, side)
    board, player = board_template(), Choice("player", PLAYERS)
    if prompt == "compact":
        rules = "Tic-tac-toe: choose a free cell."
        observation = board + Template((Literal("\n"), player, Literal(" to move")))
    else:
        rules = f"{RULES}\nAvailable actions: {', '.join(ACTIONS)}, of which only free positions count. Reply with one."
        turn = Template((Literal("\nYou play "), player, Literal(" and it is your turn. Available positions: ")))
        observation = "Board:\n" + board + turn + legal_moves_template("none")
    return TextGame(
        name="tic_tac_toe" if opponent == "random" else f"tic_tac_toe_{opponent}",
        env=env,
        params=env.default_params.replace(max_steps_in_episode=max_steps),
        rules=rules,
        actions=ACTIONS,
        observation=observation,
        fields=lambda state: fields(state.board),
        board=board,
        success=env.success,
        max_actions_per_turn=1,
    )
