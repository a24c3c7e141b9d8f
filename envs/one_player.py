"""A board game of two players as an environment of one, with the opponent inside `step`, and its text: for any
`BoardGame`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs.options import check_text_game, integer
from nlrl_jax.envs.shell import DiscreteGame
from nlrl_jax.gymnax_base import EnvParams, environment
from nlrl_jax.text.template import Choice, Literal, Template
from nlrl_jax.types import BoardGame, TextGame
from nlrl_jax.updates import where


@struct.dataclass
class OnePlayerState(environment.EnvState):
    """A position of a board game from the agent's side.

    Attributes:
      time: int32 [].
      position: of the game.
      side: int32 [], which player the agent is.
    """

    position: Any
    side: jax.Array


class OnePlayer(DiscreteGame):
    """gymnax environment; an action is the index of a word in `words`, the game's without those no position allows.

    Observations are float32 [*shape, 2]: the agent's pieces, the opponent's. An illegal action changes only the time;
    `info["illegal_move"]` marks it. The reward is 1 for a win, -1 for a loss, else 0.

    Args:
      game: its `fields` have "cells" [rows * columns]: 0 free, 1 player 0's, 2 player 1's.
      shape: (rows, columns).
      opponent: "random" (uniform over legal moves), "first_move" (the legal move with the lowest id), or one of
        `custom_opponents`.
      side: a player's name or "both" (random at reset). Against player 1 the opponent has moved first.
      max_steps: moves of the agent, illegal ones included, of the default parameters.
      custom_opponents: name -> (position -> bool [A], the moves that this opponent draws from).

    Raises:
      ValueError: an unknown opponent or side, or `max_steps` below 1.
    """

    def __init__(
        self,
        game: BoardGame,
        shape: tuple[int, int],
        opponent: str = "random",
        side: str = "both",
        max_steps: int = 40,
        custom_opponents: Mapping[str, Callable[[Any], jax.Array]] = {},
    ):
        def first_move(position):
            mask = game.legal_action_mask(position)
            return mask & (jnp.cumsum(mask) == 1)

        opponents = {"random": game.legal_action_mask, "first_move": first_move, **custom_opponents}
        sides = (*game.players, "both")
        if opponent not in opponents:
            raise ValueError(f"opponent is {opponent!r}; choose one of {', '.join(opponents)}")
        if side not in sides:
            raise ValueError(f"side is {side!r}; choose one of {', '.join(sides)}")
        integer("max_steps", max_steps, 1)
        self.game, self.side, self.moves_of = game, side, opponents[opponent]
        self.ids = np.flatnonzero([bool(word) for word in game.actions])  # the game's id of each action
        words = tuple(game.actions[i] for i in self.ids)
        super().__init__(words, (*shape, 2), EnvParams(max_steps_in_episode=max_steps))

    def start(self, key: jax.Array, params: EnvParams) -> OnePlayerState:
        """Returns the first position, or the one after the opponent's first move."""
        key_side, key_move = jax.random.split(key)
        if self.side == "both":
            side = (jax.random.bits(key_side) & 1).astype(jnp.int32)
        else:
            side = jnp.int32(self.game.players.index(self.side))
        first = self.game.init()
        position = where(side == 0, first, self.answer(key_move, first))
        return OnePlayerState(time=jnp.int32(0), position=position, side=side)

    def answer(self, key: jax.Array, position: Any) -> Any:
        """Makes the opponent's move; the position means nothing where the game is over."""
        mask = self.moves_of(position)  # bool [game's actions]
        # The largest of independent uniform numbers over the allowed moves: each is equally likely.
        return self.game.step(position, jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0)))

    def advance(self, key, state, action, params):
        """Makes the agent's move; the opponent answers a legal one that does not end the game."""
        game, move = self.game, jnp.asarray(self.ids)[action]
        # 1. The agent's move, if it is legal; 2. the opponent's, unless the game is over.
        legal = game.legal_action_mask(state.position)[move]
        position = where(legal, game.step(state.position, move), state.position)
        position = where(legal & ~game.is_terminal(position), self.answer(key, position), position)
        reward = jnp.where(legal, game.returns(position) * (1 - 2 * state.side), 0.0)
        state = state.replace(position=position, time=state.time + 1)
        return state, reward, game.is_terminal(position), {"illegal_move": ~legal}

    def is_terminated(self, state: OnePlayerState, params: EnvParams) -> jax.Array:
        """Whether the game is over by its rules: bool []."""
        return self.game.is_terminal(state.position)

    def success(self, state: OnePlayerState) -> jax.Array:
        """Whether the agent has won: bool []."""
        return self.game.returns(state.position) * (1 - 2 * state.side) == 1

    def observe(self, key, state: OnePlayerState, action, params) -> jax.Array:
        """Returns float32 [rows, columns, 2], planes of the agent's pieces and the opponent's."""
        cells, agent = self.game.fields(state.position)["cells"], state.side + 1
        return jnp.stack([cells == agent, cells == 3 - agent], axis=-1).reshape(self.shape).astype(jnp.float32)

    def fields(self, state: OnePlayerState) -> dict[str, jax.Array]:
        """Adds to the game's fields legal: int32 [A], 1 where the action is legal."""
        legal = self.game.legal_action_mask(state.position)[self.ids].astype(jnp.int32)
        return {**self.game.fields(state.position), "legal": legal}


def text_game(
    env: OnePlayer, opponent: str, prompt: str, rules: dict[str, str], last: Template | str = "", **options: Any
) -> TextGame:
    """Makes a text game in which one reply is one move: the board and whose turn it is.

    Args:
      opponent: as in `OnePlayer`; one that does not play at random is a part of the name.
      prompt: "paper" or "compact". rules: prompt -> rules.
      last: what the paper prompt says after whose turn it is.
      **options: other fields of the `TextGame`.

    Raises:
      ValueError: an unknown prompt.
    """
    check_text_game(prompt)
    game, player = env.game, Choice("player", env.game.players)
    turn = "Board:\n" + game.board + Template((Literal("\nYou play "), player, Literal(", and it is your turn.")))
    to_move = Template((Literal("\n"), player, Literal(" to move")))
    return TextGame(
        name=game.name if opponent == "random" else f"{game.name}_{opponent}",
        env=env,
        params=env.default_params,
        rules=rules[prompt],
        actions=env.words,
        observation=game.board + to_move if prompt == "compact" else turn + last if last else turn,
        fields=env.fields,
        board=game.board,
        success=env.success,
        max_actions_per_turn=1,
        **options,
    )
