"""Locomotion's physics on MuJoCo's C simulator: one host call steps a whole batch on a few threads.

The simulator computes in float64 and is handed the state in full (positions, velocities, warm start), so a row's
result depends on nothing but that row: not on its place in the batch, nor on the number of threads.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import math
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

_START = 1.0  # the time every row starts at: a simulator that resets itself on bad numbers falls back to 0


def stepper(model: mujoco.MjModel, frame_skip: int, contact_forces: bool, threads: int | None = None) -> Callable:
    """Makes a control step of `frame_skip` sub-steps.

    (qpos, qvel, warmstart, ctrl) -> (qpos, qvel, warmstart, x, cfrc_ext).

    The same function as `physics_mjx.stepper`; see there for the shapes. Under `vmap` one host call gets all rows.
    Where MuJoCo finds the numbers bad and resets itself, the row comes back as NaN.

    Args:
      threads: how many step a batch; by default one for each core that this process may use.
    """
    threads = threads or len(os.sched_getaffinity(0))
    host = _Host(model, frame_skip, contact_forces, threads)
    bodies = model.nbody - 1 if contact_forces else 0

    def step(qpos, qvel, warmstart, ctrl):
        dtype = qpos.dtype
        shapes = ((model.nq,), (model.nv,), (model.nv,), (), (bodies, 6))
        out = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
        # as integers, since a callback's thread knows nothing of `jax.enable_x64` and would round float64
        bits = [jax.lax.bitcast_convert_type(x.astype(dtype), jnp.uint32) for x in (qpos, qvel, warmstart, ctrl)]
        return jax.pure_callback(functools.partial(host, dtype), out, *bits, vmap_method="broadcast_all")

    return step


class _Simulator:
    """One MjData and views of its arrays (taking a view costs as much as a fifth of a sub-step)."""

    def __init__(self, model: mujoco.MjModel):
        self.data = mujoco.MjData(model)
        self.inputs = (self.data.qpos, self.data.qvel, self.data.qacc_warmstart, self.data.ctrl)
        self.torso, self.forces = self.data.xpos[1], self.data.cfrc_ext[1:]
        self.quiet()

    def quiet(self):
        """MuJoCo writes a warning (and a file MUJOCO_LOG.TXT) the first time only; we count explosions ourselves."""
        for warning in self.data.warning:
            warning.number = 1


class _Host:
    """Steps batches on the host. A simulator serves one thread at a time; threads start with the first batch."""

    def __init__(self, model: mujoco.MjModel, frame_skip: int, contact_forces: bool, threads: int):
        self.model, self.frame_skip, self.contact_forces, self.threads = model, frame_skip, contact_forces, threads
        self.idle: collections.deque[_Simulator] = collections.deque()

    @functools.cached_property
    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(self.threads - 1, "mujoco")

    def __call__(self, dtype: np.dtype, *bits: jax.Array) -> tuple[np.ndarray, ...]:
        """The bits of qpos, qvel, warmstart and ctrl, each uint32 [..., n or n and 2] -> what `step` returns."""
        words = dtype.itemsize // 4
        inputs = [np.asarray(x) for x in bits]
        lead = inputs[0].shape[: inputs[0].ndim - words]
        rows = math.prod(lead)
        inputs = [np.ascontiguousarray(x).reshape(rows, -1).view(dtype).astype(np.float64) for x in inputs]
        bodies = self.model.nbody - 1 if self.contact_forces else 0
        out = [np.empty_like(x) for x in inputs[:3]] + [np.empty(rows), np.empty((rows, bodies, 6))]
        # Equal shares of the rows for all threads; this one steps the first.
        cuts = np.linspace(0, rows, min(self.threads, max(rows, 1)) + 1).astype(int)
        first, *shares = [(inputs, out, range(*cut)) for cut in zip(cuts[:-1], cuts[1:])]
        waiting = [self.pool.submit(self.advance, *share) for share in shares]
        self.advance(*first)
        for share in waiting:
            share.result()
        return tuple(x.reshape(lead + x.shape[1:]).astype(dtype, copy=False) for x in out)

    def advance(self, inputs: list[np.ndarray], out: list[np.ndarray], rows: range):
        """Steps some rows one after the other."""
        try:
            simulator = self.idle.pop()
        except IndexError:
            simulator = _Simulator(self.model)
        data = simulator.data
        for row in rows:
            for view, values in zip(simulator.inputs, inputs):
                view[:] = values[row]
            data.time = _START
            mujoco.mj_step(self.model, data, nstep=self.frame_skip)  # lets other threads run meanwhile
            for values, view in zip(out, simulator.inputs[:3]):
                values[row] = view
            out[3][row] = simulator.torso[0]
            if self.contact_forces:
                mujoco.mj_rnePostConstraint(self.model, data)
                out[4][row] = simulator.forces
            if not data.time > _START:
                for values in out:
                    values[row] = np.nan
                simulator.quiet()
        self.idle.append(simulator)
