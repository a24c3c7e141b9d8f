"""What is shown while an endpoint works."""

import io

import pytest

from nlrl_jax.backends import call_progress
from nlrl_jax.backends.call_progress import CallProgress
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import Chat, Sampling
from tests.backends import server as s
from tests.backends.endpoints import model
from tests.backends.server import Server


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(call_progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_has_calls_tokens_the_budget_and_the_time_left(clock):
    usage = Usage()
    shown = CallProgress(usage, 1_000_000, io.StringIO())
    shown.begin(120)
    assert shown.text() == "endpoint: 0 of 120 calls, 0 tokens, 1,000,000 left of the budget"
    usage.add("policy", paid=45_120)
    clock[0] += 60
    shown.done(40)
    assert shown.text() == "endpoint: 40 of 120 calls, 45,120 tokens, 954,880 left of the budget, about 2:00 left"
    assert CallProgress(usage).text() == "endpoint: 0 of 0 calls, 45,120 tokens"
    shown.begin(40)  # of another thread, at the same time
    assert shown.text().startswith("endpoint: 40 of 160 calls")
    shown.done(120)
    shown.begin(5)  # when nothing is under way, it begins anew
    assert shown.text().startswith("endpoint: 0 of 5 calls")


def test_without_a_terminal_there_is_a_line_now_and_then(clock):
    file = io.StringIO()
    shown = CallProgress(Usage(), 0, file)
    shown.begin(100)
    for _ in range(100):
        clock[0] += 1
        shown.done()
    lines = file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"endpoint: {n} of 100 calls" for n in (30, 60, 90)]
    shown.begin(10)  # short work is quiet
    shown.done(10)
    assert len(file.getvalue().splitlines()) == 3


def test_in_a_terminal_one_line_changes_and_is_gone_in_the_end(clock):
    file = Terminal()
    shown = CallProgress(Usage(), 0, file)
    shown.begin(3)
    shown.done()
    assert file.getvalue() == ""  # it may be over in a moment
    clock[0] += 5
    shown.done()
    shown.waiting("status 503, attempt 2 of 7 in 8 s")  # too soon after the last one
    clock[0] += 5
    shown.waiting("status 503, attempt 3 of 7 in 8 s")
    first, second = file.getvalue().split("\r")[1:]
    assert first == "endpoint: 2 of 3 calls, 0 tokens, about 0:02 left"
    assert second == "endpoint: 2 of 3 calls, 0 tokens, about 0:05 left; status 503, attempt 3 of 7 in 8 s"
    shown.done()
    assert file.getvalue().endswith("\r" + " " * len(second) + "\r")


def test_an_endpoint_counts_replies_also_where_it_fails(monkeypatch):
    seen = []
    monkeypatch.setattr(CallProgress, "waiting", lambda self, why: seen.append(why))
    chats = [Chat.of(f"question {i}") for i in range(3) for _ in range(4)]
    for refused in ("n", "none", "messages"):
        bad = lambda request, name=refused: s.status(500) if name in request.body else s.well
        with Server(behaviour=bad) as server:
            ask = model(server, max_retries=2, concurrency=2)
            if refused != "messages":
                ask.complete(chats, Sampling(5, 1.0), "r")
            else:
                with pytest.raises(Exception, match="failed 3 times"):
                    ask.complete(chats[:1], Sampling(5, 1.0), "r")
            total = 1 if refused == "messages" else 12
            assert (ask.calls.total, ask.calls.finished) == (total, total)
    assert seen and seen[0].startswith("status 500, attempt 2 of 3 in 0 s")
