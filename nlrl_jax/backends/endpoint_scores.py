"""Scores by a server: of any texts, where it echoes prompts with their log-probabilities, or of single words, by the
tokens that it lists as likeliest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends import request_pool, top_words
from nlrl_jax.backends.endpoint_server import EndpointServer
from nlrl_jax.backends.optional_fields import Request
from nlrl_jax.backends.prompt_forms import Messages, Route
from nlrl_jax.backends.responses import is_filtered, read_score, read_top
from nlrl_jax.backends.transport import EndpointError, Transport
from nlrl_jax.types import Sampling, Score

_EMPTY = {"log_prob": 0.0, "tokens": 0}  # the entry of an empty text
_NO_DIFFERENCE = {"top": []}  # the entry of a judgement that a content filter stops
_NULL = ("model", "temperature")  # fields of ours that a null of the user's leaves out


class _Job(NamedTuple):
    """A request, and how its response is read; `instead`: the cache's entry of a prompt that a filter refuses."""

    path: str
    body: dict[str, Any]
    parse: Callable[..., Any]
    instead: dict[str, Any] | None = None


def texts(
    model: EndpointServer, chats: Sequence[Messages], rows: Sequence[Sequence[str]], role: str
) -> list[list[Score]]:
    """The scores of any texts after their chats, one request each."""
    fields, jobs, keys = echo_fields(model), {}, []
    for prompt, row in zip(map(model.render, chats), rows):
        route = Route("/completions", {"prompt": prompt}, {})
        keys.append([model.key(route, fields, None, text) for text in row])
        for key, text in zip(keys[-1], row):
            if text:
                read = functools.partial(lambda text, response, *_: read_score(response, text), text)
                jobs[key] = _Job(route.path, {**fields, "prompt": prompt + text}, read)
    entries = _entries(model, jobs, role)
    return [[Score(**entries.get(key, _EMPTY)) for key in row] for row in keys]


def words(
    model: EndpointServer, chats: Sequence[Messages], rows: Sequence[Sequence[str]], role: str
) -> list[list[Score]]:
    """The scores of single words after their chats, one request for a row. A judgement that a content filter stops, by
    an error, in a response or without a word, makes no difference between words."""
    jobs, keys, top = {}, [], model.abilities.top
    for messages, row in zip(chats, rows):
        route = model.route(messages, [word.strip() for word in row])
        fields = {**model.reply_fields(Sampling(1, 0.0)), **route.flags, **route.listed(top)}
        keys.append(model.key(route, fields, None, "top"))
        body = {**fields, **route.content}
        jobs[keys[-1]] = _Job(route.path, body, lambda response, *_: read_top(response, []), _NO_DIFFERENCE)
    entries = _entries(model, jobs, role)
    scores = []
    for key, row in zip(keys, rows):
        cached = entries[key].get("cached", False)
        scores.append([score._replace(cached=cached) for score in top_words.scores(entries[key]["top"], row, top)])
    return scores


def echo_fields(model: EndpointServer) -> dict[str, Any]:
    """The fields of a request for an echo; `extra` adds others, and its null leaves out the temperature."""
    extra = model.options.extra_fields()
    ours = {"model": model.model, "max_tokens": 0, "temperature": 0.0, "echo": True, "logprobs": 1}
    # A null of the user's leaves out a field of ours only where the echo does not depend on it.
    left_out = {name for name in _NULL if extra.get(name, "") is None}
    added = {name: value for name, value in extra.items() if value is not None}
    return added | {name: value for name, value in ours.items() if name not in left_out}


def _entries(model: EndpointServer, jobs: Mapping[str, _Job], role: str) -> dict[str, dict[str, Any]]:
    """The cache's entry for each key; where there is none, what a request's response reads as."""
    entries = {key: {**entry, "cached": True} for key in jobs if (entry := model.cache and model.cache.get(key))}

    def work(transport: Transport, key: str) -> Iterable:
        path, body, parse, instead = jobs[key]
        request = Request(model.known, body, model.options.extra_fields(), model.options.url + path)
        revise = [] if body.get("echo") else [request.revise]  # an echo has no optional fields
        try:
            result = transport.post(path, request.body, parse, *revise)
            entries[key] = {"top": result} if isinstance(result, list) else dict(zip(_EMPTY, result))
            request.answered()
        except EndpointError as error:
            if instead is None or not is_filtered(error):
                raise
            entries[key] = instead
        if model.cache is not None:
            model.cache.put(key, entries[key])
        return ()

    request_pool.do([key for key in jobs if key not in entries], work, model.options, role, model.calls)
    return entries
