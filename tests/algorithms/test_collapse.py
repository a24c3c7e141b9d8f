"""Measures of collapse against counts by hand, and their sentences."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import collapse
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts.text_games import Turns
from nlrl_jax.run import alarms
from nlrl_jax.text.policy import TokenTurn

RNG = np.random.default_rng(0)
T, B, S, N = 3, 4, 5, 4
MODEL = Transformer(ModelConfig(16, 16, 24, 2, 2, 2, 8, 64))
SCORE = jax.jit(functools.partial(score, MODEL))


@pytest.fixture(scope="module")
def variables():
    return {"params": jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x, init_params(MODEL, jax.random.key(0)))}


def played(variables):
    """Turns of which some are not active, with the log-probabilities that the model gives their replies."""
    active = np.array([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0]], bool)
    prompts, lengths = RNG.integers(1, 16, (T, B, S)), np.full((T, B), S)
    tokens, sizes = RNG.integers(1, 16, (T, B, N)), RNG.integers(1, N + 1, (T, B))
    tokens = np.where(np.arange(N) < sizes[..., None], tokens, 0)
    tokens[0, 1], sizes[0, 1] = tokens[0, 0], sizes[0, 0]  # the same reply twice
    tokens[2, 1], sizes[2, 1] = tokens[0, 2], sizes[0, 2]  # and once where nobody plays
    flat = lambda x: jnp.asarray(x).reshape(T * B, *x.shape[2:])
    log_probs = SCORE(variables, flat(prompts), flat(lengths), flat(tokens)).reshape(T, B, N)
    turn = TokenTurn(prompts, lengths, tokens, sizes, log_probs, active, None)
    return Turns({}, turn, np.zeros((T, B)), np.zeros((T, B)), np.zeros((T, B)), active)


def test_counts_by_hand(variables):
    turns = jax.tree.map(jnp.asarray, played(variables))
    found = jax.jit(collapse.measures)(turns, jnp.array([[0.0, 1.0], [2.0, 2.0]]))
    said, active = turns.turn, np.asarray(turns.active)
    texts = [tuple(np.asarray(said.replies)[t, b, : said.reply_lengths[t, b]]) for t, b in zip(*np.nonzero(active))]
    assert len(texts) == 8 and found["distinct_replies"] == len(set(texts)) / 8 == 7 / 8
    nats = [-float(said.log_probs[t, b, : said.reply_lengths[t, b]].sum()) for t, b in zip(*np.nonzero(active))]
    assert float(found["surprisal"]) == pytest.approx(sum(nats) / sum(map(len, texts)), rel=1e-5)
    assert float(found["return_spread"]) == 0.25


def test_dependence_is_the_gain_over_another_prompt(variables):
    turns = jax.tree.map(jnp.asarray, played(variables))
    policy = SimpleNamespace(model=MODEL, prefix=lambda variables: None)
    dependence = jax.jit(lambda v, turns: collapse.state_dependence(policy, v, turns, 8))
    found = dependence(variables, turns)
    said, at = turns.turn, list(zip(*np.nonzero(np.asarray(turns.active))))
    gaps = []
    for n, (t, b) in enumerate(at):
        u, c = at[(n - 4) % 8]
        size = int(said.reply_lengths[t, b])
        other = SCORE(variables, said.prompts[u, c][None], jnp.array([S]), said.replies[t, b][None])[0, :size]
        gaps.append(float((said.log_probs[t, b, :size] - other).sum()))
    assert abs(np.mean(gaps)) > 0.1 and float(found) == pytest.approx(np.mean(gaps), rel=1e-4)
    same = turns._replace(turn=turns.turn._replace(prompts=jnp.ones((T, B, S), jnp.int32)))
    assert dependence(variables, same) == 0


def test_sentences(tmp_path):
    def run(**ends):
        rows = [
            {"iteration": i, **{name: first + (last - first) * i / 99 for name, (first, last) in ends.items()}}
            for i in range(100)
        ]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return alarms.warnings(tmp_path)

    fine = {
        "surprisal": (1, 0.5),
        "distinct_replies": (0.6, 0.3),
        "state_dependence": (1, 2),
        "return_spread": (1, 0.5),
    }
    assert run(**fine) == []
    (alike,) = run(**fine | {"distinct_replies": (0.8, 0.01)})
    assert alike.startswith("Replies have become alike (distinct_replies 0.76") and alike.endswith("in the last 10).")
    assert len(run(**fine | {"surprisal": (1, 4)})) == len(run(**fine | {"state_dependence": (2, 0.01)})) == 1
    assert "certain" in run(**fine | {"surprisal": (1, 0.0)})[0]
    assert "end alike" in run(**fine | {"return_spread": (1, 0)})[0]
    (unpaid,) = run(**fine, env_return=(0, 0))
    assert unpaid.startswith("The game paid no reward in the last 10 iterations") and unpaid.endswith("warm_start`.")
    assert run(**fine, env_return=(0, 0.1)) == []


def test_a_run_of_ten_iterations_has_ends_to_compare(tmp_path):
    rows = [{"iteration": i, "distinct_replies": 1.0 if i < 5 else 0.1, "env_return": 0.1} for i in range(10)]
    for n, found in ((9, 0), (10, 1)):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:n]))
        assert len(alarms.warnings(tmp_path)) == found


def test_a_run_that_cannot_learn_says_so_once_and_what_to_do():
    def told(rows, **metrics):
        watch = alarms.Watch()
        return [sentence for _ in range(rows) for sentence in watch(metrics)]

    dull = {"uninformative_groups": 0.9, "success": 0.0, "steps": 3.0, "turns": 3.0}
    assert told(19, **dull) == []
    (equal,) = told(60, **dull)
    assert equal.startswith("in 90% of the groups of the last 20 iterations all episodes had the same return")
    assert "--group_size" in equal and "warm_start" not in equal
    (unread,) = told(60, **dull | {"steps": 0.2})
    assert "An episode's 3 replies made 0.2 steps" in unread and "nlrl-jax warm_start" in unread
    (blind,) = told(60, state_dependence=0.002)
    assert "hardly depended on the state (state_dependence 0.002 nats per reply)" in blind and "--num_groups" in blind
    assert len(told(60, **dull, state_dependence=0.0)) == 2
    assert told(60, **dull | {"success": 0.95}) == told(60, uninformative_groups=0.4, state_dependence=3.0) == []
    (none,) = told(60, **dull | {"uninformative_groups": 1.0})
    assert (
        none.startswith("in all groups of the last 3 iterations")
        and told(2, **dull | {"uninformative_groups": 1.0}) == []
    )
    (certain,) = told(3, **dull | {"uninformative_groups": 1.0, "surprisal": 2e-3})
    assert "certain of nearly every token (0.002 nats)" in certain and "a lower --learning_rate" in certain
    watch = alarms.Watch()
    first = {"uninformative_groups": 0.0, "distinct_replies": 0.38, "success": 0.04}
    collapsed = {"uninformative_groups": 1.0, "distinct_replies": 0.02, "surprisal": 0.1, "success": 0.0}
    assert watch(first) == watch(collapsed) == watch(collapsed) == []
    (alike,) = watch(collapsed)
    assert "(0.02 of them differ, 0.38 in the first iteration)" in alike and "--invalid_action_reward" in alike
    (unpaid,) = told(60, env_return=0.0, success=0.0)
    assert unpaid.startswith("the game paid no reward in the last 10 iterations") and told(9, env_return=0.0) == []
    assert told(60, env_return=-0.5) == []
    assert told(60, loss=1.0) == []  # other trainers


@pytest.mark.parametrize("shares, stops", [
    ((1.0, 0.6, 0.75), True), ((0.0, 1.0, 0.6, 0.6), True), ((1.0, 1.0), False), ((1.0, 1.0, 0.5), False),
])  # fmt: skip
def test_a_run_whose_episodes_break_off_has_a_reason_to_stop(shares, stops):
    watch = alarms.Watch()
    for share in shares:
        watch({"broke_off": share, "success": 1.0})
    assert bool(watch.reason_to_stop()) == stops
    if stops:
        assert watch.reason_to_stop().startswith("60% or more of the episodes broke off in each of the last 3")
