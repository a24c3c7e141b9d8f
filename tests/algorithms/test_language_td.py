"""Algorithm 2: the look-ahead data, the estimate, that it propagates back, and how answers are judged."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms import language_td as td
from nlrl_jax.algorithms.language_td_data import Data, TDDataConfig
from nlrl_jax.algorithms.td_controls import controls
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.breakthrough.prompts import read_advantage, roles, squares
from nlrl_jax.envs.breakthrough.rule_based import SCRIPTS, evaluation
from nlrl_jax.envs.breakthrough.rules import board_game
from nlrl_jax.roles.board_games import Evaluated, Line, Viewer
from nlrl_jax.types import Reply, Sampling
from tests.algorithms.table_model import TableModel, learn

GAME = board_game()
VIEWER = Viewer(GAME)
GREEDY = Sampling(32, 0.0)
CONFIG = td.LanguageTDConfig(GREEDY, GREEDY)
SCRIPTED = ScriptedModel(SCRIPTS)
START = ["5bb.b.", "4b..b.", "3..bw.", "2w.w..", "1wwwww", " abcde"]


def played(words, copies=1):
    """What `mcts.play_moves` gives for lines of moves from the start, each repeated: (positions, actions, reached)."""
    longest = max(map(len, words))
    rows = [line for line in words for _ in range(copies)]
    actions = np.full((longest, len(rows)), -1, np.int32)
    columns = []
    for n, line in enumerate(rows):
        position, seen = GAME.init(), []
        seen.append(position)
        for t in range(longest):
            if t < len(line):
                actions[t, n] = GAME.actions.index(line[t])
                position = GAME.step(position, actions[t, n])
            seen.append(position)
        columns.append(jax.tree.map(lambda *x: jnp.stack(x), *seen))
    reached = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *columns)
    start = jax.tree.map(lambda leaf: leaf[None], GAME.init())
    return start, actions, reached


def test_look_ahead_removes_duplicates_and_knows_what_ended():
    quick = ["b4b3", "d2d3", "b3c2*", "d3e4", "c2b1*"]  # black walks through
    start, actions, reached = played([["b4b3", "d2d3"], ["b4b3", "d2d3"], quick, ["c4c3", "d2d3"]])
    (found,) = td.look_ahead(GAME, VIEWER, start, actions, reached, 4)
    assert [[s.action for s in line.steps] for line in found.variations] == [["b4b3", "d2d3"], quick, ["c4c3", "d2d3"]]
    assert [(line.over, line.winner) for line in found.variations] == [(False, None), (True, "black"), (False, None)]
    assert found.view == found.variations[0].steps[0].before and found.view.player == "black"
    for line in found.variations:
        for step, following in zip(line.steps, line.steps[1:]):
            assert step.after == following.before
    assert set(squares(found.variations[1].steps[-1].after.board, "b")) >= {"b1"}
    assert found.variations[1].steps[-1].after.legal == ()


def state_of(*lines):
    start, actions, reached = played(lines)
    return td.look_ahead(GAME, VIEWER, start, actions, reached, len(lines))[0]


def evaluator(model):
    return td.ValueFunction(model, roles("compact").value, CONFIG.values)


def test_the_estimate_weighs_results_and_evaluations():
    ended = ["b4b3", "d2d3", "b3c2*", "d3e4", "c2b1*"]
    state = state_of(["c4c3", "d2d3"], ["c4c3", "b2b3"], ended)
    r = roles("compact")
    ends = [line.steps[-1].after for line in state.variations]
    says = lambda first, second: learn(
        TableModel(), [(r.value(ends[0]), evaluation("x", first)), (r.value(ends[1]), evaluation("x", second))]
    )[0]
    for first, second, ahead in (("white", "black", "black"), ("black", "black", "black")):
        (target,) = td.td_estimate([state], r, evaluator(says(first, second)), SCRIPTED, CONFIG, 0, Counter())
        assert r.read_advantage(target.text) == ahead
        assert "b4b3" in target.text  # the move that won is suggested to black
        assert target.evaluated[2].value == "" and target.evaluated[0].value == evaluation("x", first)
    counts = Counter()
    td.td_estimate([state], r, evaluator(TableModel()), SCRIPTED, CONFIG, 0, counts)
    assert counts["value/undecided"] == 2 and counts["value/calls"] == 2


def test_values_travel_back_along_the_chain_one_look_ahead_an_iteration():
    """Three positions, each two moves before the next, the last one before black's win."""
    line = ["b4b3", "d2d3", "b3c2*", "d3e4", "c2b1*"]
    start, actions, reached = played([line])
    views = [VIEWER.views(jax.tree.map(lambda leaf, t=t: leaf[t], reached))[0] for t in range(6)]
    steps = td.look_ahead(GAME, VIEWER, start, actions, reached, 1)[0].variations[0].steps
    cut = lambda a, b: td.LookAhead(views[a], (Line(steps[a:b], b == 5, "black" if b == 5 else None),))
    buffer = [cut(0, 2), cut(2, 4), cut(4, 5)]
    r, value = roles("compact"), TableModel()
    says = lambda view: r.read_advantage(value.complete([r.value(view)], GREEDY, "value")[0].text)
    wrong = [(r.value(view), evaluation("x", "white")) for view in views]
    value, _ = learn(value, wrong)
    known = []
    for i in range(3):
        value, _, metrics = td.iterate(buffer, r, value, SCRIPTED, learn, CONFIG, i)
        known.append([says(views[0]), says(views[2]), says(views[4])])
    assert known == [["white", "white", "black"], ["white", "black", "black"], ["black"] * 3]
    assert metrics["value/undecided"] == 0 and metrics["sft/examples"] == 3


