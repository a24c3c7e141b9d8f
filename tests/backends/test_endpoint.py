"""The endpoint backend against a real HTTP server that misbehaves."""

import email.utils
import json
import logging
import signal
import subprocess
import sys
import threading
import time

import pytest

from nlrl_jax.backends import endpoint, transport
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.transport import EndpointError, retry_after, retry_wait
from nlrl_jax.backends.usage import BudgetExceeded, Metered, Usage
from nlrl_jax.types import Chat, Reply, Sampling, Score
from tests.backends import server as s
from tests.backends.server import Server

KEY = "sk-proj-9f8e7d6c5b4a32100123456789abcdef"
GREEDY = Sampling(max_tokens=20, temperature=0.0)
HOT = Sampling(max_tokens=20, temperature=1.0)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.05)


def model(server, name="m", usage=None, cache=None, render=None, **options):
    options = EndpointOptions(**{"base_url": server.url, "max_retries": 3, "timeout": 5.0, **options})
    return EndpointModel(options, name, usage or Usage(), cache, render)


def nowhere(**options):
    return EndpointModel(EndpointOptions(**{"base_url": "http://127.0.0.1:9/v1", **options}), "m")


def entries(cache):
    return len([*cache.folder.glob("*/*.json")])


def spent(ask):
    """The ledger's row of the role."""
    (row,) = ask.usage.rows()
    return row


def chats(n):
    return [Chat.of(f"question {i}", system="rules") for i in range(n)]


def questions(n):
    return [f"question {i}" for i in range(n)]


def texts(replies):
    return [reply.text for reply in replies]


# What is sent.


def test_a_request_has_the_sampling_the_key_and_the_messages_but_not_the_context():
    with Server() as server:
        sampling = Sampling(max_tokens=7, temperature=0.5, top_k=40, top_p=0.9)
        chat = Chat.of("hi", system="rules", secret_board=1)
        (reply,) = model(server, extra='stop=["\\n"],top_p=null').complete([chat], sampling, "policy", 3)
        (request,) = server.requests
    seed = request.body.pop("seed")
    assert 0 <= seed < 2**31
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 40,
        "stop": ["\n"],
    }
    assert reply == Reply(f"re: hi [{seed}/0]", 10, 5, True, False)


