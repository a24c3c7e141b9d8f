"""The endpoint backend: stop strings, open assistant messages, and whether a server scores at all."""

import dataclasses

import jax
import numpy as np
import pytest

from nlrl_jax.backends import prompt_forms
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run import models
from nlrl_jax.types import Chat, LanguageModelError, Sampling
from nlrl_jax.weights.load import load_tokenizer
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, HOT, model, of_a_run, render
from tests.backends.model_server import lists_words
from tests.backends.server import Server, writes

OPEN = Chat.of("goal", continued="Action:")
# Of the endpoint http://x/v1, the chat "hi", `Sampling(20, 1.0, 5)`, extra `top_p=null` and seed 3, as written before
# there were stop strings.
OLD_KEY = "086062964ada3ce96a1c0ff1f19789e14f7844fff6d99de655332e0315ae9b1c"


# Stop strings.


def test_a_reply_ends_before_the_first_stop_string_even_where_the_server_ignores_them():
    with Server(behaviour=writes("up.\nThen. down", "length")) as server:
        ask = model(server)
        stopped, whole = (ask.complete([Chat.of("hi")], GREEDY, "r", stop=stop)[0] for stop in (("Then", "\n"), ()))
        other = ask.complete([Chat.of("hi")], GREEDY, "r", stop=["never"])[0]
        assert [request.body.get("stop") for request in server.requests] == [["Then", "\n"], None, ["never"]]
    assert (stopped.text, stopped.ended, stopped.tokens) == ("up.", True, 5)
    assert (whole.text, whole.ended) == (other.text, other.ended) == ("up.\nThen. down", False)


@pytest.mark.parametrize("stop", ["\n", ["\n", ""]])
def test_invalid_stop_strings_are_refused_before_anything_is_sent(stop):
    with Server() as server:
        with pytest.raises(ValueError, match="must be a list of strings that are not empty"):
            model(server).complete([Chat.of("hi")], GREEDY, "r", stop=stop)
        assert not server.requests


def test_a_server_gets_four_stop_strings_and_the_others_hold_too():
    with Server(behaviour=writes("abc|x")) as server:
        (reply,) = model(server).complete([Chat.of("hi")], GREEDY, "r", stop=["1", "2", "3", "4", "|"])
        assert server.requests[0].body["stop"] == ["1", "2", "3", "4"]
    assert reply.text == "abc"


def test_stop_strings_are_in_the_key_and_keys_without_them_are_as_ever(tmp_path):
    cache = DiskCache(tmp_path)
    with Server(behaviour=writes("abc|x.")) as server:
        texts = [
            model(server, cache=cache, extra=extra).complete([Chat.of("hi")], GREEDY, "r", stop=stop)[0].text
            for extra in ("", 'stop="y"')
            for stop in ((), ("|",), ("x", "."), ("|",))
        ]
        assert len(server.requests) == 6
    assert texts == ["abc|x.", "abc", "abc|", "abc"] * 2
    old = EndpointModel(EndpointOptions("http://x/v1", extra="top_p=null"), "m", cache=cache)
    cache.put(OLD_KEY, {"text": "old", "ended": True, "refused": False})
    (reply,) = old.complete([Chat.of("hi")], Sampling(20, 1.0, 5), "r", 3)
    assert reply.text == "old" and reply.cached


# Open messages.


def test_an_open_message_is_continued_as_text_where_there_is_a_render(tmp_path):
    with Server(behaviour=writes(" turn left\nObservation: ...")) as server:
        ask = model(server, cache=DiskCache(tmp_path), render=render, extra="top_p=null")
        replies = ask.complete([OPEN, Chat.of("goal"), OPEN], HOT, "r", 3, stop=["\n"])
        requests = {request.path: request.body for request in server.requests}
        assert len(server.requests) == 2
        again = ask.complete([OPEN], HOT, "r", 3, stop=["\n"])
        assert len(server.requests) == 2 and again[0].cached
    assert [reply.text for reply in replies + again] == [" turn left"] * 4
    body = requests["/v1/completions"]
    assert 0 <= body.pop("seed") < 2**31
    assert body == {
        "model": "m",
        "max_tokens": 20,
        "temperature": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": ["\n"],
        "n": 2,
        "prompt": "goal|Action:",
    }
    assert requests["/v1/chat/completions"]["messages"] == [{"role": "user", "content": "goal"}]


# Whether it scores.


