"""Tic-tac-toe as language models read it: text, the roles' prompts, and what the rules write."""

import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.one_player import OnePlayerState
from nlrl_jax.envs.tic_tac_toe import rule_based, rules
from nlrl_jax.envs.tic_tac_toe.prompts import (
    STYLES,
    contradicts,
    correction,
    policy_template,
    roles,
    squares,
)  # fmt: skip
from nlrl_jax.envs.tic_tac_toe.rule_based import threats
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.board_games import Line, Ply, View, Viewer
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.text.prompts import chat_prompt
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.weights.load import load_config, load_tokenizer
from tests.envs.tic_tac_toe_boards import board_of, reachable
from tests.text.observations import compiled_texts
from tests.tokenizers_from_wheels import small_tokenizer

DRAWN = """\
O | X | 3
---------
4 | O | 6
---------
7 | X | 9"""

PAPER_TEXT = f"""\
Board:
{DRAWN}
You play O, and it is your turn. Free positions: [3, 4, 6, 7, 9]"""


def test_text():
    state = OnePlayerState(time=jnp.int32(0), position=jnp.asarray(board_of("OX. .O. .X.")), side=jnp.int32(0))
    game, compact = envs.make("tic_tac_toe"), envs.make("tic_tac_toe", prompt="compact")
    assert game.observation.render(game.fields(state)) == PAPER_TEXT
    assert game.board.render(game.fields(state)) == DRAWN
    assert compact.observation.render(game.fields(state)) == f"{DRAWN}\nO to move"
    assert "\n" not in compact.rules and "O moves first" in game.rules and game.max_actions_per_turn == 1
    for board, winner in (("OX. .O. .XO", "O"), ("OO. XXX O..", "X"), ("OXO OXX XOO", "nobody"), ("...", "nobody yet")):
        told = rules.fields(jnp.asarray(board_of(board.ljust(9, "."))))
        assert rules.WINNERS[told["winner"]] == winner
        assert (told["num_legal"] == 0) == (winner != "nobody yet") == (not told["legal"].any())
    assert "positions: [none]" in game.observation.render(told | {"num_legal": 0})


def test_every_position_is_read_back_as_it_was_drawn():
    template = rules.board_template()
    boards = np.array(list(reachable()), np.int8)
    fields = jax.device_get(jax.jit(jax.vmap(rules.fields))(boards))
    for i in range(0, len(boards), 7):
        text = template.render({name: value[i] for name, value in fields.items()})
        np.testing.assert_array_equal(rules.parse(text, rules.PLAYERS[fields["player"][i]]), boards[i])


@pytest.mark.parametrize(
    "make, prompt",
    [
        pytest.param(small_tokenizer, "paper", id="small-paper"),
        pytest.param(small_tokenizer, "compact", id="small-compact", marks=pytest.mark.slow),
        pytest.param(lambda: load_tokenizer("nano"), "paper", id="nano-paper", marks=pytest.mark.slow),
        pytest.param(lambda: load_tokenizer("nano"), "compact", id="nano-compact"),
    ],
)
def test_the_device_text_equals_the_host_text_on_every_position(make, prompt):
    game, tokenizer = envs.make("tic_tac_toe", prompt=prompt), make()
    template = chat_prompt(game, tokenizer.render_chat, prompt, 20)
    boards = np.array(list(reachable()), np.int8)
    texts = compiled_texts(template, tokenizer, jax.jit(jax.vmap(rules.fields))(boards))
    assert len(set(texts)) == 5478


@pytest.mark.parametrize("style", STYLES)
def test_a_policy_under_jit_reads_the_very_tokens_of_the_policys_chat(style):
    """LLM-PPO and the actor-critic have the same prompt."""
    tokenizer, model = load_tokenizer("nano_board"), Transformer(load_config("nano_board"))
    policy = MovePolicy.for_game(envs.make("tic_tac_toe"), model, tokenizer, *policy_template(style))
    boards = np.array(list(reachable()), np.int8)
    boards = boards[~np.asarray(rules.is_terminal(boards))][::4]
    fields = jax.jit(jax.vmap(rules.fields))(boards)
    tokens, lengths = jax.device_get(jax.jit(jax.vmap(policy.template))(fields))
    for view, row, length in zip(Viewer(rules.board_game()).views(boards), tokens, lengths, strict=True):
        asked = tokenizer.encode(tokenizer.render_chat(roles(style).policy(view).messages))
        assert [*policy.template.prefix, *row[:length]] == asked


