"""Functions around the door of a language model: what is counted, cached, routed or rewritten on its way in and out.

    model = metered(cached(LocalModel(...), DiskCache("replies")), Usage())

Each takes models and returns one. Facts pass through unchanged where a function does not name another.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax import multihost
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.usage import Usage
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.types import Answer, Chat, Facts, LanguageModel, Reply, Request, Score, ScoreTexts, Write, as_model

CACHED_AT_ONCE = 256  # chats per call of a cached model; a kill loses at most this many replies
CHARACTERS = 4  # per token, about

# (requests, models inside) -> answers
Respond = Callable[..., list[Answer]]


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped(LanguageModel):
    """Models behind one door.

    Attributes:
      models: what is inside. The first one has the facts of the whole.
      respond: answers requests by the models, which are its further arguments.
      changed: facts of each model inside -> those of the whole.
    """

    models: tuple[LanguageModel, ...]
    respond: Respond
    changed: Callable[..., Facts]

    @property
    def facts(self) -> Facts:
        return self.changed(*(model.facts for model in self.models))

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        return self.respond(requests, *self.models)

    @property
    def memories(self) -> tuple[Any, ...]:
        return tuple(itertools.chain.from_iterable(model.memories for model in self.models))

    def session(self, number: int = 1) -> LanguageModel:
        return dataclasses.replace(self, models=tuple(model.session(number) for model in self.models))

    def rewrap(self, change: Callable[[LanguageModel], LanguageModel]) -> LanguageModel:
        return dataclasses.replace(self, models=tuple(model.rewrap(change) for model in self.models))


def _wrap(respond: Respond, *models: LanguageModel, changed: Callable[..., Facts] | None = None) -> Wrapped:
    return Wrapped(tuple(map(as_model, models)), respond, changed or (lambda facts, *_: facts))


def metered(model: LanguageModel, usage: Usage) -> LanguageModel:
    """The model, its calls counted. One that has this ledger among its facts counts its tokens itself."""

    def respond(requests: Sequence[Request], model: LanguageModel) -> list[Answer]:
        answers, start = [], time.perf_counter()
        try:
            answers = model.answer(requests)
        finally:  # a call that raises costs its seconds, too
            share = (time.perf_counter() - start) / max(len(requests), 1)
            roles: dict[str, list[Answer]] = {}
            for request, answer in itertools.zip_longest(requests, answers):
                roles.setdefault(request.role, []).append(answer)
            for role, group in roles.items():
                counts = _counts(group) if answers else {}
                if model.facts.usage is usage:  # an endpoint's transport has added its tokens as they came
                    counts = {name: count for name, count in counts.items() if name not in ("prompt_tokens", "tokens")}
                usage.add(role, seconds=share * len(group), **counts)
        return answers

    return _wrap(respond, model)


def _counts(answers: Sequence[Answer]) -> dict[str, int]:
    """Amounts of a ledger: each reply is a call, and so is each score. Cached ones cost no tokens."""
    replies = [answer for answer in answers if isinstance(answer, Reply)]
    scores = [score for answer in answers if not isinstance(answer, Reply) for score in answer]
    fresh_replies = [reply for reply in replies if not reply.cached]
    fresh_scores = [score for score in scores if not score.cached]
    reply_prompts = sum(reply.prompt_tokens for reply in fresh_replies)
    return {
        "calls": len(replies) + len(scores),
        "prompt_tokens": reply_prompts + sum(score.prompt_tokens + score.tokens for score in fresh_scores),
        "tokens": sum(reply.tokens for reply in fresh_replies),
        "cache_hits": len(replies) + len(scores) - len(fresh_replies) - len(fresh_scores),
        "cut": sum(not reply.ended and not reply.refused for reply in replies),
        "refused": sum(reply.refused for reply in replies),
    }


def cached(model: LanguageModel, cache: DiskCache) -> LanguageModel:
    """The model, which answers each chat at temperature 0 once; scores pass through. Replies do not depend on roles and
    seeds. Its door raises ValueError at another temperature: a reply would depend on the other chats of the call.

    Args:
      cache: for this model alone; its entries do not name it.
    """

    def respond(requests: Sequence[Request], model: LanguageModel) -> list[Answer]:
        keys = {place: _reply_key(request) for place, request in enumerate(requests) if isinstance(request, Write)}
        writes = {key: requests[place] for place, key in keys.items()}
        replies = {key: cache.get_reply(key) for key in writes}
        missing = [key for key, reply in replies.items() if reply is None]
        for start in range(0, len(missing), CACHED_AT_ONCE):
            part = missing[start : start + CACHED_AT_ONCE]
            for key, reply in zip(part, model.answer([writes[key] for key in part]), strict=True):
                cache.put_reply(key, reply)
                replies[key] = reply
        to_score = [request for request in requests if isinstance(request, ScoreTexts)]
        scores = iter(model.answer(to_score) if to_score else ())
        return [replies[keys[place]] if place in keys else next(scores) for place in range(len(requests))]

    return _wrap(respond, model)


def _reply_key(request: Write) -> str:
    if request.sampling.temperature != 0:
        raise ValueError(f"temperature is {request.sampling.temperature}; only replies at temperature 0 can be cached")
    parts = {
        "messages": [dict(message) for message in request.chat.messages],
        "sampling": dataclasses.asdict(request.sampling),
    }
    if request.stop:  # entries from before there were stop strings have no such field
        parts["stop"] = list(request.stop)
    return cache_key(parts)


def by_role(model: LanguageModel, specialists: Mapping[str, LanguageModel]) -> LanguageModel:
    """One model of several: `specialists[role]` answers requests of its role, `model` all the rest."""
    numbers = {role: number for number, role in enumerate(specialists, 1)}  # 0 is `model`

    def respond(requests: Sequence[Request], *models: LanguageModel) -> list[Answer]:
        groups: dict[int, list[int]] = {}  # number of a model -> places of its requests
        for place, request in enumerate(requests):
            groups.setdefault(numbers.get(request.role, 0), []).append(place)
        answers: list[Any] = [None] * len(requests)
        for number, group in groups.items():
            for place, answer in zip(group, models[number].answer([requests[i] for i in group]), strict=True):
                answers[place] = answer
        return answers

    def changed(first: Facts, *rest: Facts) -> Facts:
        every = (first, *rest)
        return dataclasses.replace(
            first,
            scores_texts=all(facts.scores_texts for facts in every),
            scores_words=all(facts.scores_words for facts in every),
            usage=first.usage if all(facts.usage is first.usage for facts in every) else None,
        )

    return _wrap(respond, model, *specialists.values(), changed=changed)


def first_process_asks(model: LanguageModel) -> LanguageModel:
    """A model that only the first of several processes asks; the others receive its answers, so each is paid once."""

    def respond(requests: Sequence[Request], model: LanguageModel) -> list[Answer]:
        def ask() -> list:  # in JSON's types
            answers = model.answer(requests)
            return [list(answer) if isinstance(answer, Reply) else [*map(list, answer)] for answer in answers]

        rows = multihost.from_first(ask)
        answers: list[Answer] = []
        for request, row in zip(requests, rows, strict=True):
            if isinstance(request, Write):
                reply = Reply(*row)
                answers.append(reply._replace(log_probs=tuple(reply.log_probs)))  # JSON has lists alone
            else:
                answers.append([Score(*score) for score in row])
        return answers

    return _wrap(respond, model)


def in_dialogue(model: LanguageModel, dialogue: Dialogue) -> LanguageModel:
    """A model that reads the transcripts of any dialogue in prompts of its own.

    Args:
      dialogue: the instructions and examples that stand before a transcript, and the context that both must fit.
    """

    def rewritten(request: Request) -> Request:
        if isinstance(request, Write):
            new_tokens = request.sampling.max_tokens
        else:
            new_tokens = max(map(dialogue.count, request.texts))
        history = dialogue.fit(request.chat, new_tokens).history
        return request._replace(chat=dialogue.chat(history, request.chat.context["line"]))

    def respond(requests: Sequence[Request], model: LanguageModel) -> list[Answer]:
        return model.answer([rewritten(request) for request in requests])

    return _wrap(respond, model)


def at_full_length(model: LanguageModel, scores: bool = False) -> LanguageModel:
    """Rules in a real model's place for a dry run: behind a meter the real algorithm counts its calls and tokens.

    Replies are padded with blanks to `sampling.max_tokens`, inside a text of their JSON or else at the end, so that
    prompts which quote them have their full length.

    Args:
      scores: whether it scores: every token has probability 1/2, and each score reads its whole chat, as on an
        endpoint.
    """

    def respond(requests: Sequence[Request], model: LanguageModel) -> list[Answer]:
        replies = iter(model.answer([request for request in requests if isinstance(request, Write)]))
        answers: list[Answer] = []
        for request in requests:
            prompt_tokens = _tokens(request.chat)
            if isinstance(request, Write):
                max_tokens = request.sampling.max_tokens
                answers.append(Reply(_padded(next(replies).text, max_tokens), prompt_tokens, max_tokens))
            elif scores:
                lengths = [-(-len(text) // CHARACTERS) for text in request.texts]
                answers.append(
                    [Score(-math.log(2) * tokens, tokens, prompt_tokens=prompt_tokens) for tokens in lengths]
                )
            else:
                raise NotImplementedError("this model was made without scores")
        return answers

    def changed(facts: Facts) -> Facts:
        return dataclasses.replace(facts, scores_texts=scores, scores_words=scores)

    return _wrap(respond, model, changed=changed)


def _tokens(chat: Chat) -> int:
    return sum(len(message["content"]) for message in chat.messages) // CHARACTERS


def _padded(text: str, tokens: int) -> str:
    width = CHARACTERS * tokens
    head, quote, tail = text.rpartition('",')  # where a text in JSON ends, and readers keep blanks
    return f"{head.ljust(width - len(tail) - 2)}{quote}{tail}" if quote else text.ljust(width)
