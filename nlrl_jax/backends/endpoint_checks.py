"""Checks of an endpoint before a run: whether it answers at all, how prompts reach it, and how it scores."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from nlrl_jax.backends import endpoint_scores, prompt_forms, request_pool
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.optional_fields import NO_LIMIT, KnownFields, Request, without
from nlrl_jax.backends.prompt_forms import PromptText
from nlrl_jax.backends.responses import NOT_WHOLE, read_replies, read_score, read_top
from nlrl_jax.backends.top_words import TOP
from nlrl_jax.backends.transport import EndpointError, Failure, Transport
from nlrl_jax.backends.usage import CHECK
from nlrl_jax.types import Chat, Sampling

HI = [{"role": "user", "content": "Hi"}]
TOKENS = 16  # of the reply to `check_answers`, at most
ECHO_SECONDS = 30.0  # for a prompt that is echoed
# To go on from: more than `TOKENS`, so that a reply which begins with it has it from the server, not from the model.
COUNT, COUNTED = "Count from 1 to 20.", "Let us count the sheep from one to twenty: 1, 2, 3, 4, 5, 6, 7, 8, 9,"
# How no message begins. Some templates' new messages have a blank in front (Llama 2, Mistral).
_GOES_ON = re.compile(r"[,;:.!?)]| (?!1\b)[a-z0-9,]")
TEMPLATE = 4  # tokens of the shortest chat, at least; some servers count only those of the contents
FEWER = 5  # likeliest tokens, where the server refuses `TOP`
# Statuses of a server without a path, or without a field.
_REFUSED = (200, 400, 404, 405, 415, 422, 500, 501)


def check_answers(model: EndpointModel) -> None:
    """Makes sure that there is a server which takes the key and the model, by one request of a few tokens, which are
    counted.

    Raises:
      EndpointError: there is none, in a sentence that says what to change. A busy server is retried.
    """
    extra = model.options.extra_fields()
    whole = {**without(model.reply_fields(Sampling(TOKENS, 1.0)), NO_LIMIT.keys() - extra.keys()), "messages": HI}
    request = Request(model.known, whole, extra, model.options.url)

    def revise(failure: Failure, attempt: int, attempts_left: int) -> dict[str, Any] | None:
        if failure.is_unreachable or failure.status == 200 or failure.status is None and _is_cut(failure):
            failure.is_final, failure.advice = True, failure.advice or _advice(model, failure)
            return None
        return request.revise(failure, attempt, attempts_left)

    def read(response: dict, *_) -> None:
        choices = response.get("choices")
        if not isinstance(choices, list) or not choices:
            raise Failure("it has no list of choices, or an empty one")

    try:
        _post(model, "/chat/completions", request.body, read, revise)
    except EndpointError as error:
        if error.status == 404 and not model.options.url.endswith("/v1") and _answers_at(model, "/v1"):
            url = f"{model.options.url}/v1"
            raise EndpointError(
                f"{model.options.url} is no address of an API, but {url} is: --base_url {url}"
            ) from None
        raise
    request.answered()


def abilities(model: EndpointModel, scores: bool) -> Abilities:
    """What the server can do, found out by a few small requests, which are counted.

    A prompt goes as text where the model has a `render`; else the server is asked to continue a message.

    Args:
      scores: whether log-probabilities are needed: of echoed prompts, else of the likeliest tokens.

    Raises:
      NotImplementedError: they are needed, and there are none.
      EndpointError, BudgetExceeded: as `EndpointModel.complete`.
    """
    if not scores and model.render is None:
        return Abilities(_chat_form(model))
    if not scores:
        return Abilities(prompt_forms.TEXT, adds_bos=_adds_bos(model))
    adds_bos = _adds_bos(model)
    model = model.knowing(dataclasses.replace(model.abilities, adds_bos=adds_bos))
    as_text = [lambda: _with_echo(model), lambda: _with_top(model, prompt_forms.TEXT)]
    refusals = []
    for find in (*(as_text if model.render else ()), lambda: _with_top(model, _chat_form(model))):
        try:
            return dataclasses.replace(find(), adds_bos=adds_bos)
        except NotImplementedError as error:
            refusals.append(str(error))
    raise NotImplementedError("; ".join(refusals))


def _adds_bos(model: EndpointModel) -> bool | None:
    """Whether the server puts a bos before a text; None where that does not matter, or it does not count tokens."""
    bos = model.render.bos if isinstance(model.render, PromptText) else ""
    if not bos:
        return None
    body = {**model.reply_fields(Sampling(1, 0.0)), "prompt": bos}
    try:
        tokens = _probe(model, "/completions", body, lambda response, *_: _prompt_tokens(response))
    except NotImplementedError:
        return None
    return tokens == 2 if tokens in (1, 2) else None


def _with_echo(model: EndpointModel) -> Abilities:
    """Prompts as text that the server echoes with their log-probabilities.

    Raises:
      NotImplementedError: it does not, or the log-probabilities of a continuation cannot be read from it.
    """
    word = " GOOD"
    prompt = model.render([dict(message) for message in Chat.of("Hi", continued="This step is").messages])

    def read(response: dict, *_) -> Abilities:
        try:
            read_score(response, word)
        except EndpointError as error:
            raise Failure(str(error)) from None
        return Abilities(prompt_forms.TEXT, echo=True)

    # A server that takes max_tokens 0 for no limit writes on.
    soon = dataclasses.replace(model.options, timeout=min(model.options.timeout, ECHO_SECONDS))
    model = dataclasses.replace(model, options=soon)
    try:
        return _probe(model, "/completions", {**endpoint_scores.echo_fields(model), "prompt": prompt + word}, read)
    except NotImplementedError as error:
        raise NotImplementedError(f"the server does not echo a prompt with log-probabilities: {error}") from None


def _with_top(model: EndpointModel, form: str) -> Abilities:
    """The form with the number of likeliest tokens that the server lists.

    Raises:
      NotImplementedError: it lists none.
    """
    model = dataclasses.replace(model, abilities=Abilities(form))
    chat = Chat.of("Is the sky blue? Answer with one word: YES or NO.", continued="The answer is")
    route = model.route([dict(message) for message in chat.messages], ("YES", "NO"))
    fields = {**model.reply_fields(Sampling(1, 0.0)), **route.content, **route.flags}

    def read(response: dict, *_) -> int:
        listed = len(read_top(response))
        if listed < 2:
            raise Failure(f"it lists {listed} likeliest tokens")
        return listed

    for top in (TOP, FEWER):
        try:
            return Abilities(form, top=min(top, _probe(model, route.path, {**fields, **route.listed(top)}, read)))
        except NotImplementedError as error:
            refused = error
    raise NotImplementedError(f"the server lists no likeliest tokens (top_logprobs) with what it writes: {refused}")


def _chat_form(model: EndpointModel) -> str:
    """How the server is made to continue the last message of a chat; else it must be asked."""
    forms = (prompt_forms.CONTINUED, prompt_forms.PREFIX, prompt_forms.PARTIAL)
    return next((form for form in forms if _continues(model, form)), prompt_forms.ASKED)


def _continues(model: EndpointModel, form: str) -> bool:
    """Whether a reply goes on from the last message: it begins with the text sent, or as no message begins, or else the
    server counts the prompt as one whose last message is open. So it does not matter what the model likes to say."""
    model = dataclasses.replace(model, abilities=Abilities(form))

    def read(response: dict, *tokens: int) -> tuple[str, int]:
        return read_replies(response, *tokens, 1)[0].text, _prompt_tokens(response)

    def ask(chat: Chat) -> tuple[str, int]:
        route = model.route([dict(message) for message in chat.messages])
        body = {**model.reply_fields(Sampling(TOKENS, 0.0)), **route.content, **route.flags}
        return _probe(model, route.path, body, read)

    try:
        text, tokens = ask(Chat.of(COUNT, continued=COUNTED))
        if text.startswith(COUNTED) or _GOES_ON.match(text):
            return True
        if form != prompt_forms.CONTINUED or tokens < TOKENS:
            return False
        open_tokens, shortest = (ask(Chat.of(chat))[1] for chat in (COUNT + COUNTED, HI[0]["content"]))
        counts = TEMPLATE <= shortest < tokens - TOKENS
        return counts and open_tokens - 1 <= tokens <= open_tokens  # a closed message has more
    except NotImplementedError:
        return False


def _prompt_tokens(response: dict) -> int:
    """The prompt's tokens as the server counts them; 0 where it does not."""
    usage = response.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return tokens if type(tokens) is int else 0


