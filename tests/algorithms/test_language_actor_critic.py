"""Algorithm 3: what each line computes, that it learns, and what happens to replies that are of no use."""

import dataclasses
import json
from collections import Counter

import pytest

from nlrl_jax.algorithms import language_actor_critic as nlac
from nlrl_jax.algorithms import language_estimates as estimates
from nlrl_jax.algorithms.language_actor_critic import ActorCriticConfig, ActorCriticSetup, ActorCriticState
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.tic_tac_toe.prompts import STYLES, roles
from nlrl_jax.envs.tic_tac_toe.rule_based import SCRIPTS
from nlrl_jax.envs.tic_tac_toe.rules import board_game
from nlrl_jax.roles.board_games import Line, Ply, View, Viewer
from nlrl_jax.rollouts.board_games import (
    PlayedGame,
    first_move_opponent,
    language_act,
    play_games,
    random_act,
    random_opponent,
)
from nlrl_jax.types import Piece, Sampling
from tests.algorithms.table_model import TableModel, learn

GAME = board_game()
VIEWER = Viewer(GAME)
GREEDY = Sampling(16, 0.0)
SCRIPTED = ScriptedModel(SCRIPTS)
SMALL = ActorCriticConfig(games=160, k=5, rollout=Sampling(16, 1.0), candidates=Sampling(16, 1.0))


def setting(opponent=random_opponent, improver=SCRIPTED, aggregator=SCRIPTED, **options):
    config = dataclasses.replace(SMALL, **options)
    return ActorCriticSetup(GAME, opponent(GAME), roles("compact"), aggregator, improver, learn, learn, config)


def beginner():
    """A policy that names any square, and values that say nothing."""
    return ActorCriticState(TableModel(guess=lambda rng: json.dumps({"best_move": rng.randint(1, 9)})), TableModel())


def won(state, how, seed=5):
    return nlac.evaluate(state, how, VIEWER, 300, GREEDY, seed)[0]["win"]


@pytest.mark.parametrize("estimate, games, iterations", [("mc", 100, 5), ("td", 160, 8)])
def test_models_that_only_remember_learn_to_win(estimate, games, iterations):
    how, state = setting(first_move_opponent, estimate=estimate, games=games, buffer=2), beginner()
    before = won(state, how)
    for i in range(iterations):
        state, record = nlac.iterate(state, how, VIEWER, 10 * i)
    assert before < 0.7 and won(state, how) > 0.9
    assert state.iteration == iterations and len(state.buffer) == 2
    assert record.metrics["rollout/win"] > 0.6


def test_the_same_seed_gives_the_same_iteration():
    how = setting(games=12)
    first, a = nlac.iterate(beginner(), how, VIEWER, 3)
    again, b = nlac.iterate(beginner(), how, VIEWER, 3)
    assert (a.games, a.improvements, a.metrics) == (b.games, b.improvements, b.metrics)
    assert first.policy.table == again.policy.table and first.value.table == again.value.table
    _, other = nlac.iterate(beginner(), how, VIEWER, 4)
    assert other.games != a.games


def test_games_are_legal_and_both_sides_are_taken():
    games = play_games(GAME, VIEWER, random_act, random_opponent(GAME), 41, 0)
    assert Counter(g.agent for g in games) == {"O": 21, "X": 20}
    for g in games:
        assert g.line.over and g.line == line_of([step.action for step in g.line.steps])
        assert all(step.action in step.before.legal for step in g.line.steps)
        assert [step.before.player for step in g.line.steps] == list("OXOXOXOXO"[: len(g.line.steps)])


def test_the_first_move_opponent_takes_the_lowest_free_square():
    for g in play_games(GAME, VIEWER, random_act, first_move_opponent(GAME), 10, 1):
        assert all(s.action == s.before.legal[0] for s in g.line.steps if s.before.player != g.agent)


def line_of(moves):
    """Moves from the empty board, with their views; "over" and the winner as the game says."""
    import jax

    position, steps = GAME.init(), []
    one = lambda p: VIEWER.views(jax.tree.map(lambda leaf: leaf[None], p))[0]
    for move in moves:
        after = GAME.step(position, int(move) - 1)
        steps.append(Ply(one(position), move, one(after)))
        position = after
    winner = {1.0: "O", -1.0: "X", 0.0: None}[float(GAME.returns(position))]
    return Line(tuple(steps), bool(GAME.is_terminal(position)), winner)


def test_lines_are_grouped_by_position_and_move_in_chunks_with_the_rest_kept():
    o_wins = line_of("14253")
    games = [PlayedGame(o_wins, "O")] * 7 + [PlayedGame(o_wins, "X")]
    chunks = estimates.chunks_of_lines(games, 5, 0)
    first = [lines for (view, action), lines in chunks if view.player == "O" and len(view.legal) == 9]
    assert [len(lines) for lines in first] == [5, 2]
    assert all(line.steps[0].action == "1" and line.winner == "O" for lines in first for line in lines)
    as_x = [(view, action) for (view, action), _ in chunks if view.player == "X"]
    assert [action for _, action in as_x] == ["4", "5"]  # only the agent's own moves


