"""Checks of an endpoint before a run: whether it answers at all, and whether it scores."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from nlrl_jax.backends import request_pool
from nlrl_jax.backends.endpoint import NO_SCORES, EndpointModel
from nlrl_jax.backends.optional_fields import KnownFields, Request
from nlrl_jax.backends.responses import read_score
from nlrl_jax.backends.transport import EndpointError, Failure, InvalidResponse, Transport
from nlrl_jax.backends.usage import CHECK
from nlrl_jax.types import Chat, Sampling

TOKENS = 16  # of the reply to `check_answers`, at most
# Statuses of a server without /completions, or without an echo of the prompt.
_NO_ECHO = (200, 400, 404, 405, 415, 422, 500, 501)


def check_answers(model: EndpointModel) -> None:
    """Makes sure that there is a server which takes the key and the model, by one request of a few tokens, which are
    counted.

    Raises:
      EndpointError: there is none, in a sentence that says what to change. A busy server is retried.
    """
    whole = {**model.reply_fields(Sampling(TOKENS, 1.0)), "messages": [{"role": "user", "content": "Hi"}]}
    request = Request(model.known, whole, model.options.extra_fields(), model.options.url)

    def revise(failure: Failure, attempt: int, left: int) -> dict[str, Any] | None:
        if failure.is_unreachable or failure.status == 200 or failure.status is None and _is_cut(failure):
            failure.is_final, failure.advice = True, _advice(model, failure)
            return None
        return request.revise(failure, attempt, left)

    def read(response: dict, *_) -> None:
        choices = response.get("choices")
        if not isinstance(choices, list) or not choices:
            raise InvalidResponse("it has no list of choices, or an empty one")

    try:
        _post(model, "/chat/completions", request.body, read, CHECK, revise)
    except EndpointError as error:
        if error.status == 404 and not model.options.url.endswith("/v1") and _answers_at(model, "/v1"):
            url = f"{model.options.url}/v1"
            raise EndpointError(
                f"{model.options.url} is no address of an API, but {url} is: --base_url {url}"
            ) from None
        raise
    request.answered()


def check_scores(model: EndpointModel, role: str = CHECK) -> None:
    """Makes sure that `score` works, by one request of a few tokens, which are counted.

    Raises:
      NotImplementedError: there is no `render`; the server has no /completions, or it does not echo the prompt with
        log-probabilities from which those of a continuation can be read.
      EndpointError, BudgetExceeded: as `EndpointModel.complete`.
    """
    if model.render is None:
        raise NotImplementedError(NO_SCORES)
    chat, word = Chat.of("Hi", continued="This step is"), " GOOD"
    prompt = model.render([dict(message) for message in chat.messages])

    def revise(failure: Failure, attempt: int, left: int) -> None:
        failure.is_final |= _refuses_echo(failure)  # it would be the same another time

    def read(response: dict, *_) -> None:
        try:
            read_score(response, word)
        except EndpointError as error:
            raise InvalidResponse(str(error)) from None

    try:
        _post(model, "/completions", {**model.echo_fields(), "prompt": prompt + word}, read, role, revise)
    except EndpointError as error:
        if _refuses_echo(error):
            raise NotImplementedError(f"this endpoint does not score: {error}") from None
        raise


def _refuses_echo(failure: Failure | EndpointError) -> bool:
    """Whether there is no /completions, or it does not echo; some servers break the connection then."""
    return failure.status in _NO_ECHO or failure.status is None and _is_cut(failure)


def _is_cut(failure: Failure | EndpointError) -> bool:
    """Whether the connection ended in the middle, or what came is no HTTP."""
    return "ProtocolError" in str(failure) or "ReadError" in str(failure)


def _post(model: EndpointModel, path: str, body: dict[str, Any], read: Callable, role: str, revise: Callable) -> None:
    def work(transport: Transport, _: str) -> Iterable:
        transport.post(path, body, read, revise)
        return ()

    request_pool.do([path], work, model.options, role, model.calls)


def _answers_at(model: EndpointModel, path: str) -> bool:
    """Whether there is an API at another path of the same server, for the advice."""
    options = dataclasses.replace(model.options, base_url=model.options.url + path, max_retries=0)
    try:
        check_answers(dataclasses.replace(model, options=options, known=KnownFields()))
    except EndpointError as error:
        return error.status in (400, 401, 403, 422, 429)
    return True


def _advice(model: EndpointModel, failure: Failure) -> str:
    url, text = urllib.parse.urlsplit(model.options.url), str(failure).lower()
    place = f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"
    if failure.status == 200:
        return "That is no completion. Check --base_url: it usually ends in /v1"
    if "certificate" in text:
        return f"The certificate of {url.hostname} is not trusted here; $SSL_CERT_FILE names further authorities"
    if "ssl" in text or "tls" in text:
        return f"{place} does not speak TLS: try --base_url http{model.options.url.removeprefix('https')}"
    if "name" in text and "known" in text or "resolution" in text or "getaddrinfo" in text or "nodename" in text:
        return f"There is no host {url.hostname!r}: check --base_url"
    if failure.is_unreachable:
        return f"Nothing listens at {place}: start the server, or give its address as --base_url"
    return f"{place} does not speak HTTP: try --base_url https{model.options.url.removeprefix('http')}"
