"""Requests that fail: retries, refusals, the token budget, and a key that is never shown."""

import email.utils
import logging
import time

import pytest

from nlrl_jax.backends import transport
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.optional_fields import DOUBTFUL
from nlrl_jax.backends.prompt_forms import CONTINUED
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.transport import EndpointError, retry_after, retry_wait
from nlrl_jax.backends.usage import BudgetExceeded, Usage
from tests.backends import server as s
from tests.backends.endpoints import HOT, KEY, chats, entries, model, nowhere, spent
from tests.backends.server import Server

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


# A decoder gives nothing of this: the file's name goes on and on.
GZIP = b"Content-Encoding: gzip\r\nContent-Length: 1010\r\n\r\n", bytes.fromhex("1f8b0808000000000000")
DRIPS = [s.drips(b"Content-Length: 1000\r\n\r\n"), s.drips(b"X-Slow: "), s.drips(*GZIP)]


@pytest.mark.parametrize("behaviour", [s.slow(20.0), *DRIPS])
def test_the_timeout_is_for_the_whole_answer(behaviour):
    start = time.monotonic()
    with Server(behaviour) as server:
        replies = model(server, timeout=0.3).complete(chats(1), HOT, "policy")
        assert len(server.requests) == 2 and replies[0].text
    assert time.monotonic() - start < 10


def test_connection_refused():
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


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    "header, wait",
    [
        ("7", 7.0),
        ("0.5", 0.5),
        (email.utils.formatdate(NOW + 30, usegmt=True), 30.0),
        (email.utils.formatdate(NOW - 30, usegmt=True), 0.0),
        ("Thu, 01 Jan 0001 00:00:00 +2359", 0.0),
        ("-5", 0.0),
        ("1e400", float("inf")),
        ("9" * 400, float("inf")),
        *(
            (absurd, 0.0)
            for absurd in ("Fri, 31 Dec 99999 23:59:59 GMT", "Mon, 99 Foo 2026 99:99:99 GMT", "1, 2 3 4 5 6")
        ),
        *((nothing, 0.0) for nothing in ("", "soon", "nan", "5, 10", ",", "\u0664 Jan")),
    ],
)
def test_retry_after_reads_seconds_and_dates_and_nothing_else(header, wait):
    assert retry_after({"Retry-After": header}, NOW) == wait
    assert retry_after({}, NOW) == 0.0 and 0 <= retry_wait(3, wait) <= transport.LONGEST_WAIT


@pytest.mark.parametrize("header, wait", [("250", 0.25), ("-1", 0.0), ("inf", float("inf")), ("soon", 7.0)])
def test_retry_after_may_be_in_milliseconds(header, wait):
    assert retry_after({"retry-after-ms": header, "Retry-After": "7"}, NOW) == wait


def test_waits_double_with_jitter_and_are_never_longer_than_allowed(monkeypatch):
    monkeypatch.setattr(transport, "BACKOFF", 0.1)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 0.3)
    for attempt, most in enumerate((0.1, 0.2, 0.3, 0.3)):
        waits = [retry_wait(attempt) for _ in range(200)]
        assert most / 2 <= min(waits) < max(waits) <= most
    assert 0.15 <= retry_wait(10_000) <= 0.3
    assert retry_wait(0, 0.25) == 0.25 and retry_wait(0, 3600.0) == 0.3


# Refusals.


@pytest.mark.parametrize("code, advice", [(401, "OPENAI_API_KEY, set"), (404, "base_url"), (400, "--extra ")])
def test_a_refusal_is_final_and_stops_the_batch(code, advice):
    refuse = lambda request: s.status(code, "no such thing " + "x" * 5000)
    with Server(behaviour=refuse) as server:
        with pytest.raises(EndpointError, match=f"status {code}.*no such thing") as caught:
            model(server, concurrency=2).complete(chats(50), HOT, "policy")
        assert len(server.requests) <= 4
    assert caught.value.status == code and advice in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "behaviour, advice",
    [
        (s.status(402, "Insufficient Balance"), "no credit left"),
        (
            s.status(429, '{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'),
            "no credit left",
        ),
        (s.status(400, "The model `m` does not exist."), "the model's name"),
        (s.status(413, "Request Entity Too Large"), "--context_tokens"),
        (
            s.raw(b'data: {"choices": [{"delta": {"content": "stop seed"}}]}\n\ndata: [DONE]\n\n'),
            "streams, though not asked",
        ),
        (s.status(400, "logprobs is not supported"), "This run needs logprobs$"),
        (s.status(418, "teapot"), "'teapot'.$"),
    ],
)
def test_what_helps_is_said_at_once(behaviour, advice):
    with Server(behaviour=lambda request: behaviour) as server:
        ask = model(server, abilities=Abilities(CONTINUED, top=5))
        with pytest.raises(EndpointError, match=advice):
            ask.complete(chats(1), HOT, "policy")
        assert len(server.requests) <= 2 and not ask.known.refused


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
        ask = model(server, cache=DiskCache(tmp_path))
        ask.known.accepted.update(DOUBTFUL)  # so that none goes first, alone
        with pytest.raises(EndpointError, match="401"):
            ask.complete(chats(3), HOT, "policy")
    assert time.monotonic() - start < 5
    assert entries(DiskCache(tmp_path)) == 1


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
    assert len(files) == 1 and "httpcore" in caplog.text and "nlrl_jax" in caplog.text
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


@pytest.mark.parametrize("body, listed", [
    ({"choices": [{"logprobs": {"content": [{}] * 5}}, {"logprobs": {"content": [{}] * 4}}]}, 9),
    ({"choices": [{"logprobs": None}, {"message": {}}, {"logprobs": {"tokens": ["a"]}}, None]}, 0),
    ({"choices": None}, 0),
    ([], 0),
])  # fmt: skip
def test_listed_tokens_are_counted_over_all_choices(body, listed):
    """llama.cpp's `usage` has the tokens of one choice alone."""
    assert transport._tokens_listed(body) == listed
