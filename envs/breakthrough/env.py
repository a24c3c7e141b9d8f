"""Breakthrough for one player: a gymnax environment with the opponent inside `step`, and its text.

The rules are those of `rules.py`, which the algorithms of NLRL play from both sides. An action is the index of a move
word such as `a2b3` (`b4a3*` captures); words that no position allows are left out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from envs import grid_text
from envs.breakthrough.rules import Position, board_game
from nlrl_jax.text.template import Choice, Literal, Template
from nlrl_jax.types import TextGame

OPPONENTS = ("random", "first_move")


@struct.dataclass
class EnvState(environment.EnvState):
    """time: int32 []. position: see `rules.Position`. side: int32 [], 0 if the agent plays black, 1 if white."""

    position: Position
    side: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """max_steps_in_episode: moves of the agent, illegal ones included."""

    max_steps_in_episode: int = 40


class BreakthroughEnv(environment.Environment[EnvState, EnvParams]):
    """gymnax environment of one player; observations are float32 [rows, columns, 2]: own pawns, the opponent's.

    Args:
      rows, columns, pawn_rows: as in `rules.board_game`.
      opponent: "random" (uniform over legal moves) or "first_move" (the legal move with the lowest id).
      side: "black", "white" or "both" (random at reset). Against white the opponent has moved first.

    Raises:
      ValueError: an unknown opponent or side, or a board that `board_game` refuses.
    """

    def __init__(
        self, rows: int = 5, columns: int = 5, pawn_rows: int = 2, opponent: str = "random", side: str = "both"
    ):
        if opponent not in OPPONENTS:
            raise ValueError(f"opponent is {opponent!r}; choose one of {', '.join(OPPONENTS)}")
        self.game = board_game(rows, columns, pawn_rows)
        if side not in (*self.game.players, "both"):
            raise ValueError(f"side is {side!r}; choose one of {', '.join((*self.game.players, 'both'))}")
        self.shape, self.opponent, self.side = (rows, columns), opponent, side
        self.ids = np.flatnonzero([bool(word) for word in self.game.actions])  # the rules' id of each action
        self.words = tuple(self.game.actions[i] for i in self.ids)

    @property
    def default_params(self) -> EnvParams:
        return EnvParams()

    @property
    def num_actions(self) -> int:
        return len(self.words)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """The first position, or the one after the opponent's first move."""
        key_side, key_move = jax.random.split(key)
        if self.side == "both":
            side = (jax.random.bits(key_side) & 1).astype(jnp.int32)
        else:
            side = jnp.int32(self.game.players.index(self.side))
        first = self.game.init()
        position = _where(side == 0, first, self.answer(key_move, first))
        state = EnvState(time=jnp.int32(0), position=position, side=side)
        return self.observe(state), state

    def answer(self, key: jax.Array, position: Position) -> Position:
        """The position after the opponent's move; where the game is over, it means nothing."""
        allowed = self.game.legal_action_mask(position)
        score = jax.random.uniform(key, allowed.shape) if self.opponent == "random" else jnp.ones(allowed.shape)
        return self.game.step(position, jnp.argmax(jnp.where(allowed, score, -1.0)))

    def step_env(self, key, state, action, params):
        """(obs, state, reward, terminated, info); the reward is 1 for a win, -1 for a loss, else 0."""
        game, move = self.game, jnp.asarray(self.ids)[action]
        done = game.legal_action_mask(state.position)[move]
        position = _where(done, game.step(state.position, move), state.position)
        position = _where(done & ~game.is_terminal(position), self.answer(key, position), position)
        reward = jnp.where(done, game.returns(position) * (1 - 2 * state.side), 0.0)
        state = state.replace(position=position, time=state.time + 1)
        return self.observe(state), state, reward, game.is_terminal(position), {"illegal_move": ~done}

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        """The game is over by its rules."""
        return self.game.is_terminal(state.position)

    def success(self, state: EnvState) -> jax.Array:
        """Whether the agent has won: bool []."""
        return self.game.returns(state.position) * (1 - 2 * state.side) == 1

    def observe(self, state: EnvState) -> jax.Array:
        """float32 [rows, columns, 2]: own pawns, the opponent's."""
        cells = self.game.fields(state.position)["cells"]
        own = state.side + 1
        return jnp.stack([cells == own, cells == 3 - own], axis=-1).reshape(*self.shape, 2).astype(jnp.float32)

    def fields(self, state: EnvState) -> dict[str, jax.Array]:
        """Those of the rules (see `board_game`), and legal: int32 [A], 1 where the action is legal."""
        legal = self.game.legal_action_mask(state.position)[self.ids].astype(jnp.int32)
        return {**self.game.fields(state.position), "legal": legal}

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        return spaces.Box(0, 1, (*self.shape, 2), jnp.float32)


def _where(condition: jax.Array, yes: Position, no: Position) -> Position:
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def text_game(
    rows: int = 5,
    columns: int = 5,
    pawn_rows: int = 2,
    opponent: str = "random",
    side: str = "both",
    prompt: str = "paper",
    max_steps: int = 40,
) -> TextGame:
    """Breakthrough against an opponent as a text game; one reply is one move.

    Args:
      rows, columns, pawn_rows, opponent, side: as in `BreakthroughEnv`.
      prompt: "paper" (rules and board) or "compact" (the board and whose turn it is).
      max_steps: moves until truncation, illegal ones included.

    Raises:
      ValueError: an argument outside its range.
    """
    grid_text.check_prompt(prompt)
    env = BreakthroughEnv(rows, columns, pawn_rows, opponent, side)
    game, turn = env.game, Choice("player", env.game.players)
    if prompt == "compact":
        rules = "Breakthrough: choose a legal move."
        observation = game.board + Template((Literal("\n"), turn, Literal(" to move")))
    else:
        rules = f"{game.rules}\nReply with one move."
        observation = (
            "Board:\n" + game.board + Template((Literal("\nYou play "), turn, Literal(" and it is your turn.")))
        )
    return TextGame(
        name="breakthrough" if opponent == "random" else f"breakthrough_{opponent}",
        env=env,
        params=env.default_params.replace(max_steps_in_episode=max_steps),
        rules=rules,
        actions=env.words,
        observation=observation,
        fields=env.fields,
        board=game.board,
        success=env.success,
        max_actions_per_turn=1,
        legend={"b": "black pawn", "w": "white pawn", ".": "free"},
    )
