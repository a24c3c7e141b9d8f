"""Rows of one batch: what runs together, what a row says, and who leaves when."""

import dataclasses
import threading

import numpy as np
import pytest

from nlrl_jax.backends import batch_worker, engine
from nlrl_jax.backends.batch_worker import LENGTH, ROUND, BatchWorker, Echo, Generation, Listener, WorkerClosed
from nlrl_jax.backends.session import Session
from nlrl_jax.types import Sampling
from tests.run.serving.running import tiny

GREEDY, HOT = Sampling(40, 0.0), Sampling(40, 1.0)


@pytest.fixture(scope="module")
def local():
    return tiny()


class Collected:
    """What a listener has got."""

    def __init__(self):
        self.tokens, self.reason, self.errors, self.rounds = [], "", [], 0
        self.done = threading.Event()

    @property
    def listener(self):
        return Listener(self.more, self.failed)

    def more(self, tokens, reason):
        self.tokens += tokens
        self.reason, self.rounds = reason, self.rounds + 1
        if reason:
            self.done.set()
        return True

    def failed(self, error):
        self.errors.append(error)
        self.done.set()

    @property
    def ids(self):
        return [token.id for token in self.tokens]


def replies(local, *jobs):
    """What came of jobs that are submitted before the worker starts, and the number of each call's rows."""
    worker, rows, write = BatchWorker(local), [], engine.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "write", lambda *call: rows.append(len(call[3])) or write(*call))
        for job in jobs:
            worker.submit(job)
        with worker:
            for job in jobs:
                assert job.listener.more.__self__.done.wait(120)
    return [job.listener.more.__self__ for job in jobs], rows


def job(local, text, sampling=GREEDY, *args):
    return Generation(tuple(local.tokenizer.encode(text)), Collected().listener, sampling, *args)


def test_what_is_asked_together_is_one_batch_and_says_what_the_model_says(local):
    texts = ["A wall", "A door is here", "Go", "A wall"]
    got, rows = replies(local, *(job(local, text, Sampling(20 + 7 * n, 0.0)) for n, text in enumerate(texts)))
    assert rows == [4, 4, 2]  # of 20, 27, 34 and 41 tokens in rounds of 16
    expected = local.write([tuple(local.tokenizer.encode(text)) for text in texts], Sampling(41, 0.0), "r")
    for number, (one, wanted) in enumerate(zip(got, expected)):
        size = 20 + 7 * number
        assert (one.ids, one.reason) == (list(wanted.tokens[:size]), LENGTH)
        np.testing.assert_allclose([t.log_prob for t in one.tokens], wanted.log_probs[:size], atol=1e-5)


def test_a_row_depends_on_its_seed_and_draw_alone(local):
    drawn = [("Go", HOT, 3, 0), ("Go", HOT, 3, 1), ("Go", HOT, 4, 0), ("Go", Sampling(40, 1.0, 0, 0.8), 3, 0)]
    together, rows = replies(local, *(job(local, *arguments) for arguments in drawn), job(local, "A wall"))
    assert rows[:2] == [4, 1]  # those that cut the vocabulary have a program of their own
    for arguments, one in zip(drawn, together):
        ((alone,), _) = replies(local, job(local, *arguments))
        assert alone.ids == one.ids
    assert len({tuple(one.ids) for one in together}) == 5


@pytest.mark.parametrize("sampling", [Sampling(20, 1.0, 1), Sampling(20, 1.0, 0, 1e-9), Sampling(20, 1e-6)])
def test_the_likeliest_token_alone_is_greedy(local, sampling):
    (one, greedy), _ = replies(local, job(local, "Go", sampling, 5), job(local, "Go", Sampling(20, 0.0)))
    assert one.ids == greedy.ids


def test_top_k_and_top_p_bound_the_draws(local):
    cut = Sampling(40, 1.0, 3)
    (one,), _ = replies(local, job(local, "Go", cut, 1, 0, True))
    places = [[token_id for token_id, _ in token.likeliest].index(token.id) for token in one.tokens]
    assert max(places) <= 2 and len(set(places)) == 3
    (one,), _ = replies(local, job(local, "Go", Sampling(40, 1.0, 0, 0.03), 1, 0, True))
    for token in one.tokens:
        ids, log_probs = zip(*token.likeliest)
        before = np.exp(log_probs[: ids.index(token.id)]).sum() if token.id in ids else 1
        assert before < 0.03


