"""Tic-tac-toe against OpenSpiel (where X begins: its x is our O), perfect play against a plain recursion."""

import functools
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

import envs
from envs.one_player import EnvState, OnePlayer
from envs.tic_tac_toe import env as tic_tac_toe
from envs.tic_tac_toe import rule_based, rules
from envs.tic_tac_toe.prompts import (
    STYLES,
    contradicts,
    correction,
    policy_template,
    roles,
    squares,
)  # fmt: skip
from envs.tic_tac_toe.rule_based import threats
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.board_games import Line, Step, View, Viewer
from nlrl_jax.rollouts.board_games import random_views
from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.prompts import chat_prompt
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import BoardGame
from nlrl_jax.weights.load import load_config, load_tokenizer
from tests.tokenizers_from_wheels import small_tokenizer

SPIEL = pyspiel.load_game("tic_tac_toe")
AS_SPIEL = np.array([".", "x", "o"])  # of a cell + 1


def board_of(text: str) -> np.ndarray:
    """`"OX. .O. ..X"` as int8 [9]."""
    return np.array(["OX".find(cell) for cell in text.replace(" ", "")], np.int8)


def random_games(num: int, seed: int) -> dict[str, np.ndarray]:
    """Boards before each of nine moves and after the last, [10, num, 9], moves [9, num] and what the rules say."""

    def step(board, key):
        mask = jax.vmap(rules.legal_action_mask)(board)
        action = jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0), -1)
        after = jnp.where(rules.is_terminal(board)[:, None], board, jax.vmap(rules.step)(board, action))
        return after, (board, action)

    @jax.jit
    def games(key):
        last, (boards, actions) = jax.lax.scan(step, jnp.tile(rules.init(), (num, 1)), jax.random.split(key, 9))
        boards = jnp.concatenate([boards, last[None]])
        of_all = lambda f: jax.vmap(jax.vmap(f))(boards)
        told = {
            f.__name__: of_all(f)
            for f in (rules.legal_action_mask, rules.current_player, rules.is_terminal, rules.returns)
        }
        return {"boards": boards, "actions": actions, **told}

    return jax.device_get(games(jax.random.key(seed)))


def test_ten_thousand_random_games_equal_open_spiels():
    games = random_games(10_000, seed=0)
    seen = {1.0: 0, 0.0: 0, -1.0: 0}
    for n in range(10_000):
        state = SPIEL.new_initial_state()
        for t in range(10):
            legal = np.flatnonzero(games["legal_action_mask"][t, n]).tolist()
            assert legal == state.legal_actions()
            drawn = "".join(AS_SPIEL[games["boards"][t, n] + 1])
            assert drawn == str(state).replace("\n", "")
            assert games["is_terminal"][t, n] == state.is_terminal()
            assert games["returns"][t, n] == state.player_return(0) == -state.player_return(1)
            if state.is_terminal():
                break
            assert games["current_player"][t, n] == state.current_player()
            action = games["actions"][t, n]
            assert rules.ACTIONS[action] == str(action + 1) and legal.count(action)
            state.apply_action(int(action))
        assert state.is_terminal()
        seen[float(games["returns"][t, n])] += 1
    assert min(seen.values()) > 1000


@functools.cache
def reachable() -> dict[tuple[int, ...], tuple[int, frozenset[int]]]:
    """Every position that OpenSpiel reaches -> (outcome under perfect play, the moves that keep it)."""
    known = {}

    def visit(state):
        board = tuple(".xo".index(cell) - 1 for cell in str(state).replace("\n", ""))
        if board not in known:
            if state.is_terminal():
                known[board] = int(state.player_return(0)), frozenset()
            else:
                values = {action: visit(state.child(action)) for action in state.legal_actions()}
                best = (max if state.current_player() == 0 else min)(values.values())
                known[board] = best, frozenset(action for action, value in values.items() if value == best)
        return known[board][0]

    visit(SPIEL.new_initial_state())
    return known


def test_perfect_play_equals_a_plain_recursion_over_open_spiel():
    values, optimal = rules.minimax()
    positions = reachable()
    assert len(positions) == 5478
    for board, (value, moves) in positions.items():
        code = rules.code(np.array(board, np.int8))
        assert values[code] == value and set(np.flatnonzero(optimal[code])) == moves, board