def test_fresh_lines_begin_with_their_pair_and_end_the_game():
    games = play_games(GAME, VIEWER, random_act, random_opponent(GAME), 6, 0)
    own = {pair for pair, _ in estimates.chunks_of_lines(games, 5, 0)}
    fresh = estimates.fresh_lines(GAME, VIEWER, random_act, random_opponent(GAME), games, 3, 1)
    assert {pair for pair, _ in fresh} == own and len(fresh) == len(own)
    for (view, action), lines in fresh:
        assert len(lines) == 3
        for line in lines:
            assert (line.steps[0].before, line.steps[0].action) == (view, action)
            assert line.over and line.steps[-1].after.legal == ()
    first = [lines for (view, _), lines in fresh if len(view.legal) == 9][0]
    assert len({line.steps for line in first}) == 3  # drawn independently
    _, record = nlac.iterate(beginner(), setting(games=6, fresh_lines=True, k=2), VIEWER, 0)
    pairs = {(s.before, s.action) for g in record.games for s in g.line.steps if s.before.player == g.agent}
    assert record.metrics["games"] == 6 + 2 * len(pairs) and len(record.values) == len(pairs)


def test_monte_carlo_counts_the_games_it_is_shown():
    o_wins, drawn = line_of("14253"), line_of("152376849"[:9])
    drawn = drawn._replace(over=True, winner=None)
    counts = Counter()
    chunk = ((o_wins.steps[0].before, "1"), [o_wins, o_wins, drawn._replace(winner="X"), drawn])
    (target,) = estimates.monte_carlo([chunk], roles("compact"), SCRIPTED, GREEDY, 0, counts)
    assert json.loads(target.text)["final_evaluation"] == 0.2  # (1 + 1 - 1 + 0) / 4, to one digit
    assert (target.view, target.action) == chunk[0]
    assert "O wins." in target.prompt.messages[-1]["content"] and "a draw." in target.prompt.messages[-1]["content"]
    assert not +counts


def test_temporal_difference_looks_at_the_next_own_move_and_asks_for_its_value():
    line = line_of("14253")
    short, pair = estimates.next_turn(line)
    assert [s.action for s in short.steps] == ["1", "4"] and not short.over
    assert pair == (line.steps[2].before, "2")
    end, nothing = estimates.next_turn(Line(line.steps[4:], True, "O"))
    assert nothing is None and end.over and end.winner == "O"
    r = roles("compact")
    value, _ = learn(TableModel(), [(r.value(*pair), '{"thought": "", "final_evaluation": -0.4}')])
    chunks = [
        ((line.steps[0].before, "1"), [line, line]),
        ((line.steps[4].before, "3"), [Line(line.steps[4:], True, "O")]),
    ]
    first, last = estimates.temporal_difference(chunks, r, value, GREEDY, SCRIPTED, GREEDY, 0, Counter())
    assert r.read_value(first.text) == -0.4  # bootstrapped from V
    assert r.read_value(last.text) == 1.0  # the game is over: the result itself


def view_of(board="O | 2 | 3\n4 | 5 | 6\n7 | 8 | 9", player="X", legal="23456789"):
    return View(board, player, tuple(legal))


def test_the_mask_keeps_the_most_frequent_legal_proposals():
    view, r, counts = view_of(), roles("compact"), Counter()
    said = ["5"] * 4 + ["3"] * 3 + ["1"] * 2 + ["x"]  # 1 is taken, x is no move
    scripted = ScriptedModel({"candidates": lambda context, rng: next(script)})
    propose = lambda **o: nlac.propose([view], r, scripted, dataclasses.replace(SMALL, **o), 0, counts)
    script = iter([json.dumps({"best_move": word}) for word in said])
    assert propose() == [["5", "3"]] and counts["candidates/unusable"] == 3
    script = iter([json.dumps({"best_move": word}) for word in said])
    assert propose(top_m=1) == [["5"]]
    script = iter(["no idea"] * 10)
    ((only,),) = propose()
    assert only in view.legal and counts["candidates/none"] == 1
    assert propose(mask=False) == [list("23456789")]


@pytest.mark.parametrize(
    "reply, problem",
    [("Seven!", "nothing"), ("", "empty"), ('{"best_move": 1}', "illegal move"), ('{"best_move": 2.5}', "no move")]
    + [
        ('{"thought": "hm", "best', "no move"),
        ('{"best_move": [5]}', "no move"),
        ('{"best_move": 77}', "illegal move"),
    ],
)
def test_a_policy_without_a_legal_move_plays_a_random_one_and_is_counted(reply, problem):
    counts = Counter()
    model = ScriptedModel({"policy": lambda context, rng: reply})
    act = language_act(model, roles("compact"), GREEDY, counts)
    words = act([view_of()] * 20, 0)
    assert set(words) <= set("23456789") and len(set(words)) > 1
    assert counts == {f"policy/{problem}": 20, "policy/random move": 20, "policy/moves": 20}


