"""What is read out of an analyst's replies: verdicts on timeslots, and rewards."""

import json
import math
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from nlrl_jax.roles.analyst_replies import (
    LONGEST,
    PROBLEMS,
    choice_reader,
    read_reward,
    read_verdicts,
    vector_reader,
    written_reward,
)
from nlrl_jax.roles.trajectories import Verdict

PONG = choice_reader({"stay": 0, "move right": 1, "right": 1, "move left": 2, "left": 2})
TORQUES = vector_reader(3)


def entry(timeslot, critical="critical", action="none", why="x"):
    return f"{{timeslot {timeslot}, <{critical}>, <{action}>, <{why}>}}"


def read(text, begin=12, end=14, read_action=PONG):
    found, problems = read_verdicts(text, begin, end, read_action)
    return [(v.timeslot, v.critical, v.action) for v in found], dict(problems)


def test_the_papers_form_is_read_without_a_complaint():
    text = (
        "{timeslot 12, <critical>, <move left>, <ball {52, 53, 66, 66} comes, as at timeslot 13>}, "
        "{timeslot 13, <not critical>, <none>, <it flies away>}"
    )
    assert read_verdicts(text, 12, 14, PONG) == (
        [
            Verdict(12, True, 2, "ball {52, 53, 66, 66} comes, as at timeslot 13"),
            Verdict(13, False, None, "it flies away"),
        ],
        {},
    )


@pytest.mark.parametrize(
    "text, judged",
    [
        ("{timeslot 12, <critical>, <none>, <x>}", True),
        ("{timeslot 12, <critical>, <move left>, <x>}", True),
        ('[{"timeslot": 12, "critical": true, "corrected_action": null, "explanation": null}]', True),
        ("{timeslot 12, <not critical>, <jump>, <x>}", True),
        ("{timeslot 12, <critical>, <jump>, <x>}", False),
        ("{timeslot 12, <critical>, <move left or right>, <x>}", False),
        ("{timeslot 12, <critical>, <move ri", False),
        ('[{"timeslot": 12, "critical": true}]', False),
    ],
)
def test_an_action_of_which_nothing_usable_is_said_is_not_judged(text, judged):
    (verdict,), _ = read_verdicts(text, 12, 13, PONG)
    assert verdict.judged == judged and verdict.explanation in ("", "x")


@pytest.mark.parametrize(
    "text, judged", [("(0.1, 1.7, 0.3)", False), ("(NaN, 0, 0)", False), ("none", True), ("appropriate", True)]
)
def test_torques_outside_the_space_judge_nothing(text, judged):
    (verdict,), _ = read_verdicts(f"{{timeslot 12, <critical>, <{text}>, <x>}}", 12, 13, TORQUES)
    assert verdict == Verdict(12, True, None, "x", judged)


def test_thoughts_that_never_end_are_no_answer():
    text = "\n<think>{timeslot 12, <critical>, <move left>, <x>}, and reward = 0.2"
    assert read(text) == ([], {"empty": 1, "missing": 2}) and read_reward(text) is None
    assert read_reward("A <think> tag: reward = 0.2") == 0.2


def test_thoughts_in_front_of_the_answer_are_left_out():
    answer = "{timeslot 12, <crucial>, <left>, <x>}, {timeslot 13, <uncritical>, <none>, <x>}"
    thoughts = "<think>{timeslot 12, <not critical>, <none>, <x>}, or reward = 0.2?</think>"
    assert read(thoughts + answer) == ([(12, True, 2), (13, False, None)], {})
    assert read_reward(thoughts + "none") is None