def test_top_k_is_sent_only_where_it_limits_and_no_key_where_there_is_none(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with Server() as server:
        model(server).complete(chats(1), HOT, "policy")
        (request,) = server.requests
    assert "top_k" not in request.body and request.body["top_p"] == 1.0
    assert "Authorization" not in request.headers


def test_duplicates_are_one_request_for_n_choices_and_their_tokens_add_up():
    with Server() as server:
        batch = [chats(2)[i] for i in (0, 1, 0, 0)]
        replies = model(server).complete(batch, HOT, "policy")
        assert sorted((r.asked, r.body.get("n")) for r in server.requests) == [("question 0", 3), ("question 1", None)]
    first = [replies[i] for i in (0, 2, 3)]
    assert [text[-3:] for text in texts(first)] == ["/0]", "/1]", "/2]"]
    assert [r.prompt_tokens for r in first] == [10, 0, 0] and [r.tokens for r in first] == [5, 5, 5]


def test_at_temperature_0_duplicates_are_asked_once_without_a_seed():
    with Server() as server:
        replies = model(server).complete(chats(1) * 4, GREEDY, "policy", 5)
        (request,) = server.requests
    assert "n" not in request.body and "seed" not in request.body
    assert len(set(texts(replies))) == 1 and [r.tokens for r in replies] == [5, 0, 0, 0]


def test_a_large_group_is_split_and_seeds_differ_between_its_requests_and_between_chats(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_CHOICES", 2)
    with Server() as server:
        replies = model(server).complete(chats(1) * 5 + chats(2)[1:], HOT, "policy")
        assert sorted(r.body.get("n", 1) for r in server.requests) == [1, 1, 2, 2]
        assert len({r.body["seed"] for r in server.requests}) == 4
    assert len(set(texts(replies))) == 6


def test_no_chats_need_no_server():
    assert nowhere().complete([], HOT, "policy") == []


# Order and concurrency.


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_replies_are_in_order_and_never_more_than_concurrency_are_open(concurrency):
    def together(handler, request):
        """Each waits for `concurrency` others, and for a while for one too many."""
        deadline = time.monotonic() + 10
        while len(server.requests) < concurrency and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05 * (request.number < concurrency) + 0.01 * (int(request.asked.split()[1]) * 7 % 3))
        s.well(handler, request)

    with Server(behaviour=lambda request: together) as server:
        replies = model(server, concurrency=concurrency, timeout=20.0).complete(chats(20), HOT, "policy", 1)
        assert server.most_at_once == concurrency
        seeds = {r.asked: r.body["seed"] for r in server.requests}
    assert texts(replies) == [f"re: {q} [{seeds[q]}/0]" for q in questions(20)]
    assert seeds["question 7"] == 609281663  # the same at any concurrency, in any process


def test_independent_of_the_rest_of_the_batch():
    with Server() as server:
        alone = model(server).complete(chats(3)[2:], HOT, "policy", 1)
        among = model(server, concurrency=2).complete(chats(3), HOT, "value", 1)
        other = model(server).complete(chats(3)[2:], HOT, "policy", 2)
    assert texts(alone) == texts(among)[2:] != texts(other)


# Failures that pass.


FLAKY = {
    "429": s.status(429, "slow down"),
    "500": s.status(500, "oops"),
    "503": s.status(503, ""),
    "cut connection": s.cut,
    "malformed JSON": s.raw(b"<html>busy</html>"),
    "half a JSON": s.half,
    "a list": s.raw(b"[]"),
    "deep JSON": s.raw(b"[" * 100_000),
    "not UTF-8": s.raw(b'{"choices": "\xff"}'),
    "error object": s.raw(b'{"error": {"message": "overloaded"}}'),
    "no choice": s.choices(0),
    "null choices": s.raw(b'{"choices": null}'),
    "no message": s.raw(b'{"choices": [{"index": 0}]}'),
    "a choice that is a string": s.raw(b'{"choices": ["hello"]}'),
    "null content": s.null,
    "content as a mapping": s.raw(b'{"choices": [{"message": {"content": {"text": "a"}}}]}'),
}


@pytest.mark.parametrize("name", FLAKY)
def test_a_passing_failure_is_retried(name):
    with Server(FLAKY[name], FLAKY[name]) as server:
        ask = model(server)
        (reply,) = ask.complete(chats(1), HOT, "policy")
        assert len(server.requests) == 3
        assert len({r.body["seed"] for r in server.requests}) == 1
    assert reply.text.startswith("re: question 0") and spent(ask)["retries"] == 2


@pytest.mark.parametrize("name", ["429", "503", "cut connection", "half a JSON", "null choices"])
def test_a_lasting_failure_ends_in_a_clear_error_and_what_was_paid_for_is_cached(name, tmp_path):
    cache = DiskCache(tmp_path)
    bad = lambda request: FLAKY[name] if request.asked == "question 5" else s.well
    with Server(behaviour=bad) as server:
        with pytest.raises(EndpointError, match="failed 4 times.*run again") as caught:
            model(server, cache=cache, concurrency=2).complete(chats(6), HOT, "policy")
        assert sum(r.asked == "question 5" for r in server.requests) == 4
        server.behaviour, server.requests = None, []
        replies = model(server, cache=cache).complete(chats(6), HOT, "policy")
        assert list(server.asked()) == ["question 5"]
    assert len(str(caught.value)) < 800
    assert [r.cached for r in replies] == [True] * 5 + [False]
    if name.isdecimal():
        assert caught.value.status == int(name) and name in str(caught.value)


@pytest.mark.parametrize("behaviour", [s.slow(20.0), s.drip])
def test_the_timeout_is_for_the_whole_answer(behaviour):
    start = time.monotonic()
    with Server(behaviour) as server:
        replies = model(server, timeout=0.3).complete(chats(1), HOT, "policy")
        assert len(server.requests) == 2 and replies[0].text
    assert time.monotonic() - start < 10


def test_nobody_listens():
    with Server() as server:
        url = server.url
    with pytest.raises(EndpointError, match="failed 2 times.*ConnectError") as caught:
        nowhere(base_url=url, max_retries=1).complete(chats(1), HOT, "policy")
    assert caught.value.status is None


def test_retry_after_is_honoured_up_to_the_longest_wait(monkeypatch):
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.2)
    with Server(s.status(429, Retry_After="3600")) as server:
        model(server).complete(chats(1), HOT, "policy")
        first, second = (r.time for r in server.requests)
    assert 0.2 <= second - first < 60


