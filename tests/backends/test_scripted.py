"""The language model that is a function: stop strings, randomness of rows, and what it refuses."""

import pytest

from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.types import Chat, Sampling


def test_a_scripts_reply_ends_before_the_first_stop_string():
    ask = ScriptedModel({"role": lambda *_: "one. two\n three"})
    chats = [Chat.of("", continued="zero ")]
    for stop, text in (((), "one. two\n three"), (("\n", "two"), "one. "), (("four",), "one. two\n three")):
        assert ask.complete(chats, Sampling(9), "role", stop=stop)[0].text == text
    with pytest.raises(ValueError, match="must be a list of strings"):
        ask.complete(chats, Sampling(9), "role", stop="four")


def test_rows_draw_apart_unless_they_are_greedy():
    ask = ScriptedModel({"role": lambda context, rng: f"{context['n']} {rng.random()}"})
    chats = [Chat.of("x", n=1)] * 2
    drawn = ask.complete(chats, Sampling(), "role", 7)
    assert drawn[0] != drawn[1] and drawn == ask.complete(chats, Sampling(), "role", 7)
    assert drawn != ask.complete(chats, Sampling(), "role", 8)
    assert len(set(ask.complete(chats, Sampling(9, 0.0), "role"))) == 1


def test_an_unknown_role_and_scores_are_refused():
    ask = ScriptedModel({"policy": lambda *_: ""})
    with pytest.raises(ValueError, match="no script for the role 'value'; there are policy"):
        ask.complete([Chat.of("x")], Sampling(), "value")
    with pytest.raises(NotImplementedError):
        ask.score([Chat.of("x")], [["a"]], "policy")
