"""Algorithm 1 on a number line, where everything can be worked out by hand."""

from collections import Counter

import numpy as np
import pytest

from nlrl_jax.algorithms import language_gpi as gpi
from nlrl_jax.types import Chat, Reply, Sampling

SAMPLING = Sampling(max_tokens=64, temperature=0.7)


class Line:
    """A walk over the numbers by -1, +1 or +3; states are numbers, variations are paths. The goal is 10."""

    actions = ("back", "on", "jump")
    moves = (-1, 1, 3)

    def candidates(self, state):
        return (1, 2) if state == 0 else (0, 1, 2)

    def look_ahead(self, states, actions, steps, rng):
        drift = rng.integers(3, size=(len(states), steps))
        ends = ([s + self.moves[a], *(self.moves[d] for d in row)] for s, a, row in zip(states, actions, drift))
        return [np.cumsum(path).tolist() for path in ends]

    def policy(self, state):
        return Chat.of(f"policy {state}", state=state)

    def q(self, state, action):
        return Chat.of(f"q {state} {action}", state=state, action=action)

    def value(self, state, variation):
        return Chat.of(f"value {variation}", end=variation[-1])

    def describe(self, state, variation):
        return f"{state} to {variation[-1]}"

    def aggregate(self, state, action, descriptions, evaluations):
        text = f"aggregate {state} {action}"
        return Chat.of(text, state=state, action=action, told=tuple(descriptions), values=tuple(evaluations))

    def improve(self, state, values):
        return Chat.of(f"improve {state}", state=state, values=dict(values))

    def read_action(self, text):
        return (int(text), "") if text.lstrip("-").isdecimal() else (-1, "prose" if text else "empty")

    def read_evaluation(self, text):
        return text or "(none)", "" if text else "empty"


class Model:
    """Answers with a function of (role, context) and remembers what it was asked."""

    can_score = False

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.asked.append((role, list(chats), sampling, seed))
        return [Reply(self.answer(role, chat.context)) for chat in chats]


def numeric(role, context):
    """Evaluations are numbers: minus the distance to 10; the aggregator takes the mean, the improver the maximum."""
    if role == "value":
        return str(-abs(10 - context["end"]))
    if role == "q":
        return str(-abs(10 - context["state"] - Line.moves[context["action"]]))
    if role == "aggregator":
        return str(np.mean([float(value) for value in context["values"]]))
    if role == "improver":
        return str(max(context["values"], key=lambda action: float(context["values"][action])))
    return "1"


def test_with_one_step_and_exact_values_it_is_the_greedy_choice():
    model, states = Model(numeric), list(range(20))
    config = gpi.GPIConfig(look_ahead=0, variations=1, sampling=SAMPLING)
    decisions = gpi.language_gpi(model, Line(), states, config, seed=0)
    allowed = Line().candidates
    best = [max(allowed(s), key=lambda a, s=s: -abs(10 - s - Line.moves[a])) for s in states]
    np.testing.assert_array_equal(decisions.actions, best)
    assert not decisions.problems and not decisions.is_random.any() and len(set(best)) == 3
    np.testing.assert_array_equal(gpi.value_and_improve(model, Line(), states, SAMPLING, 0).actions, best)


def test_many_variations_approach_the_expected_value_of_the_walk():
    # One random step after the action, from 8: the mean distance to 10 is worked out by hand.
    expected = {a: -np.mean([abs(10 - (8 + m + d)) for d in Line.moves]) for a, m in enumerate(Line.moves)}
    config = gpi.GPIConfig(look_ahead=1, variations=4000, sampling=SAMPLING)
    decisions = gpi.language_gpi(Model(numeric), Line(), [8], config, seed=0)
    got = {action: float(text) for action, text in decisions.thinking[0].values.items()}
    assert got == pytest.approx(expected, abs=0.1)
    assert decisions.actions[0] == max(expected, key=expected.get)


