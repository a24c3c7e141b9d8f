"""One local model for many callers at once: the replies to their prompts are rows of one batch.

    with BatchWorker(model) as worker:
        worker.submit(Generation(prompt, listener, Sampling(max_tokens=20)))

The batch is written in rounds of a few tokens, each a call of the engine. Between two rounds new prompts come in,
replies that have ended or whose callers are gone leave, and every caller gets its new tokens. The next round goes on
after the tokens written so far, whose keys and values are in the model's session, so that nothing is read twice.

Letters: D draws (rows of the model), N tokens of a round.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.backends import batching, engine
from nlrl_jax.backends.engine import TokenLogProb
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Text
from nlrl_jax.lm import malloc
from nlrl_jax.lm.sampling import DrawSampling
from nlrl_jax.types import Sampling

# Tokens of a round, the same for all: a reply's rounds, and so its rounding, do not depend on the others.
ROUND = 16
STOP, LENGTH = "stop", "length"  # why a reply ended: by an end token or its caller, or at its limit
_log = logging.getLogger(__name__)


class WorkerClosed(RuntimeError):
    """The worker has ended before a job was done, or before it was submitted."""


class WrittenToken(NamedTuple):
    """A token. log_prob: at temperature 1; None of a text's first token. likeliest: those in its place, if listed."""

    id: int
    log_prob: float | None
    likeliest: Sequence[tuple[int, float]] = ()


class Listener(NamedTuple):
    """What a caller does with what the worker has for it, in the worker's thread.

    more: (new tokens, why the reply has ended or "") -> whether it wants any more.
    failed: gets the error that ended it.
    """

    more: Callable[[Sequence[WrittenToken], str], bool]
    failed: Callable[[Exception], None]


class Generation:
    """A reply to be written.

    prompt: its tokens, at least one; with `max_tokens` they must fit the model's context.
    temperature, top_k, top_p: as in `types.Sampling`. seed, draw: all its randomness follows from these two numbers.
    lists: whether the likeliest tokens in each place are wanted.
    """

    def __init__(
        self, prompt: Text, listener: Listener, sampling: Sampling, seed: int = 0, draw: int = 0, lists: bool = False
    ):
        self.prompt, self.listener, self.sampling = prompt, listener, sampling
        self.seed, self.draw, self.lists = seed, draw, lists
        self.written: Text = ()
        self.is_cancelled = self.is_done = False

    @property
    def cuts(self) -> bool:
        """Whether it is drawn from a part of the vocabulary."""
        return self.sampling.top_k > 0 or self.sampling.top_p < 1

    @property
    def tokens_left(self) -> int:
        """How many tokens it may still write."""
        return self.sampling.max_tokens - len(self.written)

    def add(self, tokens: Sequence[WrittenToken], ended: bool) -> None:
        """Hands new tokens to its listener."""
        self.written += tuple(token.id for token in tokens)
        reason = STOP if ended else LENGTH if not self.tokens_left else ""
        self.is_done = not self.listener.more(tokens, reason) or bool(reason)


class Echo:
    """A text whose own tokens are wanted with their log-probabilities."""

    def __init__(self, text: Text, listener: Listener):
        self.text, self.listener, self.is_cancelled = text, listener, False