def echoes(handler, request):
    """Words as tokens, with -1 each."""
    tokens = ["<s>"] + [f"{' ' * (i > 0)}{word}" for i, word in enumerate(request.body["prompt"].split(" "))]
    logprobs = {"tokens": tokens, "token_logprobs": [None] + [-1.0] * (len(tokens) - 1)}
    usage = {"prompt_tokens": len(tokens), "completion_tokens": 0}
    s.send(handler, {"choices": [{"index": 0, "text": "", "logprobs": logprobs}], "usage": usage})


def prepared(ask, **needs):
    return models.prepared(ask, models.Scores(**{"words": True, "texts": False, **needs}, instead="do without"))


def test_a_server_that_echoes_passes_the_check_and_its_tokens_are_counted(tmp_path):
    with Server(behaviour=lambda request: echoes) as server:
        ask = model(server, cache=DiskCache(tmp_path), render=render)
        assert prepared(ask).can_score
        (request,) = server.requests
        assert (request.path, request.body["echo"], request.body["max_tokens"]) == ("/v1/completions", True, 0)
        (row,) = ask.usage.rows()
        assert 0 < row["paid"] < 20
        scores = prepared(ask).score([OPEN], [[" turn left", " go"]], "r")
        assert len(server.requests) == 3  # the check is not repeated
    assert [(score.log_prob, score.tokens) for score in scores[0]] == [(-2.0, 2), (-1.0, 1)]


def spells_wrongly(handler, request):
    logprobs = {"tokens": ["<s>", "Hi|This is good"], "token_logprobs": [None, -1.0]}
    s.send(handler, {"choices": [{"index": 0, "text": "", "logprobs": logprobs}]})


NO_ECHO = {
    "no such path": s.status(404, "not found"),
    "refuses a field": s.status(400, "unknown field echo"),
    "no log-probabilities": s.raw(b'{"choices": [{"text": "x", "logprobs": null}]}'),
    "another form": s.raw(b'{"choices": [{"text": "x", "logprobs": {"content": [{"token": "x", "logprob": -1}]}}]}'),
    "a token over the border": spells_wrongly,
}


@pytest.mark.parametrize("name", NO_ECHO)
def test_a_server_without_log_probabilities_is_refused_after_few_requests(name):
    with Server(behaviour=lambda request: NO_ECHO[name]) as server:
        with pytest.raises(LanguageModelError, match="does not echo.*lists no likeliest tokens.*; or do without"):
            prepared(model(server, render=render))
        assert len(server.requests) <= 15


@pytest.mark.parametrize("behaviour, sent", [(s.status(401), 1), (s.status(503), 4)])
def test_a_server_that_is_down_or_wants_a_key_is_another_matter(behaviour, sent):
    with Server(behaviour=lambda request: behaviour) as server:
        with pytest.raises(EndpointError, match="status|failed") as caught:
            prepared(model(server, render=render))
        assert len(server.requests) == sent and "do without" not in str(caught.value)


@pytest.mark.parametrize("given", ["nano_board", ""])
def test_words_judged_by_the_likeliest_tokens_have_the_models_probabilities(given, tmp_path):
    tokenizer = load_tokenizer("nano_board")
    network = Transformer(ModelConfig(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, 320))
    local = LocalModel(network, {"params": init_params(network, jax.random.key(0))}, tokenizer)
    chat = Chat.of("goal", continued="Critic: This step is")
    with Server(behaviour=lambda request: lists_words(local)) as server:
        needs = models.Scores(True, False, "")
        ask = of_a_run(server.url, tmp_path, needs, endpoint_tokenizer=given, max_retries=1)
        assert ask.abilities == Abilities(prompt_forms.TEXT if given else prompt_forms.CONTINUED, top=3)
        rows = ask.score([chat], [[" GOOD", " BAD"]], "critic")
        wanted = local.score([chat], [[" GOOD", " BAD"]], "critic") if given else rows
        (drawn,) = ask.complete([chat], HOT, "policy", 1)
    np.testing.assert_allclose([s.log_prob for s in rows[0]], [s.log_prob for s in wanted[0]], atol=1e-4)
    assert len(drawn.log_probs) == 1 and drawn.log_probs[0] < 0


def test_a_tokenizers_name_makes_a_scripts_endpoint_score(tmp_path):
    with Server(behaviour=lambda request: echoes) as server:
        ask = of_a_run(server.url, tmp_path, endpoint_tokenizer="nano")
        assert ask.can_score
        ask.score([OPEN], [[" left"]], "r")
        (prompt,) = (request.body["prompt"] for request in server.requests)
    assert prompt.endswith("<|im_start|>assistant\nAction: left") and "goal" in prompt
    with pytest.raises(FileNotFoundError, match="no model at 'nowhere'"):
        models.check_large_model("endpoint", dataclasses.replace(ask.options, endpoint_tokenizer="nowhere"), 8)
