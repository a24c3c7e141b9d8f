"""One JSON request to an OpenAI-compatible server: retries, a deadline, and a key that is never shown."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import email.utils
import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from nlrl_jax.backends import connection
from nlrl_jax.backends.connection import ApiKey
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import LanguageModelError

T = TypeVar("T")
BACKOFF, LONGEST_WAIT = 1.0, 60.0  # seconds before an attempt
MAX_BYTES = 8_000_000  # of a response's body
_EXCERPT = 300  # characters of a response in an error
_RETRIED, _UNKNOWN = (408, 409, 425, 429), (501, 505)
_NO_CREDIT = re.compile(r"insufficient[_ ](?:quota|balance|credit|funds)|credit balance|out of credits", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"\bmodel\b[^.]{0,80}\b(?:not exist|not found|not available|unknown)|(?:unknown|no such|invalid) model",
    re.IGNORECASE,
)
_log = logging.getLogger(__name__)


class EndpointError(LanguageModelError):
    """A request that the server refused, or that failed in every attempt.

    Attributes:
      status: HTTP status of the last response; None where there was none.
      body: of the response that refused the request, without the key; "" where it failed otherwise.
    """

    def __init__(self, message: str, status: int | None = None, body: str = ""):
        super().__init__(message)
        self.status, self.body = status, body


class Stopped(Exception):
    """Another request has failed for good, so this one was not sent (again)."""


@dataclasses.dataclass(eq=False)
class Failure(Exception):
    """An attempt that failed, or a response that does not hold what was requested.

    Attributes:
      status: of the response; None where there was none.
      body: of a response that holds no completion, without the key; else "".
      is_final: sending the same again does not help. advice: what does.
      is_unreachable: there was no connection. is_sent: the server may have got the request and worked on it.
      wait: seconds that the server asks for.
      fallback: what counts as the result if the last attempt ends like this; None is an error.
    """

    message: str
    status: int | None = None
    body: str = ""
    is_final: bool = False
    advice: str = ""
    is_unreachable: bool = False
    is_sent: bool = True
    wait: float = 0.0
    fallback: Any = None

    def __str__(self) -> str:
        return self.message


# (failure, number of the attempt from 0, attempts left) -> another body to send at once; None if there is none.
Revise = Callable[[Failure, int, int], dict[str, Any] | None]


def retry_wait(attempt: int, requested: float = 0.0) -> float:
    """Seconds before the next attempt: doubling from `BACKOFF` to `LONGEST_WAIT`, with jitter.

    requested: what the server's Retry-After says, which is honoured up to `LONGEST_WAIT`.
    """
    wait = min(BACKOFF * 2.0 ** min(attempt, 64), LONGEST_WAIT) * random.uniform(0.5, 1.0)
    return max(wait, min(requested, LONGEST_WAIT))


class Transport:
    """Sends requests, from any number of threads, while its `with` block runs.

    Args:
      options: address, key and limits. A request is retried after a 408, 409, 425, 429 or 5xx, a timeout, a cut
        connection or an invalid response; nothing is sent once `usage` has reached the token budget.
      usage, role: where responses are counted.
      waiting: called with the reason when a request waits for another attempt.

    Attributes:
      failure: the first one given to `stop`.

    Raises:
      ValueError: a variable of the environment that names a proxy or certificates is wrong.
    """

    def __init__(
        self,
        options: EndpointOptions,
        usage: Usage,
        role: str,
        waiting: Callable[[str], None] = lambda reason: None,
    ):
        self.options, self.usage, self.role, self.waiting = options, usage, role, waiting
        self.key = ApiKey(options.api_key_env)
        self.proxy = connection.proxy_of(options.url)
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        reached = connection.client(self.proxy, self.key.headers(), options.timeout, options.concurrency)
        self._client, self._deadlines = reached

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_) -> None:
        self.stop()
        self._client.close()

    def stop(self, failure: BaseException | None = None) -> None:
        """No request starts from now on, and those that wait for another attempt give up."""
        with self._lock:
            self.failure = self.failure or failure
        self._stop.set()

    def post(
        self,
        path: str,
        body: dict[str, Any],
        parse: Callable[[dict, int, int], T],
        revise: Revise = lambda failure, attempt, attempts_left: None,
    ) -> T:
        """Sends a request until `parse(response, prompt tokens, tokens)` accepts the response, and returns its result.

        After `max_retries` + 1 attempts, the fallback of the last `Failure`, if it has one. An attempt with
        another body after a final refusal is not counted.

        Args:
          revise: called after each failure; returns another body to send, or None.

        Raises:
          EndpointError: it was refused, or failed `max_retries` + 1 times.
          BudgetExceeded, Stopped: it must not be sent (again).
        """
        attempt = 0
        while True:
            if self._stop.is_set():
                raise Stopped
            self.usage.check_budget(self.options.token_budget)
            try:
                return self._attempt(path, body, parse)
            except Failure as error:
                failure = error
            was_final = failure.is_final  # before `revise`, which may change that
            attempts_left = self.options.max_retries - attempt
            revised = revise(failure, attempt, attempts_left)
            if revised is None and (failure.is_final or attempts_left <= 0):
                break
            if not was_final:  # a refusal that was met by another body is no failed attempt
                attempt += 1
            if revised is not None:
                body = revised
                continue
            wait = retry_wait(attempt - 1, failure.wait)
            _log.info("%s%s: %s; attempt %d in %.2g s", self.options.url, path, failure, attempt + 1, wait)
            reason = f"status {failure.status}" if failure.status else str(failure)
            self.waiting(f"{reason[:60]}, attempt {attempt + 1} of {self.options.max_retries + 1} in {wait:.0f} s")
            if self._stop.wait(wait):
                raise Stopped
            self.usage.add(self.role, retries=1)
        if failure.fallback is not None:
            return failure.fallback
        if failure.is_final:
            message = f"{self.options.url}{path} answered with {failure}. {failure.advice}".rstrip()
            raise EndpointError(self.key.hide(message), failure.status, failure.body)
        raise EndpointError(
            f"{self.options.url}{path} failed {attempt + 1} times, the last time with: {failure}. Earlier replies are "
            "in the cache, if there is one: run again later, or with a longer --timeout, more --max_retries or less "
            "--concurrency",
            failure.status,
        )

    def _attempt(self, path: str, body: dict[str, Any], parse: Callable[[dict, int, int], T]) -> T:
        sent = json.dumps(body).encode()
        # The budget counts what is under way by an upper bound: 4 bytes a token, and all that may be written.
        most_tokens = math.ceil(len(sent) / 4) + _most_written(body)
        self.usage.sent(self.role, most_tokens)
        try:
            status, headers, content = self._exchange(path, sent)
        except Failure as failure:
            self.usage.arrived(self.role, most_tokens, lost=failure.is_sent)
            raise
        excerpt, text = self._excerpt(content), content.decode("utf-8", errors="replace")
        if not 200 <= status < 300:
            self.usage.arrived(self.role, most_tokens)
            raise self._refusal(status, headers, excerpt, text)
        try:
            response = json.loads(content) if len(content) <= MAX_BYTES else None
        except (ValueError, RecursionError):
            response = None
        tokens = self._count(response, len(sent), len(content), most_tokens)
        if len(content) > MAX_BYTES:
            raise Failure(f"a response above {MAX_BYTES} bytes: {excerpt}", status)
        if not isinstance(response, dict):
            if text.lstrip().startswith(("data:", "event:")):
                advice = "It streams, though not asked to: switch that off there, or in the proxy before it"
                raise Failure(f"a stream of events: {excerpt}", status, is_final=True, advice=advice)
            text = "" if '"choices"' in text else text  # a damaged reply says nothing about fields
            raise Failure(f"a response that is not a JSON object: {excerpt}", status, text)
        try:
            return parse(response, *tokens)
        except Failure as error:
            error.message, error.status = f"an invalid response ({error}): {excerpt}", status
            error.body = error.body or ("" if "choices" in response else text)
            raise

    def _refusal(self, status: int, headers: httpx.Headers, excerpt: str, text: str) -> Failure:
        """What a response with an error status means."""
        place = f" ({self.proxy})" if self.proxy else ""
        no_credit = status == 429 and _NO_CREDIT.search(text) is not None  # where waiting does not help
        if not no_credit and status in _RETRIED or status >= 500 and status not in _UNKNOWN:
            return Failure(f"status {status}{place}: {excerpt}", status, text, wait=retry_after(headers, time.time()))
        place += f" (it redirects to {headers['Location']})" if "Location" in headers else ""
        advice = self.proxy.advice if self.proxy and status == 407 else _advice(status, self.key, text)
        return Failure(f"status {status}{place}: {excerpt}", status, text, is_final=True, advice=advice)

    def _exchange(self, path: str, sent: bytes) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body, all of it within the timeout; the body is cut off above `MAX_BYTES`."""
        self._deadlines.start(self.options.timeout)
        headers = {"Content-Type": "application/json"}
        content, place = bytearray(), f" ({self.proxy})" if self.proxy else ""
        try:
            with self._client.stream("POST", self.options.url + path, content=sent, headers=headers) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > MAX_BYTES:
                        break
        except (httpx.TimeoutException, TimeoutError) as error:
            is_sent = not isinstance(error, httpx.ConnectTimeout)
            raise Failure(f"no whole response within {self.options.timeout:g} s{place}", is_sent=is_sent) from None
        except (httpx.HTTPError, UnicodeError) as error:  # a host's name may be none
            away = isinstance(error, httpx.ConnectError | httpx.ProxyError | UnicodeError)
            message, advice = self.key.hide(f"{type(error).__name__}: {error}{place}"), ""
            if away and self.proxy:
                advice = self.proxy.advice
            raise Failure(message, is_unreachable=away, is_sent=not away, advice=advice) from None
        if not response.is_success:  # it may quote the key; Latin-1 keeps all other bytes
            content = self.key.hide(content.decode("latin-1")).encode("latin-1")
        return response.status_code, response.headers, bytes(content)

    def _count(self, response: Any, sent: int, received: int, most_tokens: int) -> tuple[int, int]:
        """Tokens read and written, which are in the ledger from now on."""
        usage = response.get("usage") if isinstance(response, dict) else None
        usage = usage if isinstance(usage, dict) else {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        are_counts = [type(count) is int and count >= 0 for count in counts]
        estimates = [math.ceil(size / 4) for size in (sent, received)]  # where the server does not count
        prompt_tokens, tokens = (
            count if is_count else estimate for count, is_count, estimate in zip(counts, are_counts, estimates)
        )
        tokens = max(tokens, _tokens_listed(response))
        counted = {"prompt_tokens": prompt_tokens, "tokens": tokens, "paid": prompt_tokens + tokens}
        self.usage.arrived(self.role, most_tokens, estimated=int(not all(are_counts)), **counted)
        return prompt_tokens, tokens

    def _excerpt(self, content: bytes) -> str:
        """The beginning of a body on one line. The key goes first: a cut through it would leave half of it."""
        text = " ".join(self.key.hide(content.decode("utf-8", errors="replace")).split())
        return repr(text if len(text) <= _EXCERPT else text[:_EXCERPT] + "...")


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds to wait by a response's headers: retry-after-ms, as OpenAI and Azure send it, or Retry-After (RFC 9110,
    10.2.3: seconds or a date); 0 where they say nothing that can be read."""
    header = headers.get("Retry-After", "")

    def seconds_to_date() -> float:
        date = email.utils.parsedate_to_datetime(header)
        return date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp() - now

    readers = (lambda: float(headers["retry-after-ms"]) / 1000, lambda: float(header), seconds_to_date)
    for reader in readers:
        with contextlib.suppress(KeyError, ValueError, TypeError, IndexError, OverflowError):
            if not math.isnan(wait := reader()):
                return max(wait, 0.0)
    return 0.0


def _tokens_listed(response: Any) -> int:
    """Tokens written in a chat's choices, where they are listed with log-probabilities.

    llama.cpp's server (xllamacpp 2026.10.11549) counts those of one choice alone, whatever `n` is.
    """
    number = 0
    for choice in (response.get("choices") if isinstance(response, dict) else None) or ():
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # another form, or none
            number += len(choice["logprobs"]["content"])
    return number


def _most_written(body: Mapping[str, Any]) -> int:
    """The most tokens that a response to a request holds."""
    limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return max([count for count in limits if type(count) is int], default=0) * (body.get("n") or 1)


def _advice(status: int, key: ApiKey, text: str) -> str:
    if status == 402 or _NO_CREDIT.search(text):
        return "The account has no credit left; add some and run again: cached replies are not paid for twice"
    if status in (401, 403):
        return f"The server does not accept the key: {key!r}; set that variable to a key that is valid here"
    if status == 413:
        return "The request is too large for the server: shorter prompts need fewer examples or --context_tokens"
    if status == 404 or _NO_MODEL.search(text):
        return "Check --base_url (it usually ends in /v1) and the model's name"
    if 300 <= status < 400:
        return "Give the address it redirects to as --base_url, without /chat/completions"
    if status in (400, 405, 415, 422, 501):
        return "--extra field=null leaves out a field that the server does not support"
    return ""