def test_a_move_can_be_read_through_prose_and_half_a_json():
    r = roles()
    assert r.read_move('I think {"thought": "a", "best_move": "7"} is best', "789") == ("7", "prose")
    assert r.read_move('{"best_move": 7, "thought": "because', "789") == ("7", "cut")
    assert json.loads(r.clean('{"thought": NaN, "best_move": 7}'))["thought"] == "NaN"
    assert json.loads(r.clean('So: {"thought": "a\nb", "best_move": "7"}!')) == {"thought": "a\nb", "best_move": 7}


def test_an_improver_that_names_another_move_is_dropped_and_counted():
    wrong = ScriptedModel({**SCRIPTS, "improver": lambda context, rng: '{"best_move": 0}'})
    state, record = nlac.iterate(beginner(), setting(improver=wrong, games=6), VIEWER, 0)
    positions = len({s.before for g in record.games for s in g.line.steps if s.before.player == g.agent})
    assert record.improvements == [] and record.metrics["count/improver/dropped"] == positions


def test_an_aggregator_that_writes_prose_is_counted_and_one_that_writes_nothing_is_dropped():
    for text, kept, name in (("O did well.", True, "no_number"), (" ", False, "dropped")):
        poor = ScriptedModel({**SCRIPTS, "monte_carlo": lambda context, rng, text=text: text})
        _, record = nlac.iterate(beginner(), setting(aggregator=poor, games=6), VIEWER, 0)
        assert bool(record.values) == kept and record.metrics[f"count/aggregator/{name}"] > 0


def test_contradictions_are_counted_and_their_numbers_taught_after_the_models_own_words():
    said = '{"thought": "0 of 5 games are won by O, 5 by X, 0 drawn.", "final_evaluation": 1.0}'
    for correct in (False, True):
        state = beginner()._replace(value=TableModel(guess=lambda rng: said))
        learn_no_values = lambda model, pairs: (model, {"examples": len(pairs)})
        how = setting(games=6, correct=correct)._replace(learn_value=learn_no_values)
        after, record = nlac.iterate(state, how, VIEWER, 0)
        assert record.metrics["value/contradicts"] == 1.0 and len(record.corrections) > 6
        assert len(after.buffer[-1]) == len(record.values) + correct * len(record.corrections)
    chat, (words, number, end) = record.corrections[0]
    assert words == Piece(said[: said.index(" 1.0}")], 0.0) and number == Piece(" -1.0}") and end == Piece(None)
    assert chat.messages == roles("compact").value(chat.context["view"], chat.context["action"]).messages
    _, second = nlac.iterate(after._replace(iteration=0), how, VIEWER, 1)
    assert second.metrics["value_sft/examples"] == len(after.buffer[-1]) + len(second.values)  # an iteration later


def test_the_improver_reads_the_words_of_the_values_and_prefers_the_side_to_move():
    known = [("2", '{"final_evaluation": 0.4}'), ("3", '{"final_evaluation": -0.8}'), ("4", "nonsense")]
    chat = roles().improve(view_of(), known)
    (reply,) = SCRIPTED.complete([chat], GREEDY, "improver")
    assert roles().read_move(reply.text, "234").word == "3"  # X wants it low
    chat = roles().improve(view_of(player="O"), known)
    (reply,) = SCRIPTED.complete([chat], GREEDY, "improver")
    assert roles().read_move(reply.text, "234").word == "2"


def test_several_evaluations_of_a_move_are_averaged():
    number = lambda value: json.dumps({"final_evaluation": value})
    known = [("2", number(1)), ("2", number(-1)), ("3", number(0.4)), ("3", number(0.2))]
    (reply,) = SCRIPTED.complete([roles().improve(view_of(player="O"), known)], GREEDY, "improver")
    assert json.loads(reply.text) == {
        "thought": "Threat: O nobody, X nobody. 3 is worth 0.3.",
        "best_move": 3,
    }
    drawn = dataclasses.replace(SMALL, games=6, num_values=3, values=Sampling(16, 1.0))
    _, record = nlac.iterate(beginner(), setting()._replace(config=drawn), VIEWER, 0)
    compared = [len({action for action, _ in t.evaluations}) for t in record.improvements]
    assert [len(t.evaluations) for t in record.improvements] == [3 * n for n in compared]


@pytest.mark.parametrize("style", STYLES)
def test_prompts_show_the_board_the_side_and_the_moves(style):
    r, view = roles(style), view_of()
    said = r.policy(view).messages[-1]["content"]
    assert "X" in said and "O" in said and "9" in said
    assert ("Free positions: 2, 3, 4, 5, 6, 7, 8, 9." in said) == (style != "compact")
    assert r.value(view, "5").messages != r.value(view, "6").messages
    asked = r.improve(view, [("5", "good"), ("6", "bad")]).messages[-1]["content"]
    assert "Evaluation of move 5:\ngood" in asked and "Possible moves: 5, 6." in asked