def test_calls_are_4k_and_4_and_1_in_three_batches_with_the_paper_order():
    model, K = Model(numeric), 5
    config = gpi.GPIConfig(look_ahead=3, variations=K, sampling=SAMPLING)
    decisions = gpi.language_gpi(model, Line(), [3, 0, 7], config, seed=9)
    pairs = 3 + 2 + 3  # one action is no candidate at 0
    assert [(role, len(chats)) for role, chats, _, _ in model.asked] == [
        ("value", K * pairs), ("aggregator", pairs), ("improver", 3),
    ]  # fmt: skip
    assert decisions.calls == Counter({"value": K * pairs, "aggregator": pairs, "improver": 3})
    assert all(sampling == SAMPLING and seed == 9 for _, _, sampling, seed in model.asked)
    # Every aggregation holds the K descriptions and evaluations of its own state and action.
    value, aggregator, improver = (chats for _, chats, _, _ in model.asked)
    for i, chat in enumerate(aggregator):
        ends = [v.context["end"] for v in value[i * K : i * K + K]]
        assert chat.context["told"] == tuple(f"{chat.context['state']} to {end}" for end in ends)
        assert chat.context["values"] == tuple(str(-abs(10 - end)) for end in ends)
    assert [chat.context["state"] for chat in improver] == [3, 0, 7]
    for chat, thinking in zip(improver, decisions.thinking):
        allowed = list(Line().candidates(chat.context["state"]))
        assert list(thinking.values) == list(thinking.variations) == list(chat.context["values"]) == allowed
        for action, pairs in thinking.variations.items():
            assert len(pairs) == K
            mean = np.mean([float(evaluation) for _, evaluation in pairs])
            assert float(thinking.values[action]) == pytest.approx(mean)


def test_the_same_seed_gives_the_same_decisions_and_another_seed_other_variations():
    config = gpi.GPIConfig(look_ahead=3, variations=2, sampling=SAMPLING)
    runs = [gpi.language_gpi(Model(numeric), Line(), [2, 5], config, seed) for seed in (1, 1, 2)]
    texts = [[thinking.variations for thinking in run.thinking] for run in runs]
    assert texts[0] == texts[1] != texts[2]


def test_unreadable_and_illegal_actions_are_counted_by_kind_and_replaced_by_candidates():
    answers = {1: "", 2: "I would go on", 3: "2", 0: "0"}  # at 0 the action 0 is no candidate
    model = Model(lambda role, context: answers[context["state"]])
    states = [0, 1, 2, 3] * 500
    decisions = gpi.policy_alone(model, Line(), states, SAMPLING, seed=0)
    assert decisions.problems == {
        "policy/illegal": 500, "policy/empty": 500, "policy/prose": 500, "policy/random": 1500,
    }  # fmt: skip
    actions, is_random = decisions.actions.reshape(-1, 4), decisions.is_random.reshape(-1, 4)
    assert is_random.all(0).tolist() == [True, True, True, False] and not is_random[:, 3].any()
    assert (actions[:, 3] == 2).all() and set(actions[:, 0]) == {1, 2}
    np.testing.assert_allclose(np.bincount(actions[:, 1], minlength=3) / 500, 1 / 3, atol=0.09)


def test_broken_evaluations_go_on_as_text_and_are_counted():
    model = Model(
        lambda role, context: "" if role == "value" else numeric(role, context) if role == "improver" else "3"
    )
    decisions = gpi.language_gpi(model, Line(), [4], gpi.GPIConfig(1, 2, SAMPLING), seed=0)
    assert decisions.problems == {"value/empty": 6}
    assert model.asked[1][1][0].context["values"] == ("(none)", "(none)")


def test_replies_that_were_cut_are_counted_also_where_they_can_be_read():
    class Cut(Model):
        def complete(self, chats, sampling, role, seed=0, stop=()):
            replies = super().complete(chats, sampling, role, seed, stop)
            return [reply._replace(ended=role == "improver") for reply in replies]

    decisions = gpi.language_gpi(Cut(numeric), Line(), [4], gpi.GPIConfig(1, 2, SAMPLING), seed=0)
    assert decisions.problems == {"value/never ended": 6, "aggregator/never ended": 3}


def test_no_states_ask_nothing():
    model = Model(numeric)
    assert gpi.language_gpi(model, Line(), [], gpi.GPIConfig(), seed=0).actions.shape == (0,)
    assert not model.asked
