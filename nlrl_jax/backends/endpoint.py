"""A language model served by an OpenAI-compatible server."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends import request_pool
from nlrl_jax.backends.call_progress import CallProgress
from nlrl_jax.backends.continuation import Continuations, continuation, is_another_message
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.optional_fields import CONTINUE, DOUBTFUL, KnownFields, Request
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.responses import is_filtered, read_replies, read_score
from nlrl_jax.backends.transport import ApiKey, EndpointError, Transport
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import Chat, Reply, Sampling, Score, check_stop, cut

Messages = list[dict[str, str]]
MAX_CHOICES = 16  # replies per request (`n`)
MAX_STOPS = 4  # stop strings that a server takes
NO_SCORES = (
    "this endpoint does not score; if the server's /completions can echo a prompt with log-probabilities (vLLM and "
    "SGLang can), give the model's tokenizer (--endpoint_tokenizer MODEL), else use a local model"
)
_FORMAT = 1  # of the cache's entries; part of their keys


class _Request(NamedTuple):
    """The `index`-th reply to a chat, which is its messages as JSON."""

    chat: str
    index: int


class _Route(NamedTuple):
    """Where a chat is sent: a path, the field that holds the chat, further fields for its sake, and the text that a
    reply by /chat/completions should continue, if there is one."""

    path: str
    content: dict[str, Any]
    flags: dict[str, bool]
    open_text: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class EndpointModel:
    """A model at /chat/completions (and /completions, for scores).

    `complete` and `score` block until everything has arrived. Each reply is counted and cached as it arrives, so an
    error, a spent budget or a kill loses nothing that was paid for. A message without a text is, after all retries, an
    empty reply that has not ended. A prompt or reply stopped by a content filter is a reply with `refused`. Optional
    fields (`n`, `seed`, `top_k`, `stop`, ...) that the server refuses, in whatever form, are left out from then on
    (`backends.optional_fields`); those of `extra` never are. Stop strings are also applied here, so a server that
    ignores them, or takes only the first four, costs tokens and nothing else.

    An open assistant message is continued by /completions if there is a `render`, with every server that has it; else
    by /chat/completions with `continue_final_message`, which vLLM, SGLang and llama.cpp understand. Where a server
    begins a new message instead, what it repeats is taken off (`backends.continuation`).

    Attributes:
      options: address, limits and further fields of each request, which replace ours of the same name.
      model: the server's name for it.
      usage: the ledger; its `paid` tokens count towards the budget.
      cache: None requests everything anew.
      cached_as: the address in the cache's keys, where it is another one than the server has now.
      render: messages -> the model's prompt as text, up to where its reply begins (`Tokenizer.render_chat`): for open
        messages, and for scores by a server whose /completions echoes a prompt with its log-probabilities (vLLM and
        SGLang do; OpenAI and llama.cpp do not). Servers put the beginning-of-sequence token in front by themselves.
      known, continuations: what the server's answers have shown.
      calls: shows the calls under way.

    Raises:
      ValueError: no address, one with a secret in it, or a key that a header cannot hold.
    """

    options: EndpointOptions
    model: str
    usage: Usage = dataclasses.field(default_factory=Usage, repr=False)
    cache: DiskCache | None = None
    render: Callable[[Messages], str] | None = None
    cached_as: str = ""
    known: KnownFields = dataclasses.field(default_factory=KnownFields, repr=False)
    continuations: Continuations = dataclasses.field(default_factory=Continuations, repr=False)
    calls: CallProgress = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        EndpointOptions.__post_init__(self.options)  # a config that inherits them may have its own
        self.options.check_address()
        if not self.model:
            raise ValueError("an endpoint needs the name of its model (--endpoint_model NAME)")
        ApiKey(self.options.api_key_env)
        object.__setattr__(self, "calls", CallProgress(self.usage, self.options.token_budget))

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
        the first counts the prompt, and those written are divided by length. Each chat has a `seed` of its own,
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
        fields = self.reply_fields(sampling, stop)
        routes = {chat: self._route(chat, extra) for chat in counts}

        def key(request: _Request) -> str:
            path, content, flags, _ = routes[request.chat]
            prompt = content.get("prompt", request.chat)
            return self._key(path, {**fields, **flags}, None if greedy else int(seed), prompt, request.index, stop)

        replies = {request: self.cache and self.cache.get_reply(key(request)) for request in dict.fromkeys(requests)}
        missing: dict[str, list[int]] = {}
        for request in (request for request, reply in replies.items() if reply is None):
            missing.setdefault(request.chat, []).append(request.index)

        def work(transport: Transport, job: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
            """Gets replies to one chat; returns the jobs that are left."""
            chat, indices = job
            path, content, flags, _ = route = routes[chat]
            body = {**fields, **content, **flags}
            if not greedy and "seed" not in extra:
                body["seed"] = int(cache_key({"seed": int(seed), "chat": chat, "index": indices[0]})[:8], 16) >> 1
            if len(indices) > 1:
                body["n"] = len(indices)
            try:
                arrived = self._ask(transport, route, body, extra, stop)
            except EndpointError as error:
                if not is_filtered(error):
                    raise
                arrived = [Reply("", ended=False, refused=True)] * len(indices)
            for index, reply in zip(indices, arrived):
                request = _Request(chat, index)
                if self.cache is not None:
                    self.cache.put_reply(key(request), reply)
                replies[request] = reply
            return [(chat, [index]) for index in indices[len(arrived) :]]

        most = 1 if "n" in extra else MAX_CHOICES
        todo = [
            (chat, indices[i : i + most]) for chat, indices in missing.items() for i in range(0, len(indices), most)
        ]
        first = {**fields, **routes[todo[0][0]].flags, **dict.fromkeys(["n"] * (len(todo[0][1]) > 1))} if todo else {}
        unknown = DOUBTFUL.intersection(first) - self.known.accepted - self.known.refused - set(extra)
        request_pool.do(todo, work, self.options, role, self.calls, lambda job: len(job[1]), bool(unknown))
        return _spread(requests, replies)

    def _ask(
        self, transport: Transport, route: _Route, body: dict[str, Any], extra: Mapping[str, Any], stop: Sequence[str]
    ) -> list[Reply]:
        """The replies to one request, less than were requested where the server does not take `n`."""
        server = self.options.url + route.path

        def post(body: dict[str, Any]) -> list[Reply]:
            request = Request(self.known, body, extra, server)

            def read(response: dict, *tokens: int) -> list[Reply]:
                number = request.body.get("n", 1)
                found = read_replies(response, *tokens, number)
                if len(response["choices"]) < number:
                    self.known.refuse(["n"], server)
                return found

            found = transport.post(route.path, request.body, read, request.revise)
            request.answered()
            return found

        text = route.open_text
        if not text:
            return [cut(reply, stop) for reply in post(body)]
        ask = lambda body: [
            cut(reply._replace(text=continuation(text, reply.text)), stop) if not reply.refused else reply
            for reply in post(body)
        ]
        replies = ask(body)
        texts = [reply.text for reply in replies if not reply.refused]
        if texts and "stop" in body and "stop" not in extra and self.continuations.ask_without_stop(text, texts):
            longer = ask({name: value for name, value in body.items() if name != "stop"})
            if not all(is_another_message(text, reply.text) for reply in longer):
                self.known.refuse(["stop"], server)
                replies = longer
        for reply in replies:
            if not reply.refused:
                self.continuations.count(text, reply.text, server)
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`. One request for each continuation that is not in the cache.

        Raises:
          NotImplementedError: there is no `render`.
          ValueError: not one row of continuations per chat.
          EndpointError, BudgetExceeded: as `complete`; also where the server does not echo, or where one of its tokens
            reaches over the end of the chat into the continuation.
        """
        if self.render is None:
            raise NotImplementedError(NO_SCORES)
        if len(chats) != len(continuations):
            raise ValueError(f"{len(chats)} chats but {len(continuations)} rows of continuations; give one per chat")
        prompts = [self.render([dict(message) for message in chat.messages]) for chat in chats]
        rows = [[(prompt, continuation) for continuation in row] for prompt, row in zip(prompts, continuations)]
        fields = self.echo_fields()

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

        request_pool.do([pair for pair in pairs if pair not in scores], work, self.options, role, self.calls)
        return [[scores[pair] for pair in row] for row in rows]

    def _route(self, chat: str, extra: Mapping[str, Any]) -> _Route:
        messages = json.loads(chat)
        if not messages or messages[-1]["role"] != "assistant":
            return _Route("/chat/completions", {"messages": messages}, {})
        if self.render is None:
            flags = {name: value for name, value in CONTINUE.items() if name not in extra}
            return _Route("/chat/completions", {"messages": messages}, flags, messages[-1]["content"])
        return _Route("/completions", {"prompt": self.render(messages)}, {})

    def echo_fields(self) -> dict[str, Any]:
        """The fields of a request for scores; `extra` adds others, and its null leaves out the temperature."""
        extra = self.options.extra_fields()
        ours = {"model": self.model, "max_tokens": 0, "temperature": 0.0, "echo": True, "logprobs": 1}
        null = [name for name in ("model", "temperature") if extra.get(name, "") is None]
        return _without_none(extra) | {name: value for name, value in ours.items() if name not in null}

    def reply_fields(self, sampling: Sampling, stop: Sequence[str] = ()) -> dict[str, Any]:
        """The fields of a request for replies, but for the chat; `extra` adds to them and replaces them."""
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
        return _without_none({**fields, **self.options.extra_fields()})

    def _key(
        self,
        path: str,
        fields: dict[str, Any],
        seed: int | None,
        prompt: str,
        which: int | str,
        stop: Sequence[str] = (),
    ) -> str:
        url = (self.cached_as or self.options.url) + path
        parts = {"format": _FORMAT, "url": url, "request": fields, "seed": seed}
        parts |= {"stop": list(stop)} if stop else {}
        return cache_key({**parts, "asked": prompt, "which": which})


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
