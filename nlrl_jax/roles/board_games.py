"""Board games as text: positions, moves and whole games, and the roles that a language model plays in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.types import BoardGame, Chat


class View(NamedTuple):
    """A position as text.

    board: as a person would draw it.
    player: whose turn it is.
    legal: the words of the legal moves; none in a terminal position.
    """

    board: str
    player: str
    legal: tuple[str, ...]


class Ply(NamedTuple):
    """A move: the position before it, its word, and the position after it."""

    before: View
    action: str
    after: View


class Line(NamedTuple):
    """Moves in a row.

    steps: the moves, in order.
    over: whether the game ends with the last one.
    winner: the winner's name; None in a draw or before the end.
    """

    steps: tuple[Ply, ...]
    over: bool
    winner: str | None


class Evaluated(NamedTuple):
    """A line of moves and the language value of its last position; "" where the game is over."""

    line: Line
    value: str


def side_of(value: float, players: tuple[str, str]) -> str | None:
    """Returns the side that is ahead, or has won, by a number from player 0's view; None at 0."""
    return players[0 if value > 0 else 1] if value else None


class MoveReply(NamedTuple):
    """The move that a reply names. word: None without a legal one. problem: a short name of what is wrong, or ""."""

    word: str | None
    problem: str


@dataclasses.dataclass(frozen=True, eq=False)
class ActorCriticRoles:
    """Prompts and readers of the natural-language actor-critic's roles (NLRL, algorithm 3).

    Attributes:
      policy: a view -> the chat that asks for a move.
      value: (view, action) -> the chat that asks for the value of the move.
      monte_carlo: (view, action, complete games from there, the action first) -> the chat for G1 (equation 7).
      temporal_difference: (view, action, evaluated lines from the action to the next own move) -> the chat for
        G1 and G2 (equation 8).
      improve: (view, [(action, its evaluation), ...]) -> the chat for I (equation 10).
      read_move: (reply of a policy or improver, legal words) -> its move.
      read_value: an evaluation -> its number, above 0 where player 0 is ahead; None if there is none.
      clean: a reply with a legal move -> the text that the policy learns: its JSON alone.
      contradicts: whether an evaluation contradicts itself.
      correction: such an evaluation -> (the text as far as it is right, how it goes on); None where nothing says how,
        and where there is no contradiction.
    """

    policy: Callable[[View], Chat]
    value: Callable[[View, str], Chat]
    monte_carlo: Callable[[View, str, Sequence[Line]], Chat]
    temporal_difference: Callable[[View, str, Sequence[Evaluated]], Chat]
    improve: Callable[[View, Sequence[tuple[str, str]]], Chat]
    read_move: Callable[[str, Sequence[str]], MoveReply]
    read_value: Callable[[str], float | None]
    clean: Callable[[str], str]
    contradicts: Callable[[str], bool] = lambda text: False
    correction: Callable[[str], tuple[str, str] | None] = lambda text: None


@dataclasses.dataclass(frozen=True, eq=False)
class TDRoles:
    """Prompts and reader of language TD's roles (NLRL, algorithm 2).

    Attributes:
      value: a view -> the chat that asks for its evaluation.
      aggregate: (view, look-ahead variations from it with evaluated last positions) -> the chat for G1 and G2.
      read_advantage: an evaluation -> the player who is ahead; None if it names neither or both.
    """

    value: Callable[[View], Chat]
    aggregate: Callable[[View, Sequence[Evaluated]], Chat]
    read_advantage: Callable[[str], str | None]


class Viewer:
    """Turns positions of one game into views. Every position is rendered once."""

    def __init__(self, game: BoardGame):
        self.game = game
        self._read = jax.jit(jax.vmap(lambda p: (game.fields(p), game.legal_action_mask(p), game.current_player(p))))
        self._views_by_key: dict[bytes, View] = {}

    def views(self, positions: Any) -> list[View]:
        """Renders positions, leading axis [B], as views."""
        fields, legal, to_move = jax.device_get(self._read(positions))
        return [self._view(fields, legal, to_move, i) for i in range(len(to_move))]

    def _view(self, fields: dict[str, np.ndarray], legal: np.ndarray, to_move: np.ndarray, i: int) -> View:
        """Renders position i of fields [B, ...], legal moves [B, A] and players to move [B]."""
        row = {name: value[i] for name, value in fields.items()}
        key = b"".join(np.ascontiguousarray(value).tobytes() for value in row.values())
        key += legal[i].tobytes() + to_move[i].tobytes()
        if key not in self._views_by_key:
            words = tuple(self.game.actions[a] for a in np.flatnonzero(legal[i]))
            self._views_by_key[key] = View(self.game.board.render(row), self.game.players[int(to_move[i])], words)
        return self._views_by_key[key]