def _probe(model: EndpointModel, path: str, body: dict[str, Any], parse: Callable[..., Any]) -> Any:
    """What one request reads as.

    Raises:
      NotImplementedError: the server refuses it, in whatever form, or `parse` does.
      EndpointError, BudgetExceeded: as `EndpointModel.complete`.
    """
    request = Request(model.known, body, model.options.extra_fields(), model.options.url)
    echoes = bool(body.get("echo"))

    def is_refused(failure: Failure | EndpointError) -> bool:
        # A server that takes an echo's max_tokens 0 for no limit does not end.
        is_endless = echoes and "no whole response" in str(failure)
        return is_endless or _is_refused(failure) and not (failure.status == 200 and NOT_WHOLE in str(failure))

    def revise(failure: Failure, attempt: int, attempts_left: int) -> dict[str, Any] | None:
        may_pass = failure.status is None or failure.status >= 500
        is_repeated = may_pass and "no whole response" not in str(failure) and attempt == 0 < attempts_left
        failure.is_final |= is_refused(failure) and not is_repeated  # it would be the same another time
        return None if echoes else request.revise(failure, attempt, attempts_left)

    try:
        return _post(model, path, request.body, parse, revise)
    except EndpointError as error:
        if is_refused(error):
            raise NotImplementedError(str(error).rstrip(".")) from None
        raise


def _is_refused(failure: Failure | EndpointError) -> bool:
    """Whether the path or a field is not there; some servers break the connection then."""
    return failure.status in _REFUSED or failure.status is None and _is_cut(failure)


def _is_cut(failure: Failure | EndpointError) -> bool:
    """Whether the connection ended in the middle, or what came is no HTTP."""
    return "ProtocolError" in str(failure) or "ReadError" in str(failure)


def _post(model: EndpointModel, path: str, body: dict[str, Any], parse: Callable, revise: Callable) -> Any:
    results = []

    def work(transport: Transport, _: str) -> Iterable:
        results.append(transport.post(path, body, parse, revise))
        return ()

    request_pool.do([path], work, model.options, CHECK, model.calls)
    return results[0]


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
