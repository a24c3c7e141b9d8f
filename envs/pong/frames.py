"""Pong's geometry and pictures: frames, and those of a case with the ball's way and the row where it will arrive."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 80
RACKET = 8  # rows of a racket
OURS, THEIRS = 70, 9  # the column of each racket that faces the ball
LOWEST = SIZE - 2  # the ball's upper row is 0..78
_SHADES = (0.5, 0.35, 1.0)  # of our racket, the opponent's and the ball, in pixels
SCALE = 3  # pixels of a cell
_WAY, _ARRIVAL = (37, 99, 201), (194, 65, 12)


def draw(racket: jax.Array, opponent: jax.Array, ball: jax.Array) -> jax.Array:
    """Draws a frame: float32 [80, 80], rows down, 0 where nothing is."""
    row, column = jnp.arange(SIZE)[:, None], jnp.arange(SIZE)[None, :]
    our_racket = _within(row, racket, RACKET) & _within(column, OURS, 2)
    their_racket = _within(row, opponent, RACKET) & _within(column, THEIRS - 1, 2)
    is_ball = _within(row, ball[0], 2) & (column == ball[1])
    frame = jnp.where(our_racket, _SHADES[0], jnp.where(their_racket, _SHADES[1], 0.0))
    return jnp.where(is_ball, _SHADES[2], frame)


def _within(cells: jax.Array, start: jax.Array, length: int) -> jax.Array:
    """Whether cells [...] are among the `length` from `start` on: bool [...]."""
    return (cells >= start) & (cells < start + length)


def frames(states: Any) -> np.ndarray:
    """Draws states [T, ...], three pixels per cell: uint8 [T, 240, 240, 3]."""
    shades = np.asarray(jax.vmap(draw)(states.racket, states.opponent, states.ball))
    grey = (255 * (1 - shades)).astype(np.uint8)
    return np.repeat(grey[..., None].repeat(3, -1).repeat(SCALE, 1), SCALE, 2)


def case_frames(states: Any, actions: Any = None, suggested: Any = None) -> np.ndarray:
    """`frames`; where the ball comes, its way as blue dots, and orange where it will arrive beside our racket's column.

    Args:
      actions, suggested: not used; the ball's way does not depend on them.
    """
    del actions, suggested
    pictures = frames(states)
    for picture, ball, velocity in zip(pictures, np.asarray(states.ball), np.asarray(states.velocity)):
        way = path(ball, velocity)
        for row, column in way:
            _dot(picture, row + 1, column, _WAY)
        if way:
            rows = slice(SCALE * way[-1][0], SCALE * (way[-1][0] + 2))
            picture[rows, SCALE * (OURS + 3) : SCALE * (OURS + 8)] = _ARRIVAL
    return pictures


def path(ball: Any, velocity: Any) -> list[tuple[int, int]]:
    """Predicts the ball's (upper row, column) after every step to our racket's column; empty where it does not come."""
    (row, column), (down, across) = map(int, ball), map(int, velocity)
    way: list[tuple[int, int]] = []
    while across > 0 and column < OURS:
        row, column = row + down, min(column + across, OURS)
        if not 0 <= row <= LOWEST:
            row, down = -row if row < 0 else 2 * LOWEST - row, -down
        way.append((row, column))
    return way


def _dot(picture: np.ndarray, row: int, column: int, color: tuple[int, int, int]) -> None:
    """Paints a pixel's square between the ball's two rows."""
    y, x = SCALE * row, SCALE * column + SCALE // 2
    picture[max(y - 1, 0) : y + 1, x : x + 2] = color
