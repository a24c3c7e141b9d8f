"""A board game as a language model meets it: positions, moves and whole games as text."""

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
    legal: the words of the moves there are; none once the game is over.
    """

    board: str
    player: str
    legal: tuple[str, ...]


class Step(NamedTuple):
    """A move: the position before it, its word, and the position after it."""

    before: View
    action: str
    after: View


class Line(NamedTuple):
    """Moves in a row.

    steps: the moves, in order.
    over: whether the game ends with the last one.
    winner: who has won; None where nobody has (a draw, or not over).
    """

    steps: tuple[Step, ...]
    over: bool
    winner: str | None


class Evaluated(NamedTuple):
    """A line of moves and the language value of where it ends; "" where the game is over."""

    line: Line
    value: str


class Move(NamedTuple):
    """A move read out of a reply. word: None where there is no legal one. problem: what was wrong, "" if nothing."""

    word: str | None
    problem: str


@dataclasses.dataclass(frozen=True, eq=False)
class ActorCriticRoles:
    """What the roles of the natural-language actor-critic (NLRL, algorithm 3) are told, and how they are read.

    Attributes:
      policy: a view -> the chat that asks for a move.
      value: (view, action) -> the chat that asks what the move is worth.
      monte_carlo: (view, action, lines that begin with it and end with the game) -> the chat for G1 (equation 7).
      temporal_difference: (view, action, lines from it up to the next own move, evaluated) -> the chat for
        G1 and G2 (equation 8).
      improve: (view, [(action, its evaluation), ...]) -> the chat for I (equation 10).
      read_move: (reply, legal words) -> the move that a policy's or improver's reply names.
      read_value: reply -> the number of an evaluation, above 0 where player 0 stands better; None if there is none.
      clean: a reply with a legal move -> the text that the policy learns: its JSON without anything around it.
    """

    policy: Callable[[View], Chat]
    value: Callable[[View, str], Chat]
    monte_carlo: Callable[[View, str, Sequence[Line]], Chat]
    temporal_difference: Callable[[View, str, Sequence[Evaluated]], Chat]
    improve: Callable[[View, Sequence[tuple[str, str]]], Chat]
    read_move: Callable[[str, Sequence[str]], Move]
    read_value: Callable[[str], float | None]
    clean: Callable[[str], str]


@dataclasses.dataclass(frozen=True, eq=False)
class TDRoles:
    """What the roles of language TD (NLRL, algorithm 2) are told, and how they are read.

    Attributes:
      value: a view -> the chat that asks for its evaluation.
      aggregate: (view, look-ahead variations from it, evaluated where they end) -> the chat for G1 and G2.
      read_advantage: text of an evaluation -> the player it takes to be ahead; None where it does not say, or says
        both.
    """

    value: Callable[[View], Chat]
    aggregate: Callable[[View, Sequence[Evaluated]], Chat]
    read_advantage: Callable[[str], str | None]


class Viewer:
    """Turns positions of one game into views. Keeps what it has drawn: the same position is rendered once."""

    def __init__(self, game: BoardGame):
        self.game = game
        self._read = jax.jit(jax.vmap(lambda p: (game.fields(p), game.legal_action_mask(p), game.current_player(p))))
        self._drawn: dict[bytes, View] = {}

    def views(self, positions: Any) -> list[View]:
        """The views of positions, leading axis [B]."""
        fields, legal, to_move = jax.device_get(self._read(positions))
        return [self._view(fields, legal, to_move, i) for i in range(len(to_move))]

    def _view(self, fields: dict[str, np.ndarray], legal: np.ndarray, to_move: np.ndarray, i: int) -> View:
        row = {name: value[i] for name, value in fields.items()}
        key = b"".join(np.ascontiguousarray(value).tobytes() for value in row.values())
        key += legal[i].tobytes() + to_move[i].tobytes()
        if key not in self._drawn:
            words = tuple(self.game.actions[a] for a in np.flatnonzero(legal[i]))
            self._drawn[key] = View(self.game.board.render(row), self.game.players[int(to_move[i])], words)
        return self._drawn[key]
