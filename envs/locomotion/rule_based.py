"""A rule-based analyst for Hopper, Walker2d and Ant that reads only the prompts.

Its one idea is danger: how near the torso is to lying down, by its lean and its height a moment ahead at their present
velocities, as a share of what the robot bears; 1 and more is a fall. It knows nothing of gaits: what it suggests keeps
a robot upright and still, and so costs speed where the robot was not going to fall.

- identify: critical are timeslots of danger above `ALARM`, and the last `FALL` before a fall that the piece shows. An
  action is proper if danger is lower `SOON` timeslots later and no fall is near; else the suggestion is `balance`.
- analyse: the improper actions, the first of them, and the recoveries.
- reward: of the action taken, by what followed: a fall in sight is -1 the next timeslot and less the later it comes,
  else less danger and more speed count for it. Of another action, what followed says nothing: it is
  judged by its nearness to `balance`. Half of it where the case analysis names other timeslots only.

Signs, checked against MuJoCo: a positive pitch leans forward; negative torques of hip and knee turn the torso of hopper
and walker back up; the ankle that presses a foot of the ant down is positive in front and negative behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.envs.locomotion.prompts import ROBOTS, Body, action_text, body, game_text
from nlrl_jax.envs.trajectory_prompts import Excerpt, case_analysis, emphasis, numbered, strategies, verdict_text
from nlrl_jax.roles.trajectories import Action, ControlEpisode

ALARM = 0.7
FALL, SOON, LATER = 12, 3, 8  # timeslots
_FRONT, _LEFT = np.array([1, -1, -1, 1]), np.array([1, 1, -1, -1])  # where the ant's legs 1 to 4 are
_TEXTS = {name: game_text(name) for name in ROBOTS}


class RobotLimits(NamedTuple):
    """A robot's limits, and how the rule keeps it upright.

    lean: rad at which it falls. low, rest, high: heights (m) at which it falls, stands, is thrown up. ahead: seconds
    that a moment ahead is. balance: its torques, in the order of the joints, not yet clipped.
    """

    lean: float
    low: float
    rest: float
    high: float
    ahead: float
    balance: Callable[[Body], np.ndarray]


def _balance_hopper(now: Body) -> np.ndarray:
    return np.full(3, -(2 * now.pitch + 0.5 * now.pitch_velocity))


def _balance_walker2d(now: Body) -> np.ndarray:
    return np.array([1, 1, 0, 1, 1, 0]) * -(2 * now.pitch + 0.5 * now.pitch_velocity)


def _balance_ant(now: Body) -> np.ndarray:
    """Presses down the feet on the side to which it leans, and slows all joints."""
    press = _FRONT * (now.pitch + 0.2 * now.pitch_velocity) + _LEFT * (now.roll + 0.2 * now.roll_velocity)
    torques = -0.1 * now.joint_velocities  # [8]: hip and ankle of each leg in turn
    torques[1::2] += 0.5 * _FRONT * press
    return torques


LIMITS = {
    "hopper": RobotLimits(0.2, 0.7, 1.25, np.inf, 0.04, _balance_hopper),
    "walker2d": RobotLimits(1.0, 0.8, 1.25, 2.0, 0.1, _balance_walker2d),
    "ant": RobotLimits(1.2, 0.2, 0.55, 1.0, 0.1, _balance_ant),
}


class BalanceAnalyst(NamedTuple):
    """The rules applied to a prompt's excerpt of an episode of the robot `name`."""

    name: str
    excerpt: Excerpt

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> BalanceAnalyst:
        name = robot_of(context["episode"])
        return cls(name, _TEXTS[name].excerpt(context))

    def body(self, timeslot: int) -> Body:
        return body(ROBOTS[self.name], self.excerpt.state(timeslot))

    def danger(self, timeslot: int) -> float:
        return danger(self.name, self.body(timeslot))

    def later(self, timeslot: int, slots: int) -> int:
        """Returns the timeslot that many later, or that of the excerpt's last state."""
        return min(timeslot + slots, self.excerpt.start + len(self.excerpt.observations) - 1)

    def until_fall(self, timeslot: int) -> int | None:
        """Counts timeslots from this one to the last of the episode, if the excerpt ends with its fall."""
        return self.excerpt.end - 1 - timeslot if self.excerpt.fell else None

    def eases(self, timeslot: int) -> float:
        """Measures by how much danger is lower `SOON` timeslots later."""
        return self.danger(timeslot) - self.danger(self.later(timeslot, SOON))


def robot_of(episode: ControlEpisode) -> str:
    """Finds the robot that has as many motors as the episode's actions have numbers."""
    size = np.shape(episode.actions)[-1]
    return next(name for name, robot in ROBOTS.items() if len(robot.motors) == size)