def test_retry_after_reads_seconds_and_dates():
    now = 1_700_000_000.0
    assert retry_after("7", now) == 7.0
    assert retry_after(email.utils.formatdate(now + 30, usegmt=True), now) == 30.0
    assert retry_after(email.utils.formatdate(now - 30, usegmt=True), now) == 0.0
    assert retry_after("-5", now) == 0.0
    assert retry_after(None, now) == retry_after("soon", now) == retry_after("nan", now) == 0.0


def test_waits_double_with_jitter_and_are_never_longer_than_allowed(monkeypatch):
    monkeypatch.setattr(transport, "BACKOFF", 0.1)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.3)
    for attempt, most in enumerate((0.1, 0.2, 0.3, 0.3)):
        waits = [retry_wait(attempt) for _ in range(200)]
        assert most / 2 <= min(waits) < max(waits) <= most
    assert 0.15 <= retry_wait(10_000) <= 0.3
    assert retry_wait(0, 0.25) == 0.25 and retry_wait(0, 3600.0) == 0.3


# Wrong numbers of choices.


@pytest.mark.parametrize("number", [0, 1, 3])
def test_choices_that_do_not_come_are_asked_for_one_by_one(number):
    with Server(s.choices(number)) as server:
        replies = model(server).complete(chats(1) * 4, HOT, "policy")
        assert [r.body.get("n", 1) for r in server.requests] == [4] + [1] * (4 - number)
        singles = [r.body["seed"] for r in server.requests[1:]]
    assert len(set(texts(replies))) == 4 and len(set(singles)) == 4 - number
    assert sum(r.tokens for r in replies) == 20


def test_choices_nobody_asked_for_are_left_but_paid_for():
    with Server(s.choices(4)) as server:
        ask = model(server)
        replies = ask.complete(chats(1), HOT, "policy")
        assert len(server.requests) == 1
    assert len(replies) == 1 and replies[0].tokens == 5 and spent(ask)["tokens"] == 20


def test_one_null_among_the_choices_is_asked_for_again_and_the_others_are_kept():
    with Server(s.says(lambda whole: whole["choices"][1]["message"].update(content=None))) as server:
        replies = model(server).complete(chats(1) * 3, HOT, "policy")
        assert [r.body.get("n", 1) for r in server.requests] == [3, 1]
    assert [text.split("/")[1] for text in texts(replies)] == ["0]", "2]", "0]"]


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_that_refuses_n_gets_single_requests(code):
    refuse = lambda request: s.status(code, "n must be 1") if "n" in request.body else s.well
    with Server(behaviour=refuse) as server:
        replies = model(server).complete(chats(1) * 3, HOT, "policy")
        assert [r.body.get("n", 1) for r in server.requests] == [3, 1, 1, 1]
    assert len(set(texts(replies))) == 3