@pytest.mark.parametrize(
    "text",
    [
        "Sure!\n{timeslot 12, <critical>, <move left>, <x>}, {timeslot 13, <not critical>, <none>, <x>}\nDone.",
        "{timeslot 12, critical, move left, because}, {timeslot 13, not critical, none, away}",
        "- {Timeslot: 12, <Critical>, <Left>}\n- {Timeslot: 13, <Uncritical>}",
        '```json\n[{"timeslot": 12, "critical": true, "corrected_action": "move left", "explanation": "x"},\n'
        ' {"timeslot": 13, "critical": false, "corrected_action": null}]\n```',
        'So: {"action": "left", "critical": "yes", "timeslot": "12"}\n{"critical": "not critical", "timeslot": 13.0}',
        '{"verdicts": [{"timeslot": 12, "critical": 1, "action": "left"}, {"timeslot": 13, "critical": "no"}]}',
        "[{'timeslot': 12, 'critical': True, 'action': 'left', 'why': 'it's'}, {'timeslot': 13, 'critical': False}]",
        "[{\u201ctimeslot\u201d: 12, \u201ccritical\u201d: true, \u201caction\u201d: 'left'}, "
        "{'timeslot': 13, 'critical': false,}]",
        '[{"timeslot": 12, "critical": true, "action": "left",}, // x\n {"timeslot": 13, "critical": false}]',
        "{timeslot: 12, critical: true, action: 'left'}, {timeslot: 13, critical: false, action: none}",
        '[{"timeslot": 12, "critical": true, "action": "left", "why": "\u201cx\u201d"}, '
        '{"timeslot": 13, "critical": "no"}]',
    ],
)
def test_prose_around_json_and_missing_brackets_are_read_and_counted(text):
    assert read(text) == ([(12, True, 2), (13, False, None)], {"form": 1})


@pytest.mark.parametrize(
    "text, found, problems",
    [
        ("", [], {"empty": 1, "missing": 2}),
        (" \n", [], {"empty": 1, "missing": 2}),
        ("I cannot tell.", [], {"form": 1, "nothing": 1, "missing": 2}),
        (entry(13), [(13, True, None)], {"missing": 1}),
        (entry(13) + entry(12, action="stay"), [(12, True, 0), (13, True, None)], {"order": 1}),
        (
            entry(12, action="stay", why="a") + entry(12, action="left", why="b") + entry(13),
            [(12, True, 2), (13, True, None)],
            {"repeated": 1},
        ),
        (entry(12) + entry(13) + entry(14), [(12, True, None), (13, True, None)], {"outside": 1}),
        (
            entry(12, action="jump") + entry(13, action="move left or right"),
            [(12, True, None), (13, True, None)],
            {"action": 2},
        ),
        (
            entry(12, "not critical", "move left") + entry(13, action="do not move left"),
            [(12, False, None), (13, True, None)],
            {"unasked": 1, "action": 1},
        ),
        ("{timeslot 12, <critical or not>, <corrected action>, <explanation>}", [], {"unclear": 1, "missing": 1}),
        ("{timeslot 12, <maybe>, <stay>, <x>}", [], {"unclear": 1, "missing": 1}),
        ('{"timeslot": 12, "critical": 1' + "0" * 400 + "}", [], {"form": 1, "unclear": 1, "missing": 1}),
        ('{"timeslot": 12, "critical": NaN}', [], {"form": 1, "unclear": 1, "missing": 1}),
        ('{"timeslot": 12e400, "critical": true}', [], {"form": 1, "nothing": 1, "missing": 2}),
        ('{"timeslot": -Infinity, "critical": true}', [], {"form": 1, "nothing": 1, "missing": 2}),
    ],
)
def test_what_is_wrong_is_counted_by_kind(text, found, problems):
    assert read(text) == (found, problems)


@pytest.mark.parametrize(
    "text",
    [
        "Timeslot 12: critical, move left, because the ball comes\nTimeslot 13: non-critical, none, away",
        "1. Timeslot 12 is critical because it comes, the agent should move left.",
        "| Slot | Critical | Action |\n|-|-|-|\n| 12 | Yes | move left |\n| 13 | No | none |",
    ],
)
def test_other_forms_are_counted_as_unreadable(text):
    assert read(text) == ([], {"form": 1, "nothing": 1, "missing": 2})