def danger(name: str, now: Body) -> float:
    """Measures how near a fall is: 0 upright at rest, 1 where a moment ahead it will have fallen."""
    limits = LIMITS[name]
    pitch = now.pitch + limits.ahead * now.pitch_velocity
    roll = now.roll + limits.ahead * now.roll_velocity
    height = now.height + limits.ahead * now.vertical_velocity
    sinks = (limits.rest - height) / (limits.rest - limits.low)
    rises = (height - limits.rest) / (limits.high - limits.rest)
    return float(np.nan_to_num(max(np.hypot(pitch, roll) / limits.lean, sinks, rises, 0.0), nan=1.0))


def balance(name: str, now: Body) -> Action:
    """Computes the torques that push back to upright, in the order of the action, in [-1, 1]."""
    torques = np.nan_to_num(LIMITS[name].balance(now))[list(ROBOTS[name].motors)]
    return tuple(float(x) for x in np.clip(torques, -1, 1))


def identify(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a verdict on every timeslot of the excerpt."""
    analyst = BalanceAnalyst.of(context)
    return ", ".join(_verdict(analyst, timeslot) for timeslot in range(context["begin"], context["end"]))


def analyse(context: Mapping[str, Any], rng: random.Random) -> str:
    """Writes a case analysis of the verdicts."""
    episode, verdicts = context["episode"], context["verdicts"]
    wrong = [v for v in verdicts if v.action is not None]
    right = [v.timeslot for v in verdicts if v.action is None and v.judged]
    end = "it fell" if episode.terminated else "it did not fall"
    failures, successes = [], []
    if wrong:
        failures.append(
            f"In timeslots {numbered(v.timeslot for v in wrong)} the torques let the robot tip over or sink "
            f"further; {end} in the end. The first of them: {wrong[0].explanation}. "
            "Lean and pitch velocity should have been countered at once."
        )
    if right:
        successes.append(
            f"In timeslots {numbered(right)} the torques brought the robot back towards upright. Reward this the more, "
            "the nearer the fall was."
        )
    return case_analysis(verdicts, failures, successes)


def reward(context: Mapping[str, Any], rng: random.Random) -> str:
    """Rewards an action by what followed if it was taken, else by the rule."""
    analyst, timeslot, action = BalanceAnalyst.of(context), context["timeslot"], context["action"]
    if np.allclose(action, analyst.excerpt.action(timeslot), atol=1e-3):
        value, reason = _followed(analyst, timeslot)
    else:
        now = analyst.body(timeslot)
        off = float(np.mean(np.abs(np.subtract(action, balance(analyst.name, now)))))
        value = (1 - off) * min(0.5 + 0.5 * danger(analyst.name, now), 1.0)
        reason = f"it differs by {off:.2f} a motor from what would push the robot upright"
    value = np.clip(value, -1, 1) * emphasis(context["analysis"], timeslot)
    return f"{{reward = {value + 0.0:.2f}, analysis: {reason}}}"


SCRIPTS = {"identify": identify, "analyse": analyse, "reward": reward, "strategies": strategies}


def _verdict(analyst: BalanceAnalyst, timeslot: int) -> str:
    """Writes the verdict on a timeslot: steady, recovering, or wrong with the torques that balance."""
    now, alarm, fall = analyst.body(timeslot), analyst.danger(timeslot), analyst.until_fall(timeslot)
    falls = fall is not None and fall < FALL
    state = f"height {now.height:.2f} m, pitch {now.pitch:.2f} rad at {now.pitch_velocity:.2f} rad/s"
    state += f", roll {now.roll:.2f} rad" if now.roll else ""
    if alarm <= ALARM and not falls:
        return verdict_text(timeslot, False, f"{state}: the robot is steady")
    reason = f"{state}: " + (_when(fall) if falls else f"{alarm:.0%} of the way to a fall")
    if not falls and analyst.eases(timeslot) > 0:
        return verdict_text(timeslot, True, f"{reason}, and what the agent did made it better")
    better = action_text(balance(analyst.name, now))
    return verdict_text(timeslot, True, f"{reason}; these torques push back towards upright", better)


def _when(fall: int) -> str:
    return f"it falls {fall} timeslots later" if fall else "it falls with this timeslot"


def _followed(analyst: BalanceAnalyst, timeslot: int) -> tuple[float, str]:
    """Rewards the action that was taken by what followed: (reward, reason)."""
    fall = analyst.until_fall(timeslot)
    if fall is not None and fall < FALL:
        return -1 + fall / FALL, _when(fall)
    after = analyst.later(timeslot, LATER)
    slots, safer = after - timeslot, analyst.danger(timeslot) - analyst.danger(after)
    faster = analyst.body(after).forward_velocity - analyst.body(timeslot).forward_velocity
    reason = f"{slots} timeslots later danger is lower by {safer:.2f} and the robot faster by {faster:.2f} m/s"
    return safer + 0.2 * faster, reason
