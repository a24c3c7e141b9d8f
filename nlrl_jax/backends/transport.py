"""One JSON request to an OpenAI-compatible server: retries, a deadline, and a key that is never shown."""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from nlrl_jax.backends.budget import Account, Budget
from nlrl_jax.types import LanguageModelError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_EXCERPT = 300  # characters of a server's answer in an error
_HIDDEN = "[key hidden]"
_REAL_KEY = 8  # characters; a shorter one is a placeholder ("EMPTY", "none") that a reply may well contain
_RETRIED = (408, 409, 425, 429)


class EndpointError(LanguageModelError):
    """The server did not give what was asked for.

    Attributes:
      status: of its last answer; None where none came.
    """

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


class Unusable(Exception):
    """An answer that is not what was asked for; the request is sent again.

    Attributes:
      at_last: what is taken for it where the last attempt ends so; None is an error.
    """

    def __init__(self, message: str, at_last: Any = None):
        super().__init__(message)
        self.at_last = at_last


class Stopped(Exception):
    """Another request has failed for good, so this one was not sent (again)."""


class _Failure(Exception):
    """An attempt that may go better next time."""

    def __init__(self, message: str, status: int | None = None, wait: float | None = None, at_last: Any = None):
        super().__init__(message)
        self.status, self.wait, self.at_last = status, wait, at_last