WHOLE = "{timeslot 12, <critical>, <move left>, <x>}, {timeslot 13, <critical>, <move right>, <because>}"


@pytest.mark.parametrize(
    "end, second",
    [
        ("<move right>, <because", (13, True, 1)),
        ("<move ri", (13, True, None)),
        ("<critical>", (13, True, None)),
        ("<cri", None),
    ],
)
def test_a_cut_reply_keeps_what_was_whole(end, second):
    found, problems = read(WHOLE[: WHOLE.rindex(end) + len(end)])
    assert found == [(12, True, 2)] + ([second] if second else [])
    assert problems["cut"] == 1


def test_a_cut_list_of_json_keeps_what_was_whole():
    entries = [{"timeslot": t, "critical": True, "action": "left"} for t in (12, 13)]
    assert read(json.dumps(entries)[:-20]) == ([(12, True, 2)], {"form": 1, "cut": 1, "missing": 1})


@pytest.mark.parametrize(
    "field, action",
    [
        ("(0.1, -0.2, 0.3)", (0.1, -0.2, 0.3)),
        ("0.1, −0.2, .3", (0.1, -0.2, 0.3)),  # noqa: RUF001
        ("[1, -1, 0]", (1.0, -1.0, 0.0)),
        ("hip: 0.1, knee: -2e-1, ankle: 0.3", (0.1, -0.2, 0.3)),
        ("(0.1, 1.7, 0.3)", None),
        ("(0.1, 0.3)", None),
        ("(0.1, 0.2, 0.3, 0.4)", None),
        ("(NaN, 0.1, 0.2, 0.3)", None),
        ("(inf, 0.1, 0.2)", None),
        ("move left", None),
    ],
)
def test_torques_are_read_and_what_is_outside_the_space_is_not(field, action):
    found, problems = read(f"{{timeslot 12, <critical>, <{field}>, <x>}}", 12, 13, TORQUES)
    assert found == [(12, True, action)]
    assert problems.get("action", 0) == (action is None)


def test_torques_without_angle_brackets_are_told_from_the_explanation():
    found, _ = read_verdicts("{timeslot 12, critical, (.1, -0.2, 0.3), pitch 0.2}", 12, 13, TORQUES)
    assert found == [Verdict(12, True, (0.1, -0.2, 0.3), "pitch 0.2")]


def test_a_long_explanation_is_shortened_and_counted():
    found, problems = read_verdicts(f"{{timeslot 12, <critical>, <stay>, <{'x' * 5000}>}}", 12, 13, PONG)
    assert len(found[0].explanation) == LONGEST and problems == {"long": 1}


@pytest.mark.parametrize(
    "text, reward",
    [
        ("{reward = 0.4, analysis: the environment's reward: 0}", 0.4),
        ("{reward = <-.5>, analysis: x}", -0.5),
        ('{"reward": "-0.5", "analysis": ""}', -0.5),
        ("First reward = 0.2?\nFinal decision:\nreward = −0.8\nThe agent misaligns itself.", -0.8),  # noqa: RUF001
        ("**Reward:** -0.25", -0.25),
        ("The scale of the reward is from -1 to 1. A reward of 0.6 seems right.", None),
        ("Reward for timeslot 12 = 0.5", 0.5),
        ("{reward = 0.1, analysis: a}\n{reward = 0.9, analysis: b}", 0.9),
        (" 0.5 ", None),
        ("reward: 1.7", 1.7),
        ("{reward = -3, analysis: x}", -3.0),
        ("", None),
        ("none", None),
        ("reward = [-1, 1]", None),
        ("reward = 4/10", None),
        ("reward = 40%", None),
        ("{reward = NaN, analysis: reward = 0.3 would do}", None),
        ("reward = -inf", None),
        ("reward = 1e999", None),
    ],
)
def test_rewards(text, reward):
    assert written_reward(text) == reward
    assert read_reward(text) == (None if reward is None else max(-1.0, min(1.0, reward)))