def test_the_first_evaluations_may_come_from_another_model_with_prompt_and_sampling_of_its_own():
    state, r, paper = state_of(["c4c3", "d2d3"]), roles("compact"), roles("paper")
    end, sampling = state.variations[0].steps[-1].after, Sampling(300, 0.5)

    class Large(TableModel):
        def complete(self, chats, asked, role, seed=0, stop=()):
            assert asked == sampling and [chat.messages for chat in chats] == [paper.value(end).messages]
            return [Reply(evaluation("x", "white"))]

    large = td.ValueFunction(Large(), paper.value, sampling)
    value, targets, _ = td.iterate([state], r, TableModel(), SCRIPTED, learn, CONFIG, 0, large)
    assert r.read_advantage(targets[0].text) == "white"
    assert list(value.table) == list(learn(TableModel(), [(r.value(state.view), "")])[0].table)  # its own prompt


def test_the_target_alone_is_what_the_given_models_say():
    start, _, _ = played([["b4b3"]])
    data, rules = Data([], VIEWER.views(start), np.zeros(1), start), {"rule": lambda view: None}
    made = TDDataConfig(1, 1, variations=2, look_ahead=1, simulations=2, rollouts=1)
    aggregator = ScriptedModel({"aggregator": lambda context, rng: "*Advantage*: <black>"})  # by rule it is white
    said = controls(GAME, data, made, roles(), evaluator(SCRIPTED), aggregator, CONFIG, rules, 0)
    assert said["target alone"] == ["black"] and said["rule"] == [None]


def test_judging_counts_what_is_level_and_what_names_no_side():
    views, r = [VIEWER.views(jax.tree.map(lambda leaf: leaf[None], GAME.init()))[0]], roles("compact")
    position = GAME.init()
    for word in ("c4c3", "d2d3", "c3d2*"):
        position = GAME.step(position, GAME.actions.index(word))
        views.append(VIEWER.views(jax.tree.map(lambda leaf: leaf[None], position))[0])
    said = ["black", "white", "both", "white"]
    text = lambda side: "*Advantage*: <white> or <black>" if side == "both" else evaluation("x", side)
    value, _ = learn(TableModel(), [(r.value(view), text(side)) for view, side in zip(views, said)])
    sides, words = td.judge(views, r, value, GREEDY, 0)
    assert sides == ["black", "white", None, "white"] and words == [text(side) for side in said]
    rates = np.array([1.0, 0.3, -0.9, 0.1])
    judged = td.assess(sides, rates, GAME.players, 0.2)
    error = np.std([0, 1], ddof=1) / np.sqrt(2)
    assert judged == td.Judged(accuracy=0.5, answered=2 / 3, positions=3, level=1, standard_error=error)
    assert td.assess(sides, rates, GAME.players, 0.4)[:4] == (1.0, 0.5, 2, 2)


@pytest.mark.parametrize(
    "text, side",
    [
        ("4. *Advantage*: <white>", "white"),
        ("**Advantage:**\n<black> is ahead", "black"),
        ("Advantage: <White>", "white"),
        ("<white> attacks. Advantage: <black>", "black"),
        ("Advantage: <white> though <black> ...", None),
        ("Advantage: white", None),
        ("<white>", None),
        ("", None),
        ("Advantage: <black>. In sum the advantage is with <white>", "white"),
        ("Advantage: <white> Overall, White has a slight advantage in this position.", "white"),
        ("Advantage: <white> The advantage: <black> or <white>. A slight advantage", None),
    ],
)
def test_the_advantage_is_what_is_marked_after_the_last_heading_with_a_mark(text, side):
    assert read_advantage(text) == side


def test_the_paper_prompt_describes_moves_results_and_evaluations():
    ended = ["b4b3", "d2d3", "b3c2*", "d3e4", "c2b1*"]
    state = state_of(["c4c3", "d2d3"], ended)
    known = [Evaluated(line, "" if line.over else "good for nobody") for line in state.variations]
    text = roles().aggregate(state.view, known).messages[-1]["content"]
    assert "black moves from b3 to c2 and captures." in text
    assert "black has won." in text and "good for nobody" in text
    assert "White pawns: a2, b2, c2, d2, e2, a1, b1, c1, d1, e1." in text
    system = roles().aggregate(state.view, known).messages[0]["content"]
    assert GAME.rules in system and "about the given position, in at most 150 words, under four headings" in system
    for mark in ("*Advantage*: <white>", "*Advantage*: <black>"):  # the reader reads what the prompt asks for
        assert f'"{mark}"' in system and roles().read_advantage(f"Sections.\n{mark}") == mark[-6:-1]
    value = roles().value(state.view).messages
    assert "<white>" in value[0]["content"] and "It is black's turn." in value[1]["content"]
    compact = roles("compact").value(state.view).messages[-1]["content"]
    assert compact.split()[:4] == ["black:", "a5b", "b5b", "c5b"] and compact.split()[-1] == "e1w"
    assert len(compact.split()) == 21
