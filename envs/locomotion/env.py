"""Hopper, Walker2d and Ant: Gymnasium's v4 and v5 robots as gymnax environments, over two physics.

Rewards, observations, terminations and resets are exactly Gymnasium's (its source is the specification; ULTRA does not
say which version it plays). Models are the XML files that Gymnasium ships. Physics: "mjx" is a JAX program, "c" is
MuJoCo's C simulator in a host callback; a stored state can be stepped by either.

Differences from Gymnasium:
- States are carried in the dtype JAX has for floats when the game is made. With `jax_enable_x64` ten steps agree with
  Gymnasium within 1e-11 on both physics. In float32 (the default) C, which computes in float64 anyway, stays
  within 1e-4; MJX rounds in every sub-step, and now and then a contact begins a stage later for it: over 96 states of
  all kinds positions stayed within 1e-4 but for 2 Ants, velocities (up to 35) within 1e-4 in nine of ten.
- A state that explodes ends its episode: terminated, reward 0, observation zeros, `info["exploded"]`. (In Gymnasium
  MuJoCo silently puts the robot back to the start.) The state then holds NaN, and stays exploded if stepped again.
- Reset draws its noise with JAX's generator; the distribution is Gymnasium's.

Inside `jax.shard_map` MJX takes `check_vma=False`: loops of its own mix what varies over a mesh and what does not.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs.locomotion import prompts, rule_based, xml_path
from nlrl_jax.envs.locomotion.frames import frames, side_by_side
from nlrl_jax.envs.shell import on_any_mesh
from nlrl_jax.envs.trajectory_prompts import analyst_roles
from nlrl_jax.gymnax_base import environment, spaces
from nlrl_jax.types import ControlGame

VERSIONS = ("v4", "v5")
PHYSICS = ("auto", "mjx", "c")
_HUGE = 1e10  # mjMAXVAL: MuJoCo takes larger numbers for an explosion


@dataclasses.dataclass(frozen=True)
class Robot:
    """What sets one robot apart (Gymnasium's defaults).

    Attributes:
      frame_skip: simulator sub-steps in one control step.
      control_cost: weight of the squared action.
      hidden: how many of the first positions the observation leaves out.
      velocity_limit: observed velocities are clipped to this.
      noise_scale: of resets; positions uniform in +-scale, velocities too, or normal where `normal_velocity`.
      healthy: (qpos, qvel) -> bool [].
      free: the body floats freely: its x is read from the simulator, not from qpos, and it can feel contact forces
        (v5 does, v4 as an option).
    """

    frame_skip: int
    control_cost: float
    hidden: int
    velocity_limit: float
    noise_scale: float
    healthy: Callable[[jax.Array, jax.Array], jax.Array]
    free: bool = False


def _hopper_healthy(qpos, qvel):
    limited = jnp.concatenate([qpos[2:], qvel])
    return (qpos[1] > 0.7) & (jnp.abs(qpos[2]) < 0.2) & (jnp.abs(limited) < 100).all()


def _walker2d_healthy(qpos, qvel):
    return (qpos[1] > 0.8) & (qpos[1] < 2.0) & (jnp.abs(qpos[2]) < 1.0)


def _ant_healthy(qpos, qvel):
    return (qpos[2] >= 0.2) & (qpos[2] <= 1.0)


ROBOTS = {
    "hopper": Robot(4, 1e-3, 1, 10.0, 5e-3, _hopper_healthy),
    "walker2d": Robot(4, 1e-3, 1, 10.0, 5e-3, _walker2d_healthy),
    "ant": Robot(5, 0.5, 2, math.inf, 0.1, _ant_healthy, free=True),
}
_CONTACT_COST = 5e-4  # of what the Ant feels


@struct.dataclass
class LocomotionState(environment.EnvState):
    """All that the future depends on; the simulator's other arrays are rebuilt in every step.

    time: int32 []. qpos [nq]. qvel [nv].
    warmstart: [nv], the accelerations from which the contact solver starts (`qacc_warmstart`).
    x: [], where the next forward reward is measured from. Gymnasium's Ant reads the torso's place as of the last stage
      of the last sub-step, which is not quite qpos[0].
    contact_force: [bodies, 6], outer forces clipped to +-1, where the Ant feels them; None elsewhere.
    """

    qpos: jax.Array
    qvel: jax.Array
    warmstart: jax.Array
    x: jax.Array
    contact_force: jax.Array | None


@struct.dataclass
class LocomotionParams(environment.EnvParams):
    """reset_noise_scale: how far a reset strays from the model's rest pose (metres, radians, and their rates)."""

    max_steps_in_episode: int = 1000
    reset_noise_scale: float = 5e-3


class Locomotion(environment.Environment[LocomotionState, LocomotionParams]):
    """gymnax environment of one robot; made by `make_env`.

    Observations are floats, [11] for Hopper, [17] for Walker2d, [27] or [105] for Ant v4 or v5: positions but the
    first ones, velocities, and what v5 feels. Ant v4 with contact forces has [111], as Gymnasium's with
    `use_contact_forces`: six more than v5, of the world's body, always 0. Actions are motor torques in [-1, 1]; the
    simulator clips them, the control cost counts them unclipped.
    """

    def __init__(self, robot: str, version: str, physics: str, contact_forces: bool = False):
        import mujoco

        self.robot, self.version, self.physics = ROBOTS[robot], version, physics
        self.model = mujoco.MjModel.from_xml_path(str(xml_path(robot, version)))
        self.dt = self.model.opt.timestep * self.robot.frame_skip
        self.feels = self.robot.free and (version == "v5" or contact_forces)
        self.feels_world = self.feels and version == "v4"
        self.dtype = jax.dtypes.canonicalize_dtype(float)
        self._name = f"{robot}-{version}"
        if physics == "mjx":
            from nlrl_jax.envs.locomotion.physics_mjx import stepper
        else:
            from nlrl_jax.envs.locomotion.physics_c import stepper
        self.simulate = stepper(self.model, self.robot.frame_skip, self.feels)

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> LocomotionParams:
        return LocomotionParams(reset_noise_scale=self.robot.noise_scale)

    @property
    def num_actions(self) -> int:
        return self.model.nu

    @on_any_mesh
    def reset_env(self, key: jax.Array, params: LocomotionParams) -> tuple[jax.Array, LocomotionState]:
        """Puts the robot into its rest pose, with noise around it."""
        key_q, key_v = jax.random.split(key)
        scale = jnp.asarray(params.reset_noise_scale, self.dtype)
        draw = jax.random.normal if self.robot.free else _uniform
        return self.state_of(
            self.model.qpos0 + scale * _uniform(key_q, (self.model.nq,), self.dtype),
            scale * draw(key_v, (self.model.nv,), self.dtype),
        )

    def state_of(self, qpos: jax.Array, qvel: jax.Array) -> tuple[jax.Array, LocomotionState]:
        """Puts a robot into a pose as Gymnasium's reset does: (observation, state) from qpos [nq], qvel [nv]."""
        qpos, qvel = jnp.array(qpos, self.dtype), jnp.array(qvel, self.dtype)  # copies: MuJoCo reuses its arrays
        state = LocomotionState(
            time=jnp.int32(0),
            qpos=qpos,
            qvel=qvel,
            warmstart=jnp.zeros_like(qvel),
            x=qpos[0],
            contact_force=jnp.zeros((self.model.nbody - 1, 6), self.dtype) if self.feels else None,
        )
        return self.observe(None, state, None, None), state

    @on_any_mesh
    def step_env(self, key, state, action, params):
        """(obs, state, reward, terminated, info). An action out of range is clipped, but costs its unclipped size.

        info: reward_forward, reward_ctrl, reward_healthy, reward_contact (where it feels), which sum to the reward;
        x_position; exploded bool.
        """
        action = jnp.asarray(action, self.dtype)
        if action.shape != (self.model.nu,):
            raise ValueError(f"the action has shape {action.shape}; {self.name} takes ({self.model.nu},)")
        # 1. The simulator gets the state, or the rest pose in place of one that has exploded.
        inputs = (state.qpos, state.qvel, state.warmstart, action)
        sound = _finite(*inputs)
        rest = (jnp.asarray(self.model.qpos0, self.dtype), *map(jnp.zeros_like, inputs[1:]))
        inputs = tuple(jnp.where(sound, x, instead) for x, instead in zip(inputs, rest))
        qpos, qvel, warmstart, torso_x, force = self.simulate(*inputs)
        exploded = ~(sound & _finite(qpos, qvel, warmstart))

        # 2. Gymnasium's reward, in its parts.
        x = torso_x if self.robot.free else qpos[0]
        force = jnp.clip(force, -1, 1)
        healthy = self.robot.healthy(qpos, qvel)
        rewards = {
            "reward_forward": (x - state.x) / self.dt,
            "reward_ctrl": -self.robot.control_cost * jnp.square(action).sum(),
            "reward_healthy": (healthy | (self.version == "v4")).astype(self.dtype),
            "reward_contact": -_CONTACT_COST * jnp.square(force).sum(),
        }
        # 3. What has exploded earns nothing and reports zeros.
        place = x if self.version == "v4" else qpos[0]
        info = {name: jnp.where(exploded, 0, value) for name, value in {**rewards, "x_position": place}.items()}
        reward = sum(info[name] for name in rewards)
        # An exploded state holds NaN, so that it stays exploded when it is stepped again.
        arrays = [jnp.where(exploded, jnp.nan, array) for array in (qpos, qvel, warmstart, x, force)]
        state = LocomotionState(state.time + 1, *arrays[:4], arrays[4] if self.feels else None)
        obs = self.observe(key, state, action, params)
        return obs, state, reward, exploded | ~healthy, {**info, "exploded": exploded}

    def observe(self, key, state, action, params) -> jax.Array:
        """Observes a state, float [N] as in `observation_space`; zeros of an exploded one.

        Positions but the hidden ones (metres, radians), clipped velocities (per second) and, if asked for, contact
        forces (N, N m).
        """
        limit = self.robot.velocity_limit
        parts = [state.qpos[self.robot.hidden :], jnp.clip(state.qvel, -limit, limit)]
        parts += [jnp.zeros(6, self.dtype)] if self.feels_world else []
        parts += [state.contact_force.reshape(-1)] if self.feels else []
        return jnp.where(self.exploded(state), 0, jnp.concatenate(parts))

    def exploded(self, state: LocomotionState) -> jax.Array:
        """Whether a state holds numbers that are not finite, or so large that MuJoCo would not take them: bool []."""
        return ~_finite(state.qpos, state.qvel, state.warmstart)

    def is_terminated(self, state: LocomotionState, params: LocomotionParams) -> jax.Array:
        """Whether the robot has fallen or exploded: bool []."""
        return self.exploded(state) | ~self.robot.healthy(state.qpos, state.qvel)

    def action_space(self, params: LocomotionParams | None = None) -> spaces.Box:
        return spaces.Box(-1, 1, (self.model.nu,), self.dtype)

    def observation_space(self, params: LocomotionParams | None = None) -> spaces.Box:
        bodies = (self.model.nbody - 1 + self.feels_world) if self.feels else 0
        size = self.model.nq - self.robot.hidden + self.model.nv + 6 * bodies
        return spaces.Box(-jnp.inf, jnp.inf, (size,), self.dtype)


def make_env(name: str, version: str = "v4", physics: str = "auto", contact_forces: bool = False) -> Locomotion:
    """Makes one robot's environment.

    Args:
      name: "hopper", "walker2d" or "ant".
      version: "v4" or "v5" of Gymnasium. v5 pays for health only when healthy, walks on grippier feet (Walker2d) and
        feels contact forces (Ant).
      contact_forces: Ant v4 observes them and pays for them, as v5 always does.
      physics: "mjx", "c", or "auto": C where JAX runs on CPUs (MJX is 20 to 40 times slower there), else MJX.

    Raises:
      ValueError: a name that is none of these; contact forces for a robot that is no Ant.
      ModuleNotFoundError: mujoco, gymnasium or, for MJX, mujoco-mjx is not installed.
    """
    for option, value, choices in (
        ("name", name, tuple(ROBOTS)),
        ("version", version, VERSIONS),
        ("physics", physics, PHYSICS),
    ):
        if value not in choices:
            raise ValueError(f"{option} is {value!r}; choose one of {', '.join(choices)}")
    if contact_forces and not ROBOTS[name].free:
        raise ValueError(f"{name} has no contact forces, only the ant")
    if physics == "auto":
        physics = "c" if jax.default_backend() == "cpu" else "mjx"
    return Locomotion(name, version, physics, contact_forces)


def _uniform(key, shape, dtype):
    return jax.random.uniform(key, shape, dtype, -1, 1)


def _finite(*arrays: jax.Array) -> jax.Array:
    """Whether MuJoCo takes all of these numbers: bool []. NaN compares as False."""
    return jnp.stack([(jnp.abs(x) <= _HUGE).all() for x in arrays]).all()


def control_game(name: str, version: str = "v4", physics: str = "auto", contact_forces: bool = False) -> ControlGame:
    """Makes a robot for control agents; see `make_env`."""
    env = make_env(name, version, physics, contact_forces)
    return ControlGame(
        name=name,
        env=env,
        params=env.default_params,
        roles=analyst_roles(prompts.game_text(name, version, contacts=env.feels)),
        scripts=rule_based.SCRIPTS,
        draw=lambda states: frames(name, np.asarray(states.qpos)),
        draw_case=functools.partial(what_if_frames, env, name),
        human_reward=progress_bonus if name == "ant" else None,
    )


def what_if_frames(env: Locomotion, name: str, states: Any, actions: Any, suggested: Any, hold: int = 8) -> np.ndarray:
    """Draws poses side by side for each of n states.

    Now, after `hold` steps of the agent's torques, and after as many of the suggested ones.

    Args:
      states: env states [n]. actions: [n] torques. suggested: [n] torques or None, whose place then stays empty.
    """

    @jax.jit
    @jax.vmap
    def pose_after(state: LocomotionState, action: jax.Array) -> jax.Array:
        def step(_, state):
            return env.step_env(None, state, action, None)[1]

        return jax.lax.fori_loop(0, hold, step, state).qpos

    def poses_after(torques: list) -> np.ndarray:
        return np.array(pose_after(states, jnp.asarray(np.array(torques, np.float32))))

    is_missing = [torques is None for torques in suggested]
    alternatives = poses_after([action if torques is None else torques for action, torques in zip(actions, suggested)])
    alternatives[is_missing] = np.nan  # drawn without a robot
    poses = np.asarray(states.qpos), poses_after(actions), alternatives
    return side_by_side([frames(name, qpos) for qpos in poses])


def progress_bonus(steps: Any, length: float = 1.0, dt: float = 0.05) -> jax.Array:
    """Pays 1 for every `length` metres of progress: float [T, B], mostly 0.

    Line k stands at x = k * length, k = 1, 2, ...; crossing one pays 1, crossing it backwards costs 1, so that swinging
    across it earns nothing: an episode earns the number of lines that it has passed at its end.

    Args:
      length: metres between two lines.
      dt: seconds per step (Ant: 0.05); a step covers dt * info["reward_forward"] metres.
    """
    x = steps.info["x_position"]
    # An exploded step reports neither a place nor a speed, and so pays nothing.
    return _lines_passed(x, length) - _lines_passed(x - dt * steps.info["reward_forward"], length)


def _lines_passed(x: jax.Array, length: float) -> jax.Array:
    """Counts the lines between the start and places x [...], in metres; none behind the start."""
    return jnp.maximum(jnp.floor(x / length), 0.0)