def test_choices_go_by_their_index():
    with Server(s.says(lambda whole: whole["choices"].reverse())) as server:
        replies = model(server).complete(chats(1) * 3, HOT, "policy")
    assert [text.split("/")[1] for text in texts(replies)] == ["0]", "1]", "2]"]


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_that_refuses_fields_by_name_is_served_without_them(code, tmp_path):
    def picky(request):
        bad = next((name for name in ("max_tokens", "top_k", "seed") if name in request.body), None)
        return s.status(code, "x " * 400 + f"'{bad}' is not supported") if bad else s.well

    sampling, cache = Sampling(20, 1.0, top_k=50), DiskCache(tmp_path)
    with Server(behaviour=picky) as server:
        ask = model(server, concurrency=1, cache=cache)
        assert len(ask.complete(chats(3), sampling, "policy")) == 3
        bodies = [request.body for request in server.requests if picky(request) is s.well]
        assert len(bodies) == 3 and len(server.requests) == 3 + 3  # one refusal for each field of the call
        assert all(body["max_completion_tokens"] == 20 for body in bodies)
        assert all(r.cached for r in model(server, cache=cache).complete(chats(3), sampling, "policy"))
    with Server(behaviour=lambda request: s.status(code, "max_tokens is too large")) as server:
        with pytest.raises(EndpointError, match="too large"):
            model(server).complete(chats(1), GREEDY, "policy")
        assert len(server.requests) == 2


# What a reply says.


def test_a_message_that_never_has_a_text_is_an_empty_reply_after_the_retries(tmp_path):
    silent = lambda request: s.null if request.asked == "question 1" else s.well
    cache = DiskCache(tmp_path)
    with Server(behaviour=silent) as server:
        ask = model(server, cache=cache)
        replies = ask.complete(chats(3), HOT, "policy")
        assert sum(r.asked == "question 1" for r in server.requests) == 4 and spent(ask)["paid"] == 6 * 15
        assert [bool(reply.text) for reply in replies] == [reply.ended for reply in replies] == [True, False, True]
        assert replies[1].prompt_tokens == 10
        model(server, cache=cache).complete(chats(3), HOT, "policy")
        assert len(server.requests) == 6


def test_a_cut_reply_has_not_ended_also_where_it_has_no_text():
    def cut(whole):
        for choice in whole["choices"]:
            choice["finish_reason"] = "length"
        whole["choices"][1]["message"]["content"] = None  # all was spent on thinking

    with Server(s.says(cut)) as server:
        replies = model(server).complete(chats(1) * 2, HOT, "policy")
        assert len(server.requests) == 1
    assert [r.ended for r in replies] == [False, False] and replies[1].text == ""


def test_an_empty_text_and_half_a_surrogate_pair_are_replies():
    def odd(whole):
        whole["choices"][0]["message"]["content"] = ""
        whole["choices"][1]["message"]["content"] = "a\ud83db"

    with Server(s.says(odd)) as server:
        replies = model(server).complete(chats(1) * 2, HOT, "policy")
    assert texts(replies) == ["", "a\ufffdb"] and all(r.ended for r in replies)


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


AZURE = {"error": {"message": "Please modify your prompt. " * 20, "code": "content_filter"}}


@pytest.mark.parametrize(
    "behaviour, text",
    [
        (s.says(filtered), ""),
        (s.says(declined), "I cannot help with that."),
        (s.status(400, json.dumps(AZURE)), ""),
        (s.status(403, '{"error": {"message": "your input was flagged"}}'), ""),
    ],
    ids=["filter", "refusal", "filtered prompt", "flagged prompt"],
)
def test_a_refusal_of_one_prompt_is_counted_and_neither_sent_again_nor_the_end(behaviour, text, tmp_path):
    bad = lambda request: behaviour if request.asked == "question 1" else s.well
    with Server(behaviour=bad) as server:
        ask = model(server, cache=DiskCache(tmp_path))
        metered = Metered(ask, ask.usage)
        replies = metered.complete(chats(3), HOT, "policy")
        assert len(server.requests) == 3
        assert spent(ask)["refused"] == 1 and spent(ask)["cut"] == 0
        assert metered.complete(chats(3), HOT, "policy")[1].refused and len(server.requests) == 3
    assert [(reply.refused, reply.ended) for reply in replies] == [(False, True), (True, False), (False, True)]
    assert replies[1].text == text


