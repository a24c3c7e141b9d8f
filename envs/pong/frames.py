"""Pictures of Pong: the frames, and the frames of a case with the ball's way and the row in which it will arrive."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from envs.pong import env as pong

SCALE = 3  # pixels of a cell
_WAY, _ARRIVAL = (37, 99, 201), (194, 65, 12)


def frames(states: Any) -> np.ndarray:
    """Pictures of states [T, ...], three pixels per cell: uint8 [T, 240, 240, 3]."""
    shades = np.asarray(jax.vmap(pong.draw)(states.racket, states.opponent, states.ball))
    grey = (255 * (1 - shades)).astype(np.uint8)
    return np.repeat(grey[..., None].repeat(3, -1).repeat(SCALE, 1), SCALE, 2)


def case_frames(states: Any, taken: Any = None, suggested: Any = None) -> np.ndarray:
    """`frames`; where the ball comes, its way as blue dots, and orange where it will arrive beside our racket's column.

    Args:
      taken, suggested: not needed, as the ball's way does not depend on them.
    """
    del taken, suggested
    pictures = frames(states)
    for picture, ball, velocity in zip(pictures, np.asarray(states.ball), np.asarray(states.velocity)):
        way = path(ball, velocity)
        for row, column in way:
            _dot(picture, row + 1, column, _WAY)
        if way:
            rows = slice(SCALE * way[-1][0], SCALE * (way[-1][0] + 2))
            picture[rows, SCALE * (pong.OURS + 3) : SCALE * (pong.OURS + 8)] = _ARRIVAL
    return pictures


def path(ball: Any, velocity: Any) -> list[tuple[int, int]]:
    """(upper row, column) of the ball after every step to our racket's column; empty where it does not come."""
    (row, column), (down, across) = map(int, ball), map(int, velocity)
    way: list[tuple[int, int]] = []
    while across > 0 and column < pong.OURS:
        row, column = row + down, min(column + across, pong.OURS)
        if not 0 <= row <= pong.LOWEST:
            row, down = -row if row < 0 else 2 * pong.LOWEST - row, -down
        way.append((row, column))
    return way


def _dot(picture: np.ndarray, row: int, column: int, color: tuple[int, int, int]) -> None:
    """A pixel's square between the ball's two rows."""
    y, x = SCALE * row, SCALE * column + SCALE // 2
    picture[max(y - 1, 0) : y + 1, x : x + 2] = color
