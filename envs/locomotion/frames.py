"""Pictures of the robots, drawn in numpy from the bodies' places: they need no OpenGL, which few servers have."""

from __future__ import annotations

import functools
import math

import numpy as np

from nlrl_jax.envs.locomotion import xml_path

_SKY, _TILES, _OUTLINE = (218, 230, 240), ((172, 186, 172), (196, 208, 196)), 0.012
_ELEVATION = {"ant": math.radians(35)}  # the planar robots are seen from the side
_SPAN = 3.2  # metres from the left edge to the right one, at least


def frames(name: str, qpos, width: int = 320, height: int = 240) -> np.ndarray:
    """Draws a robot, the camera keeping up with it: uint8 [T, height, width, 3].

    Parallel projection along y: capsules and spheres over a chequered floor. A row of qpos that is not finite gives a
    picture without a robot.

    Args:
      name: "hopper", "walker2d" or "ant".
      qpos: [T, nq].
    """
    import mujoco

    (model, data), qpos, elevation = _load(name), np.asarray(qpos, np.float64), _ELEVATION.get(name, 0.0)
    scale = min(width / _SPAN, height / (0.75 * _SPAN))  # pixels in a metre
    # where a pixel lies, in metres right of the camera and above the floor at the robot's place
    right = (np.arange(width) + 0.5 - width / 2) / scale
    above = ((np.arange(height)[::-1] + 0.5) / scale - (0.9 if elevation else 0.35))[:, None]
    pictures = np.full((len(qpos), height, width, 3), _SKY, np.uint8)
    solid = [geom for geom in range(model.ngeom) if model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_PLANE]
    for picture, pose in zip(pictures, qpos):
        if not np.isfinite(pose).all():
            continue
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        eye = data.xpos[1].copy()
        canvas = _floor(right + eye[0], above, eye[1], elevation)
        centre = data.geom_xpos[solid] - (eye[0], eye[1], 0)
        depth = centre[:, 1] * math.cos(elevation) - centre[:, 2] * math.sin(elevation)
        for index in np.argsort(-depth):  # the farthest first
            geom = solid[index]
            axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * model.geom_size[geom, 1]
            if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
                axis = np.zeros(3)
            tips = [_project(centre[index] + side * axis, elevation) for side in (1, -1)]
            _capsule(canvas, right, above, tips, model.geom_size[geom, 0], 255 * model.geom_rgba[geom, :3])
        picture[:] = canvas
    return pictures


def side_by_side(films: list[np.ndarray]) -> np.ndarray:
    """Joins films [T, H, W, 3] of equal size, with a line between them: uint8 [T, H, W', 3]."""
    line = np.full((*films[0].shape[:2], 4, 3), 255, np.uint8)
    return np.concatenate([part for film in films for part in (film, line)][:-1], axis=2)


@functools.cache
def _load(name: str):
    """Loads (MjModel, MjData) of a robot."""
    import mujoco

    model = mujoco.MjModel.from_xml_path(str(xml_path(name)))
    return model, mujoco.MjData(model)


def _project(point: np.ndarray, elevation: float) -> np.ndarray:
    """Projects a place [3] relative to the camera to (right, above), metres on the picture."""
    return np.array([point[0], point[2] * math.cos(elevation) + point[1] * math.sin(elevation)])


def _floor(x: np.ndarray, above: np.ndarray, eye_y: float, elevation: float) -> np.ndarray:
    """Draws sky and a floor of half-metre tiles, which show that the robot moves: [height, width, 3]."""
    y = above / math.sin(elevation) + eye_y if elevation else np.zeros_like(above)
    odd = (np.floor(2 * x)[None] + np.floor(2 * y)) % 2 == 1
    ground = np.where(odd[..., None], *(np.array(tile, float) for tile in _TILES))
    return ground if elevation else np.where((above > 0)[..., None], np.array(_SKY, float), ground)


def _capsule(canvas, right, above, tips, radius: float, colour: np.ndarray) -> None:
    """Paints all points within `radius` of a segment, rounder in the middle, with a dark outline.

    Args:
      canvas: float [H, W, 3], painted on.
      right, above: of each pixel, metres on the picture; they broadcast to [H, W].
      tips: the segment's two ends, (right, above) each.
    """
    (ax, ay), (bx, by) = tips
    dx, dy = bx - ax, by - ay
    along = ((right - ax) * dx + (above - ay) * dy) / max(dx * dx + dy * dy, 1e-12)
    along = np.clip(along, 0, 1)
    distance = np.hypot(right - ax - along * dx, above - ay - along * dy)
    light = 0.55 + 0.45 * np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, 1))
    inside, edge = distance < radius, distance < radius + _OUTLINE
    canvas[edge] = (40, 40, 48)
    canvas[inside] = (light[..., None] * colour)[inside]
