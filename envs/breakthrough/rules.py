"""Breakthrough on a board of any size, with OpenSpiel's rules and action ids.

Each side has one or two full rows of pawns; black (player 0) starts at the top, moves first and moves down. A pawn
goes one square straight ahead if it is empty, or diagonally ahead if no pawn of its own is there, and captures only
diagonally. The first to reach the far row or to take every enemy pawn wins; there are no draws (NLRL, appendix B.2:
5x5 with two rows each).

Action ids are OpenSpiel's: `((row * columns + column) * 6 + direction) * 2 + capture`, directions 0-2 down (left,
straight, right) and 3-5 up. Many ids can never be legal; their word is empty. So that a search need not look at all of
them, the game also counts its legal moves and names the k-th: `num_legal`, `nth_legal`, `max_legal`.

    5 b b b b b       0  1  2  3  4        black goes down      directions 0 1 2:  left, straight, right
    4 b b b b b       5  6  7  8  9
    3 . . . . .      10 11 12 13 14        an action is ((cell * 6) + direction) * 2 + capture,
    2 w w w w w      15 16 17 18 19        with the cell that the pawn leaves
    1 w w w w w      20 21 22 23 24
      a b c d e       cells = bits         white goes up        directions 3 4 5:  left, straight, right

A position is a bitboard: bit i % 32 of word i // 32 is cell i, row by row from the top left. All moves of a position
are three masks, one per direction, so that a move costs a handful of word operations, and every word is a leaf of its
own, so that a batch of positions is a few contiguous arrays. Random 5x5 games run about ten times as fast as with a
mask over (cell, direction) to choose from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs.breakthrough.notation import PLAYERS, BreakthroughText
from nlrl_jax.envs.options import integer
from nlrl_jax.types import BoardGame

_WORD = 32

Words = tuple[jax.Array, ...]


class Position(NamedTuple):
    """A board as two sets of cells, one bit each, and whose turn it is.

    Attributes:
      black, white: the cells of their pawns, a tuple of uint32 [] words.
      player: int32 [], who moves.
      winner: int32 [], -1 before the end.
    """

    black: Words
    white: Words
    player: jax.Array
    winner: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Breakthrough(BoardGame):
    """A `BoardGame` that also lists its legal moves.

    Attributes:
      max_legal: no position has more legal moves.
      num_legal: position -> int32 []; 0 once the game is over.
      nth_legal: (position, int k) -> int32 [], action id of the k-th legal move, in an order of the game's own.
        k must be below num_legal.
    """

    max_legal: int
    num_legal: Callable[[Position], jax.Array]
    nth_legal: Callable[[Position, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The rules on one size of board. A "mask" is a tuple of words, one bit a cell."""

    rows: int
    columns: int
    pawn_rows: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def mask(self, chosen) -> tuple[np.uint32, ...]:
        """Packs cells into a mask: bool [cells] -> constant words."""
        padded = np.zeros(-(-self.cells // _WORD) * _WORD, np.uint32)
        padded[: self.cells] = chosen
        return tuple((padded.reshape(-1, _WORD) << np.arange(_WORD, dtype=np.uint32)).sum(1, dtype=np.uint32))

    def bits(self, mask: Words) -> jax.Array:
        """Unpacks a mask into cells: bool [cells]."""
        shifts = np.arange(_WORD, dtype=np.uint32)
        return jnp.concatenate([word >> shifts & 1 for word in mask])[: self.cells].astype(bool)

    def position(self, cells: np.ndarray, player: int, winner: int) -> Position:
        """Makes the position with these cells [rows * columns], indices into `SYMBOLS`."""
        black, white = (tuple(jnp.uint32(word) for word in self.mask(cells == symbol)) for symbol in (1, 2))
        return Position(black, white, jnp.int32(player), jnp.int32(winner))

    def init(self) -> Position:
        full, empty = self.pawn_rows * self.columns, self.cells - 2 * self.pawn_rows * self.columns
        return self.position(np.repeat((1, 0, 2), (full, empty, full)), 0, -1)

    def moves(self, position: Position) -> tuple[tuple[Words, Words, Words], Words]:
        """Finds who can move left, straight and right: three masks of pawns; and the enemy's pawns."""
        column = np.arange(self.cells) % self.columns
        first = position.player == 0
        friendly, enemy = _sides(position)
        not_friendly = tuple(~o & a for o, a in zip(friendly, self.mask(True)))
        empty = tuple(n & ~e for n, e in zip(not_friendly, enemy))
        playing = position.winner < 0
        able = tuple(jnp.where(playing, o, np.uint32(0)) for o in friendly)

        def ahead(target: Words, step: int, allowed: np.ndarray) -> Words:
            """Selects pawns in `allowed` columns whose cell one row ahead and `step` to the right is in `target`."""
            down, up = _shift(target, -(self.columns + step)), _shift(target, self.columns - step)
            return tuple(a & m & jnp.where(first, d, u) for a, m, d, u in zip(able, self.mask(allowed), down, up))

        left = ahead(not_friendly, -1, column > 0)
        right = ahead(not_friendly, 1, column < self.columns - 1)
        return (left, ahead(empty, 0, column >= 0), right), enemy

    def legal_action_mask(self, position: Position) -> jax.Array:
        """Returns the legal moves, bool [12 * cells]: of each cell the mover, the direction and whether it captures."""
        (left, straight, right), enemy = self.moves(position)
        target = self.bits(enemy).reshape(self.rows, self.columns)
        black = position.player == 0
        ahead = jnp.where(black, jnp.roll(target, -1, 0), jnp.roll(target, 1, 0))
        nowhere = jnp.zeros(self.cells, bool)  # no pawn captures straight ahead
        by_direction = []  # [cells, 2] each: without and with capture
        for pawns, step in ((left, -1), (straight, 0), (right, 1)):
            captures = jnp.roll(ahead, -step, 1).reshape(-1) if step else nowhere
            able = self.bits(pawns)
            by_direction.append(jnp.stack([able & ~captures, able & captures], axis=-1))
        one_side = jnp.stack(by_direction, axis=1)
        return jnp.concatenate([one_side & black, one_side & ~black], axis=1).reshape(-1)

    def num_legal(self, position: Position) -> jax.Array:
        """Counts the legal moves, int32 []."""
        directions, _ = self.moves(position)
        return sum(jax.lax.population_count(w) for mask in directions for w in mask).astype(jnp.int32)

    def nth_legal(self, position: Position, k: jax.Array) -> jax.Array:
        """Returns the id of the k-th legal move, int32 []: left, straight, right; within a direction by cell."""
        directions, enemy = self.moves(position)
        cell, direction = _nth_bit(directions, jnp.asarray(k).astype(jnp.uint32))
        target = self.target(position, cell, direction)
        capture = _has(enemy, target)
        return (cell * 6 + direction + 3 * position.player) * 2 + capture

    def target(self, position: Position, cell: jax.Array, direction: jax.Array) -> jax.Array:
        """Returns the cell that a move leads to, int32 []; direction 0 is left, 1 straight, 2 right."""
        return cell + jnp.where(position.player == 0, self.columns, -self.columns) + direction - 1

    def step(self, position: Position, action: jax.Array) -> Position:
        """Moves a pawn: action int [], a legal one."""
        # 1. Which pawn goes where. Whether it captures need not be read off the action: the target's bit says so.
        action = jnp.asarray(action, jnp.int32)
        cell = action // 12
        target = self.target(position, cell, action // 2 % 3)
        # 2. The pawn's bit moves. 3. An enemy pawn on the target is taken.
        friendly, enemy = _sides(position)
        first = position.player == 0
        friendly = tuple(o & ~a | b for o, a, b in zip(friendly, _bit(friendly, cell), _bit(friendly, target)))
        enemy = tuple(e & ~b for e, b in zip(enemy, _bit(enemy, target)))
        # 4. The mover wins on the far row, or when no enemy pawn is left.
        arrived = jnp.where(first, target >= self.cells - self.columns, target < self.columns)
        won = arrived | (sum(e != 0 for e in enemy) == 0)
        return Position(
            black=_choose(first, friendly, enemy),
            white=_choose(first, enemy, friendly),
            player=1 - position.player,
            winner=jnp.where(won, position.player, position.winner),
        )

    def fields(self, position: Position) -> dict[str, jax.Array]:
        """Computes what the text of a position reads, all int32.

        Returns:
          cells [rows * columns], indices into `SYMBOLS`; player []; winner [], 0 for none, else 1 + player.
        """
        cells = self.bits(position.black).astype(jnp.int32) + 2 * self.bits(position.white)
        return {"cells": cells, "player": position.player, "winner": position.winner + 1}


def board_game(rows: int = 5, columns: int = 5, pawn_rows: int = 2) -> Breakthrough:
    """Makes breakthrough; the default is the paper's board. OpenSpiel has one row of pawns below 6 rows, else two.

    Args:
      rows: 2 or more, and at least twice `pawn_rows`.
      columns: 2 to 26.
      pawn_rows: 1 or 2.

    Raises:
      ValueError: an argument outside its range.
    """
    integer("pawn_rows", pawn_rows, 1, 2)
    integer("rows", rows, 2 * pawn_rows)  # two sides
    integer("columns", columns, 2, 26)  # letters
    rules, text = _Rules(rows, columns, pawn_rows), BreakthroughText(rows, columns, pawn_rows)

    def parse(board_text: str, player: str) -> Position:
        cells, mover, winner = text.read(board_text, player)
        return rules.position(cells, mover, winner)

    return Breakthrough(
        name="breakthrough",
        players=PLAYERS,
        actions=text.moves(),
        # Every move brings one pawn one row ahead, and none stands on its far row before the last move.
        max_moves=2 * columns * sum(rows - 2 - i for i in range(pawn_rows)) + 1,
        init=rules.init,
        legal_action_mask=rules.legal_action_mask,
        step=rules.step,
        current_player=lambda position: position.player,
        is_terminal=lambda position: position.winner >= 0,
        returns=lambda position: jnp.where(position.winner < 0, 0, 1 - 2 * position.winner).astype(jnp.float32),
        rules=text.rules(),
        board=text.board(),
        fields=rules.fields,
        parse=parse,
        max_legal=3 * pawn_rows * columns,
        num_legal=rules.num_legal,
        nth_legal=rules.nth_legal,
    )


def _choose(condition: jax.Array, yes: Words, no: Words) -> Words:
    """Selects one of two masks by a bool []."""
    return tuple(jnp.where(condition, y, n) for y, n in zip(yes, no))


def _sides(position: Position) -> tuple[Words, Words]:
    """Returns (the pawns of the player to move, the other's)."""
    first = position.player == 0
    return _choose(first, position.black, position.white), _choose(first, position.white, position.black)


def _bit(like: Words, cell: jax.Array) -> Words:
    """Makes the mask of one cell, int32 []."""
    bit = jnp.uint32(1) << (cell % _WORD).astype(jnp.uint32)
    return tuple(jnp.where(cell // _WORD == i, bit, np.uint32(0)) for i in range(len(like)))


def _has(mask: Words, cell: jax.Array) -> jax.Array:
    """Tests whether a cell is in the mask: 1 or 0, int32 []."""
    return sum(((m & b) != 0).astype(jnp.int32) for m, b in zip(mask, _bit(mask, cell)))


def _shift(mask: Words, by: int) -> Words:
    """Moves every bit from cell i to cell i + by; |by| < 32. What leaves the words is lost."""
    zero = np.uint32(0)
    if by >= 0:
        lower = (zero, *mask[:-1])
        return tuple(w << by | (low >> (_WORD - by) if by else zero) for w, low in zip(mask, lower))
    higher = (*mask[1:], zero)
    return tuple(w >> -by | high << (_WORD + by) for w, high in zip(mask, higher))


def _nth_bit(masks: tuple[Words, ...], k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds (cell, index of the mask) of the k-th set bit, counted through the masks in order: int32 [] each."""
    words = [word for mask in masks for word in mask]
    word, index, rest, before = words[0], jnp.uint32(0), k, np.uint32(0)
    # The word that holds the k-th bit, and how many bits of it come first.
    for i in range(1, len(words)):
        before = before + jax.lax.population_count(words[i - 1])
        here = k >= before
        word, index = jnp.where(here, words[i], word), jnp.where(here, np.uint32(i), index)
        rest = jnp.where(here, k - before, rest)
    place = jnp.uint32(0)
    # Within its word the bit is found by halving: it lies in the upper half if the lower one has too few bits.
    for width in (16, 8, 4, 2, 1):
        low = word & np.uint32(2**width - 1)
        skipped = jax.lax.population_count(low)
        skip = rest >= skipped
        word, rest = jnp.where(skip, word >> width, low), jnp.where(skip, rest - skipped, rest)
        place = place + jnp.where(skip, np.uint32(width), np.uint32(0))
    per_mask = np.uint32(len(masks[0]))
    return (index % per_mask * _WORD + place).astype(jnp.int32), (index // per_mask).astype(jnp.int32)
