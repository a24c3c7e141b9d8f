"""The scalar critic beside language TD, and what does not learn: targets by hand, padding, learning, controls."""

import dataclasses

import jax
import numpy as np
import pytest

from envs.breakthrough import rule_based as scripts
from envs.breakthrough.prompts import roles
from envs.breakthrough.rules import board_game
from nlrl_jax.algorithms import language_td as td
from nlrl_jax.algorithms import td_controls
from nlrl_jax.algorithms.language_td_data import Data, TDDataConfig, sample
from nlrl_jax.algorithms.scalar_td import ScalarCritic, ends, targets
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles.board_games import Line, View, Viewer
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.types import Sampling
from nlrl_jax.weights.load import load_tokenizer

GAME = board_game()
GREEDY = Sampling(32, 0.0)
SFT = SFTConfig(learning_rate=1e-2, epochs=30, train="params")


@pytest.fixture(scope="module")
def critic():
    tokenizer = load_tokenizer("nano_board")
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2,
        num_kv_heads=2, head_dim=8, max_positions=64, tie_embeddings=True,
    )  # fmt: skip
    return ScalarCritic(Transformer(config), tokenizer, roles("compact").value, SFT, batch=4)


def views_of(num, seed=0):
    return list(dict.fromkeys(random_views(GAME, 4 * num, seed)))[:num]


def test_a_target_is_the_mean_of_results_and_of_values_at_the_ends():
    state = sample(GAME, TDDataConfig(look_ahead=2, variations=3), 1, jax.random.key(0))[0]
    one, other = (line.steps[-1].after for line in state.variations[:2])
    won = Line(state.variations[2].steps, True, "white")
    mixed = td.LookAhead(state.view, (*state.variations[:2], won))
    assert ends([mixed]) == list(dict.fromkeys([one, other]))
    value = {one: 0.5} | {other: 0.2}
    (target,) = targets([mixed], value, "black")
    assert target == pytest.approx((value[one] + 0.2 - 1.0) / 3)
    (target,) = targets([mixed], value, "white")  # of the other side, only the result turns
    assert target == pytest.approx((value[one] + 0.2 + 1.0) / 3)


def test_values_begin_at_0_do_not_see_padding_and_learn_their_targets(critic):
    views = views_of(12)
    params = critic.init(init_params(critic.model, jax.random.key(0)), jax.random.key(1))
    np.testing.assert_array_equal(critic.values(params, views), 0.0)
    half = jax.tree.map(lambda x: x.astype(jax.numpy.bfloat16), params["model"])
    learned = {x.dtype for x in jax.tree.leaves(critic.init(half, jax.random.key(1)))}
    assert learned == {jax.numpy.dtype("float32")}
    wanted = np.array([-0.8, 0.6, 0.1] * 4, np.float32)
    learned, metrics = critic.fit(params, views, wanted)
    together = critic.values(learned, views)
    assert metrics["steps"] == 30 * 3 and np.mean((together - wanted) ** 2) < 0.02 < np.mean(wanted**2)
    short = min(views, key=lambda view: len(view.board.replace(".", "")))  # the one with most padding behind it
    np.testing.assert_allclose(critic.values(learned, [short]), together[views.index(short)], atol=1e-5)
    again, _ = critic.fit(params, views, wanted)
    jax.tree.map(np.testing.assert_array_equal, again, learned)
    assert critic.values(params, []).shape == (0,)


def test_a_loss_that_is_not_finite_is_refused(critic):
    params = critic.init(init_params(critic.model, jax.random.key(0)), jax.random.key(1))
    quick = dataclasses.replace(critic, sft=dataclasses.replace(SFT, epochs=1))
    with pytest.raises(ValueError, match="the scalar critic met a non-finite loss at learning rate 0.01"):
        quick.fit(params, views_of(4), np.array([np.nan] * 4, np.float32))


def test_controls_judge_every_position_without_learning():
    boards = ["5b....\n4.....\n3.....\n2...w.\n1.....\n abcde", "5b....\n4...w.\n3.....\n2.....\n1.....\n abcde"]
    positions = [GAME.parse(board, "white") for board in boards]
    positions = jax.tree.map(lambda *leaves: np.stack(leaves), *positions)
    views = Viewer(GAME).views(positions)
    data = Data([], views, np.array([0.0, -1.0]), positions)
    config, rules = TDDataConfig(look_ahead=2, variations=2, simulations=50, rollouts=1), ScriptedModel(scripts.SCRIPTS)
    learning = td.LanguageTDConfig(GREEDY, GREEDY)
    value = td.ValueFunction(rules, roles("compact").value, GREEDY)
    found = td_controls.controls(GAME, data, config, roles("compact"), rules, value, learning, scripts.RULES, seed=0)
    assert set(found) == {"target alone", "one search", *scripts.RULES}
    # in the second position white to move arrives at once: a search, and so its target, sees it
    assert found["target alone"][1] == found["one search"][1] == "white"
    assert found["more pawns"] == [None, None] and found["side to move"] == ["white", "white"]
    assert found["more pawns, then the race"][1] == "white"


@pytest.mark.parametrize(
    "rows, player, more, race",
    [
        ("b.... ..... ..... ..... w....", "white", None, "white"),  # both four rows to go: the side to move
        ("b.... ..... ..... ..... w....", "black", None, "black"),
        ("..... b.... ..... ..... w....", "white", None, "black"),  # black has three to go
        ("bb... ..... ..... w.... .....", "white", "black", "black"),  # more pawns come first
    ],
)
def test_rules_of_pawns_and_the_race(rows, player, more, race):
    lines = [f"{5 - n}{row}" for n, row in enumerate(rows.split())]
    view = View("\n".join([*lines, " abcde"]), player, ())
    assert scripts.more_pawns(view) == more and scripts.pawns_then_race(view) == race