def test_positions_that_can_occur_are_those_that_open_spiel_reaches():
    boards = (np.arange(3**9)[:, None] // 3 ** np.arange(9) % 3 - 1).astype(np.int8)
    np.testing.assert_array_equal(rules.code(boards), np.arange(3**9))
    possible = {tuple(board.tolist()) for board in boards if rules.impossible(board) is None}
    assert possible == set(reachable())


def play_out(env: OnePlayer, policy, num: int, seed: int = 0):
    """Returns [num] and sides of finished games; `policy(key, board) -> action`."""
    params = env.default_params

    def game(key):
        key_reset, key_game = jax.random.split(key)
        _, state = env.reset_env(key_reset, params)

        def step(carry, key):
            state, total, ended = carry
            key_act, key_step = jax.random.split(key)
            _, after, reward, end, info = env.step_env(key_step, state, policy(key_act, state.position), params)
            carry = after, total + jnp.where(ended, 0.0, reward), ended | end
            return carry, info["illegal_move"] & ~ended

        start = state, jnp.float32(0), jnp.array(False)
        (state, total, ended), illegal = jax.lax.scan(step, start, jax.random.split(key_game, 5))
        return total, state.side, ended, illegal.any(), state.position

    total, side, ended, illegal, boards = jax.device_get(
        jax.jit(jax.vmap(game))(jax.random.split(jax.random.key(seed), num))
    )
    assert ended.all() and not illegal.any()
    for player in (0, 1):  # the reward of the side the agent had
        won = jax.device_get(rules.returns(boards[side == player])) * (1 - 2 * player)
        np.testing.assert_array_equal(total[side == player], won)
    return total, side


def uniform(key, board):
    return jnp.argmax(jnp.where(rules.legal_action_mask(board), jax.random.uniform(key, (9,)), -1.0))


def first(key, board):
    return jnp.argmax(rules.legal_action_mask(board))


def perfect(key, board):
    return jnp.argmax(jnp.asarray(rules.minimax()[1])[rules.code(board)] * jax.random.uniform(key, (9,)))


def test_minimax_never_loses_and_ties_with_itself():
    env = tic_tac_toe.one_player("minimax")
    total, side = play_out(env, uniform, 4000)
    for player in (0, 1):
        assert (side == player).sum() > 1800
        assert total[side == player].max() == 0 and total[side == player].mean() < -0.7
    total, _ = play_out(env, perfect, 1000)
    assert not total.any()


def test_random_against_random_has_the_exact_odds():
    chance = {}

    def odds(state):
        """Chances of a win of O, a tie and a win of X when both move uniformly."""
        board = str(state)
        if board not in chance:
            if state.is_terminal():
                chance[board] = np.eye(3)[1 - int(state.player_return(0))]
            else:
                chance[board] = np.mean([odds(state.child(action)) for action in state.legal_actions()], axis=0)
        return chance[board]

    want = odds(SPIEL.new_initial_state())
    total, side = play_out(tic_tac_toe.one_player("random"), uniform, 20_000, seed=3)
    for player, sign in ((0, 1), (1, -1)):
        got = [(total[side == player] == sign * value).mean() for value in (1, 0, -1)]
        np.testing.assert_allclose(got, want, atol=0.015)


def test_first_move_takes_the_lowest_free_cell():
    env = tic_tac_toe.one_player("first_move", side="X")
    _, state = env.reset_env(jax.random.key(0), env.default_params)
    np.testing.assert_array_equal(state.position, board_of("O.. ... ..."))
    _, state, reward, ended, _ = env.step_env(jax.random.key(1), state, 4, env.default_params)
    np.testing.assert_array_equal(state.position, board_of("OO. .X. ..."))
    assert reward == 0 and not ended
    _, state, reward, ended, _ = env.step_env(jax.random.key(1), state, 8, env.default_params)
    np.testing.assert_array_equal(state.position, board_of("OOO .X. ..X"))
    assert reward == -1 and ended and not env.success(state)
    total, _ = play_out(tic_tac_toe.one_player("first_move", side="O"), first, 10)
    assert (total == 1).all()  # 1, 3, 5, 7 against 2, 4, 6: the diagonal from 7 to 3


def test_a_taken_cell_changes_nothing_and_is_counted():
    env = tic_tac_toe.one_player("random", side="O")
    params = env.default_params
    state = EnvState(time=jnp.int32(0), position=jnp.asarray(board_of("O.. .X. ...")), side=jnp.int32(0))
    for action in (0, 4):
        _, after, reward, ended, info = env.step_env(jax.random.key(0), state, action, params)
        np.testing.assert_array_equal(after.position, state.position)
        assert after.time == 1 and reward == 0 and not ended and info["illegal_move"]
    won = state.replace(position=jnp.asarray(board_of("OOO XX. ...")))
    _, after, reward, ended, info = env.step_env(jax.random.key(0), won, 8, params)
    np.testing.assert_array_equal(after.position, won.position)
    assert reward == 0 and ended and info["illegal_move"]  # a win is paid once


def test_the_side_is_drawn_at_reset_and_the_opponent_begins_if_it_is_x():
    env = tic_tac_toe.one_player("random")
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), 4000), env.default_params)
    assert 0.45 < state.side.mean() < 0.55
    boards, side = np.asarray(state.position), np.asarray(state.side)
    assert (boards[side == 0] == -1).all()
    assert ((boards[side == 1] == 0).sum(1) == 1).all() and (boards != 1).all()
    openings = (boards[side == 1] == 0).mean(0)
    np.testing.assert_allclose(openings, 1 / 9, atol=0.03)
    assert obs.shape == (4000, 3, 3, 2)
    np.testing.assert_array_equal(obs[..., 0].sum((1, 2)), 0)
    np.testing.assert_array_equal(obs[..., 1].sum((1, 2)), side)


