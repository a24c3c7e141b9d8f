"""A language model served by an OpenAI-compatible server."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends import endpoint_scores, request_pool
from nlrl_jax.backends.continuation import Continuations, continuation, is_another_message
from nlrl_jax.backends.endpoint_server import EndpointServer
from nlrl_jax.backends.optional_fields import DOUBTFUL, Request
from nlrl_jax.backends.prompt_forms import Route
from nlrl_jax.backends.reply_cache import cache_key
from nlrl_jax.backends.responses import is_filtered, read_replies
from nlrl_jax.backends.transport import EndpointError, Transport
from nlrl_jax.roles.thoughts import answered
from nlrl_jax.types import (
    Answer,
    Chat,
    Facts,
    LanguageModel,
    Reply,
    Sampling,
    Score,
    ScoreTexts,
    Write,
    answer_batches,
    cut,
)

MAX_CHOICES = 16  # replies per request (`n`)
NO_SCORES = (
    "this endpoint does not score texts; if the server's /completions can echo a prompt with log-probabilities (vLLM "
    "and SGLang can), give the model's tokenizer (--endpoint_tokenizer MODEL), else use a local model"
)


class _Wanted(NamedTuple):
    """The `index`-th reply to a chat, which is its messages as JSON."""

    chat: str
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class EndpointModel(EndpointServer, LanguageModel):
    """A model at /chat/completions, and /completions where prompts go as text.

    A call blocks until everything has arrived. Each reply is counted and cached as it arrives, so an
    error, a spent budget or a kill loses nothing that was paid for. A message without a text is, after all retries, an
    empty reply that has not ended. A prompt or reply stopped by a content filter is a reply with `refused`. Optional
    fields (`n`, `seed`, `top_k`, `stop`, ...) that the server refuses, in whatever form, are left out from then on
    (`backends.optional_fields`); those of `extra` never are. Stop strings are also applied here, so a server that
    ignores them, or takes only the first four, costs tokens and nothing else.

    An open assistant message has one of three forms (`backends.prompt_forms`). Where the server begins a new message
    instead of continuing ours, what it repeats is taken off (`backends.continuation`).

    Attributes:
      continuations: whether its replies have continued open messages. The others: see `EndpointServer`.
    """

    continuations: Continuations = dataclasses.field(default_factory=Continuations, repr=False)

    @property
    def facts(self) -> Facts:
        """See `types.Facts`."""
        tokenizer = getattr(self.render, "tokenizer", None)
        scores = {"scores_texts": self.abilities.echo, "scores_words": self.abilities.echo or self.abilities.top > 0}
        return Facts(**scores, tokenizer=tokenizer, address=self.options.url, usage=self.usage)

    def answer(self, requests: Sequence[Write | ScoreTexts]) -> list[Answer]:
        """See `types.LanguageModel`, and for errors `_complete` and `_score`."""
        return answer_batches(requests, self._complete, self._score)

    def _complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int, stop: Sequence[str]
    ) -> list[Reply]:
        """Replies to chats; `role` is not sent.

        A chat that occurs n times is sent as one request for n choices; missing ones are requested one by one. At
        temperature 0 it is sent once. The tokens of a request are spread over its replies so that their sums are right:
        the first counts the prompt, and those written are divided by length. Each chat has a `seed` of its own,
        made from ours and its text; at temperature 0 none is sent. Drawn replies have the log-probabilities of their
        tokens where the server lists those (`Abilities.top`).

        Raises:
          EndpointError: a request was refused, or failed `max_retries` + 1 times; also where the server refuses to
            continue an open message.
          ValueError: `render` refuses a chat.
          BudgetExceeded: the budget is spent. Requests under way have been waited for.
        """
        greedy = sampling.temperature == 0
        counts: collections.Counter[str] = collections.Counter()
        # 1. Which replies are to be found: the n-th of each chat, the same one for all at temperature 0.
        slots = []
        for chat in chats:
            text = _as_json(chat)
            slots.append(_Wanted(text, 0 if greedy else counts[text]))
            counts[text] += 1
        # 2. What a request for each chat looks like.
        extra = self.options.extra_fields()
        base = self.reply_fields(sampling, stop)
        routes = {chat: self.route(json.loads(chat)) for chat in counts}
        listed = 1 if self.abilities.top and not greedy else 0
        fields = {chat: {**base, **route.flags, **route.listed(listed)} for chat, route in routes.items()}

        def key(slot: _Wanted) -> str:
            route = routes[slot.chat]
            return self.key(route, fields[slot.chat], None if greedy else int(seed), slot.index, stop)

        # 3. Those that an earlier call or run has paid for.
        replies = {slot: self.cache and self.cache.get_reply(key(slot)) for slot in dict.fromkeys(slots)}
        missing: dict[str, list[int]] = {}
        for slot in (slot for slot, reply in replies.items() if reply is None):
            missing.setdefault(slot.chat, []).append(slot.index)

        def work(transport: Transport, job: tuple[str, list[int]]) -> list[tuple[str, list[int]]]:
            """Gets replies to one chat; returns the jobs that are left."""
            chat, indices = job
            body = {**fields[chat], **routes[chat].content}
            # Of the chat's own, so that a reply does not depend on the rest of the batch; below 2**31, for all servers.
            if not greedy and "seed" not in extra:
                body["seed"] = int(cache_key({"seed": int(seed), "chat": chat, "index": indices[0]})[:8], 16) >> 1
            if len(indices) > 1:
                body["n"] = len(indices)
            try:
                arrived = self._ask(transport, routes[chat], body, extra, stop)
            except EndpointError as error:
                if not is_filtered(error):
                    raise
                arrived = [Reply("", ended=False, refused=True)] * len(indices)  # cached: asking again costs as much
            for index, reply in zip(indices, arrived):
                slot = _Wanted(chat, index)
                if self.cache is not None:
                    self.cache.put_reply(key(slot), reply)
                replies[slot] = reply
            rest, limit = indices[len(arrived) :], self.known.choices or 1
            return [(chat, rest[i : i + limit]) for i in range(0, len(rest), limit)]

        # 4. The others, up to `limit` a request.
        limit = 1 if "n" in extra else MAX_CHOICES
        todo = [
            (chat, indices[i : i + limit]) for chat, indices in missing.items() for i in range(0, len(indices), limit)
        ]
        first = {**fields[todo[0][0]], **dict.fromkeys(["n"] * (len(todo[0][1]) > 1))} if todo else {}
        # While it is not known whether the server takes the doubtful fields, one request goes first, alone.
        unknown = DOUBTFUL.intersection(first) - self.known.accepted - self.known.refused - set(extra)
        request_pool.do(todo, work, self.options, role, self.calls, lambda job: len(job[1]), bool(unknown))
        return _spread(slots, replies)

    def _ask(
        self, transport: Transport, route: Route, body: dict[str, Any], extra: Mapping[str, Any], stop: Sequence[str]
    ) -> list[Reply]:
        """The replies to one request, less than were requested where the server does not take `n`."""
        server, text = self.options.url + route.path, route.open_text

        def edit(reply: Reply) -> Reply:
            return cut(reply._replace(text=continuation(text, reply.text)) if text else answered(reply), stop)

        def post(body: dict[str, Any]) -> list[Reply]:
            request = Request(self.known, body, extra, server)

            def read(response: dict, *tokens: int) -> list[Reply]:
                number = request.body.get("n", 1)
                replies = read_replies(response, *tokens, number, edit)
                # Such servers ignore `n`, and would go on returning one choice.
                if len(response["choices"]) < number:
                    self.known.refuse(["n"], server)
                return replies

            replies = transport.post(route.path, request.body, read, request.revise)
            request.answered()
            return replies

        replies = post(body)
        # A stop string such as a line's end may cut a new message's first line off: asked without it, once, whether
        # the server does more than repeat ours.
        texts = [reply.text for reply in replies if text and not reply.refused]
        if texts and "stop" in body and "stop" not in extra and self.continuations.ask_without_stop(text, texts):
            longer = post({name: value for name, value in body.items() if name != "stop"})
            if not all(is_another_message(text, reply.text) for reply in longer):
                self.known.refuse(["stop"], server)
                replies = longer
        for reply in replies:
            if text and not reply.refused:
                self.continuations.count(text, reply.text, server)
        return replies

    def _score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """Scores of any texts, one request each, by a server that echoes; else single words, one
        request for those of a chat, by the tokens that the server lists (`backends.top_words`).

        Raises:
          NotImplementedError: the server does neither, as far as is known.
          EndpointError, BudgetExceeded: as `complete`; also where the server does not echo, or where one of its tokens
            reaches over the end of the chat into the continuation.
        """
        words = [text for row in continuations for text in row if text]
        if not self.can_score and not (self.can_judge and all(len(word.split()) == 1 for word in words)):
            raise NotImplementedError(NO_SCORES)
        messages = [json.loads(_as_json(chat)) for chat in chats]
        return (endpoint_scores.texts if self.can_score else endpoint_scores.words)(self, messages, continuations, role)


def _as_json(chat: Chat) -> str:
    return json.dumps([dict(message) for message in chat.messages], sort_keys=True)


def _spread(slots: Sequence[_Wanted], replies: Mapping[_Wanted, Reply]) -> list[Reply]:
    """One reply each. Where one reply serves several, the first has its tokens: it was computed once."""
    rows, used = [], set()
    for slot in slots:
        reply = replies[slot]
        rows.append(reply._replace(prompt_tokens=0, tokens=0) if slot in used else reply)
        used.add(slot)
    return rows
