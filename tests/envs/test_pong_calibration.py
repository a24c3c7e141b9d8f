"""ALE's Pong read by colour: what is read, drawn by our own `draw`, is ALE's frame again."""

import numpy as np
import pytest

from envs.pong import env as pong

pytest.importorskip("ale_py")


def test_what_is_read_from_ales_frame_draws_the_same_frame():
    calibration = pytest.importorskip("benchmarks.pong_calibration")
    rng = np.random.default_rng(0)
    game, same = calibration.Ale(1, 21, rng), 0
    for _ in range(120):
        game.step(rng.integers(0, 3, 1))
        screen = game.games[0].getScreenRGB()
        racket, opponent, row, column = calibration.read_frame(screen)
        inside = 0 <= racket <= pong.TOP and 0 <= opponent <= pong.TOP and 0 <= row <= pong.LOWEST
        if inside and column not in (8, 9, 70, 71):  # over a racket, the ball hides a part of it
            cells = screen[35:195:2, ::2]
            something = (cells != cells[40, 40 if column != 40 else 42]).any(-1)
            drawn = np.asarray(pong.draw(int(racket), int(opponent), np.array([row, column]))) > 0
            np.testing.assert_array_equal(something, drawn)
            same += 1
    assert same > 20
