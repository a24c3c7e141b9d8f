"""Replies and scores read from a server's responses, among them odd ones."""

import json
import threading

import pytest

from nlrl_jax.backends import transport
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.types import Chat, Score
from tests.backends import server as s
from tests.backends.endpoints import HOT, chats, entries, model, nowhere, spent
from tests.backends.server import Server

# What a reply says.


@pytest.mark.parametrize("nothing, paid", [(s.null, 90), (s.choices(0), 70)])
def test_a_message_that_never_has_a_text_is_an_empty_reply_after_the_retries(nothing, paid, tmp_path):
    silent = lambda request: nothing if request.asked == "question 1" else s.well
    cache = DiskCache(tmp_path)
    with Server(behaviour=silent) as server:
        ask = model(server, cache=cache)
        replies = ask.complete(chats(3), HOT, "policy")
        assert sum(r.asked == "question 1" for r in server.requests) == 4 and spent(ask)["paid"] == paid
        assert [bool(reply.text) for reply in replies] == [reply.ended for reply in replies] == [True, False, True]
        assert replies[1].prompt_tokens == 10
        model(server, cache=cache).complete(chats(3), HOT, "policy")
        assert len(server.requests) == 6


def test_without_token_counts_a_quarter_of_the_bytes_is_taken_and_counted():
    with Server(s.says(lambda whole: whole.pop("usage"))) as server:
        ask = model(server)
        (reply,) = ask.complete([Chat.of("x" * 4000)], HOT, "policy")
    assert 1000 <= reply.prompt_tokens <= 1100 and 1000 <= reply.tokens <= 1200
    assert spent(ask)["estimated"] == 1 and spent(ask)["paid"] == reply.prompt_tokens + reply.tokens


def filtered(whole):
    whole["choices"][0] = {"index": 0, "message": {"content": None}, "finish_reason": "content_filter"}


def declined(whole):
    whole["choices"][0]["message"] = {"content": None, "refusal": "I cannot help with that."}


def flagged(whole):
    whole["choices"][0]["content_filter_results"] = {"violence": {"filtered": True, "severity": "high"}}


def flagged_by_error(whole):
    whole["choices"][0] |= {"finish_reason": "error", "error": {"code": 403, "message": "input was flagged"}}


def filtered_beside(whole):
    whole["error"] = AZURE["error"]


