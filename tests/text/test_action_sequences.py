"""A turn of several actions equals its actions played one by one, and psi of the program that reads the same text."""

import dataclasses

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.roles.messages import read_reply, system_text
from nlrl_jax.text.action_sequences import SEPARATOR, in_sequences, parse
from nlrl_jax.text.parser import ReplyFormat, reference_parse

ACTIONS = ("Up", "Down", "Left", "Right")


@pytest.fixture(scope="module")
def lake():
    return envs.make_host("frozen_lake")


@pytest.fixture(scope="module")
def lake_of_three():
    return envs.make_host("frozen_lake", turn_actions=3)


@pytest.mark.parametrize("name", ["frozen_lake", "frozen_lake_slippery", "snake"])
def test_a_turn_equals_its_actions_one_by_one(name):
    rng = np.random.default_rng(0)
    single, several = envs.make_host(name), envs.make_host(name, turn_actions=3)
    tasks = [("", seed) for seed in range(12)]
    states, expected = ([start.state for start in game.reset(tasks)] for game in (single, several))
    running, ended = list(range(12)), 0
    for _ in range(4):
        words = {i: [str(w) for w in rng.choice(ACTIONS, rng.integers(1, 4))] for i in running}
        outcomes = several.step([states[i] for i in running], [SEPARATOR.join(words[i]) for i in running])
        for i, outcome in zip(list(running), outcomes, strict=True):
            reward = 0.0
            for word in words[i]:
                (one,) = single.step([expected[i]], [word])
                expected[i], reward = one.state, reward + one.reward
                if one.done:
                    break
            jax.tree.map(np.testing.assert_array_equal, outcome.state[1], one.state[1])
            assert (outcome.observation, outcome.done, outcome.success) == (one.observation, one.done, one.success)
            assert outcome.reward == pytest.approx(reward)
            states[i] = outcome.state
            if outcome.done:
                running.remove(i)
                ended += 1
    assert ended  # some turns were cut by the end of an episode


@pytest.mark.parametrize(
    "text", ["Right", "Right || Down", "Left || Down || Left", "Up || Up || Up || Up", "Up || Jump"]
)
def test_a_line_is_read_as_the_program_reads_its_action_tag(text):
    reply_format = ReplyFormat(tags=("action",), actions=ACTIONS, max_actions=3)
    parsed = reference_parse(f"<action>{text}</action>".encode(), 10, reply_format)
    actions, is_whole = parse(text, ACTIONS)
    valid = [ACTIONS[a] for a in np.asarray(parsed.actions) if a >= 0]
    assert valid == actions[:3]
    assert (int(parsed.num_invalid) > 0) == (not is_whole or len(actions) > 3)


@pytest.mark.parametrize(
    "reply, action, problem",
    [
        ("The goal is below.\nAction: Down || Down", "Down || Down", ""),
        ("Action: Up, then Right and Down.", "Up, then Right and Down.", ""),
        ("**Action:** Right -> Down", "Right -> Down", ""),
        ("Action: Up\nAction: Right || Right", "Right || Right", ""),
        ("Right || Down", "Right || Down", ""),
        ("I do not know.", "I do not know.", "no action"),
        ("Left: Right\nRight: Up", "Left: Right\nRight: Up", "no action"),
    ],
)
def test_replies(lake_of_three, reply, action, problem):
    assert read_reply(reply, lake_of_three) == (action, problem)


def test_what_counts_as_invalid(lake, lake_of_three):
    (start,) = lake_of_three.reset([("", 3)])
    texts = ("Right", "Up || Left", "Right || Jump", "Right || Left || Right || Left", "hello")
    outcomes = lake_of_three.step([start.state] * 5, texts)
    assert [outcome.valid for outcome in outcomes] == [True, False, False, False, False]
    assert [outcome.idle for outcome in outcomes] == [False, True, False, False, False]  # two walls: no fine
    times = [int(outcome.state[1].time) for outcome in outcomes]
    assert times == [1, 2, 1, 3, 1]  # the surplus action is not played; a reply without an action takes a step
    assert outcomes[-1].observation.startswith("Nothing happens. ")
    assert lake.max_actions_per_turn == 1 and lake_of_three.max_actions_per_turn == 3


def test_the_rules_of_the_lake_name_what_the_map_shows(lake, lake_of_three):
    text = system_text(lake_of_three)
    assert 'in the form "Action: Up || Down"' in text and "one of them" not in text
    assert all(f"{symbol}" in text for symbol in ("P is you", "G the goal", "O a hole", "_ ice"))
    (start,) = lake.reset([("", 3)])
    assert start.observation == lake.board(start.state)


def test_games_that_take_one_action_a_turn_are_refused(lake):
    for game in (dataclasses.replace(lake, actions=()), dataclasses.replace(lake, read_action=str)):
        with pytest.raises(ValueError, match="takes one action a turn.*give --turn_actions 1"):
            in_sequences(game, 2)
    with pytest.raises(ValueError, match="at most 1"):
        in_sequences(lake, 1)
    with pytest.raises(ValueError, match="turn_actions"):
        envs.make_host("frozen_lake", turn_actions=0)