def example_of(chat) -> tuple[str, str]:
    """(question, reply) of the example in a chat's system message; empty without one."""
    _, _, example = chat.messages[0]["content"].partition("\n\nEXAMPLE\nuser:\n")
    question, _, reply = example.partition("\nassistant:\n")
    return question, reply


def boards_in(text: str) -> list[str]:
    return re.findall(r"(?:. \| . \| .\n-{9}\n){2}. \| . \| .", text)


def test_the_papers_examples_are_legal_and_readable():
    view = random_views(rules.board_game(), 1, 0)[0]
    paper = roles("paper")
    question, reply = example_of(paper.policy(view))
    board, player = boards_in(question)[0], re.search("It is (.)'s turn", question)[1]
    position = rules.parse(board, player)
    legal = [str(action + 1) for action in np.flatnonzero(rules.legal_action_mask(position))]
    assert f"Free positions: {', '.join(legal)}." in question
    assert paper.read_move(reply, legal) == ("4", "")  # the only move that does not lose at once
    values, optimal = rules.minimax()
    assert optimal[rules.code(position), 3]

    question, reply = example_of(paper.monte_carlo(view, view.legal[0], []))
    positions = [rules.parse(board, player) for board, player in zip(boards_in(question), "XOX", strict=True)]
    for action, before, after in zip(("2", "4"), positions, positions[1:]):
        assert f"{'OX'[rules.current_player(before)]} plays {action}" in question
        np.testing.assert_array_equal(rules.step(before, int(action) - 1), after)
    assert rules.returns(positions[-1]) == 1 and paper.read_value(reply) == 0.9
    assert set(json.loads(reply)["thought"]) == {"Reflection", "Win probability", "Threat", "Potential strategies"}


def test_only_the_papers_style_has_examples_and_compact_is_unchanged():
    view = View(DRAWN, "O", ("3", "4", "6", "7", "9"))
    for style in ("paper_zero_shot", "compact"):
        for chat in (roles(style).policy(view), roles(style).monte_carlo(view, "3", [])):
            assert not any("EXAMPLE" in message["content"] for message in chat.messages)
    policy, value = roles("compact").policy(view), roles("compact").value(view, "3")
    assert policy.messages == ({"role": "user", "content": "O: 1O 2X 3 4 5O 6 7 8X 9"},)
    assert value.messages == ({"role": "user", "content": "O 3: 1O 2X 3O 4 5O 6 7 8X 9"},)


@pytest.mark.parametrize(
    ("board", "winner", "result"),
    [
        ("O | O | O\n---------\nX | X | 6\n---------\n7 | 8 | 9", "O", "O wins. The winning line is 1, 2, 3."),
        ("O | O | X\n---------\n4 | X | O\n---------\nX | 8 | 9", "X", "X wins. The winning line is 3, 5, 7."),
        ("O | X | O\n---------\nO | X | X\n---------\nX | O | O", None, "a draw."),
    ],
)
def test_a_finished_game_names_the_line_that_won(board, winner, result):
    start, end = View("", "O", ("1",)), View(board, "O", ())
    line = Line((Ply(start, "1", end),), True, winner)
    for chat in (roles().monte_carlo(start, "1", [line]), roles().temporal_difference(start, "1", [(line, "")])):
        assert f"The game is over: {result}" in chat.messages[1]["content"]


MAGIC = (2, 7, 6, 9, 5, 1, 4, 3, 8)  # three of these squares lie in a row just where they sum to 15


def told_by_magic(cells: str) -> str:
    """What `threats` should say of a board, from the magic square."""
    told = []
    for side in "OX":
        held = [n for n in range(9) if cells[n] == side]
        rows = [row for row in itertools.combinations(held, 3) if sum(MAGIC[n] for n in row) == 15]
        if rows:
            return f"{side}: {' '.join(str(n + 1) for n in rows[0])}."
        pairs = {MAGIC[a] + MAGIC[b] for a, b in itertools.combinations(held, 2)}
        wins = [str(n + 1) for n in range(9) if cells[n] not in "OX" and 15 - MAGIC[n] in pairs]
        told.append(f"{side} {' '.join(wins) or 'nobody'}")
    return f"Threat: {', '.join(told)}."


