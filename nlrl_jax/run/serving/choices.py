"""The replies to one request on their way: rows of the batch on one side, a queue of the event loop on the other."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

from nlrl_jax.backends.batch_worker import (
    STOP,
    BatchWorker,
    Echo,
    Generation,
    Listener,
    WorkerClosed,
    WrittenToken,
)
from nlrl_jax.config import MOST_SEED
from nlrl_jax.run.serving.errors import ApiError
from nlrl_jax.run.serving.prompts import Prompt
from nlrl_jax.run.serving.replies import ReplyReader, ReplyText
from nlrl_jax.run.serving.requests import ReplyOptions
from nlrl_jax.types import Sampling

_CLOSED = "the server is shutting down"


class Choice:
    """A reply as far as it has arrived in the event loop.

    tokens: up to the one that completes a stop string. reason: why it has ended, or "".
    echoed: the tokens of its prompt, if it is to begin with them.
    """

    def __init__(self, index: int, reader: ReplyReader):
        self.index, self.reader = index, reader
        self.tokens: list[WrittenToken] = []
        self.echoed: list[WrittenToken] = []
        self.reason = ""
        self._sent, self._num_sent = ReplyText(), 0

    def add(self, tokens: Sequence[WrittenToken], reason: str) -> None:
        """Takes new tokens."""
        self.tokens += tokens
        self.reason = reason

    def text(self) -> ReplyText:
        """What it says, as far as that is certain."""
        return self.reader.read([token.id for token in self.tokens], bool(self.reason))

    def listed(self) -> list[WrittenToken]:
        """The tokens whose log-probabilities are returned."""
        return [token for token in self.tokens if self.reader.shows(token.id)]

    def new_parts(self) -> tuple[ReplyText, list[WrittenToken]]:
        """What has come of its text and its tokens since the last call."""
        text, sent, listed = self.text(), self._sent, self.listed()
        new = ReplyText(text.thought[len(sent.thought) :], text.content[len(sent.content) :], text.calls)
        tokens = listed[self._num_sent :]
        self._sent, self._num_sent = text, len(listed)
        return new, tokens


class Choices:
    """All replies to a request.

        async for choice in choices.arriving():
            ...                                  # it has new tokens

    A context manager: what is unfinished at its end gives up its row.
    """

    def __init__(self, worker: BatchWorker, prompts: Sequence[Prompt], options: ReplyOptions, limits: Sequence[int]):
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._events: asyncio.Queue = asyncio.Queue()
        self._jobs: list[Generation | Echo] = []
        self.all: list[Choice] = []
        self._open = 0
        seed = secrets.randbits(32) if options.seed is None else options.seed & MOST_SEED
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            sampling = Sampling(limit or 1, options.temperature, options.top_k, options.top_p)
            for draw in range(options.n):
                reader = ReplyReader(worker.model.tokenizer, prompt, options.stop)
                choice = Choice(len(self.all), reader)
                self.all.append(choice)
                if not limit:  # the prompt alone is wanted
                    choice.reason = "length"
                    continue
                listener = self._listener(choice)
                # Prompts of one request draw independently, also where they are equal.
                draw_number = number * options.n + draw
                lists = bool(options.top_listed)
                self._jobs.append(Generation(prompt.tokens, listener, sampling, seed, draw_number, lists))

    def echo(self, prompts: Sequence[Prompt]) -> None:
        """Lets the choices begin with their prompts' tokens."""
        num_draws = len(self.all) // len(prompts)
        for number, prompt in enumerate(prompts):
            choices = self.all[number * num_draws : (number + 1) * num_draws]

            def put(tokens: Sequence[WrittenToken], _: str, choices: Sequence[Choice] = tuple(choices)) -> bool:
                def arrived():
                    for choice in choices:
                        choice.echoed = list(tokens)
                    self._events.put_nowait(None)

                self._loop.call_soon_threadsafe(arrived)
                return False

            self._jobs.append(Echo(prompt.tokens, Listener(put, self._failed)))

    def __enter__(self) -> Choices:
        try:
            for job in self._jobs:
                self._worker.submit(job)
                self._open += 1
        except WorkerClosed:
            self.__exit__()
            raise ApiError(503, _CLOSED) from None
        return self

    def __exit__(self, *_) -> None:
        for job in self._jobs:
            job.is_cancelled = True

    async def arriving(self) -> AsyncIterator[Choice]:
        """Choices that have new tokens, until all have ended.

        Raises:
          ApiError: the model failed.
        """
        while self._open:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                self._open -= 1
                continue
            choice, tokens, reason = event
            choice.add(tokens, reason)
            self._open -= bool(reason)
            yield choice

    def _listener(self, choice: Choice) -> Listener:
        ids: list[int] = []  # the worker's own: the choice belongs to the event loop

        def more(tokens: Sequence[WrittenToken], reason: str) -> bool:
            ids.extend(token.id for token in tokens)
            length = choice.reader.stopped_at(ids, len(tokens))
            if length is not None:
                tokens, reason = tokens[: len(tokens) - (len(ids) - length)], STOP
            self._loop.call_soon_threadsafe(self._events.put_nowait, (choice, tokens, reason))
            return not reason

        return Listener(more, self._failed)

    def _failed(self, error: Exception) -> None:
        failure = ApiError(503, _CLOSED) if isinstance(error, WorkerClosed) else ApiError(500, "the model failed")
        self._loop.call_soon_threadsafe(self._events.put_nowait, failure)
