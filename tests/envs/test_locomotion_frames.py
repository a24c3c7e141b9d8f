"""Pictures of the robots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco")

from nlrl_jax.envs.locomotion import env as locomotion  # noqa: E402
from nlrl_jax.envs.locomotion import frames as locomotion_frames  # noqa: E402


def rest(name, rows=1):
    model = mujoco.MjModel.from_xml_path(str(locomotion.xml_path(name)))
    return np.tile(model.qpos0, (rows, 1))


def body(picture):
    """Where the robot is: its colours are warm (more red than blue), sky and floor are not."""
    return picture[..., 0].astype(int) > picture[..., 2].astype(int) + 20


@pytest.mark.parametrize("name", locomotion.ROBOTS)
def test_a_drawing_shows_the_robot_where_it_is(name):
    pictures = locomotion_frames.frames(name, rest(name), 160, 120)
    assert pictures.shape == (1, 120, 160, 3) and pictures.dtype == np.uint8
    rows, columns = np.nonzero(body(pictures[0]))
    assert 150 < len(rows) < 4000
    assert abs(columns.mean() - 80) < 12
    tall = np.ptp(rows) / np.ptp(columns)
    assert tall < 1 if name == "ant" else tall > 1.5


def test_a_drawn_hopper_stands_on_the_floor_and_leans_as_its_pitch_says():
    upright, forward, backward = (rest("hopper")[0].copy() for _ in range(3))
    forward[2], backward[2] = 0.6, -0.6
    pictures = locomotion_frames.frames("hopper", [upright, forward, backward], 160, 120)
    scale = min(160 / 3.2, 120 / 2.4)
    rows, _ = np.nonzero(body(pictures[0]))
    assert abs((120 - rows.max()) / scale - 0.35) < 0.08  # the floor lies 0.35 m above the lower edge
    assert abs(np.ptp(rows) / scale - 1.45) < 0.1  # the model is 1.45 m tall
    heads, feet = (
        [np.nonzero(body(picture[part]).any(0))[0].mean() for picture in pictures]
        for part in (slice(38), slice(70, None))
    )
    assert heads[1] > heads[0] + 2 > heads[2] + 4  # a positive pitch turns about y, the head towards +x, to the right
    assert feet[1] < feet[0] - 10 < feet[2] - 20


def test_the_floor_passes_by_as_the_robot_moves():
    qpos = rest("walker2d", 3)
    qpos[:, 0] = 0, 0.25, 1.0  # tiles are half a metre wide: after a metre the picture is the same
    first, quarter, metre = locomotion_frames.frames("walker2d", qpos, 96, 72)
    assert (first != quarter).any()
    np.testing.assert_array_equal(first, metre)


def test_an_exploded_state_gives_a_picture_without_a_robot():
    qpos = rest("ant", 2)
    qpos[1, 3] = np.nan
    pictures = locomotion_frames.frames("ant", qpos, 64, 48)
    assert body(pictures[0]).any() and not body(pictures[1]).any()


def test_what_ifs_show_the_pose_now_and_after_either_torque(monkeypatch):
    drawn = []
    monkeypatch.setattr(locomotion, "frames", lambda name, qpos: drawn.append(qpos) or np.zeros((len(qpos), 3, 5, 3)))
    env = locomotion.make_env("hopper", "v4", "c")
    _, state = env.state_of(env.model.qpos0, np.zeros(env.model.nv))
    states = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 2), state)
    one, other = (0.5, -0.5, 1.0), (-1.0, 0.0, 0.2)
    picture = locomotion.what_if_frames(env, "hopper", states, [one, one], [other, None], hold=3)
    assert picture.shape == (2, 3, 3 * 5 + 2 * 4, 3)
    for torques, after in ((one, drawn[1][0]), (other, drawn[2][0])):
        now = state
        for _ in range(3):
            _, now, *_ = env.step_env(None, now, jnp.asarray(torques), env.default_params)
        np.testing.assert_allclose(after, now.qpos, atol=1e-6)
    assert np.isnan(drawn[2][1]).all()
    np.testing.assert_array_equal(drawn[0], states.qpos)
