"""Tic-tac-toe (NLRL, section 5.3) for one player: a gymnax environment with the opponent inside `step`, and its text.

The environment of one player. A position is the board alone: int8 [9] in reading order, -1 for a free cell, 0 for O, 1
for X; the counts give whose turn it is. Action i marks cell i, and its word is i + 1. O moves first, as in the paper's
reference environment.

Additions to the paper: our wording of the rules, a random side at every reset ("both"), and a third opponent,
"minimax", which plays perfectly, with no preference between a quick and a slow win.

An action on a taken cell changes only the time; `info["illegal_move"]` marks it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from envs import grid_text
from envs.tic_tac_toe.rules import (
    ACTIONS,
    PLAYERS,
    RULES,
    board_template,
    code,
    fields,
    init,
    is_terminal,
    legal_action_mask,
    legal_moves_template,
    minimax,
    returns,
    step,
)
from nlrl_jax.text.template import Choice, Literal, Template
from nlrl_jax.types import TextGame

OPPONENTS = ("random", "first_move", "minimax")
SIDES = (*PLAYERS, "both")


@struct.dataclass
class EnvState(environment.EnvState):
    """time: int32 []. board: int8 [9]. side: int32 [], 0 if the agent plays O, 1 if X."""

    board: jax.Array
    side: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """max_steps_in_episode: a game takes at most 5 moves of the agent; the others are for actions on taken cells."""

    max_steps_in_episode: int = 9


class TicTacToe(environment.Environment[EnvState, EnvParams]):
    """gymnax environment of one player; observations are float32 [3, 3, 2]: own marks, the opponent's.

    Args:
      opponent: "random" (uniform over free cells), "first_move" (the lowest free cell) or "minimax" (uniform over
        the moves that are best under perfect play).
      side: "O", "X" or "both" (random at reset). Against an X the opponent has moved first.

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
        board = jnp.where(side == 0, init(), self.answer(key_move, init()))
        state = EnvState(time=jnp.int32(0), board=board, side=side)
        return self.observe(key, state, None, params), state

    def answer(self, key: jax.Array, board: jax.Array) -> jax.Array:
        """The board after the opponent's move: int8 [9]."""
        allowed = legal_action_mask(board)
        if self.opponent == "first_move":
            allowed &= jnp.cumsum(allowed) == 1
        elif self.opponent == "minimax":
            allowed = jnp.asarray(minimax()[1])[code(board)]
        return step(board, jnp.argmax(jnp.where(allowed, jax.random.uniform(key, (9,)), -1.0)))

    def step_env(self, key, state, action, params):
        """(obs, state, reward, terminated, info); the reward is 1 for a win, -1 for a loss, else 0."""
        done = legal_action_mask(state.board)[action]
        board = jnp.where(done, step(state.board, action), state.board)
        board = jnp.where(done & ~is_terminal(board), self.answer(key, board), board)
        reward = jnp.where(done, returns(board) * (1 - 2 * state.side), 0.0)
        state = state.replace(board=board, time=state.time + 1)
        return self.observe(key, state, action, params), state, reward, is_terminal(board), {"illegal_move": ~done}

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        """The game is over by its rules."""
        return is_terminal(state.board)

    def success(self, state: EnvState) -> jax.Array:
        """Whether the agent has won: bool []."""
        return returns(state.board) * (1 - 2 * state.side) == 1

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
        legend={"O": "moves first", "X": "moves second"},
    )