def test_a_text_in_parts_is_read_without_the_thoughts():
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "move "}, {"type": "text", "text": "up"}]
    with Server(s.says(lambda whole: whole["choices"][0]["message"].update(content=parts))) as server:
        assert texts(model(server).complete(chats(1), HOT, "policy")) == ["move up"]
        assert len(server.requests) == 1


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


# Refusals.


@pytest.mark.parametrize("code, advice", [(401, "OPENAI_API_KEY, set"), (404, "base_url"), (400, "--extra ")])
def test_a_refusal_is_final_and_stops_the_batch(code, advice):
    refuse = lambda request: s.status(code, "no such thing " + "x" * 5000)
    with Server(behaviour=refuse) as server:
        with pytest.raises(EndpointError, match=f"status {code}.*no such thing") as caught:
            model(server, concurrency=2).complete(chats(50), HOT, "policy")
        assert len(server.requests) <= 4
    assert caught.value.status == code and advice in str(caught.value) and len(str(caught.value)) < 700


def test_a_missing_key_is_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with Server(s.status(401)) as server:
        with pytest.raises(EndpointError, match=r"\$OPENAI_API_KEY, not set"):
            model(server).complete(chats(1), HOT, "policy")


def test_a_redirect_is_not_followed_with_the_key():
    with Server() as elsewhere, Server(s.status(307, Location=elsewhere.url + "/chat/completions")) as server:
        with pytest.raises(EndpointError, match="redirects to"):
            model(server).complete(chats(1), HOT, "policy")
        assert not elsewhere.requests


def test_a_refusal_wakes_those_who_wait_and_keeps_what_is_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "LONGEST_WAIT", 60.0)
    plans = {0: s.status(429, Retry_After="30"), 1: s.slow(0.4), 2: s.status(401)}
    start = time.monotonic()
    with Server(behaviour=lambda request: plans[int(request.asked[-1])]) as server:
        with pytest.raises(EndpointError, match="401"):
            model(server, cache=DiskCache(tmp_path)).complete(chats(3), HOT, "policy")
    assert time.monotonic() - start < 5
    assert entries(DiskCache(tmp_path)) == 1


# The cache.


def test_a_second_run_sends_nothing(tmp_path):
    batch = chats(3) * 2
    with Server() as server:
        first = model(server, cache=DiskCache(tmp_path)).complete(batch, HOT, "policy", 1)
        sent = len(server.requests)
        again = model(server, cache=DiskCache(tmp_path), concurrency=1).complete(batch, HOT, "policy", 1)
        assert len(server.requests) == sent == 3
    assert texts(again) == texts(first)
    assert all(r.cached and r.tokens == r.prompt_tokens == 0 for r in again) and not any(r.cached for r in first)


def test_everything_that_matters_is_in_the_key_and_the_context_is_not(tmp_path):
    cache, base = DiskCache(tmp_path), Chat.of("hi")
    with Server() as server, Server() as other:
        asks = [
            (model(server, cache=cache), base, HOT, 0),
            (model(other, cache=cache), base, HOT, 0),
            (model(server, cache=cache, extra="stop=x"), base, HOT, 0),
            (model(server, "m2", cache=cache), base, HOT, 0),
            (model(server, cache=cache), Chat.of("ho"), HOT, 0),
            (model(server, cache=cache), Chat.of("hi", system="s"), HOT, 0),
            (model(server, cache=cache), base, HOT, 1),
            (model(server, cache=cache), base, Sampling(21, 1.0), 0),
            (model(server, cache=cache), base, Sampling(20, 0.5), 0),
            (model(server, cache=cache), base, Sampling(20, 1.0, 5), 0),
            (model(server, cache=cache), base, Sampling(20, 1.0, 0, 0.5), 0),
            (model(server, cache=cache), base, GREEDY, 0),
        ]
        for ask, chat, sampling, seed in asks:
            assert not ask.complete([chat], sampling, "policy", seed)[0].cached
        assert entries(cache) == len(asks)
        assert model(server, cache=cache).complete([Chat.of("hi", board=1)], HOT, "value", 0)[0].cached
        assert model(server, cache=cache).complete([base], GREEDY, "policy", 9)[0].cached  # greedy: no seed matters