def test_auto_reset_truncation_and_spaces():
    game = envs.make("tic_tac_toe", max_steps=4)
    obs, state = game.env.reset(jax.random.key(0), game.params)
    assert game.env.observation_space(game.params).contains(obs)
    assert game.env.action_space(game.params).n == game.env.num_actions == len(game.actions) == 9
    state = state.replace(position=jnp.asarray(board_of("OX. ... ...")), side=jnp.int32(0), time=jnp.int32(3))
    _, after, _, terminated, truncated, info = game.env.step(jax.random.key(1), state, 0, game.params)
    assert truncated and not terminated and after.time == 0 and info["illegal_move"]
    np.testing.assert_array_equal(info["final_observation"][0, :2], [[1, 0], [0, 1]])


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
    state = EnvState(time=jnp.int32(0), position=jnp.asarray(board_of("OX. .O. .X.")), side=jnp.int32(0))
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


def test_the_board_game_offers_the_rules():
    game = rules.board_game()
    assert isinstance(game, BoardGame) and game.players == ("O", "X") and game.num_actions == game.max_moves == 9
    board = game.init()
    for action in (4, 0, 2):
        board = game.step(board, action)
    assert board.dtype == jnp.int8 and game.current_player(board) == 1
    text = game.board.render(game.fields(board))
    assert text == "X | 2 | O\n---------\n4 | O | 6\n---------\n7 | 8 | 9"
    np.testing.assert_array_equal(game.parse(text, "X"), board)


def test_every_position_is_read_back_as_it_was_drawn():
    template = rules.board_template()
    boards = np.array(list(reachable()), np.int8)
    fields = jax.device_get(jax.jit(jax.vmap(rules.fields))(boards))
    for i in range(0, len(boards), 7):
        text = template.render({name: value[i] for name, value in fields.items()})
        np.testing.assert_array_equal(rules.parse(text, rules.PLAYERS[fields["player"][i]]), boards[i])


@pytest.mark.parametrize(
    ("board", "player", "message"),
    [
        ("1 2 3 4 5 6 7 8", "O", "has 8"),
        ("1 2 3 4 5 6 7 9 8", "O", "cell 8 is '9'.* 8$"),
        ("1 2 3 4 # 6 7 8 9", "O", "cell 5 is '#'"),
        ("O O 3 4 5 6 7 8 9", "X", "2 O and 0 X"),
        ("X 2 3 4 5 6 7 8 9", "O", "0 O and 1 X"),
        ("O O O X X X 7 8 9", "O", "both O and X"),
        ("O O O X X 6 7 X 9", "O", "O has three in a line, but X has moved"),
        ("X X X O O 6 O 8 O", "X", "X has three in a line, but O has moved"),
        ("O 2 3 4 5 6 7 8 9", "O", "it is X's turn"),
        ("1 2 3 4 5 6 7 8 9", "Z", "player is 'Z'"),
    ],
)
def test_positions_that_cannot_occur_are_refused(board, player, message):
    with pytest.raises(ValueError, match=message):
        rules.parse(board, player)