# DeepSeek, Alibaba, OpenAI, Moonshot, xAI, Bedrock, Zhipu.
WORDS = [
    (400, "Content Exists Risk"),
    (400, '{"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}'),
    (400, "Your request was rejected as a result of our safety system."),
    (400, "The request was rejected because it was considered high risk"),
    (403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"),
    (400, "Guardrail intervened"),
    (400, '{"error": {"code": "1301", "message": "The system detected potentially unsafe or sensitive content"}}'),
]
PROMPT = {"prompt_filter_results": [{"content_filter_results": {"hate": {"filtered": True, "severity": "high"}}}]}
AZURE = {"error": {"message": "Please modify your prompt. " * 20, "code": "content_filter"}}


@pytest.mark.parametrize(
    "behaviour, text",
    [
        *((s.says(change), "") for change in (filtered, flagged, flagged_by_error, filtered_beside)),
        (s.says(declined), "I cannot help with that."),
        (s.status(400, json.dumps(AZURE)), ""),
        (s.status(403, '{"error": {"message": "your input was flagged"}}'), ""),
        *((s.status(code, text), "") for code, text in WORDS),
        *((s.raw(json.dumps({"choices": empty, **PROMPT}).encode()), "") for empty in ([], None)),
        (s.raw(b'{"choices": [], "promptFeedback": {"blockReason": "SAFETY"}}'), ""),
    ],
)
def test_a_refusal_of_one_prompt_is_counted_and_neither_sent_again_nor_the_end(behaviour, text, tmp_path):
    bad = lambda request: behaviour if request.asked == "question 0" else s.well
    with Server(behaviour=bad) as server:
        ask = model(server, cache=DiskCache(tmp_path), concurrency=1)  # before the server has taken any field
        counted = metered(ask, ask.usage)
        replies = counted.complete(chats(3), HOT, "policy")
        assert len(server.requests) == 3
        assert spent(ask)["refused"] == 1 and spent(ask)["cut"] == 0
        assert counted.complete(chats(3), HOT, "policy")[0].refused and len(server.requests) == 3
    assert [(reply.refused, reply.ended) for reply in replies] == [(True, False), (False, True), (False, True)]
    assert replies[0].text == text


# Why a choice ended, as servers say it.


@pytest.mark.parametrize(
    "reason, wanted",
    [
        *((reason, "ended") for reason in ("stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls")),
        *((reason, "ended") for reason in ("STOP", "COMPLETE", "eosFound", "tool-calls", {"type": "stop"})),
        *((reason, "cut") for reason in ("length", "max_tokens", "MAX_TOKENS", "model_length", "repetition")),
        *((reason, "refused") for reason in ("content_filter", "content-filter", "SAFETY", "refusal", "sensitive")),
        ("content_filter: PROHIBITED_CONTENT", "refused"),
        *((reason, "asked again") for reason in ("error", None, "null", "", "abort", "cancelled", "network_error")),
        *((reason, "asked again") for reason in ("timeout", "unknown", "failed", "engine_overloaded", "in_progress")),
        *((reason, "asked again") for reason in ("insufficient_system_resource", "incomplete", 0, [])),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_why_a_reply_ended(reason, wanted, as_text, tmp_path):
    cache, path = DiskCache(tmp_path), "/v1/completions" if as_text else "/v1/chat/completions"

    def ends(whole):
        whole["choices"][0]["finish_reason"] = reason
        if as_text:
            whole["choices"][0]["text"] = whole["choices"][0].pop("message")["content"]

    with Server(behaviour=lambda request: s.says(ends)) as server:
        form = {"render": render} if as_text else {}
        ask = model(server, cache=cache, max_retries=1, abilities=None, **form)
        chat = [Chat.of("question 0", continued="so" if as_text else "")]
        if wanted == "asked again":
            with pytest.raises(EndpointError, match="failed 2 times.*finish_reason"):
                ask.complete(chat, HOT, "policy")
            assert len(server.requests) == 2 and entries(cache) == 0
            return
        (reply,) = ask.complete(chat, HOT, "policy")
        assert len(server.requests) == entries(cache) == 1 and server.requests[0].path == path
    assert (reply.ended, reply.refused) == (wanted == "ended", wanted == "refused")
    assert bool(reply.text) == (wanted != "refused")


def breaks_off(whole):
    whole["choices"][0]["finish_reason"] = "error"


def holds_an_error(whole):
    whole["error"] = {"code": 502, "message": "provider disconnected"}


def choice_holds_an_error(whole):
    del whole["choices"][0]["finish_reason"]
    whole["choices"][0]["error"] = {"code": 502, "message": "provider disconnected"}


@pytest.mark.parametrize("change", [breaks_off, choice_holds_an_error, holds_an_error])
def test_a_reply_that_broke_off_or_has_an_error_beside_it_is_asked_for_again(change):
    with Server(s.says(change)) as server:
        replies = model(server).complete(chats(1) * 3, HOT, "policy")
        assert len(server.requests) == 2 and len({reply.text for reply in replies}) == 3
    assert all(reply.ended for reply in replies)


WRITES = {"content": "up", "role": "assistant"}
PARTS = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "move "}, {"type": "text", "text": "up"}]


def message(content, **more):
    return {"message": {"content": content}, **more}


@pytest.mark.parametrize(
    "choice, text, ended",
    [
        (message(""), "", True),
        (message("a\ud83db"), "a\ufffdb", True),  # half a surrogate pair
        (message(PARTS), "move up", True),
        (message("up", finish_reason="length"), "up", False),
        (message(None, finish_reason="length"), "", False),  # all was spent on thinking
        # What follows the thoughts is the reply.
        (message("<think>left?</think>\n\nup"), "\n\nup", True),
        (message("left?</think>up"), "up", True),
        (message("<think>left"), "", False),
        (message('{"thought": "</think>"}'), '{"thought": "</think>"}', True),
        # Fields of another form.
        ({"delta": WRITES}, "up", True),
        ({"message": None, "delta": WRITES}, "up", True),
        ({"message": None, "text": "up"}, "up", True),
        ({"message": {"role": "assistant"}, "text": "up"}, "up", True),
        ({"message": WRITES | {"reasoning_content": "down?"}, "text": ""}, "up", True),
    ],
)
def test_the_text_of_a_reply(choice, text, ended):
    whole = {"choices": [{"index": 0, "finish_reason": "stop", **choice}], "usage": None}
    with Server(s.raw(json.dumps(whole).encode())) as server:
        (reply,) = model(server).complete(chats(1), HOT, "policy")
        assert (reply.text, reply.ended) == (text, ended) and len(server.requests) == 1


def test_a_giant_response_is_cut_off_while_it_arrives_and_sent_again(monkeypatch):
    monkeypatch.setattr(transport, "MAX_BYTES", 100_000)
    cut_off = threading.Event()

    def giant(handler, request):
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * 10_000)
        except OSError:
            cut_off.set()

    with Server(giant) as server:
        ask = model(server)
        (reply,) = ask.complete(chats(1), HOT, "policy")
        assert cut_off.wait(20) and len(server.requests) == 2
    assert reply.text.startswith("re: question 0")
    assert spent(ask)["retries"] == 1 and spent(ask)["paid"] > 25_000


