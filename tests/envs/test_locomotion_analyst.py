"""The robots' prompts, and the scripted analyst that answers them, on made episodes and against MuJoCo."""

import importlib.util
import pathlib
import xml.etree.ElementTree as ElementTree

import mujoco
import numpy as np
import pytest

from nlrl_jax.envs.locomotion.prompts import ROBOTS, body, game_text, state_text
from nlrl_jax.envs.locomotion.rule_based import ALARM, LIMITS, SCRIPTS, balance, danger, robot_of
from nlrl_jax.envs.trajectory_prompts import analyst_roles
from nlrl_jax.roles.trajectories import ControlEpisode, Verdict
from tests.envs.analysts import Analyst, said

ASSETS = pathlib.Path(importlib.util.find_spec("gymnasium").origin).parent / "envs/mujoco/assets"
FILES = {"hopper": "hopper.xml", "walker2d": "walker2d_v5.xml", "ant": "ant.xml"}
SIZES = {"hopper": (11, 3), "walker2d": (17, 6), "ant": (27, 8)}
OURS = {  # Gymnasium's joints -> our names; the ant's are checked against their places below
    "thigh_joint": "hip",
    "leg_joint": "knee",
    "foot_joint": "ankle",
}
NAMES = tuple(ROBOTS)


def upright(name):
    """An observation of a robot that stands still."""
    seen = np.zeros(SIZES[name][0])
    seen[0] = LIMITS[name].rest
    if name == "ant":
        seen[1] = 1
    return seen


def leaning(name, pitch, rate=0.0):
    seen = upright(name)
    if name == "ant":
        seen[1], seen[3], seen[17] = np.cos(pitch / 2), np.sin(pitch / 2), rate
    else:
        n = len(ROBOTS[name].joints)
        seen[1], seen[4 + n] = pitch, rate
    return seen


def tips_over(name, length=30, terminated=True, seed=0):
    """A robot that stands, then leans further and further until it falls."""
    share = np.linspace(-1, 1, length + 1).clip(0) ** 2
    seen = np.stack([leaning(name, x * LIMITS[name].lean) for x in share]).astype(np.float32)
    actions = np.random.default_rng(seed).uniform(-1, 1, (length, SIZES[name][1])).astype(np.float32)
    return ControlEpisode(4, seen, actions, np.ones(length, np.float32), terminated)


def roles(name, version="v4"):
    return analyst_roles(game_text(name, version))


def analyst(name):
    return Analyst(roles(name), SCRIPTS)


@pytest.mark.parametrize("name", NAMES)
def test_joints_and_motors_are_in_gymnasiums_order(name):
    tree = ElementTree.parse(ASSETS / FILES[name])
    driven = [motor.get("joint") for motor in tree.iter("motor") if motor.get("joint")]
    joints = [joint.get("name") for joint in tree.iter("joint") if joint.get("name") in driven]
    assert [joints[i] for i in ROBOTS[name].motors] == driven
    if name != "ant":
        named = [OURS[joint.replace("_left", "")] for joint in joints]
        sides = [] if name == "hopper" else ["left" if "left" in joint else "right" for joint in joints]
        assert ROBOTS[name].joints == tuple(f"{s} {j}" for s, j in zip(sides, named)) if sides else tuple(named)


def test_the_ants_legs_are_named_by_where_they_are():
    model = mujoco.MjModel.from_xml_path(str(ASSETS / "ant.xml"))
    data = mujoco.MjData(model)
    data.qpos[:7] = 0, 0, 0.75, 1, 0, 0, 0
    for leg in range(4):
        foot = model.body(model.joint(f"ankle_{leg + 1}").bodyid[0]).geomadr[0]
        data.qpos[7:] = 0
        mujoco.mj_forward(model, data)
        x, y, z = data.geom_xpos[foot].copy()
        assert ROBOTS["ant"].joints[2 * leg] == f"{'front' if x > 0 else 'back'} {'left' if y > 0 else 'right'} hip"
        data.qpos[8 + 2 * leg] = 0.1 if x > 0 else -0.1  # the way in which the rule presses the foot down
        mujoco.mj_forward(model, data)
        assert data.geom_xpos[foot][2] < z


@pytest.mark.parametrize("name", NAMES)
def test_a_positive_pitch_leans_forward_and_a_positive_roll_to_the_left(name):
    model = mujoco.MjModel.from_xml_path(str(ASSETS / FILES[name]))
    data = mujoco.MjData(model)
    data.qpos[:] = model.qpos0
    if name == "ant":
        data.qpos[3:7] = np.cos(0.2), 0.1, np.sin(0.2), 0.05
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
    else:
        data.qpos[2] = 0.4
    mujoco.mj_forward(model, data)
    torso = data.xmat[model.body("torso").id].reshape(3, 3)  # columns: its front, left and top
    seen = np.concatenate([data.qpos[2 if name == "ant" else 1 :], data.qvel])
    now = body(ROBOTS[name], seen)
    assert np.sign(now.pitch) == np.sign(-torso[2, 0]) == 1
    assert np.sign(np.round(now.roll, 9)) == np.sign(np.round(-torso[2, 1], 9))
    assert np.isclose(np.tan(now.pitch), -torso[2, 0] / torso[2, 2])