class ApiKey:
    """A key from an environment variable. Neither `repr` nor a traceback that prints variables shows it."""

    def __init__(self, variable: str):
        """Raises ValueError: what the variable holds cannot stand in an HTTP header."""
        self.variable = variable
        self._value = os.environ.get(variable, "").strip() if variable else ""
        if not all("!" <= letter <= "~" for letter in self._value):
            raise ValueError(f"the key in ${variable} has blanks or letters outside ASCII; set it to the bare key")

    def __repr__(self) -> str:
        return f"ApiKey(${self.variable}, {'set' if self._value else 'not set'})"

    def headers(self) -> httpx.Headers:
        return httpx.Headers({"Authorization": f"Bearer {self._value}"} if self._value else {})

    def hide(self, text: str) -> str:
        """The text with the key blotted out, plain or as JSON writes it."""
        escaped = json.dumps(self._value)[1:-1]
        for form in {self._value, escaped, escaped.replace("/", "\\/")} - {""}:
            text = text.replace(form, _HIDDEN)
        return text

    def hide_if_secret(self, text: str) -> str:
        """The same, but a placeholder stays: it is no secret and may be a word in a reply."""
        return self.hide(text) if len(self._value) >= _REAL_KEY else text


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long to go on. Waits double from `backoff` to `longest_wait`, with jitter; all in seconds.

    A server's Retry-After is honoured up to `longest_wait`.
    """

    timeout: float
    max_retries: int
    backoff: float
    longest_wait: float

    def wait(self, attempt: int, asked: float | None) -> float:
        wait = min(self.backoff * 2.0 ** min(attempt, 64), self.longest_wait) * random.uniform(0.5, 1.0)
        return max(wait, min(asked or 0.0, self.longest_wait))


class Transport:
    """The connections of one batch of requests; its threads share one. A context manager.

    Attributes:
      failure: the first error that ended the batch; None while all is well.
    """

    def __init__(
        self,
        base_url: str,
        key: ApiKey,
        patience: Patience,
        connections: int,
        budget: Budget | None = None,
        account: Account | None = None,
    ):
        self.base_url, self.key, self.patience = base_url, key, patience
        self.budget, self.account = budget, account
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._client = httpx.Client(
            headers=key.headers(),
            timeout=patience.timeout,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

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

    def post(self, path: str, body: dict[str, Any], read: Callable[[dict, int, int], T]) -> T:
        """Sends a request until `read(answer, prompt tokens, tokens)` accepts the answer, and returns what it returns.

        After `max_retries` + 1 attempts, what the last one's `Unusable` has at last, if anything.

        Raises:
          EndpointError: it was refused, or went wrong `max_retries` + 1 times.
          BudgetExceeded, Stopped: it must not be sent (again).
        """
        attempt = 0
        while True:
            if self._stop.is_set():
                raise Stopped
            if self.budget is not None:
                self.budget.check(self.account)
            try:
                return self._attempt(path, body, read)
            except _Failure as failure:
                message, status, asked, at_last = str(failure), failure.status, failure.wait, failure.at_last
            if attempt == self.patience.max_retries and at_last is not None:
                return at_last
            if attempt == self.patience.max_retries:
                raise EndpointError(
                    f"{self.base_url}{path} failed {attempt + 1} times, the last time so: {message}. What was answered "
                    "before is in the cache, if there is one: run again later, or with a longer timeout, more "
                    "max_retries or less concurrency",
                    status,
                )
            wait = self.patience.wait(attempt, asked)
            _log.info("%s%s: %s; attempt %d in %.2g s", self.base_url, path, message, attempt + 2, wait)
            if self._stop.wait(wait):
                raise Stopped
            attempt += 1
            if self.account is not None:
                self.account.add(retries=1)

    def _attempt(self, path: str, body: dict[str, Any], read: Callable[[dict, int, int], T]) -> T:
        sent = json.dumps(body).encode()
        status, headers, content = self._exchange(path, sent)
        excerpt = self._excerpt(content)
        if status in _RETRIED or status >= 500:
            raise _Failure(f"status {status}: {excerpt}", status, retry_after(headers.get("Retry-After"), time.time()))
        if not 200 <= status < 300:
            place = f" (it redirects to {headers['Location']})" if "Location" in headers else ""
            advice = _advice(status, self.key)
            message = f"{self.base_url}{path} answered with status {status}{place}: {excerpt}. {advice}"
            raise EndpointError(self.key.hide(message), status)
        try:
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self._charge({}, len(sent), len(content))
            raise _Failure(f"an answer that is not a JSON object: {excerpt}", status) from None
        tokens = self._charge(answer, len(sent), len(content))
        try:
            return read(answer, *tokens)
        except Unusable as error:
            raise _Failure(f"an answer of no use ({error}): {excerpt}", status, at_last=error.at_last) from None

    def _exchange(self, path: str, sent: bytes) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and whole body without the key. The timeout is for all of it: httpx's is for each piece."""
        deadline = time.monotonic() + self.patience.timeout
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream("POST", self.base_url + path, content=sent, headers=headers) as response:
                pieces = []
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("")
                content = b"".join(pieces)
        except httpx.TimeoutException:
            raise _Failure(f"no whole answer within {self.patience.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise _Failure(self.key.hide(f"{type(error).__name__}: {error}")) from None
        # Latin-1 maps each byte to a letter and back, so that only the key changes.
        return (
            response.status_code,
            response.headers,
            self.key.hide_if_secret(content.decode("latin-1")).encode("latin-1"),
        )

    def _charge(self, answer: dict, sent: int, received: int) -> tuple[int, int]:
        """Tokens read and written, after the account has taken note of them."""
        usage = answer.get("usage")
        counts = [
            usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")
        ]
        known = [type(count) is int and count >= 0 for count in counts]
        tokens = [count if ok else math.ceil(size / 4) for count, ok, size in zip(counts, known, (sent, received))]
        if self.account is not None:
            cost = self.budget.cost(*tokens) if self.budget else 0.0
            self.account.add(
                prompt_tokens=tokens[0], tokens=tokens[1], cost=cost, answers=1, estimated=int(not all(known))
            )
        return tokens[0], tokens[1]

    def _excerpt(self, content: bytes) -> str:
        """The beginning of a body on one line. The key goes first: a cut through it would leave half of it."""
        text = " ".join(self.key.hide(content.decode("utf-8", errors="replace")).split())
        return repr(text if len(text) <= _EXCERPT else text[:_EXCERPT] + "...")


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks to wait (RFC 9110, 10.2.3: seconds or a date); None if it says nothing."""
    if header is None:
        return None
    try:
        wait = float(header)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(header)
        except ValueError:
            return None
        wait = date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp() - now
    return None if math.isnan(wait) else max(wait, 0.0)


def _advice(status: int, key: ApiKey) -> str:
    if status in (401, 403):
        return f"The server does not accept the key: {key!r}; set that variable to a key that is valid here"
    if status == 404:
        return "Check base_url (it usually ends in /v1) and the model's name"
    if 300 <= status < 400:
        return "Give the address it redirects to as base_url"
    return "A field it does not know is taken out of the request by extra={'field': None}"