# Scores.


def echoes(handler, request):
    """The prompt as tokens of four characters counted from its end, after a token of its own; -1, -2, ... each."""
    prompt = request.body["prompt"]
    odd = len(prompt) % 4
    tokens = ["<s>"] + ([prompt[:odd]] if odd else []) + [prompt[i : i + 4] for i in range(odd, len(prompt), 4)]
    log_probs = [None] + [-float(i) for i in range(1, len(tokens))]
    logprobs = {"tokens": tokens, "token_logprobs": log_probs}
    usage = {"prompt_tokens": len(tokens), "completion_tokens": 0}
    s.send(handler, {"choices": [{"index": 0, "text": prompt, "logprobs": logprobs}], "usage": usage})


def render(messages):
    return "".join(message["content"] for message in messages) + ">"


def test_scores_are_the_sums_over_the_tokens_of_each_continuation(tmp_path):
    with Server(behaviour=lambda request: echoes) as server:
        ask = model(server, render=render, cache=DiskCache(tmp_path))
        assert ask.can_score
        batch = [Chat.of("abc"), Chat.of("abcdefg")]
        rows = ask.score(batch, [["leftdown", "down", ""], ["down", "down"]], "policy")
        sent = {r.body["prompt"]: r for r in server.requests}
        again = ask.score(batch, [["leftdown", "down", ""], ["down", "down"]], "policy")
        assert len(server.requests) == 3  # equal pairs once, an empty one not at all, and all from the cache later
    # "<s>" "abc>" "left" "down": -2 - 3; "<s>" "abc>" "down": -2; "<s>" "abcd" "efg>" "down": -3
    counts = [[(-5.0, 2), (-2.0, 1), (0.0, 0)], [(-3.0, 1), (-3.0, 1)]]
    assert rows == [[Score(*count) for count in row] for row in counts]
    assert again == [[Score(*count, count[1] > 0) for count in row] for row in counts]
    body = sent["abc>down"].body
    assert sent["abc>down"].path == "/v1/completions"
    assert (body["max_tokens"], body["echo"], body["logprobs"], body["temperature"]) == (0, True, 1, 0.0)


def test_a_token_over_the_border_and_a_server_that_does_not_echo_are_errors_at_once():
    with Server(behaviour=lambda request: echoes) as server:
        ask = model(server, render=render)
        with pytest.raises(EndpointError, match="reaches over the border"):
            ask.score([Chat.of("abc")], [["rightdown"]], "policy")
        assert len(server.requests) == 1
    only = s.raw(b'{"choices": [{"logprobs": {"tokens": ["down"], "token_logprobs": [-0.5]}}]}')
    with Server(only) as server:
        with pytest.raises(EndpointError, match="does not echo"):
            model(server, render=render).score([Chat.of("abc")], [["down"]], "policy")


def test_a_score_without_log_probabilities_is_retried():
    with Server(s.raw(b'{"choices": [{"text": "abc>down", "logprobs": null}]}'), echoes) as server:
        ask = model(server, render=render)
        assert ask.score([Chat.of("abc")], [["down"]], "policy") == [[Score(-2.0, 1)]]


def test_a_probability_in_the_place_of_its_logarithm_is_refused_at_once():
    logprobs = {"tokens": ["abc>", "down"], "token_logprobs": [None, 0.7]}
    with Server(s.raw(json.dumps({"choices": [{"index": 0, "logprobs": logprobs}]}).encode())) as server:
        with pytest.raises(EndpointError, match="'down' the log-probability 0.7, and none is above 0"):
            model(server, render=render).score([Chat.of("abc")], [["down"]], "r")
        assert len(server.requests) == 1


def test_without_scoring_the_refusal_says_what_to_do():
    ask = nowhere()
    assert not ask.can_score
    with pytest.raises(NotImplementedError, match="--endpoint_tokenizer MODEL"):
        ask.score(chats(1), [["a"]], "policy")