def test_listed_tokens_are_the_models_likeliest(local):
    (one, plain), _ = replies(local, job(local, "Go", GREEDY, 0, 0, True), job(local, "Go"))
    assert one.ids == plain.ids
    for token, other in zip(one.tokens, plain.tokens):
        ids, log_probs = zip(*token.likeliest)
        assert ids[0] == token.id and log_probs[0] == token.log_prob and len(ids) == engine.LISTED
        np.testing.assert_allclose(token.log_prob, other.log_prob, atol=1e-5)


def test_a_large_model_has_programs_for_few_lengths(local, monkeypatch):
    widths = []
    monkeypatch.setattr("nlrl_jax.lm.acting.is_large", lambda config: True)
    monkeypatch.setattr(engine.RowBatch, "decode", lambda batch: widths.append(batch.S) or 1 / 0)
    for few, width in ((False, 64), (True, 256)):
        model = dataclasses.replace(local, kv_session=Session(20, few_lengths=few))
        with pytest.raises(ZeroDivisionError), BatchWorker(model) as worker:
            worker.warm_up()
        assert widths.pop() == width and model.session().kv_session.few_lengths == few


def test_an_echo_has_the_scores_of_the_text(local):
    text = tuple(local.tokenizer.encode("A wall is here. Go left, then right, and then a long way to the door."))
    (one,), _ = replies(local, Echo(text, Collected().listener))
    assert one.ids == list(text) and one.tokens[0].log_prob is None
    for start in (1, 7):
        (expected,) = engine.score(local.network(), local.kv_session, [(text[:start], text[start:])])
        np.testing.assert_allclose(sum(token.log_prob for token in one.tokens[start:]), expected, atol=1e-5)


def test_a_row_that_is_not_wanted_any_more_is_free_after_its_round(local):
    collected = Collected()
    stopping = Generation((5,), Listener(lambda *new: collected.more(*new) and False, collected.failed), Sampling(300))
    cancelled = job(local, "Go", Sampling(300, 0.0))
    first = cancelled.listener.more.__self__
    more = Listener(lambda *new: setattr(cancelled, "is_cancelled", True) or first.more(*new), first.failed)
    cancelled.listener = more
    with BatchWorker(local) as worker:
        for one in (stopping, cancelled):
            worker.submit(one)
        last = job(local, "A wall")
        worker.submit(last)
        assert last.listener.more.__self__.done.wait(120)
    assert len(collected.tokens) == ROUND and len(first.tokens) == ROUND


def test_more_jobs_than_rows_wait(local):
    jobs = [job(local, "Go", Sampling(20, 1.0), seed) for seed in range(11)]
    got, rows = replies(local, *jobs)
    assert max(rows) == 8 and all(len(one.tokens) == 20 for one in got)


def test_a_call_that_fails_is_its_jobs_failure(local, monkeypatch):
    monkeypatch.setattr(batch_worker.engine, "write", lambda *_: 1 / 0)
    with BatchWorker(local) as worker:
        one = job(local, "Go")
        worker.submit(one)
        got = one.listener.more.__self__
        assert got.done.wait(60) and isinstance(got.errors[0], ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            worker.warm_up()
        monkeypatch.undo()
        again = job(local, "Go")
        worker.submit(again)
        assert again.listener.more.__self__.done.wait(60) and len(again.listener.more.__self__.tokens) == 40


def test_a_listener_that_fails_ends_its_own_reply(local):
    good, bad = job(local, "Go"), job(local, "A wall")
    collected = bad.listener.more.__self__
    bad.listener = Listener(lambda *_: 1 / 0, collected.failed)
    with BatchWorker(local) as worker:
        for one in (bad, good):
            worker.submit(one)
        assert good.listener.more.__self__.done.wait(120) and collected.done.wait(120)
    assert isinstance(collected.errors[0], ZeroDivisionError) and len(good.written) == 40 and len(bad.written) == ROUND


def test_what_is_unfinished_at_the_end_fails(local):
    one = job(local, "Go", Sampling(300, 0.0))
    got = one.listener.more.__self__
    with BatchWorker(local) as worker:
        worker.submit(one)
        while not got.tokens:
            pass
    assert len(got.tokens) < 300 and isinstance(got.errors[0], WorkerClosed)
    with pytest.raises(WorkerClosed, match="does not work any more"):
        worker.submit(job(local, "Go"))
