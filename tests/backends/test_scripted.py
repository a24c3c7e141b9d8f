"""The model that counts: replies of full length that readers still read, and that prompts quote in full."""

import json

import pytest

from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import CHARACTERS, at_full_length, metered
from nlrl_jax.envs.breakthrough.prompts import read_advantage
from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze.prompts import MazeRoles
from nlrl_jax.envs.tic_tac_toe.prompts import read_move, read_value
from nlrl_jax.types import Chat, Sampling


def counting(scripts):
    return at_full_length(ScriptedModel(scripts))


@pytest.mark.parametrize(
    "text, read, value",
    [
        ('{"thought": "O, or X?", "best_move": 5}', lambda text: read_move(text, "45"), ("5", "")),
        ('{"thought": "even", "final_evaluation": -0.4}', read_value, -0.4),
        ("*Suggested Moves*: a2a3\n*Advantage*: <white>", read_advantage, "white"),
        ('{"thoughts": "", "action": "move up"}', MazeRoles(mazes.maze("medium")).read_action, (0, "")),
        ("prose", len, CHARACTERS * 64),
    ],
)
def test_padded_replies_are_read(text, read, value):
    usage, chat = Usage(), Chat.of("x" * 40, "y" * 40)
    (reply,) = metered(counting({"role": lambda *_: text}), usage).complete([chat], Sampling(64), "role")
    assert read(reply.text) == value and len(reply.text) == CHARACTERS * 64
    assert "".join(reply.text.split()) == "".join(text.split())
    (row,) = usage.rows()
    assert (row["calls"], row["prompt_tokens"], row["tokens"]) == (1, 80 // CHARACTERS, 64)


def test_a_scripts_reply_ends_before_the_first_stop_string():
    ask = ScriptedModel({"role": lambda *_: "one. two\n three"})
    chats = [Chat.of("", continued="zero ")]
    for stop, text in (((), "one. two\n three"), (("\n", "two"), "one. "), (("four",), "one. two\n three")):
        assert ask.complete(chats, Sampling(9), "role", stop=stop)[0].text == text
    (reply,) = counting(ask.scripts).complete(chats, Sampling(9), "role", stop=["."])
    assert reply.text == "one".ljust(9 * CHARACTERS) and reply.tokens == 9


def test_an_evaluation_that_a_reader_writes_anew_keeps_its_length():
    text = json.dumps({"thoughts": "far away", "final_evaluation": "poor, about 9 steps to go."})
    (reply,) = counting({"value": lambda *_: text}).complete([Chat.of("")], Sampling(128), "value")
    evaluation, problem = MazeRoles(mazes.maze("medium")).read_evaluation(reply.text)
    assert not problem and len(evaluation) == CHARACTERS * 128