@pytest.mark.parametrize("prompt", ["paper", "compact"])
@pytest.mark.parametrize("make", [small_tokenizer, lambda: load_tokenizer("nano")], ids=["small", "nano"])
def test_the_device_text_equals_the_host_text_on_every_position(make, prompt):
    game, tokenizer = envs.make("tic_tac_toe", prompt=prompt), make()
    template = chat_prompt(game, tokenizer.render_chat, prompt, 20)
    compiled = compile_template(template, tokenizer)
    boards = np.array(list(reachable()), np.int8)
    fields = jax.jit(jax.vmap(rules.fields))(boards)
    tokens, lengths = jax.device_get(jax.jit(jax.vmap(compiled))(fields))
    fields = jax.device_get(fields)
    texts = set()
    for i in range(len(boards)):
        text = template.render({name: value[i] for name, value in fields.items()})
        assert [*compiled.prefix, *tokens[i, : lengths[i]]] == tokenizer.encode(text)
        texts.add(text)
    assert len(texts) == 5478 and len(compiled.prefix) > 20


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
    line = Line((Step(start, "1", end),), True, winner)
    for chat in (roles().monte_carlo(start, "1", [line]), roles().temporal_difference(start, "1", [(line, "")])):
        assert f"The game is over: {result}" in chat.messages[1]["content"]


def test_each_game_is_made_by_name():
    for opponent in ("random", "first_move", "minimax"):
        name = "tic_tac_toe" if opponent == "random" else f"tic_tac_toe_{opponent}"
        game = envs.make(name, side="O", prompt="compact")
        assert game.name == name and game.env.side == "O"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opponent": "strong"}, "'strong'.*minimax"),
        ({"side": "o"}, "'o'.*both"),
        ({"prompt": "long"}, "'long'.*paper"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        envs.make("tic_tac_toe", **options)


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
    compiled = compile_template(before + policy + after, tokenizer)
    boards = np.array([board for board in reachable() if not rules.is_terminal(np.array(board))], np.int8)[::5]
    of_board = lambda board: (fields := rules.fields(board)) | rules.threat_fields(fields["cells"])
    told = jax.device_get(jax.jit(jax.vmap(of_board))(boards))
    tokens, lengths = jax.device_get(jax.jit(jax.vmap(compiled))(told))
    for i in range(len(boards)):
        fields = {name: value[i] for name, value in told.items()}
        text = policy.render(fields)
        view = View(rules.board_template().render(fields), rules.PLAYERS[fields["player"]], ())
        assert text == f"{roles('compact').policy(view).messages[0]['content']}\n{threats(view)}"
        assert [*compiled.prefix, *tokens[i, : lengths[i]]] == tokenizer.encode(before + text + after)


def line_won_by(winner, last, view):
    return Line((Step(view, last, view),), winner is not None, winner)


def test_the_rules_write_what_they_are_told_to_beside_the_number():
    view = View(DRAWN, "O", tuple("34679"))
    lines = [line_won_by("X", "3", view)] * 2 + [line_won_by("O", "9", view), line_won_by("X", "7", view)]
    context = {"view": view, "action": "4", "lines": lines}
    said = {words: rule_based.scripts(words)["monte_carlo"](context, None) for words in rule_based.WORDS}
    counts = "1 of 4 games are won by O, 3 by X, 0 drawn."
    thoughts = {words: json.loads(text)["thought"] for words, text in said.items()}
    assert thoughts == {
        "threats": f"{threats(view, '4')} {counts}",
        "deciding": f"Decided: O 9, X 3 7. {counts}",
        "counts": counts,
        "number": "",
    }
    assert {json.loads(text)["final_evaluation"] for text in said.values()} == {-0.5}
    assert rule_based.decides(said["deciding"], "X") == ["3", "7"] and rule_based.decides(said["counts"], "X") == []
    assert rule_based.SCRIPTS.keys() == rule_based.scripts("number").keys()
    with pytest.raises(ValueError, match="words is 'poems'; choose one of threats, deciding, counts, number"):
        rule_based.scripts("poems")


def test_the_improver_takes_the_position_on_which_the_other_side_wins():
    view = View(DRAWN, "O", tuple("34679"))
    says = lambda x, number: json.dumps({"thought": f"Decided: O nobody, X {x}.", "final_evaluation": number})
    evaluations = [("4", says("3", 0.2)), ("6", says("3 7", 0.0)), ("3", says("nobody", 0.0))]
    assert rule_based.spoiled("O", evaluations) == {"4": 0.0, "6": 0.0, "3": 1.0}
    one = type("One", (), {"choice": staticmethod(lambda moves: moves[0])})
    improve = lambda words, seen: json.loads(
        rule_based.scripts(words)["improver"]({"view": view, "evaluations": seen}, one)
    )["best_move"]
    assert improve("deciding", evaluations) == 3 and improve("counts", evaluations) == 4


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
