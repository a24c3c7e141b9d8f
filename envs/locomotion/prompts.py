"""An analyst's prompts for Hopper, Walker2d and Ant, and the readers of its replies (ULTRA, appendix B).

The same three prompts as for Pong (`envs.pong.prompts`, and its departures); the sentences are ours. Further:

- The paper's state of the hopper names the horizontal position and leaves out two joint velocities. A state here is
  what the agent observes in Gymnasium: no horizontal position, all joint velocities. Of Ant v5 the contact forces are
  left out.
- The limits of pitch and height are Gymnasium's, which end the episode (0.2 rad for the hopper; the paper says 0.628).
- The ant's orientation is given in angles, not as a quaternion. Its legs are named by their places when it looks along
  x; two of Gymnasium's own names have the sides mixed up.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from nlrl_jax.envs.trajectory_prompts import GameText
from nlrl_jax.roles.analyst_replies import vector_reader
from nlrl_jax.roles.trajectories import Action, ControlEpisode

_LEGS = ("front left", "back left", "back right", "front right")  # legs 1 to 4 of the ant


@dataclasses.dataclass(frozen=True)
class RobotText:
    """One robot in words.

    Attributes:
      joints: in the order of the observation; motors: in that of the action, indices into the joints.
      background, termination: sentences.
      cost: weight of the squared torques in the reward.
      chunk: timeslots of one identification prompt.
      step: seconds of one timeslot.
    """

    joints: tuple[str, ...]
    motors: tuple[int, ...]
    background: str
    termination: str
    cost: float
    chunk: int
    step: float

    @property
    def is_planar(self) -> bool:
        return len(self.joints) < 8


ROBOTS = {
    "hopper": RobotText(
        joints=("hip", "knee", "ankle"),
        motors=(0, 1, 2),
        background="The hopper is a robot with one leg (torso, thigh, leg, foot) that moves in a vertical plane. It "
        "should hop forward, along x, as fast as possible without falling.",
        termination="the torso's height is 0.7 m or less, its pitch is 0.2 rad or more either way, or another "
        "number in the state reaches 100",
        cost=0.001,
        chunk=40,
        step=0.008,
    ),
    "walker2d": RobotText(
        joints=("right hip", "right knee", "right ankle", "left hip", "left knee", "left ankle"),
        motors=(0, 1, 2, 3, 4, 5),
        background="The walker is a robot with two legs (each of thigh, leg and foot) that moves in a vertical plane. "
        "It should walk forward, along x, as fast as possible without falling.",
        termination="the torso's height is not between 0.8 m and 2 m, or its pitch is 1 rad or more either way",
        cost=0.001,
        chunk=25,
        step=0.008,
    ),
    "ant": RobotText(
        joints=tuple(f"{leg} {joint}" for leg in _LEGS for joint in ("hip", "ankle")),
        motors=(6, 7, 0, 1, 2, 3, 4, 5),
        background="The ant is a robot with four legs (each with a hip and an ankle) around a round torso. It should "
        "walk forward, along x, as fast as possible, without falling over and without needless movement.",
        termination="the torso's height is not between 0.2 m and 1 m, or a number in the state is not finite",
        cost=0.5,
        chunk=15,
        step=0.05,
    ),
}


class Body(NamedTuple):
    """A robot's state, named. Angles in rad, positive where it leans forward or to the left; lengths in m.

    roll, roll_velocity, side_velocity are 0 for robots in a plane. joints, joint_velocities: as observed.
    """

    height: float
    pitch: float
    roll: float
    forward_velocity: float
    side_velocity: float
    vertical_velocity: float
    pitch_velocity: float
    roll_velocity: float
    joints: np.ndarray
    joint_velocities: np.ndarray


def body(robot: RobotText, obs: np.ndarray) -> Body:
    """Names the numbers of an observation of Gymnasium's v4 or v5: float [11], [17] or [27 or more]."""
    obs = np.asarray(obs, float)
    n = len(robot.joints)
    if robot.is_planar:
        (height, pitch), joints, (x, z, turn), speeds = np.split(obs, (2, 2 + n, 5 + n))
        return Body(height, pitch, 0.0, x, 0.0, z, turn, 0.0, joints, speeds)
    w, i, j, k = obs[1:5]
    # The world's up direction along the torso's own axes: its front is down where the first is negative.
    front_down, left_down = 2 * (w * j - i * k), -2 * (j * k + w * i)
    pitch, roll = np.arctan2([front_down, left_down], 1 - 2 * (i * i + j * j))
    (x, y, z), (turn_x, turn_y, _) = obs[13:16], obs[16:19]
    return Body(obs[0], pitch, roll, x, y, z, turn_y, -turn_x, obs[5:13], obs[19:27])


def motors(robot: RobotText) -> tuple[str, ...]:
    """Names the motors, in the action's order."""
    return tuple(robot.joints[i] for i in robot.motors)


