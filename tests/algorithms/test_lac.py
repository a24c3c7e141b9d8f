"""LAC on a corridor whose model's beliefs are known: the prior prefers the wrong way, its imagination knows better."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import lac
from nlrl_jax.algorithms.imagine import Caller, PlanningConfig, imagine, propose
from nlrl_jax.algorithms.lac import METHODS, LACConfig
from nlrl_jax.algorithms.planners import methods
from nlrl_jax.config import make, replace
from nlrl_jax.returns import kl_improved_policy
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.rollouts.host_games import play
from nlrl_jax.types import LEAST, Reply, Score
from tests.algorithms.corridor import ACTIONS, GAME, GOAL, LENGTH, PRIOR, START, TASKS, Corridor, Silent, where


def decide(method, model, histories=START, **options):
    changes, label = METHODS[method]
    config = replace(LACConfig(), **{"candidates": 3, **changes, **options})
    return lac.decide(model, Dialogue.of("Reach 3.", label), histories, ACTIONS, config, 0)


def test_lac_takes_the_better_action_where_the_prior_does_not():
    decisions = decide("lac", Corridor())
    assert decisions.actions == ["right", "right"]
    assert decide("lac_no_critic", Corridor()).actions == ["left", "left"]
    assert decide("lac", Corridor(), alpha=1e6).actions == ["left", "left"]
    for method in ("critic_only", "lac_positive", "lac_direct", "lac_no_rollout", "lac_tree"):
        assert decide(method, Corridor()).actions[1] == "right", method


def test_q_is_the_log_odds_after_the_imagined_rollout():
    record = decide("lac", Corridor()).thinking[0]
    by_action = dict(zip(record["candidates"], record["q"], strict=True))
    log_odds = lambda x: 1 - abs(GOAL - x)  # the logit of `Corridor.good`
    # From 1: `left` is BAD at once, at 0; after `right` the prior goes back to 1, which is BAD.
    np.testing.assert_allclose(by_action["left"], log_odds(0), atol=1e-6)
    np.testing.assert_allclose(by_action["right"], log_odds(1), atol=1e-6)
    assert [len(leaves[0]) for leaves in record["futures"]] == [1, 2, 2]
    weights = {a: PRIOR[a] * math.exp(q) for a, q in by_action.items()}
    expected = [weights[action] / sum(weights.values()) for action in record["candidates"]]
    np.testing.assert_allclose(record["improved"], expected, rtol=1e-5)


def test_a_floor_bounds_q_by_hand():
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    exact = decide("lac", Corridor()).thinking[0]["q"]
    record = decide("lac", Corridor(), floor=0.25).thinking[0]
    floored, words = record["q"], [record["log_good"], record["log_bad"]]
    np.testing.assert_allclose(np.subtract(*words), exact, rtol=1e-6)  # the floor is in Q alone
    expected = [math.log((sigmoid(q) + 0.25) / (sigmoid(-q) + 0.25)) for q in exact]
    np.testing.assert_allclose(floored, expected, atol=1e-6)


def test_reflections_enter_the_history_and_every_phase_is_one_call():
    model = Corridor()
    decisions = decide("lac", model)
    assert decisions.notes[0] == ""  # nothing to reflect on yet
    assert decisions.notes[1] == "I am at 2. This step is UNKNOWN."
    # one reflection; 2 x 3 priors; rollouts: every line one call for all that still run; 6 x 2 words
    assert model.roles[:4] == [("note", 1), ("policy", 6), ("world model", 6), ("note", 6)]
    assert model.roles[-1] == ("critic", 12)
    assert decisions.calls["critic"] == 12


def test_a_tree_keeps_the_best_leaf():
    chain, tree = (decide(method, Corridor()).thinking[0] for method in ("lac", "lac_tree"))
    right = chain["candidates"].index("right")
    assert tree["q"][right] > chain["q"][right]  # right, right is among its leaves
    assert len(tree["futures"][right]) > 1 == len(chain["futures"][right])


def test_a_tree_may_be_wider_than_the_candidates_are_many():
    record = decide("lac_tree", Corridor(), START[1:], candidates=2, branch=3, depth=2).thinking[0]
    assert record["candidates"] == ["left", "right"]
    assert [len(leaves) for leaves in record["futures"]] == [1, 1]  # BAD at once, and GOOD
    waits = decide("lac_tree", Corridor(), START[1:], candidates=3, branch=3, depth=2).thinking[0]["futures"][2]
    assert [steps[1][0] for steps in waits] == list(ACTIONS)


class Certain(Corridor):
    """Its verdicts have the probabilities 0 and 1."""

    good = staticmethod(lambda history, line: float(where(history) >= 2))

    def score(self, chats, continuations, role):
        if role == "policy":
            return super().score(chats, continuations, role)
        p = [self.good(chat.context["history"], chat.context["line"]) for chat in chats]
        log = lambda x: math.log(x) if x else -math.inf
        return [[Score(log(x), 1), Score(log(1 - x), 1)] for x in p]


def test_a_certain_verdict_decides_and_the_prior_breaks_ties():
    made = decide("lac", Certain(), START[1:] + START, depth=1)
    assert [one["q"] for one in made.thinking][:2] == [
        [LEAST, -LEAST, -LEAST],
        [LEAST, -LEAST, LEAST],
    ]
    assert made.problems["critic/no finite log-probability"] == 9
    assert made.actions == ["right", "right", "right"]
    np.testing.assert_allclose(made.thinking[0]["improved"], [0, 0.75, 0.25], rtol=1e-4)
    lost = decide("lac", Certain(), START[:1], candidates=1, depth=1)
    assert lost.thinking[0]["q"] == [LEAST] and lost.thinking[0]["improved"] == [1.0]


@pytest.mark.parametrize(
    "q, alpha, expected",
    [
        ([1.0, math.inf, math.inf], 1.0, [0, 0.75, 0.25]),
        ([math.inf, -math.inf, 0.0], 2.0, [1, 0, 0]),
        ([-math.inf, 0.0, 0.0], 1.0, [0, 0.75, 0.25]),
        ([-math.inf] * 3, 1.0, [0.6, 0.3, 0.1]),
        ([-math.inf, math.inf, 0.0], math.inf, [0.6, 0.3, 0.1]),
    ],
)
def test_infinite_q(q, alpha, expected):
    log_prior = jnp.log(jnp.array([0.6, 0.3, 0.1, 0.0]))  # the last one is padding
    given = jnp.array([*q, 0.0])
    for improve in (kl_improved_policy, jax.jit(kl_improved_policy)):
        np.testing.assert_allclose(jnp.exp(improve(log_prior, given, alpha)), [*expected, 0], atol=1e-6)


def test_other_candidates_are_tried_while_all_are_bad():
    options = {"candidates": 1, "depth": 1}
    assert decide("lac", Corridor(), START[1:], **options).actions == ["left"]
    again = decide("lac", Corridor(), START[1:], **options, resample=1)
    assert again.actions == ["right"]
    assert again.thinking[0]["candidates"] == ["left", "right"]


def test_a_model_without_scores_is_refused_before_any_call_and_has_direct_evaluation():
    silent = Silent()
    with pytest.raises(NotImplementedError, match="--critic direct"):
        decide("lac", silent)
    assert silent.roles == []
    assert decide("lac_direct", silent, START[1:]).thinking[0]["candidates"] == ["left"]  # draws: always `left`


def test_the_mean_over_tokens_is_another_prior():
    caller = Caller(Corridor(), Dialogue.of("", ""), PlanningConfig(prior="mean"), 0)
    (one,) = propose(caller, START[:1], ACTIONS)
    assert dict(zip(one.actions, one.log_prior, strict=True))["wait"] == pytest.approx(math.log(0.1) / 2)


def test_rollouts_stop_at_the_depth_and_count_lines_without_an_end():
    caller = Caller(Corridor(ends=False), Dialogue.of("", ""), PlanningConfig(depth=2), 0)
    ((leaf,),) = imagine(caller, START[:1], ["wait"], ACTIONS)
    assert [step.action for step in leaf.imagined] == ["wait", "left"]
    assert caller.problems["world model/never ended"] == 2


def test_full_contexts_lose_their_oldest_steps():
    steps = tuple(Step("wait", f"at 1, {i}") for i in range(12))
    dialogue = Dialogue.of("", "", count=lambda text: len(text.split()), room=80)
    long = History("3", "at 1", steps)
    short, dropped = dialogue.trim(long, 20)
    assert dropped == 2 * (dropped // 2) > 0 and short.steps == steps[dropped:]
    assert short.observation == steps[dropped - 1].observation
    with pytest.raises(ValueError, match="context holds 80"):
        dialogue.trim(long, 80)
    assert of_all(dialogue).trim([long], 2) == [dialogue.trim(long, 20).history]
    assert of_all(dataclasses.replace(dialogue, room=0)).trim([long]) == [long]


def of_all(dialogue):
    return Caller(Corridor(), dialogue, PlanningConfig(line_tokens=10), 0)


@pytest.mark.parametrize(
    "name, lines",
    [("react", 1), ("naive", 1), ("cot", 2), ("lac_no_critic", 2), ("prior_cot", 2), ("lac_no_rollout", 3), ("lac", 9)],
)
def test_a_method_keeps_free_what_it_needs(name, lines):
    """Its first prompt has every step that fits beside its own lines; one with rollouts keeps at most half free."""
    model, method = Corridor(), methods.METHODS[name]
    dialogue = Dialogue.of("", method.label, compact=True, room=1000, count=len)
    long = History("3", "at 1", tuple(Step("wait", f"at 1, {i}") for i in range(40)))
    method.decide(model, dialogue, [long], ACTIONS, make(LACConfig, line_tokens=20), 0)
    assert model.asked[0][1].context["history"].steps == dialogue.trim(long, 20 * lines).history.steps


class Babbler:
    """A model that fills every line to its end, and takes note of how much of its context was used."""

    can_score = True

    def __init__(self, count):
        self.count, self.most = count, 0

    def measure(self, chats, new):
        used = [sum(self.count(message["content"]) for message in chat.messages) for chat in chats]
        self.most = max([self.most, *(n + new for n in used)])

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.measure(chats, sampling.max_tokens)
        return [Reply(" word" * sampling.max_tokens, 1, 1, False)] * len(chats)

    def score(self, chats, continuations, role):
        self.measure(chats, 1)
        return [[Score(-1.0, 1)] * len(row) for row in continuations]


@pytest.mark.parametrize("name", ["lac", "lac_direct", "lac_tree", "react", "rap", "icpi", "rafa"])
def test_lines_that_never_end_stay_within_the_context(name):
    count = lambda text: len(text.split())
    dialogue = Dialogue.of("", methods.METHODS[name].label, compact=True, count=count, room=160)
    long = History("3", "at 1", tuple(Step("wait", f"at 1, {i}", "so it goes") for i in range(20)))
    model, config = Babbler(count), make(LACConfig, candidates=2, depth=4)
    methods.METHODS[name].decide(model, dialogue, [long], (), config, 0)
    assert config.planning.line(160) < model.most <= 160


def test_episodes_in_lockstep_and_repeated_from_their_moves():
    model, moves = Corridor(), []
    rule = lambda histories, t: decide("lac", model, histories)
    episodes = play(GAME, rule, TASKS, report=lambda t, move, running: moves.append((move, running)))
    assert [episode.success for episode in episodes] == [True, True]
    assert [step.observation for step in episodes[0].history.steps] == ["at 2", "at 3"]
    assert [running for _, running in moves] == [2, 0]
    calls = len(model.roles)
    again = play(GAME, rule, TASKS, done_before=[move for move, _ in moves])
    assert again == episodes and len(model.roles) == calls
    lost = play(GAME, lambda histories, t: decide("lac_no_critic", model, histories), TASKS[:1])
    assert not lost[0].success and lost[0].steps == LENGTH


def test_the_improved_policy_maximises_equation_4():
    rng = np.random.default_rng(0)
    log_prior = jnp.asarray(np.log(rng.dirichlet(np.ones(5))), jnp.float32)
    q, alpha = jnp.asarray(rng.normal(size=5), jnp.float32), 0.7
    log_policy = kl_improved_policy(log_prior, q, alpha)

    def objective(logits):
        log_p = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_p) * (q - alpha * (log_p - log_prior)), axis=-1)

    others = log_policy + jnp.asarray(rng.normal(size=(200, 5)), jnp.float32)
    assert (objective(log_policy) > objective(others)).all()
    np.testing.assert_allclose(jax.grad(objective)(log_policy), 0, atol=1e-6)
    np.testing.assert_allclose(kl_improved_policy(log_prior, q, 1e6), log_prior, atol=1e-5)
    np.testing.assert_allclose(kl_improved_policy(log_prior, q, jnp.inf), log_prior, atol=1e-6)
    assert jnp.argmax(kl_improved_policy(log_prior, q, 1e-6)) == jnp.argmax(q)
    with pytest.raises(ValueError, match="alpha is 0"):
        kl_improved_policy(log_prior, q, 0)


@pytest.mark.parametrize("alpha", [1e-45, 1e-38, 0.5, 1.0, 1e6])
@pytest.mark.parametrize("q", [[3.4e38, 3.3e38, -3.4e38], [-3.4e38, -3.4e38, -1e30], [9999.0, 1.0, -9999.0]])
def test_the_improved_policy_is_finite_for_any_finite_q(q, alpha):
    policy = np.exp(kl_improved_policy(jnp.log(jnp.array([0.2, 0.3, 0.5])), jnp.array(q), alpha))
    assert np.isfinite(policy).all() and (alpha > 1 or np.argmax(policy) == np.argmax(q))
    masked = kl_improved_policy(jnp.array([0.0, -jnp.inf]), jnp.array([1.0, jnp.inf]), alpha)
    assert np.exp(masked).tolist() == [1.0, 0.0]
