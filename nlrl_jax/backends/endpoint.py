"""A language model behind the address of an OpenAI-compatible server."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from nlrl_jax.backends.answers import is_filtered, read_replies, read_score
from nlrl_jax.backends.cache import DiskCache, cache_key
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.transport import ApiKey, EndpointError, InvalidResponse, Stopped, Transport
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import Chat, Reply, Sampling, Score, check_stop, cut

J = TypeVar("J")  # a job: one request to make
Messages = list[dict[str, str]]
MAX_CHOICES = 16  # replies per request (`n`)
# Fields that some servers refuse -> another name for them, if there is one.
_REFUSABLE = {"seed": "", "top_k": "", "max_tokens": "max_completion_tokens", "stop": ""}
MAX_STOPS = 4  # stop strings that a server takes
# What makes vLLM, SGLang and llama.cpp continue a chat's last message.
_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_NO_SCORES = (
    "this endpoint does not score; if the server's /completions can echo a prompt with log-probabilities (vLLM and "
    "SGLang can), give the model's tokenizer (--endpoint_tokenizer MODEL), else use a local model"
)
_FORMAT = 1  # of the cache's entries; part of their keys
_log = logging.getLogger(__name__)


class _Request(NamedTuple):
    """The `index`-th reply to a chat, which is its messages as JSON."""

    chat: str
    index: int


class _Route(NamedTuple):
    """Where a chat is sent: a path, the field that holds the chat, and further fields for its sake."""

    path: str
    content: dict[str, Any]
    flags: dict[str, bool]


@dataclasses.dataclass(frozen=True, eq=False)
class EndpointModel:
    """A model behind /chat/completions (and /completions, for scores).

    `complete` and `score` block until everything has arrived. Each reply is counted and cached as it arrives, so an
    error, a spent budget or a kill loses nothing that was paid for. A message without a text is, after all retries, an
    empty reply that has not ended. A prompt or reply stopped by a content filter is a reply with `refused`. A server
    that refuses `seed`, `top_k`, `max_tokens` or `stop` by name is asked without it (with `max_completion_tokens` in
    the place of `max_tokens`) during the rest of the call. Stop strings are also looked for here, so a server that does
    not know them, or only the first four, costs tokens and nothing else.

    An open assistant message is continued by /completions if there is a `render`, with every server that has it; else
    by /chat/completions with `continue_final_message`, which vLLM, SGLang and llama.cpp understand. A server that
    ignores this field begins a new message, and nobody can see that it did.

    Attributes:
      options: address, limits and further fields of each request, which replace ours of the same name.
      model: the server's name for it.
      usage: the ledger; its `paid` tokens count towards the budget.
      cache: None requests everything anew.
      render: messages -> the model's prompt as text, up to where its reply begins (`Tokenizer.render_chat`): for open
        messages, and for scores by a server whose /completions echoes a prompt with its log-probabilities (vLLM and
        SGLang do; OpenAI and llama.cpp do not). Servers put the beginning-of-sequence token in front by themselves.

    Raises:
      ValueError: no address, one with a secret in it, or a key that a header cannot hold.
    """

    options: EndpointOptions
    model: str
    usage: Usage = dataclasses.field(default_factory=Usage, repr=False)
    cache: DiskCache | None = None
    render: Callable[[Messages], str] | None = None

    def __post_init__(self):
        EndpointOptions.__post_init__(self.options)  # a config that inherits them may have its own
        if not self.options.base_url or not self.model:
            raise ValueError("an endpoint needs an address (--base_url http://.../v1) and the name of its model")
        url = urllib.parse.urlsplit(self.options.base_url)
        if url.username or url.password or url.query or url.fragment:
            raise ValueError("base_url must hold no user, password, query or fragment; put the key in the environment")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"base_url is {self.options.base_url!r}; it must look like http://localhost:8000/v1")
        ApiKey(self.options.api_key_env)

    @property
    def can_score(self) -> bool:
        """Whether `score` works."""
        return self.render is not None

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. `role` is not sent.

        A chat that occurs n times is sent as one request for n choices; missing ones are requested one by one. At
        temperature 0 it is sent once. The tokens of a request are spread over its replies so that their sums are right:
        the first has read the prompt, and the written ones are divided by length. Each chat has a `seed` of its own,
        made from ours and its text; at temperature 0 none is sent.

        Raises:
          EndpointError: a request was refused, or failed `max_retries` + 1 times; also where the server refuses to
            continue an open message.
          ValueError: `render` refuses a chat; a `stop` that is no list of strings.
          BudgetExceeded: the budget is spent. Requests under way have been waited for.
        """
        check_stop(stop)
        greedy = sampling.temperature == 0
        counts: collections.Counter[str] = collections.Counter()
        requests = []
        for chat in chats:
            text = json.dumps([dict(message) for message in chat.messages], sort_keys=True)
            requests.append(_Request(text, 0 if greedy else counts[text]))
            counts[text] += 1
        extra = self.options.extra_fields()
        fields = self._fields(sampling, stop, extra)
        refusable = _REFUSABLE.keys() - ({"stop"} if "stop" in extra else ())
        refused: set[str] = set()  # those of them that this server does not take
        routes = {chat: self._route(chat) for chat in counts}

        def key(request: _Request) -> str:
            path, content, flags = routes[request.chat]
            asked = content.get("prompt", request.chat)
            return self._key(path, {**fields, **flags}, None if greedy else int(seed), asked, request.index, stop)

        replies = {request: self.cache and self.cache.get_reply(key(request)) for request in dict.fromkeys(requests)}
        missing: dict[str, list[int]] = {}
        for request in (request for request, reply in replies.items() if reply is None):
            missing.setdefault(request.chat, []).append(request.index)

        def work(transport: Transport, job: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
            """Gets replies to one chat; returns the jobs that are left."""
            chat, indices = job
            path, content, flags = routes[chat]
            body = {**fields, **content, **flags}
            if not greedy and "seed" not in extra:
                body["seed"] = int(cache_key({"seed": int(seed), "chat": chat, "index": indices[0]})[:8], 16) >> 1
            if len(indices) > 1:
                body["n"] = len(indices)
            for name in refused.intersection(body):
                value = body.pop(name)
                body |= {_REFUSABLE[name]: value} if _REFUSABLE[name] else {}
            read = lambda *response: [cut(reply, stop) for reply in read_replies(*response, len(indices))]
            try:
                arrived = transport.post(path, body, read)
            except EndpointError as error:
                named = {name for name in refusable if name in body and re.search(rf"\b{name}\b", error.body)}
                if is_filtered(error):
                    arrived = [Reply("", ended=False, refused=True)] * len(indices)
                elif any(name in error.body for name in flags):
                    raise EndpointError(
                        f"{self._url}{path} does not continue an assistant message: {error}. Give the model's "
                        "tokenizer (--endpoint_tokenizer MODEL), so that prompts go to /completions as text",
                        error.status,
                        error.body,
                    ) from None
                elif error.status not in (400, 422) or not (named or len(indices) > 1):
                    raise
                elif named:
                    names = " and ".join(sorted(named))
                    _log.warning("%s refuses %s; --extra %s=null never sends it", self._url, names, min(named))
                    refused.update(named)
                    return [job]
                else:
                    arrived = []  # a server that does not know `n`
            for index, reply in zip(indices, arrived):
                request = _Request(chat, index)
                if self.cache is not None:
                    self.cache.put_reply(key(request), reply)
                replies[request] = reply
            return [(chat, [index]) for index in indices[len(arrived) :]]

        jobs = [
            (chat, indices[i : i + MAX_CHOICES])
            for chat, indices in missing.items()
            for i in range(0, len(indices), MAX_CHOICES)
        ]
        self._run(jobs, work, role)
        return _spread(requests, replies)

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`. One request for each continuation that is not in the cache.

        Raises:
          NotImplementedError: there is no `render`.
          ValueError: not one row of continuations per chat.
          EndpointError, BudgetExceeded: as `complete`; also where the server does not echo, or where one of its tokens
            reaches over the end of the chat into the continuation.
        """
        if self.render is None:
            raise NotImplementedError(_NO_SCORES)
        if len(chats) != len(continuations):
            raise ValueError(f"{len(chats)} chats but {len(continuations)} rows of continuations; give one per chat")
        prompts = [self.render([dict(message) for message in chat.messages]) for chat in chats]
        rows = [[(prompt, continuation) for continuation in row] for prompt, row in zip(prompts, continuations)]
        fields = self._echo_fields()

        def key(pair: tuple[str, str]) -> str:
            return self._key("/completions", fields, None, *pair)

        pairs = dict.fromkeys(itertools.chain.from_iterable(rows))
        scores: dict[tuple[str, str], Score] = {}
        for pair in pairs:
            entry = self.cache.get(key(pair)) if self.cache is not None else None
            if not pair[1]:
                scores[pair] = Score(0.0, 0)
            elif entry is not None:
                scores[pair] = Score(entry["log_prob"], entry["tokens"], cached=True)

        def work(transport: Transport, pair: tuple[str, str]) -> Iterable:
            read = lambda response, *_: read_score(response, pair[1])
            scores[pair] = transport.post("/completions", {**fields, "prompt": "".join(pair)}, read)
            if self.cache is not None:
                self.cache.put(key(pair), {"log_prob": scores[pair].log_prob, "tokens": scores[pair].tokens})
            return ()

        self._run([pair for pair in pairs if pair not in scores], work, role)
        return [[scores[pair] for pair in row] for row in rows]

    def check_scores(self, role: str = "check") -> None:
        """Makes sure that `score` works, by one request of a few tokens, which are counted.

        Raises:
          NotImplementedError: there is no `render`; the server has no /completions, or it does not echo the prompt with
            log-probabilities from which those of a continuation can be read.
          EndpointError, BudgetExceeded: as `complete`.
        """
        if self.render is None:
            raise NotImplementedError(_NO_SCORES)
        chat, word = Chat.of("Hi", continued="This step is"), " GOOD"
        prompt = self.render([dict(message) for message in chat.messages])

        def read(response: dict, *_) -> Score:
            try:
                return read_score(response, word)
            except (InvalidResponse, EndpointError) as error:  # it would be the same another time
                raise EndpointError(f"{self._url}/completions: {error}", 200) from None

        def work(transport: Transport, _: str) -> Iterable:
            transport.post("/completions", {**self._echo_fields(), "prompt": prompt + word}, read)
            return ()

        try:
            self._run([word], work, role)
        except EndpointError as error:
            if error.status in (200, 400, 404, 405, 422, 501):
                raise NotImplementedError(f"this endpoint does not score: {error}") from None
            raise

    @property
    def _url(self) -> str:
        return self.options.base_url.rstrip("/")

    def _route(self, chat: str) -> _Route:
        messages = json.loads(chat)
        if not messages or messages[-1]["role"] != "assistant":
            return _Route("/chat/completions", {"messages": messages}, {})
        if self.render is None:
            return _Route("/chat/completions", {"messages": messages}, _CONTINUE)
        return _Route("/completions", {"prompt": self.render(messages)}, {})

    def _echo_fields(self) -> dict[str, Any]:
        fields = {**_without_none(self.options.extra_fields()), "model": self.model, "max_tokens": 0}
        return fields | {"temperature": 0.0, "echo": True, "logprobs": 1}

    def _fields(self, sampling: Sampling, stop: Sequence[str], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that all requests of one `complete` share."""
        fields = {
            "model": self.model,
            "max_tokens": int(sampling.max_tokens),
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
        }
        if sampling.top_k > 0:
            fields["top_k"] = int(sampling.top_k)
        if stop:
            fields["stop"] = list(stop[:MAX_STOPS])
        return _without_none({**fields, **extra})

    def _key(
        self,
        path: str,
        fields: dict[str, Any],
        seed: int | None,
        asked: str,
        which: int | str,
        stop: Sequence[str] = (),
    ) -> str:
        parts = {"format": _FORMAT, "url": self._url + path, "request": fields, "seed": seed}
        parts |= {"stop": list(stop)} if stop else {}
        return cache_key({**parts, "asked": asked, "which": which})

    def _run(self, jobs: Sequence[J], work: Callable[[Transport, J], Iterable[J]], role: str) -> None:
        """Does the jobs, then those they leave. The first failure ends it, once requests under way have arrived."""
        if not jobs:
            return
        options, key = self.options, ApiKey(self.options.api_key_env)
        limits = options.timeout, options.max_retries, options.concurrency
        with Transport(self._url, key, *limits, self.usage, role, options.token_budget) as transport:

            def guarded(job: J) -> Iterable[J]:
                try:
                    return work(transport, job)
                except Stopped:
                    pass
                except BaseException as error:
                    transport.stop(error)
                return ()

            while jobs:
                with ThreadPoolExecutor(min(options.concurrency, len(jobs))) as pool:
                    try:
                        jobs = list(itertools.chain.from_iterable(pool.map(guarded, jobs)))
                    except BaseException:  # Ctrl-C; leaving the pool waits for requests under way
                        transport.stop()
                        raise
                if transport.failure is not None:
                    raise transport.failure


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _spread(requests: Sequence[_Request], replies: Mapping[_Request, Reply]) -> list[Reply]:
    """One reply per request. Where one reply serves several, the first has its tokens: it was computed once."""
    rows, used = [], set()
    for request in requests:
        reply = replies[request]
        rows.append(reply._replace(prompt_tokens=0, tokens=0) if request in used else reply)
        used.add(request)
    return rows
