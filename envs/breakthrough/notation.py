"""The text of breakthrough: squares, moves, the board, the rules; and the reader of boards."""

from __future__ import annotations

import dataclasses
import string

import numpy as np

from nlrl_jax.text.template import Choice, Literal, Template

PLAYERS = ("black", "white")
SYMBOLS = (".", "b", "w")


@dataclasses.dataclass(frozen=True)
class BreakthroughText:
    """The text of one size of board. Cells are numbered row by row from the top left; "a1" is the bottom left."""

    rows: int
    columns: int
    pawn_rows: int

    @property
    def letters(self) -> str:
        return string.ascii_lowercase[: self.columns]

    @property
    def pawns(self) -> int:
        """The number of each side's pawns at the start."""
        return self.pawn_rows * self.columns

    def square(self, cell: int) -> str:
        return f"{self.letters[cell % self.columns]}{self.rows - cell // self.columns}"

    def moves(self) -> tuple[str, ...]:
        """Writes OpenSpiel's word for every action id, e.g. "a5a4" or "a5b4*"; "" for ids that no position allows."""
        words = []
        for action in range(self.rows * self.columns * 12):
            cell, direction, capture = action // 12, action // 2 % 6, action % 2
            row = cell // self.columns + (1 if direction < 3 else -1)
            column = cell % self.columns + direction % 3 - 1
            possible = 0 <= row < self.rows and 0 <= column < self.columns and not (capture and direction % 3 == 1)
            target = row * self.columns + column
            words.append(self.square(cell) + self.square(target) + "*" * capture if possible else "")
        return tuple(words)

    def board(self) -> Template:
        """Draws the board as OpenSpiel prints it, without the last newline. Reads the field "cells"."""
        width = len(str(self.rows))
        parts = []
        for row in range(self.rows):
            parts.append(Literal(f"{self.rows - row:>{width}}"))
            parts += [Choice("cells", SYMBOLS, row * self.columns + column) for column in range(self.columns)]
            parts.append(Literal("\n"))
        return Template((*parts, Literal(" " * width + self.letters)))

    def rules(self) -> str:
        home = "row" if self.pawn_rows == 1 else "two rows"
        return (
            f"Breakthrough is played on a board with {self.columns} columns (a to {self.letters[-1]}) and {self.rows} "
            f"rows (1 to {self.rows}, counted from the bottom). Black (b) starts with {self.pawns} pawns on the top "
            f"{home} and moves down; White (w) starts with {self.pawns} pawns on the bottom {home} and moves up. Black "
            "moves first, then the players take turns. On each turn, a player moves one pawn one row forward: straight "
            "or diagonally onto an empty square, or diagonally onto an enemy pawn, which is captured. A pawn cannot "
            "capture straight ahead. A player wins by getting a pawn to the opposite end of the board or by capturing "
            "all of the opponent's pawns. A move is written as its start square followed by its end square, with a * "
            "at the end if it captures a pawn."
        )

    def read(self, text: str, player: str) -> tuple[np.ndarray, int, int]:
        """Reads a board: (cells, indices into `SYMBOLS`; player; winner or -1).

        Labels and blanks are optional, capitals and finished games are fine.

        Raises:
          ValueError: a position that cannot occur.
        """
        names = {name: i for i, full in enumerate(PLAYERS) for name in (full, full[0])}
        if player.strip().lower() not in names:
            raise ValueError(f"the player to move is {player!r}; it is black or white")
        mover = names[player.strip().lower()]
        cells = np.array([SYMBOLS.index(symbol) for row in self._rows_of(text) for symbol in row], np.int32)
        return cells, mover, self._winner(cells.reshape(self.rows, self.columns), mover)

    def _rows_of(self, text: str) -> list[str]:
        """Splits a drawn board into rows of characters, without labels and blanks."""
        lines = ["".join(line.split()).lower() for line in text.splitlines()]
        lines = [line for line in lines if line and line != self.letters]
        if len(lines) != self.rows:
            raise ValueError(f"the board has {len(lines)} rows; it should have {self.rows}:\n{text}")
        rows = []
        for label, line in zip(range(self.rows, 0, -1), lines):
            row = line.lstrip(string.digits)
            if line != row and line != f"{label}{row}":
                raise ValueError(f"row {line!r} should be labelled {label}")
            if unknown := set(row) - set(SYMBOLS):
                raise ValueError(f"row {line!r} holds {', '.join(sorted(unknown))}; a square is one of {SYMBOLS}")
            if len(row) != self.columns:
                raise ValueError(f"row {line!r} has {len(row)} squares; it should have {self.columns}")
            rows.append(row)
        return rows

    def _winner(self, board: np.ndarray, mover: int) -> int:
        """Finds the winner of a board [rows, columns] with that player to move: -1 none, 0 or 1."""
        sides = (board == 1, (board == 2)[::-1])  # either one's pawns, its home row first
        counts = [int(side.sum()) for side in sides]
        arrived = [int(side[-1].sum()) for side in sides]
        for name, count, far in zip(PLAYERS, counts, arrived):
            if count > self.pawns:
                raise ValueError(f"{name} has {count} pawns; it starts with {self.pawns} and gets no more")
            if far > 1:
                raise ValueError(f"{name} has {far} pawns on its far row; the game ends with the first")
        if sum(counts) == 0:
            raise ValueError("neither side has pawns; the last pawn taken ends the game")
        won = [bool(arrived[0]) or counts[1] == 0, bool(arrived[1]) or counts[0] == 0]
        if all(won):
            raise ValueError("both sides have won; the first win ends the game")
        if won[mover]:
            raise ValueError(f"{PLAYERS[mover]} has won, so it made the last move and cannot be the one to move")
        self._check_moves(sides, counts, mover)
        return won.index(True) if any(won) else -1

    def _check_moves(self, sides: tuple[np.ndarray, np.ndarray], counts: list[int], mover: int) -> None:
        """Raises ValueError where no numbers of moves lead here: the rows bound them, and taking a pawn is a move.

        A captured pawn may have stood on any row but its far one.
        """
        start = self.columns * sum(range(self.pawn_rows))
        ranges = []
        for side, count, name, enemies in zip(sides, counts, PLAYERS, reversed(counts)):
            lost, captures = self.pawns - count, self.pawns - enemies
            moves = int(side.sum(1) @ np.arange(self.rows)) - start
            lower, upper = max(moves, captures), moves + lost * (self.rows - 2)
            if lower > upper:
                raise ValueError(f"{name} has made {upper} moves at most, too few to have taken {captures} pawns")
            ranges.append((lower, upper))
        black, white = ranges
        if max(black[0], white[0] + mover) > min(black[1], white[1] + mover):
            counts = [str(lower) if lower == upper else f"{lower} to {upper}" for lower, upper in ranges]
            raise ValueError(
                f"black has made {counts[0]} moves and white {counts[1]}, so it cannot be {PLAYERS[mover]}'s turn"
            )