def test_more_duplicates_than_last_time_pay_for_the_new_ones_only(tmp_path):
    with Server() as server:
        ask = model(server, cache=DiskCache(tmp_path))
        first = ask.complete(chats(1) * 2, HOT, "policy")
        more = ask.complete(chats(1) * 5, HOT, "policy")
        assert [r.body["n"] for r in server.requests] == [2, 3]
    assert texts(more)[:2] == texts(first) and len(set(texts(more))) == 5
    assert [r.cached for r in more] == [True, True, False, False, False]


# A run of its own, on the server and the cache that its arguments name.
# A shell starts its background jobs with SIGINT ignored, and what they start ignores it too.
RUN = """
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import Chat, Sampling
folder = pathlib.Path(sys.argv[2])
model = EndpointModel(EndpointOptions(sys.argv[1], concurrency=2), "m", Usage(folder), DiskCache(folder))
model.complete([Chat.of(f"question {i}", system="rules") for i in range(12)], Sampling(20, 1.0), "policy")
"""


def test_a_killed_run_pays_nothing_twice_and_its_ledger_agrees(tmp_path):
    hang = lambda request: s.well if request.number < 5 else s.slow(600)
    with Server(behaviour=hang) as server:
        child = subprocess.Popen([sys.executable, "-c", RUN, server.url, str(tmp_path)])
        deadline = time.monotonic() + 60
        # Both workers hang, so the five replies before are written.
        while len(server.requests) < 7 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert entries(DiskCache(tmp_path)) == 5
        paid = {r.asked for r in server.requests[:5]}
        server.behaviour, server.requests = None, []
        ask = model(server, usage=Usage(tmp_path), cache=DiskCache(tmp_path))
        assert (spent(ask)["prompt_tokens"], spent(ask)["tokens"], spent(ask)["paid"]) == (50, 25, 75)
        Metered(ask, ask.usage).complete(chats(12), HOT, "policy")
        assert sorted(server.asked()) == sorted(set(questions(12)) - paid)
    row = spent(ask)
    assert (row["prompt_tokens"], row["tokens"], row["calls"], row["cache_hits"]) == (120, 60, 12, 5)


