"""The analyst: one call a role, findings that speak of the states they name, and replies that cannot be read."""

import random

import numpy as np
import pytest

from nlrl_jax.algorithms import analyst
from nlrl_jax.algorithms.analyst import analyse
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.pong import prompts
from nlrl_jax.envs.pong import rule_based as scripted
from nlrl_jax.roles.trajectories import ControlEpisode, Verdict
from nlrl_jax.types import LanguageModelError
from tests.algorithms.pong_agent import recorded


@pytest.fixture(scope="module")
def episodes():
    return recorded()


@pytest.fixture(scope="module")
def findings(episodes):
    return analyse(episodes, prompts.roles(points=1), ScriptedModel(scripted.SCRIPTS))


class Counting:
    """A model that counts how often it is asked."""

    can_score = False

    def __init__(self, model):
        self.model, self.calls = model, []

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.calls.append((role, len(chats)))
        return self.model.complete(chats, sampling, role, seed, stop)


def test_four_calls_for_all_episodes(episodes):
    model = Counting(ScriptedModel(scripted.SCRIPTS))
    found = analyse(episodes, prompts.roles(points=1), model)
    assert [role for role, _ in model.calls] == ["identify", "analyse", "reward", "strategies"]
    assert dict(model.calls)["analyse"] == len(episodes) and dict(model.calls)["strategies"] == 1
    assert found.strategies.startswith("1. ")
    assert found.counts["identify/timeslots"] == sum(len(episode) for episode in episodes)
    assert found.counts["identify/critical"] == len(found.states) > 0
    assert found.counts["reward/calls"] == sum(len(state.reasons) for state in found.states)


def test_findings_speak_of_the_states_they_name(episodes, findings):
    for state in findings.states:
        episode, t = episodes[state.episode], state.verdict.timeslot
        np.testing.assert_array_equal(state.observation, episode.observations[t])
        assert state.taken == episode.actions[t] and state.taken in state.rewards
        if state.verdict.action is not None:
            assert state.rewards[state.verdict.action] > state.rewards[state.taken]


def of_an_analyst(**replies):
    """The rule-based analyst with other replies as some roles: text, or (context, rng) -> text."""
    scripts = {role: text if callable(text) else lambda context, rng, text=text: text for role, text in replies.items()}
    return ScriptedModel({**scripted.SCRIPTS, **scripts})


@pytest.mark.parametrize(
    "replies, says",
    [
        ({"identify": "I cannot see a game here."}, "'identify' cannot be read, the first one is 'I cannot see a game"),
        ({"identify": ""}, "'identify' cannot be read, the first one is empty"),
        ({"identify": "<think>" + "hm " * 500}, r"the first one is '<think>hm .{280,300}\.\.\.'\. Nothing is refined"),
        ({"identify": "{timeslot 99999, <critical>, <none>, <x>}"}, "'identify' cannot be read"),
        ({"analyse": "<think>hm"}, "'analyse' cannot be read, the first one is '<think>hm'"),
        ({"reward": "a good move"}, "'reward' cannot be read, the first one is 'a good move'"),
        ({"reward": "reward = nan"}, "'reward' cannot be read"),
    ],
)
def test_an_analyst_whose_replies_cannot_be_read_is_refused_where_they_must_be(episodes, replies, says):
    with pytest.raises(LanguageModelError, match=says):
        analyse(episodes, prompts.roles(points=1), of_an_analyst(**replies), must_read=True)


def test_an_analyst_is_stopped_after_the_first_replies_and_not_for_a_few(episodes, monkeypatch):
    monkeypatch.setattr(analyst, "FIRST", 4)
    asked = []

    def often(context, rng):
        asked.append(1)
        return "no" if len(asked) % 3 == 1 else scripted.SCRIPTS["reward"](context, rng)

    found = analyse(episodes, prompts.roles(points=1), of_an_analyst(reward=often), must_read=True)
    assert found.counts["reward/unreadable"] == -(-len(asked) // 3)
    asked.clear()
    with pytest.raises(LanguageModelError, match="4 of its first 4 replies"):
        silent = of_an_analyst(identify=lambda context, rng: asked.append(1) or "")
        analyse(episodes, prompts.roles(points=1), silent, must_read=True)
    assert len(asked) == 4


def test_replies_are_the_same_where_they_must_be_readable(episodes, findings):
    strict = analyse(episodes, prompts.roles(points=1), ScriptedModel(scripted.SCRIPTS), must_read=True)
    assert strict.counts == findings.counts and strict.analyses == findings.analyses
    assert [state.rewards for state in strict.states] == [state.rewards for state in findings.states]


def test_replies_that_break_off_or_repeat_are_counted(episodes):
    def identify(context, rng: random.Random):
        return (
            "Sure! {timeslot 1, <critical>, <none>, <a>}, {timeslot 1, <critical>, <move left>, <b>}, {timeslot 0, <cri"
        )

    silent = dict.fromkeys(scripted.SCRIPTS, lambda context, rng: "")
    model = ScriptedModel({**silent, "identify": identify, "reward": lambda c, r: "{reward = 7}"})
    counts = analyse(episodes[:2], prompts.roles(points=1), model).counts
    assert counts["identify/repeated"] >= 1 and counts["identify/cut"] >= 1 and counts["identify/missing"] > 0
    assert counts["analyse/empty"] == 2 and counts["reward/clipped"] == counts["reward/calls"] > 0


def test_what_a_model_thinks_first_is_no_analysis(episodes):
    think = lambda context, rng: "<think>\nlet me see\n</think>\nFailures: none."
    model = ScriptedModel({**dict.fromkeys(scripted.SCRIPTS, lambda c, r: ""), "analyse": think})
    assert {text.strip() for text in analyse(episodes, prompts.roles(points=1), model).analyses} == {"Failures: none."}


def test_verdicts_from_elsewhere_are_rewarded_too(episodes):
    verdicts = [[Verdict(3, True, None, "")] for _ in episodes]
    model = Counting(ScriptedModel(scripted.SCRIPTS))
    found = analyse(episodes, prompts.roles(points=1), model, verdicts=verdicts)
    assert [role for role, _ in model.calls] == ["analyse", "reward"] and len(found.states) == len(episodes)


def test_an_episode_knows_its_actions():
    one = ControlEpisode(0, np.zeros((3, 2)), np.array([[0.5, -1.0], [0.0, 0.0]]), np.zeros(2), True)
    assert len(one) == 2 and one.action(0) == (0.5, -1.0)
