"""An endpoint's replies on disk: nothing is paid for twice, also after a kill."""

import signal
import subprocess
import sys
import time

from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.types import Chat, Sampling
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, HOT, chats, entries, model, questions, spent, texts
from tests.backends.server import Server

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


def test_a_killed_run_pays_for_nothing_that_arrived_and_its_ledger_agrees(tmp_path, caplog):
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
        row = spent(ask)
        assert (row["prompt_tokens"], row["tokens"], row["unanswered"], row["estimated"]) == (50, 25, 2, 2)
        assert (
            75 + 2 * 20 < row["paid"] < 75 + 2 * (20 + 100)
        )  # the two under way: their bytes / 4, and all they may write
        metered(ask, ask.usage).complete(chats(12), HOT, "policy")
        assert sorted(server.asked()) == sorted(set(questions(12)) - paid)
    row = spent(ask)
    assert (row["prompt_tokens"], row["tokens"], row["calls"], row["cache_hits"]) == (120, 60, 12, 5)
    assert caplog.text.count("requests that were sent and have no answer: 2 ") == 1


def test_an_interrupt_keeps_what_is_under_way_and_sends_no_more(tmp_path):
    first = lambda request: s.status(429, Retry_After="30") if request.number == 0 else s.slow(1.5)
    with Server(behaviour=first) as server:
        child = subprocess.Popen([sys.executable, "-c", RUN, server.url, str(tmp_path)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
        assert b"waiting for replies under way; Ctrl-C again ends at once" in errors and b"KeyboardInterrupt" in errors
        assert len(server.requests) == 2 and entries(DiskCache(tmp_path)) == 1