def test_an_interrupt_keeps_what_is_under_way_and_sends_no_more(tmp_path):
    first = lambda request: s.status(429, Retry_After="30") if request.number == 0 else s.slow(1.5)
    with Server(behaviour=first) as server:
        child = subprocess.Popen([sys.executable, "-c", RUN, server.url, str(tmp_path)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
        assert b"KeyboardInterrupt" in errors
        assert len(server.requests) == 2 and entries(DiskCache(tmp_path)) == 1


# The budget.


def test_the_budget_stops_before_a_request_and_a_rerun_continues(tmp_path):
    usage, cache = Usage(), DiskCache(tmp_path)
    usage.add("policy", tokens=1000)  # of a local model: nothing that a budget limits
    with Server() as server:
        ask = model(server, concurrency=1, token_budget=40, usage=usage, cache=cache)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="45 tokens are spent and the limit is 40; raise --token_budget"):
                ask.complete(chats(10), HOT, "policy")
            assert len(server.requests) == 3 == entries(cache)
        assert len(ask.complete(chats(3), HOT, "policy")) == 3  # all from the cache
        model(server, token_budget=1000, usage=usage, cache=cache).complete(chats(10), HOT, "policy")
        assert len(server.requests) == 10
    assert (spent(ask)["prompt_tokens"], spent(ask)["tokens"], spent(ask)["paid"]) == (100, 1050, 150)


def test_a_spent_budget_waits_for_what_is_under_way(tmp_path):
    cache = DiskCache(tmp_path)
    late = lambda request: s.well if request.number == 0 else s.slow(0.3)
    with Server(behaviour=late) as server:
        ask = model(server, concurrency=4, token_budget=1, cache=cache)
        with pytest.raises(BudgetExceeded):
            ask.complete(chats(20), HOT, "policy")
        assert len(server.requests) == entries(cache) == spent(ask)["paid"] / 15 <= 4


@pytest.mark.parametrize("behaviour", [s.null, s.raw(b"<p>" + b"x" * 40)])
def test_invalid_responses_are_paid_for_too(behaviour):
    with Server(*[behaviour] * 20) as server:
        with pytest.raises(BudgetExceeded):
            model(server, max_retries=20, token_budget=40).complete(chats(1), HOT, "policy")
        assert len(server.requests) <= 3


# Secrets.


def test_the_key_is_nowhere(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    shown = []
    with Server() as server:
        ask = model(server, cache=DiskCache(tmp_path))
        for code in (401, 400, 500):
            server.behaviour = lambda request, code=code: s.echo_key(code)
            with pytest.raises(EndpointError) as caught:
                ask.complete(chats(1), HOT, "policy")
            error = caught.value
            shown += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
            assert "[key hidden]" in str(error)
            frame = error.__traceback__
            while frame is not None:  # as a traceback that prints variables would
                ours = "nlrl_jax" in frame.tb_frame.f_code.co_filename
                shown.append(repr(frame.tb_frame.f_locals) if ours else "")
                frame = frame.tb_next
        spread = s.status(401, "x" * (300 - 10) + KEY)  # an excerpt that is cut within the key
        server.behaviour = lambda request: spread
        with pytest.raises(EndpointError) as caught:
            ask.complete(chats(1), HOT, "policy")
        shown.append(str(caught.value))
        server.behaviour = None
        ask.complete(chats(1), HOT, "policy")
        shown += [repr(ask), str(ask), repr(ask.usage.rows())]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1 and "httpx" in caplog.text and "nlrl_jax" in caplog.text
    shown += [caplog.text, *(path.read_text() for path in files), *map(str, files)]
    for text in shown:
        assert KEY not in text and KEY[:12] not in text


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(monkeypatch):
    for bad in ("sk-1234567890\nX-Evil: 1", "sk-1234567890-\u00e9", "sk 1234567890"):
        monkeypatch.setenv("OPENAI_API_KEY", bad)
        with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
            nowhere()
        assert "1234567890" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", f"  {KEY}\n")  # as `export KEY="$(cat file)"` and its like leave it
    with Server() as server:
        model(server).complete(chats(1), HOT, "policy")
        assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


# Scores.


def echoes(handler, request):
    """The prompt as tokens of four characters counted from its end, behind a token of its own; -1, -2, ... each."""
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


def test_without_scoring_the_refusal_says_what_to_do():
    ask = nowhere()
    assert not ask.can_score
    with pytest.raises(NotImplementedError, match="--endpoint_tokenizer MODEL"):
        ask.score(chats(1), [["a"]], "policy")


# Options.


@pytest.mark.parametrize(
    "options, message",
    [
        ({"base_url": ""}, "--base_url http"),
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'"),
        ({"base_url": "http://me:pass@host/v1"}, "no user, password"),
        ({"base_url": "http://host/v1?key=1"}, "query"),
        ({"extra": "n=3"}, "extra sets n"),
        ({"extra": "top_p"}, "extra is 'top_p'; it must be field=value"),
        ({"extra": "a b=1"}, "field=value"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 100_000}, "concurrency is 100000"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"token_budget": -1}, "token_budget is -1"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_sent(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        nowhere(**options)
    assert "pass@" not in str(caught.value)


def test_extra_fields_are_json_where_they_parse():
    text = 'effort=low, seed=null,stop=["a,b=c", "d"],kw={"x": false},top_p=0.5,name=1a,word="1",empty='
    assert EndpointOptions(extra=text).extra_fields() == {
        "effort": "low",
        "seed": None,
        "stop": ["a,b=c", "d"],
        "kw": {"x": False},
        "top_p": 0.5,
        "name": "1a",
        "word": "1",
        "empty": "",
    }