def game_text(name: str, version: str = "v4", contacts: bool = False) -> GameText:
    """Puts a robot into words.

    Args:
      name: "hopper", "walker2d" or "ant".
      version: of Gymnasium's reward, "v4" or "v5".
      contacts: hard contacts cost reward; of the Ant v5 they do in any case.
    """
    robot = ROBOTS[name]
    return GameText(
        system="You are an expert in robot control. Answer in the requested output format.",
        game=_game(robot, version, contacts),
        identify=_IDENTIFY.format(motors=", ".join(motors(robot))),
        analyse=_ANALYSE,
        reward=_REWARD,
        correction="A corrected action looks like (0.1, -0.2, ...)",
        outcome="how the episode went",
        chunk=robot.chunk,
        before=1,
        around=(2, 10),
        state=lambda obs: state_text(robot, obs),
        action=action_text,
        read_action=vector_reader(len(robot.motors)),
        events=lambda episode: [
            f"The episode lasted {len(episode)} timeslots and earned {float(np.sum(episode.rewards)):.1f} in total."
        ],
        ending=_ending,
    )


def state_text(robot: RobotText, obs: np.ndarray) -> str:
    """Writes one observation, float [N], with names and units."""
    now = body(robot, obs)
    lean = f"pitch {_show(now.pitch)} rad" + ("" if robot.is_planar else f", roll {_show(now.roll)} rad")
    side = "" if robot.is_planar else f", sideways velocity {_show(now.side_velocity)} m/s"
    turn = "" if robot.is_planar else f", roll velocity {_show(now.roll_velocity)} rad/s"
    angles = ", ".join(f"{joint} {_show(angle)}" for joint, angle in zip(robot.joints, now.joints))
    speeds = ", ".join(f"{joint} {_show(speed)}" for joint, speed in zip(robot.joints, now.joint_velocities))
    return (
        f"height {_show(now.height)} m, {lean}, forward velocity {_show(now.forward_velocity)} m/s{side}, vertical "
        f"velocity {_show(now.vertical_velocity)} m/s, pitch velocity {_show(now.pitch_velocity)} rad/s{turn}; joint "
        f"angles (rad): {angles}; joint velocities (rad/s): {speeds}"
    )


def action_text(action: Action) -> str:
    """Writes torques as the prompts do."""
    return f"({', '.join(_show(x) for x in action)})"


def _show(number: float) -> str:
    return f"{round(float(number), 3) + 0.0:g}"


def _ending(episode: ControlEpisode) -> str:
    last = len(episode) - 1
    if episode.terminated:
        return f"The episode ends in timeslot {last}: the robot has fallen or exceeded a limit."
    return f"The episode was cut off after timeslot {last}; the robot has not fallen."


def _game(robot: RobotText, version: str, contacts: bool) -> str:
    """Writes background, state, actions, reward and termination."""
    alive = "1" if version == "v4" else "1 (unless it has just fallen)"
    contact = (contacts or version == "v5") and not robot.is_planar
    turns = "pitch velocity (rad/s)" if robot.is_planar else "sideways velocity (m/s), pitch and roll velocity (rad/s)"
    lean = "pitch (rad, positive forward)"
    lean += "" if robot.is_planar else ", roll (rad, positive to the left)"
    return f"""# Background
{robot.background} It is simulated in MuJoCo, as a benchmark of continuous control. One timeslot lasts {robot.step:g} s.

# State space
The torso's height (m), {lean}, forward and vertical velocity (m/s), {turns}; the angle (rad) and the velocity (rad/s) \
of each joint: {", ".join(robot.joints)}.

# Action space
{len(robot.motors)} torques between -1 and 1, in this order: {", ".join(motors(robot))}.

# Objective of the agent
An agent controls the motors. It should earn as much reward as possible.

# Reward function
In every timeslot: the forward velocity (m/s), plus {alive} for being alive, minus {robot.cost:g} times the sum of the \
squared torques{", minus a small cost for hard contacts" if contact else ""}.

# Termination
The episode ends when {robot.termination}, and after 1000 timeslots.

"""


_IDENTIFY = """\
(i) Find the critical timeslots: those in which the action decides much of the reward to come. A timeslot is critical \
if its action leads to the end of the episode, or changes balance or speed so much that later rewards rise or fall \
noticeably. Go by how the state changes from one timeslot to the next: height, lean, velocities and joints.
(ii) For each critical timeslot, decide whether the agent's action was appropriate. If it leads to a fall or lowers \
later rewards, it was not; then give the corrected action, with all torques between -1 and 1, in the order \
({motors})."""
_ANALYSE = """\
(i) Analyse the failures: which critical actions made the robot fall, lose its balance or lose speed, and how.
(ii) Analyse the successes: in which critical timeslots the action was good for balance and speed, and how such \
actions should be rewarded."""
_REWARD = """\
The reward is negative if the action leads to a fall or lowers later rewards, and positive if it raises them. The more \
the action matters, the further from 0 the reward is."""
