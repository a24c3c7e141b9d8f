"""A language model behind the address of an OpenAI-compatible server."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import logging
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from nlrl_jax.backends.answers import read_replies, read_score
from nlrl_jax.backends.budget import Account, Budget, BudgetExceeded
from nlrl_jax.backends.cache import DiskCache, cache_key
from nlrl_jax.backends.transport import ApiKey, EndpointError, Patience, Stopped, Transport
from nlrl_jax.types import Chat, Reply, Sampling, Score

__all__ = ["Account", "Budget", "BudgetExceeded", "EndpointError", "EndpointModel"]

J = TypeVar("J")  # one request to make
Messages = list[dict[str, str]]
_NOT_EXTRA = ("model", "messages", "prompt", "n", "stream", "echo", "logprobs")
_MOST_AT_ONCE = 1024
_OPTIONAL = ("top_k",)  # fields of ours that not every server knows
_log = logging.getLogger(__name__)
_FORMAT = 1  # of the cache's entries; part of their keys


class _Wish(NamedTuple):
    """A reply to get: the `index`-th to a chat, which is its messages as JSON."""

    chat: str
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class EndpointModel:
    """A model behind /chat/completions (and /completions, for scores).

    `complete` and `score` block until everything is there. What they got is written to the cache as it arrives, so an
    error, a spent budget or a kill loses nothing that was paid for. A text that the server sends back with the key in
    it is returned and stored with the key blotted out. A message that has no text in the end is an empty reply that has
    not ended. A server that refuses `top_k` by name is asked without it from then on.

    Attributes:
      base_url: e.g. "https://api.openai.com/v1" or "http://localhost:8000/v1".
      model: the server's name for it.
      api_key_env: the environment variable that holds the key, read at each call and kept nowhere. Where it is not set,
        no key is sent.
      concurrency: requests under way at once, at most.
      max_retries: further attempts after a 408, 409, 425, 429 or 5xx, a time-out, a cut connection or an answer that is
        of no use.
      timeout: seconds for one attempt, from sending to the last byte.
      backoff, longest_wait: seconds; the wait before an attempt doubles from one to the other. A Retry-After is
        honoured up to `longest_wait`.
      max_choices: replies one request may ask for (`n`); 1 asks for each by itself.
      budget, account: the limit and the running total it is compared with; a budget needs an account. An account alone
        only counts.
      cache: None asks for everything anew.
      extra: further fields of each request. They replace ours of the same name; None takes a field out, e.g.
        {"max_tokens": None, "max_completion_tokens": 500} or {"seed": None}.
      scoring: "none", or "completions" for a server whose /completions echoes a prompt with its log-probabilities
        (vLLM does; OpenAI and llama.cpp do not).
      render: messages -> the model's prompt as text, up to where its reply begins; for scores. Where the text opens
        with the beginning-of-sequence token, `extra={"add_special_tokens": False}` keeps vLLM from adding a second one.

    Raises:
      ValueError: a field that cannot be right.
    """

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 16
    max_retries: int = 6
    timeout: float = 120.0
    backoff: float = 1.0
    longest_wait: float = 60.0
    max_choices: int = 16
    budget: Budget | None = None
    account: Account | None = None
    cache: DiskCache | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scoring: str = "none"
    render: Callable[[Messages], str] | None = None
    _refused: set[str] = dataclasses.field(default_factory=set, init=False, repr=False)  # of _OPTIONAL, by this server

    def __post_init__(self):
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))
        _check(self)

    @property
    def can_score(self) -> bool:
        """Whether `score` works."""
        return self.scoring == "completions"

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`. `role` is not sent.

        A chat that stands there n times is sent as one request for n choices; those that do not come are asked for one
        by one. At temperature 0 it is asked once. The tokens of a request are spread over its replies so that their
        sums are right: the first has read the prompt, and what was written is divided by length. Each chat has a `seed`
        of its own, made from ours and its text; at temperature 0 none is sent.

        Raises:
          EndpointError: a request was refused, or failed `max_retries` + 1 times.
          BudgetExceeded: the budget is spent. What was under way has been waited for.
        """
        greedy = sampling.temperature == 0
        seen: collections.Counter[str] = collections.Counter()
        wishes = []
        for chat in chats:
            text = json.dumps([dict(message) for message in chat.messages], sort_keys=True)
            wishes.append(_Wish(text, 0 if greedy else seen[text]))
            seen[text] += 1
        request = self._request(sampling)

        def key(wish: _Wish) -> str:
            return self._key("/chat/completions", request, None if greedy else int(seed), *wish)

        replies = {wish: self._cached(key(wish)) for wish in dict.fromkeys(wishes)}
        missing: dict[str, list[int]] = {}
        for wish in (wish for wish, reply in replies.items() if reply is None):
            missing.setdefault(wish.chat, []).append(wish.index)

        def ask(transport: Transport, job: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
            """Gets replies to one chat; returns the jobs that are left."""
            chat, indices = job
            fields = {name: value for name, value in request.items() if name not in self._refused}
            body = {**fields, "messages": json.loads(chat)}
            if not greedy and "seed" not in self.extra:
                body["seed"] = int(cache_key({"seed": int(seed), "chat": chat, "index": indices[0]})[:8], 16) >> 1
            if len(indices) > 1:
                body["n"] = len(indices)
            read = lambda *answer: read_replies(*answer, len(indices))
            try:
                arrived = transport.post("/chat/completions", body, read)
            except EndpointError as error:
                if self._leaves_out(body, error):
                    return [job]
                if len(indices) == 1 or error.status not in (400, 422):
                    raise
                arrived = []  # a server that does not know `n`
            for index, reply in zip(indices, arrived):
                wish = _Wish(chat, index)
                if self.cache is not None:
                    self.cache.put(key(wish), {"text": reply.text, "ended": reply.ended})
                replies[wish] = reply
            return [(chat, [index]) for index in indices[len(arrived) :]]

        size = self.max_choices
        jobs = [(chat, row[i : i + size]) for chat, row in missing.items() for i in range(0, len(row), size)]
        self._run(jobs, ask)
        return _spread(wishes, replies)

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`. One request for each continuation that is not in the cache.

        Raises:
          NotImplementedError: `scoring` is "none".
          ValueError: not one row of continuations a chat.
          EndpointError, BudgetExceeded: as `complete`; also where the server does not echo, or where a token of its
            reaches over the end of the chat into the continuation.
        """
        if not self.can_score:
            raise NotImplementedError(
                "this endpoint does not score; if the server's /completions can echo a prompt with log-probabilities "
                '(vLLM), construct it with scoring="completions" and render=..., else use the local model'
            )
        if len(chats) != len(continuations):
            raise ValueError(f"{len(chats)} chats but {len(continuations)} rows of continuations; give one row a chat")
        prompts = [self.render([dict(message) for message in chat.messages]) for chat in chats]
        rows = [[(prompt, continuation) for continuation in row] for prompt, row in zip(prompts, continuations)]
        request = {**_given(self.extra), "model": self.model, "max_tokens": 0, "temperature": 0.0}
        request |= {"echo": True, "logprobs": 1}

        def key(pair: tuple[str, str]) -> str:
            return self._key("/completions", request, None, *pair)

        scores: dict[tuple[str, str], Score] = {}
        for pair in itertools.chain.from_iterable(rows):
            entry = self.cache.get(key(pair)) if self.cache is not None else None
            if not pair[1]:
                scores[pair] = Score(0.0, 0)
            elif entry is not None:
                scores[pair] = Score(entry["log_prob"], entry["tokens"])

        def ask(transport: Transport, pair: tuple[str, str]) -> Iterable:
            read = lambda answer, *_: read_score(answer, pair[1])
            score = transport.post("/completions", {**request, "prompt": "".join(pair)}, read)
            if self.cache is not None:
                self.cache.put(key(pair), score._asdict())
            scores[pair] = score
            return ()

        pairs = dict.fromkeys(itertools.chain.from_iterable(rows))
        self._run([pair for pair in pairs if pair not in scores], ask)
        return [[scores[pair] for pair in row] for row in rows]

    def _request(self, sampling: Sampling) -> dict[str, Any]:
        """What all requests of one `complete` have in common."""
        request = {
            "model": self.model,
            "max_tokens": int(sampling.max_tokens),
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
        }
        if sampling.top_k > 0:
            request["top_k"] = int(sampling.top_k)
        return _given({**request, **self.extra})

    def _leaves_out(self, body: dict[str, Any], error: EndpointError) -> bool:
        """Whether a request was refused for a field that it can do without; it is left out from now on."""
        named = [name for name in _OPTIONAL if name in body and name in str(error)]
        if error.status not in (400, 422) or not named:
            return False
        _log.warning("%s does not take %s; it is asked without", self.base_url, ", ".join(named))
        self._refused.update(named)
        return True

    def _key(self, path: str, request: dict[str, Any], seed: int | None, asked: str, which: int | str) -> str:
        parts = {"format": _FORMAT, "url": self.base_url + path, "request": request, "seed": seed}
        return cache_key({**parts, "asked": asked, "which": which})

    def _cached(self, key: str) -> Reply | None:
        entry = self.cache.get(key) if self.cache is not None else None
        return None if entry is None else Reply(entry["text"], ended=entry["ended"], cached=True)

    def _run(self, jobs: Sequence[J], work: Callable[[Transport, J], Iterable[J]]) -> None:
        """Does the jobs, then those they leave. The first failure ends it, once what is on its way has arrived."""
        if not jobs:
            return
        patience = Patience(self.timeout, self.max_retries, self.backoff, self.longest_wait)
        key = ApiKey(self.api_key_env)
        with Transport(self.base_url, key, patience, self.concurrency, self.budget, self.account) as transport:

            def guarded(job: J) -> Iterable[J]:
                try:
                    return work(transport, job)
                except Stopped:
                    pass
                except BaseException as error:
                    transport.stop(error)
                return ()

            while jobs:
                with ThreadPoolExecutor(min(self.concurrency, len(jobs))) as pool:
                    try:
                        jobs = list(itertools.chain.from_iterable(pool.map(guarded, jobs)))
                    except BaseException:  # Ctrl-C; leaving the pool waits for what is on its way
                        transport.stop()
                        raise
                if transport.failure is not None:
                    raise transport.failure


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _spread(wishes: Sequence[_Wish], replies: Mapping[_Wish, Reply]) -> list[Reply]:
    """One reply a wish. Where one reply serves several, the first has its tokens: it was computed once."""
    rows, used = [], set()
    for wish in wishes:
        reply = replies[wish]
        rows.append(reply._replace(prompt_tokens=0, tokens=0) if wish in used else reply)
        used.add(wish)
    return rows


def _check(model: EndpointModel) -> None:
    """Raises ValueError for a field that cannot be right, without a word of what may be secret."""
    url = urllib.parse.urlsplit(model.base_url)
    if url.username or url.password or url.query or url.fragment:
        raise ValueError("base_url must hold no user, password, query or fragment; the key goes into the environment")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"base_url is {model.base_url!r}; it must look like http://localhost:8000/v1")
    try:
        written = json.dumps([model.base_url, model.model, dict(model.extra)])
    except TypeError as error:
        raise ValueError(f"extra must be JSON-able: {error}") from None
    if ApiKey(model.api_key_env).hide_if_secret(written) != written:
        raise ValueError(f"the key in ${model.api_key_env} also stands in another field; it must be there alone")
    ours = sorted(set(model.extra) & set(_NOT_EXTRA))
    if ours:
        raise ValueError(f"extra has {', '.join(ours)}, which this class sets itself")
    for name, least, most in (
        ("concurrency", 1, _MOST_AT_ONCE),
        ("max_choices", 1, 128),
        ("max_retries", 0, 1000),
        ("backoff", 0, 3600),
        ("longest_wait", 0, 86400),
        ("timeout", 1e-3, 86400),
    ):
        if not least <= getattr(model, name) <= most:
            raise ValueError(f"{name} is {getattr(model, name)}; it must be {least} to {most}")
    if model.scoring not in ("none", "completions"):
        raise ValueError(f"scoring is {model.scoring!r}; it must be 'none' or 'completions'")
    if model.can_score and model.render is None:
        raise ValueError('scoring="completions" needs render, a function from messages to the prompt as text')
    if model.budget is not None and model.account is None:
        raise ValueError("a budget needs an account to compare with: account=Account()")