class BatchWorker:
    """The thread in which the model works, while a `with` block runs; `submit` may be called from any thread.

    model: with memory in its session for all rows, or each round reads the texts again.
    """

    def __init__(self, model: LocalModel):
        self.model = model
        self._end_tokens = np.zeros(model.model.config.vocab_size, bool)
        self._end_tokens[list(model.tokenizer.eos_ids)] = True
        self._waiting: deque[Generation | Echo] = deque()
        self._changed, self._is_closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="batch worker", daemon=True)

    def __enter__(self) -> BatchWorker:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        """Ends after the round under way; what is not done fails."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def warm_up(self) -> None:
        """Has the programs of a short reply compiled, so that the first caller does not wait for them."""
        done = threading.Event()
        errors: list[Exception] = []

        def failed(error: Exception) -> None:
            errors.append(error)
            done.set()

        listener = Listener(lambda tokens, reason: done.set() is not None, failed)
        self.submit(Generation((self.model.tokenizer.eos_ids[0],), listener, Sampling(1, 0.0)))
        done.wait()
        if errors:
            raise errors[0]

    def submit(self, job: Generation | Echo) -> None:
        """Lets a job begin with the next round that has room for it.

        Raises:
          WorkerClosed: it works no more.
        """
        with self._changed:
            if self._is_closed:
                raise WorkerClosed("the model does not work any more")
            self._waiting.append(job)
            self._changed.notify()

    def _work(self) -> None:
        active: list[Generation] = []
        while True:
            # 1. Who has ended or gone leaves, who waits comes in where there is room.
            active = [job for job in active if not job.is_done and not job.is_cancelled]
            with self._changed:
                while not (active or self._waiting or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    unfinished = [*active, *self._waiting]
                    break
                echoes = []
                while self._waiting and len(active) + len(echoes) < self.model.rows:
                    job = self._waiting.popleft()
                    if not job.is_cancelled:
                        (active if isinstance(job, Generation) else echoes).append(job)
            # 2. Calls of the engine: a failure is one of those it works for, and the others go on.
            if echoes:
                self._guard(self._score, echoes)
            # Cutting a vocabulary sorts it, so only those who asked for that pay for it.
            for cuts in (False, True):
                chosen = [job for job in active if job.cuts == cuts]
                if chosen:
                    self._guard(self._write, chosen)
            malloc.trim()
        for job in unfinished:
            job.listener.failed(WorkerClosed("the model does not work any more"))

    def _guard(self, work: Callable[[Sequence], None], jobs: Sequence[Generation | Echo]) -> None:
        try:
            work(jobs)
        except Exception as error:  # whatever it is, other callers want to be served
            _log.exception("a batch of %d failed", len(jobs))
            for job in jobs:
                job.is_cancelled = True
                job.listener.failed(error)

    def _score(self, jobs: Sequence[Echo]) -> None:
        pairs = [(job.text[:1], job.text[1:]) for job in jobs]
        rows = self._token_log_probs(pairs)
        for job, row in zip(jobs, rows):
            first = WrittenToken(job.text[0], None)
            job.listener.more([first, *(WrittenToken(i, *listed) for i, listed in zip(job.text[1:], row))], LENGTH)

    def _write(self, jobs: Sequence[Generation]) -> None:
        """The next tokens of replies that are all cut, or all not."""
        limits = [min(ROUND, job.tokens_left) for job in jobs]
        prompts, prompt_of_job = batching.distinct([job.prompt + job.written for job in jobs])
        draw = engine.Draw(Sampling(max(limits)), self._end_tokens, self._keys(jobs), self._sampling(jobs))
        written = engine.write(self.model.network(), self.model.kv_session, prompts, prompt_of_job, draw)
        replies = [written[number] for number in range(len(jobs))]
        rows = [
            [WrittenToken(*pair) for pair in zip(reply.tokens, reply.log_probs)][:limit]
            for reply, limit in zip(replies, limits)
        ]
        # Both numbers of a token come from one computation, so that it is never likelier than the likeliest.
        listing = [number for number, job in enumerate(jobs) if job.lists]
        pairs = [(jobs[n].prompt + jobs[n].written, tuple(token.id for token in rows[n])) for n in listing]
        for number, listed in zip(listing, self._token_log_probs(pairs)):
            rows[number] = [WrittenToken(token.id, *entry) for token, entry in zip(rows[number], listed)]
        for job, reply, tokens in zip(jobs, replies, rows):
            ended = reply.ended and len(tokens) == len(reply.tokens)
            # By itself: a listener that fails is no fault of the others.
            self._guard(functools.partial(_hand_over, tokens=tokens, ended=ended), [job])

    def _token_log_probs(self, pairs: Sequence[tuple[Text, Text]]) -> list[list[TokenLogProb]]:
        return engine.token_log_probs(self.model.network(), self.model.kv_session, pairs) if pairs else []

    def _keys(self, jobs: Sequence[Generation]) -> jax.Array:
        """The keys [D, N] of the next tokens."""
        numbers = np.zeros((3, self.model.rows), np.uint32)
        for column, job in enumerate(jobs):
            numbers[:, column] = job.seed, job.draw, len(job.written)
        return _token_keys(*numbers, ROUND)

    def _sampling(self, jobs: Sequence[Generation]) -> DrawSampling:
        """How each draw [D] is sampled; D is always that of all rows, as each number has a program of its own."""
        samplings = [job.sampling for job in jobs]
        pad = (0, self.model.rows - len(jobs))
        temperature = np.pad(np.array([s.temperature for s in samplings], np.float32), pad)
        if not jobs[0].cuts:
            return DrawSampling(temperature)
        top_k = np.pad(np.array([s.top_k for s in samplings], np.int32), pad)
        top_p = np.pad(np.array([s.top_p for s in samplings], np.float32), pad, constant_values=1)
        return DrawSampling(temperature, top_k, top_p)


def _hand_over(jobs: Sequence[Generation], tokens: Sequence[WrittenToken], ended: bool) -> None:
    for job in jobs:
        job.add(tokens, ended)


@functools.partial(jax.jit, static_argnums=3)
def _token_keys(seed_D: jax.Array, draw_D: jax.Array, start_D: jax.Array, N: int) -> jax.Array:
    """A key [D, N] for each of the N tokens from place `start` on: of its seed, its draw and its place alone."""

    def of_draw(seed, draw, start):
        key = jax.random.fold_in(jax.random.key(seed), draw)
        return jax.vmap(lambda place: jax.random.fold_in(key, place))(start + jnp.arange(N, dtype=jnp.uint32))

    return jax.vmap(of_draw)(seed_D, draw_D, start_D)