def test_numbers_of_an_observation_get_their_names():
    now = body(ROBOTS["hopper"], np.arange(11))
    assert (now.height, now.pitch, now.forward_velocity, now.vertical_velocity, now.pitch_velocity) == (0, 1, 5, 6, 7)
    assert list(now.joints) == [2, 3, 4] and list(now.joint_velocities) == [8, 9, 10]
    now = body(ROBOTS["walker2d"], np.arange(17))
    assert (now.height, now.pitch, now.forward_velocity, now.vertical_velocity, now.pitch_velocity) == (0, 1, 8, 9, 10)
    assert list(now.joints) == [*range(2, 8)] and list(now.joint_velocities) == [*range(11, 17)]
    for size in (27, 105):  # v4, v5
        now = body(ROBOTS["ant"], np.arange(size))
        assert (now.forward_velocity, now.side_velocity, now.vertical_velocity) == (13, 14, 15)
        assert (now.roll_velocity, now.pitch_velocity) == (-16, 17)
        assert list(now.joints) == [*range(5, 13)] and list(now.joint_velocities) == [*range(19, 27)]
    text = state_text(ROBOTS["hopper"], np.arange(11) + 0.12345)
    assert text.startswith("height 0.123 m, pitch 1.12 rad") or text.startswith("height 0.123 m, pitch 1.123 rad")
    assert "joint velocities (rad/s): hip 8.123, knee 9.123, ankle 10.123" in text


@pytest.mark.parametrize("name", NAMES)
def test_danger_is_zero_at_rest_grows_with_the_lean_and_is_one_at_a_fall(name):
    limits, robot = LIMITS[name], ROBOTS[name]
    at = lambda *lean: danger(name, body(robot, leaning(name, *lean)))
    assert at(0) == 0 and np.isclose(at(limits.lean), 1) and np.isclose(at(-limits.lean), 1)
    assert at(0.5 * limits.lean, 0.5) > at(0.5 * limits.lean) > at(0.5 * limits.lean, -0.5)
    sunk = upright(name)
    sunk[0] = limits.low
    assert np.isclose(danger(name, body(robot, sunk)), 1)
    assert danger(name, body(robot, np.full(SIZES[name][0], np.nan))) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_leads_to_a_fall_is_critical_and_corrected_within_the_action_space(name):
    played = tips_over(name)
    found = analyst(name).verdicts(played)
    assert [verdict.timeslot for verdict in found] == list(range(len(played)))
    assert not any(verdict.critical for verdict in found[:10])
    for verdict in found[-5:]:  # shown in one piece with the fall
        assert verdict.critical and max(map(abs, verdict.action)) <= 1
        wanted = balance(name, body(ROBOTS[name], played.observations[verdict.timeslot]))
        assert np.allclose(verdict.action, wanted, atol=1e-3)
    assert robot_of(played) == name


@pytest.mark.parametrize("name", NAMES)
def test_an_action_after_which_danger_is_lower_is_proper(name):
    share = np.linspace(0.95, 0.5, 21)
    seen = np.stack([leaning(name, x * LIMITS[name].lean) for x in share])
    played = ControlEpisode(0, seen, np.zeros((20, SIZES[name][1])), np.ones(20), False)
    found = analyst(name).verdicts(played)[:9]
    assert all(verdict.critical == (share[verdict.timeslot] > ALARM) for verdict in found)
    assert all(verdict.action is None for verdict in found)
    assert analyst(name).judge(played, 0, played.action(0)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_rewards_tell_falls_from_recoveries_and_the_suggestion_from_its_opposite(name):
    played = tips_over(name)
    judge = analyst(name).judge
    taken = [judge(played, t, played.action(t)) for t in range(len(played) - 8, len(played))]
    assert taken == sorted(taken, reverse=True) and taken[-1] == -1 and taken[0] < 0
    slot = len(played) - 3
    better = balance(name, body(ROBOTS[name], played.observations[slot]))
    assert judge(played, slot, better) > 0.75
    assert judge(played, slot, tuple(-x for x in better)) < judge(played, slot, better) - 0.1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["identify", "reward"])
def test_nothing_is_shown_or_used_from_after_the_piece(name, role):
    played = tips_over(name)
    seen, actions = played.observations.copy(), played.actions.copy()
    seen[22:], actions[22:] = upright(name), 0
    other = ControlEpisode(4, seen, actions, played.rewards, False)
    shown = {"identify": range(14, 22), "reward": range(9, 22)}
    assert analyst(name).reads_only_the_piece(role, played, other, (15, 22), (11, played.action(11)), shown)
    middle, end = (said(roles(name).identify(played, *piece)) for piece in ((15, 22), (25, 30)))
    assert "the robot has fallen" in end and "the robot has fallen" not in middle