def test_the_scripts_read_threats_off_the_board():
    for view in random_views(rules.board_game(), 300, 0):
        cells = squares(view.board)
        assert threats(view) == told_by_magic(cells)
        for action in view.legal:
            after = told_by_magic(cells.replace(action, view.player))
            told = threats(view, action)
            assert told == after or (told[0] == after[0] and told[1] == after[1] == ":")  # two rows at once: either


def test_the_threats_of_a_policys_prompt_are_those_that_the_rules_read_off_the_board():
    policy, tokenizer = policy_template("compact", threats=True)[0], load_tokenizer("nano_board")
    before, _, after = tokenizer.render_chat(({"role": "user", "content": "\0"},)).partition("\0")
    boards = np.array([board for board in reachable() if not rules.is_terminal(np.array(board))], np.int8)[::5]
    of_board = lambda board: (fields := rules.fields(board)) | rules.threat_fields(fields["cells"])
    told = jax.device_get(jax.jit(jax.vmap(of_board))(boards))
    for i, text in enumerate(compiled_texts(before + policy + after, tokenizer, told)):
        fields = {name: value[i] for name, value in told.items()}
        view = View(rules.board_template().render(fields), rules.PLAYERS[fields["player"]], ())
        assert text == f"{before}{roles('compact').policy(view).messages[0]['content']}\n{threats(view)}{after}"


def line_won_by(winner, last, view):
    return Line((Ply(view, last, view),), winner is not None, winner)


def test_the_rules_write_what_they_are_told_to_beside_the_number():
    view = View(DRAWN, "O", tuple("34679"))
    lines = [line_won_by("X", "3", view)] * 2 + [line_won_by("O", "9", view), line_won_by("X", "7", view)]
    context = {"view": view, "action": "4", "lines": lines}
    said = {words: rule_based.scripts(words)["monte_carlo"](context, None) for words in rule_based.WORDS}
    counts = "1 of 4 games are won by O, 3 by X, 0 drawn."
    thoughts = {words: json.loads(text)["thought"] for words, text in said.items()}
    assert thoughts == {
        "threats": f"{threats(view, '4')} {counts}",
        "counts": counts,
        "number": "",
    }
    assert {json.loads(text)["final_evaluation"] for text in said.values()} == {-0.5}
    assert rule_based.SCRIPTS.keys() == rule_based.scripts("number").keys()


@pytest.mark.parametrize(
    "thought, number, wrong, goes_on",
    [
        ("1 of 5 games are won by O, 4 by X, 0 drawn.", 1.0, True, " -0.6}"),
        ("Threat: O 5. 1 of 5 games are won by O, 4 by X, 0 drawn.", -0.6, False, None),
        ("1 of 3 games are won by O, 0 by X, 2 drawn.", 0.3, False, None),  # to one digit
        ("1 of 5 games are won by O, 0 by X, 0 drawn.", 1.0, True, ' 4 drawn.", "final_evaluation": 0.2}'),
        ("3 of 5 games are won by O, 4 by X, 0 drawn.", -0.2, True, None),  # which count is wrong?
        ("0 of 0 games are won by O, 0 by X, 0 drawn.", 0.0, True, None),
        ("O is ahead.", 1.0, False, None),
    ],
)
def test_an_evaluation_that_contradicts_itself_is_corrected_from_where_it_is_wrong(thought, number, wrong, goes_on):
    text = json.dumps({"thought": thought, "final_evaluation": number})
    assert contradicts(text) == wrong
    found = correction(text)
    assert (found and found[1]) == goes_on
    if found:
        assert text.startswith(found[0]) and not contradicts("".join(found))
        tokenizer = load_tokenizer("nano_board")
        assert tokenizer.encode(found[0]) + tokenizer.encode(found[1]) == tokenizer.encode("".join(found))


@pytest.mark.parametrize(
    "written, number",
    [
        ("0.5", 0.5),
        ("'−0.5'", -0.5),
        ("'50%'", 0.5),
        ("'1/2 for O'", 0.5),
        ("8", None),
        ("'8'", None),
        ("'2 to 3'", None),
    ],  # noqa: RUF001
)
def test_an_evaluation_outside_its_range_or_unreadable_is_none(written, number):
    assert roles().read_value(f"{{'thought': {{}}, 'final_evaluation': {written}}}") == number


def test_a_move_that_names_two_cells_is_none():
    read = roles().read_move
    assert read("{'best_move': '7 (the corner)'}", ("3", "7")) == ("7", "repaired")
    assert read('{"best_move": "7 or 3"}', ("3", "7")) == (None, "no move")
