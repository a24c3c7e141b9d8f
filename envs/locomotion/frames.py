"""Pictures of the robots: MuJoCo's renderer where the machine has OpenGL, else a drawing of the bodies in numpy.

The renderer runs in a process of its own (this file as a script), as OpenGL has to be chosen before MuJoCo is first
imported and a broken driver may end the process that asks.
"""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys

import numpy as np

RENDERERS = ("auto", "opengl", "drawing")
_SKY, _TILES, _OUTLINE = (218, 230, 240), ((172, 186, 172), (196, 208, 196)), 0.012
_ELEVATION = {"ant": math.radians(35)}  # the planar robots are seen from the side
_SPAN = 3.2  # metres from the left edge to the right one, at least


def frames(name: str, qpos, width: int = 320, height: int = 240, renderer: str = "auto") -> np.ndarray:
    """Pictures of a robot, the camera keeping up with it: uint8 [T, height, width, 3].

    A row of qpos that is not finite gives a picture without a robot.

    Args:
      name: "hopper", "walker2d" or "ant".
      qpos: [T, nq].
      renderer: "opengl" is MuJoCo's (EGL or OSMesa), "drawing" the plain one; "auto" tries the first.

    Raises:
      ValueError: qpos of another robot, or a renderer that is neither.
      RuntimeError: renderer="opengl" and the machine has no OpenGL.
    """
    from envs.locomotion import xml_path

    if renderer not in RENDERERS:
        raise ValueError(f"renderer is {renderer!r}; choose one of {', '.join(RENDERERS)}")
    path, qpos = str(xml_path(name)), np.asarray(qpos, np.float64)
    model, _ = _load(path)
    if qpos.ndim != 2 or qpos.shape[1] != model.nq:
        raise ValueError(f"qpos has shape {qpos.shape}; {name} needs [T, {model.nq}]")
    alive = np.isfinite(qpos).all(1)
    pictures = np.full((len(qpos), height, width, 3), _SKY, np.uint8)
    drawn = None
    if alive.any() and renderer != "drawing":
        drawn, complaint = _opengl(path, qpos[alive], width, height)
        if drawn is None and renderer == "opengl":
            raise RuntimeError(f"MuJoCo's renderer found no OpenGL: {complaint}")
    if drawn is None:
        drawn = _draw(path, qpos[alive], width, height, _ELEVATION.get(name, 0.0))
    pictures[alive] = drawn
    return pictures


def beside(films: list[np.ndarray]) -> np.ndarray:
    """Films [T, H, W, 3] of equal size, side by side with a line between them: uint8 [T, H, W', 3]."""
    line = np.full((*films[0].shape[:2], 4, 3), 255, np.uint8)
    return np.concatenate([part for film in films for part in (film, line)][:-1], axis=2)


def _load(path: str):
    import mujoco

    model = mujoco.MjModel.from_xml_path(path)
    return model, mujoco.MjData(model)


def _opengl(path: str, qpos: np.ndarray, width: int, height: int) -> tuple[np.ndarray | None, str]:
    """(pictures, "") of MuJoCo's renderer, or (None, why not)."""
    sent, complaint = io.BytesIO(), ""
    np.save(sent, qpos)
    for backend in ("egl", "osmesa"):
        surroundings = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
        command = [sys.executable, __file__, path, str(width), str(height)]
        try:
            done = subprocess.run(
                command, input=sent.getvalue(), capture_output=True, env=surroundings, timeout=60 + len(qpos)
            )
            if done.returncode == 0:
                return np.load(io.BytesIO(done.stdout)), ""
            complaint = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired:
            complaint = "no answer in time"
    return None, complaint


def _render(path: str, width: int, height: int) -> None:
    """Standard input: qpos; standard output: pictures (both .npy). Runs in its own process."""
    import mujoco

    qpos = np.load(io.BytesIO(sys.stdin.buffer.read()))
    model, data = _load(path)
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    pictures = np.empty((len(qpos), height, width, 3), np.uint8)
    with mujoco.Renderer(model, height, width) as renderer:
        for picture, pose in zip(pictures, qpos):
            data.qpos[:] = pose
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera="track")
            picture[:] = renderer.render()
    answer = io.BytesIO()
    np.save(answer, pictures)
    sys.stdout.buffer.write(answer.getvalue())


def _draw(path: str, qpos: np.ndarray, width: int, height: int, elevation: float) -> np.ndarray:
    """Parallel projection along y, from `elevation` radians above: capsules and spheres over a chequered floor."""
    import mujoco

    model, data = _load(path)
    scale = min(width / _SPAN, height / (0.75 * _SPAN))  # pixels in a metre
    # where a pixel lies, in metres right of the camera and above the floor at the robot's place
    right = (np.arange(width) + 0.5 - width / 2) / scale
    above = ((np.arange(height)[::-1] + 0.5) / scale - (0.9 if elevation else 0.35))[:, None]
    pictures = np.empty((len(qpos), height, width, 3), np.uint8)
    solid = [geom for geom in range(model.ngeom) if model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_PLANE]
    for picture, pose in zip(pictures, qpos):
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
            ends = [_project(centre[index] + side * axis, elevation) for side in (1, -1)]
            _capsule(canvas, right, above, ends, model.geom_size[geom, 0], 255 * model.geom_rgba[geom, :3])
        picture[:] = canvas
    return pictures


def _project(point: np.ndarray, elevation: float) -> np.ndarray:
    """Place [3] relative to the camera -> (right, above), metres on the picture."""
    return np.array([point[0], point[2] * math.cos(elevation) + point[1] * math.sin(elevation)])


def _floor(x: np.ndarray, above: np.ndarray, eye_y: float, elevation: float) -> np.ndarray:
    """Sky and a floor of half-metre tiles, which show that the robot moves: [height, width, 3]."""
    y = above / math.sin(elevation) + eye_y if elevation else np.zeros_like(above)
    odd = (np.floor(2 * x)[None] + np.floor(2 * y)) % 2 == 1
    ground = np.where(odd[..., None], *(np.array(tile, float) for tile in _TILES))
    return ground if elevation else np.where((above > 0)[..., None], np.array(_SKY, float), ground)


def _capsule(canvas, right, above, ends, radius: float, colour: np.ndarray) -> None:
    """Paints all points within `radius` of a segment, rounder in the middle, with a dark outline."""
    (ax, ay), (bx, by) = ends
    dx, dy = bx - ax, by - ay
    along = ((right - ax) * dx + (above - ay) * dy) / max(dx * dx + dy * dy, 1e-12)
    along = np.clip(along, 0, 1)
    distance = np.hypot(right - ax - along * dx, above - ay - along * dy)
    light = 0.55 + 0.45 * np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, 1))
    inside, edge = distance < radius, distance < radius + _OUTLINE
    canvas[edge] = (40, 40, 48)
    canvas[inside] = (light[..., None] * colour)[inside]


if __name__ == "__main__":
    _render(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