@pytest.mark.parametrize("name", NAMES)
def test_the_case_analysis_tells_falls_from_balance(name):
    fell, stood = tips_over(name), tips_over(name, terminated=False)
    asked, analyse = roles(name), lambda chat: analyst(name).complete("analyse", chat)
    text = analyse(asked.analyse(fell, analyst(name).verdicts(fell)))
    assert "it fell in the end" in text.split("Successes:")[0]
    text = analyse(asked.analyse(stood, analyst(name).verdicts(stood)))
    assert "it did not fall" in text
    assert "was cut off after timeslot 29" in said(asked.analyse(stood, []))
    assert "earned 30.0 in total" in said(asked.analyse(fell, []))
    unjudged = asked.analyse(fell, [Verdict(3, True, None, "", judged=False)])
    assert analyse(unjudged).count("None was found.") == 2 and ", proper" not in said(unjudged)


def test_a_reward_counts_half_where_the_case_analysis_names_other_timeslots():
    played = tips_over("hopper")
    slot = len(played) - 3
    judged = lambda analysis: analyst("hopper").judge(played, slot, played.action(slot), analysis)
    assert judged(f"Failures: In timeslots 3, {slot} and 2 more the robot tips over.") == judged("none") < 0
    elsewhere = judged("{timeslot 3, <critical>}\nFailures: none")
    assert elsewhere == pytest.approx(judged("none") / 2, abs=0.006)  # replies have two decimals


def test_strategies_come_from_the_case_analyses():
    asked, fell = roles("hopper"), tips_over("hopper")
    analysis = analyst("hopper").complete("analyse", asked.analyse(fell, analyst("hopper").verdicts(fell)))
    empty = "Failures: None was found.\nSuccesses: None was found."
    chat = asked.strategies([analysis, empty, analysis])
    assert said(chat).count("it fell in the end") == 2 and "of 3 of 3 episodes" in said(chat)
    assert "hop forward" in said(chat)
    assert "2 of 3 analyses have (1, 3)" in analyst("hopper").complete("strategies", chat)
    assert said(asked.strategies([f"no. {n}" for n in range(100)])).count("no. ") == 8
    assert "of 0 of 0 episodes" in said(asked.strategies([]))


@pytest.mark.parametrize("name", NAMES)
def test_torques_are_read_as_they_are_written(name):
    action = tuple(np.random.default_rng(0).uniform(-1, 1, SIZES[name][1]).round(3))
    reply = f"{{timeslot 0, <critical>, <{roles(name).format_action(action)}>, <x>}}"
    found, problems = roles(name).read_verdicts(reply, 0, 1)
    assert found[0].action == action and not problems
    found, problems = roles(name).read_verdicts(reply.replace("(", "(0.5, "), 0, 1)
    assert found[0].action is None and problems == {"action": 1}


def test_the_prompt_tells_the_version():
    first = lambda name, version: said(roles(name, version).identify(tips_over(name), 0, 5))
    assert "minus 0.5 times" in first("ant", "v4") and "contacts" not in first("ant", "v4")
    assert "hard contacts" in first("ant", "v5") and "unless it has just fallen" in first("hopper", "v5")
    assert "{" not in first("hopper", "v4").split("# Output format")[0]


def steps_until_a_fall(policy, seed):
    """Gymnasium's Hopper, driven here: 4 sub-steps an action, noise of 5e-3 at the start, falls at 0.7 m or 0.2 rad."""
    model = mujoco.MjModel.from_xml_path(str(ASSETS / "hopper.xml"))
    data, rng = mujoco.MjData(model), np.random.default_rng(seed)
    data.qpos[:] = model.qpos0 + rng.uniform(-5e-3, 5e-3, model.nq)
    data.qvel[:] = rng.uniform(-5e-3, 5e-3, model.nv)
    for step in range(400):
        seen = np.concatenate([data.qpos[1:], np.clip(data.qvel, -10, 10)])
        data.ctrl[:] = policy(body(ROBOTS["hopper"], seen), rng)
        mujoco.mj_step(model, data, 4)
        if data.qpos[1] <= 0.7 or abs(data.qpos[2]) >= 0.2:
            return step
    return 400


def test_the_suggested_torques_keep_the_hopper_up_for_longer():
    still = lambda now, rng: np.zeros(3)
    rule = lambda now, rng: balance("hopper", now)
    random = lambda now, rng: rng.uniform(-1, 1, 3)
    rescued = lambda now, rng: rule(now, rng) if danger("hopper", now) > ALARM else random(now, rng)
    mean = lambda policy: np.mean([steps_until_a_fall(policy, seed) for seed in range(8)])
    assert mean(rule) > 1.4 * mean(still)
    assert mean(rescued) > 3 * mean(random)