PIECES = st.sampled_from(
    "{ } ( ) [ ] < > , : ; | = - \n ``` ** timeslot step t= 12 13 99 -1 1.7 1e9 NaN critical not un crucial yes no "
    "true none stay left jump action explanation reward because </think> \" ' or −".split(" ")  # noqa: RUF001
)
REPLIES = st.lists(PIECES | st.text(max_size=5), max_size=40).map(" ".join) | st.text()


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(REPLIES, st.integers(0, 20), st.integers(0, 20))
def test_any_reply_is_read_without_an_error(text, begin, size):
    found, problems = read_verdicts(text, begin, begin + size, PONG)
    slots = [verdict.timeslot for verdict in found]
    assert slots == sorted(set(slots)) and all(begin <= slot < begin + size for slot in slots)
    assert all(verdict.action is None or verdict.critical for verdict in found)
    assert set(problems) <= set(PROBLEMS) and all(count > 0 for count in problems.values())
    assert problems["missing"] <= size - len(found)
    assert len(found) == size or problems["missing"] or problems["unclear"]
    reward = read_reward(text)
    assert reward is None or -1 <= reward <= 1 and math.isfinite(reward)


words = st.text("abcdefghij ,.0123456789-", max_size=30)
torques = st.tuples(*[st.floats(-1, 1).map(lambda x: round(x, 3))] * 3)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.tuples(st.booleans(), st.none() | torques, words), min_size=1, max_size=8), st.data())
def test_what_is_written_in_the_papers_form_is_read_back_and_a_cut_invents_nothing(rows, data):
    text = ", ".join(
        entry(5 + i, "critical" if critical else "not critical", action if critical and action else "none", why)
        for i, (critical, action, why) in enumerate(rows)
    )
    found, problems = read_verdicts(text, 5, 5 + len(rows), TORQUES)
    assert not problems
    assert [(v.critical, v.action) for v in found] == [
        (critical, action if critical else None) for critical, action, _ in rows
    ]
    cut, problems = read_verdicts(text[: data.draw(st.integers(0, len(text) - 1))], 5, 5 + len(rows), TORQUES)
    assert problems
    for verdict in cut:
        whole = found[verdict.timeslot - 5]
        assert verdict.critical == whole.critical and verdict.action in (None, whole.action)


HOSTILE = {
    **{c: c * 10**6 for c in '{[<",\n\\'},
    "open": "{timeslot 12, <critical>, <move left>, <" + "x" * 10**6,
    "heads": "{timeslot 1," * 80_000,
    "fields": "{timeslot 1," + " ," * 500_000,
    "json": '{"timeslot": 12, "critical": ' * 35_000,
    "nested": '{"timeslot": 12, "critical": true, "action": ' + "[" * 500 + "]" * 500 + "}",
    "spaces": "{timeslot 12, critical, 1" + " " * 200_000 + "x}",
    "numbers": "{timeslot 12, critical, (" + "1, " * 330_000,
    "closed": "{timeslot 12, critical" + "}" * 10**6,
    "not": "{timeslot 12, " + "not " * 250_000,
    "equals": "reward : " * 110_000,
    "reward": "reward = " + "9" * 10**6,
    "names": "{timeslot 12, <critical>, <" + "hip: .5 " * 125_000 + ">}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_anything_is_read_in_linear_time(name):
    readings = (
        lambda text: read_verdicts(text, 0, 500, PONG),
        lambda text: read_verdicts(text, 0, 500, TORQUES),
        read_reward,
    )
    for reading in readings:
        start = time.process_time()
        reading(HOSTILE[name])
        assert time.process_time() - start < 3  # 1.3 s at most when measured, most 0.1 s
