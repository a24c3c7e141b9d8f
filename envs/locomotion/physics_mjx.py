"""Locomotion's physics on MJX: MuJoCo's equations as one JAX program, for accelerators.

MJX 3.17 departs from the C simulator in one place that matters here. A capsule that touches a plane gets a contact
frame along its axis; within 30 degrees of the plane's normal MJX takes a fixed tangent instead, the C simulator
still the axis. As friction is pyramidal, the force depends on the frame: Ant is off by 0.1 after ten steps.
`_plane_capsule` is the C simulator's rule; it stands in for MJX's only while one of our steps is traced.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx
from mujoco.mjx._src import collision_driver, collision_primitive, forward, scan

_PAIR = (mjx.GeomType.PLANE, mjx.GeomType.CAPSULE)
_TRACING = threading.RLock()  # the table of colliders is global: one thread at a time
_STAGES = np.array([(0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1, 1 / 6)])  # Runge-Kutta: how far to go, what it counts


def stepper(model: mujoco.MjModel, frame_skip: int, contact_forces: bool) -> Callable:
    """Makes a control step of `frame_skip` sub-steps.

    (qpos, qvel, warmstart, ctrl) -> (qpos, qvel, warmstart, x, cfrc_ext).

    One robot's state; `vmap` it for a batch. qpos [nq], qvel [nv], warmstart [nv] (`qacc_warmstart`, from which the
    solver starts), ctrl [nu] (clipped to the motors' range); x [] is the first body's x as the simulator last saw it,
    in the fourth stage of the last sub-step; cfrc_ext [nbody - 1, 6] are the outer forces on every body but the
    world, [0, 6] unless `contact_forces`. All in the dtype that JAX had for floats when the stepper was made.

    Raises:
      RuntimeError: this MJX lacks something of 3.17 that we build on.
    """
    _parts()
    model_x = _uncommitted(mjx.put_model(model, impl="jax"))
    blank = _uncommitted(mjx.make_data(model, impl="jax"))

    def step(qpos, qvel, warmstart, ctrl):
        if qpos.dtype != blank.qpos.dtype:
            raise ValueError(f"the state is {qpos.dtype}, but this game was made for {blank.qpos.dtype}: make it anew")
        data = blank.replace(qpos=qpos, qvel=qvel, qacc_warmstart=warmstart, ctrl=ctrl.astype(qpos.dtype))
        with c_collider():
            data, _ = jax.lax.scan(lambda data, _: (_substep(model_x, data), None), data, None, frame_skip)
        forces = jnp.zeros((0, 6), qpos.dtype)
        if contact_forces:
            forces = mjx.rne_postconstraint(model_x, data)._impl.cfrc_ext[1:]
        return data.qpos, data.qvel, data.qacc_warmstart, data.xpos[1, 0], forces

    return step


def _substep(model, start):
    """Integrates a sub-step by Runge-Kutta as `mjx.step` does for Gymnasium's models.

    The forward dynamics are written once, not four times: this compiles in 15 s, not in 35.
    """
    timestep = model.opt.timestep

    def stage(carry, tableau):
        data, slope, mean = carry
        reach, weight = tableau
        qpos = _integrate(model, start.qpos, reach * slope[0], timestep)
        data = data.replace(qpos=qpos, qvel=start.qvel + reach * slope[1] * timestep)
        data = jax.tree.map(lambda new, old: new.astype(old.dtype), mjx.forward(model, data), data)  # x64 widens ints
        slope = jnp.stack([data.qvel, data.qacc])
        return (data, slope, mean + weight * slope), None

    still = jnp.zeros((2, model.nv), start.qvel.dtype)
    (data, _, mean), _ = jax.lax.scan(stage, (start, still, still), jnp.asarray(_STAGES, still.dtype))
    qpos = _integrate(model, start.qpos, mean[0], timestep)
    return data.replace(qpos=qpos, qvel=start.qvel + mean[1] * timestep, qacc_warmstart=data.qacc)


def _integrate(model, qpos, qvel, timestep):
    """Moves qpos [nq] along qvel [nv] for a timestep; quaternions turn and stay normalised."""
    return scan.flat(
        model, lambda *args: forward._integrate_pos(*args, dt=timestep), "jqv", "q", model.jnt_type, qpos, qvel
    )


@contextlib.contextmanager
def c_collider() -> Iterator[None]:
    """Makes what is traced within collide capsules with planes as the C simulator does."""
    with _TRACING:
        original = _parts()
        collision_driver._COLLISION_FUNC[_PAIR] = _plane_capsule
        try:
            yield
        finally:
            collision_driver._COLLISION_FUNC[_PAIR] = original


def _parts() -> Callable:
    """Checks that this MJX has what we build on, and returns its collider of a plane and a capsule.

    Raises:
      RuntimeError: it is not.
    """
    original = getattr(collision_driver, "_COLLISION_FUNC", {}).get(_PAIR)
    if not (getattr(original, "ncon", None) == 2 and hasattr(forward, "_integrate_pos") and hasattr(scan, "flat")):
        raise RuntimeError(
            f"mujoco-mjx {importlib.metadata.version('mujoco-mjx')} is not built like 3.17 (the table of colliders in "
            "collision_driver, _integrate_pos in forward, flat in scan): install mujoco-mjx==3.17.0 or use physics='c'"
        )
    return original


def _plane_capsule(model, data, key, geom):
    """Computes MJX's two contacts of each pair (plane, capsule) in geom [n, 2].

    Their frames are like those of mjc_PlaneCapsule.

    The first tangent is the capsule's axis laid on the plane, however short.
    """
    distance, point, _ = collision_primitive.plane_capsule(model, data, key, geom)
    normal, axis = data.geom_xmat[geom[:, 0], :, 2], data.geom_xmat[geom[:, 1], :, 2]
    along = axis - normal * (axis * normal).sum(-1, keepdims=True)
    length = jnp.linalg.norm(along, axis=-1, keepdims=True)
    upright = length < mujoco.mjMINVAL
    tangent = jnp.where(upright, jnp.array([1.0, 0.0, 0.0], axis.dtype), along / jnp.where(upright, 1.0, length))
    frame = jnp.stack([normal, tangent, jnp.cross(normal, tangent)], axis=1)
    return distance, point, jnp.repeat(frame, 2, axis=0)


_plane_capsule.ncon = 2


def _uncommitted(tree):
    """Puts a tree on the default device without tying it there, so that programs over several devices may use it."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree)
