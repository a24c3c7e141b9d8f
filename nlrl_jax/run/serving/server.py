"""The server: routes, keys, limits, and its life from the first connection to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nlrl_jax.backends.batch_worker import BatchWorker
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.run.serving.answers import AnswerForm, usage
from nlrl_jax.run.serving.choices import Choices
from nlrl_jax.run.serving.config import LOOPBACK, ServerConfig
from nlrl_jax.run.serving.errors import ApiError, wrong
from nlrl_jax.run.serving.prompts import Prompt, PromptWriter
from nlrl_jax.run.serving.requests import ChatRequest, ReplyOptions, TextRequest, read_chat, read_text

_log = logging.getLogger(__name__)


class ModelServer:
    """A model and the routes at which it is asked.

    name: under which it is served. prompts: how requests become its prompts. busy: requests under way.
    """

    def __init__(self, name: str, model: LocalModel, prompts: PromptWriter, config: ServerConfig):
        self.name, self.model, self.prompts, self.config = name, model, prompts, config
        self.worker, self.busy, self.created = BatchWorker(model), 0, int(time.time())

    def app(self) -> Starlette:
        """The ASGI application."""

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            with self.worker:
                await run_in_threadpool(self.worker.warm_up)
                yield

        routes = [
            Route("/v1/chat/completions", self._answering(self._chat), methods=["POST"]),
            Route("/v1/completions", self._answering(self._text), methods=["POST"]),
            Route("/v1/models", self._keyed(self._models)),
            Route("/v1/models/{name:path}", self._keyed(self._models)),
            Route("/health", self._health),
        ]
        # On loopback a page in a browser could reach it by a name of its own that leads here.
        names = [LOOPBACK, "localhost", "[::1]"]
        middleware = [] if self.config.host else [Middleware(TrustedHostMiddleware, allowed_hosts=names)]
        handlers = {HTTPException: _no_route, Exception: _broken}
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)

    def http_server(self) -> uvicorn.Server:
        """What speaks HTTP for it."""
        settings = {"log_level": "warning", "access_log": False, "ws": "none", "lifespan": "on", "http": "h11"}
        settings |= {"timeout_keep_alive": 75, "timeout_graceful_shutdown": self.config.drain_seconds}
        return uvicorn.Server(uvicorn.Config(self.app(), **settings))

    def run(self, listener: socket.socket) -> None:
        """Serves until SIGTERM or SIGINT; requests under way are answered first, for `drain_seconds`."""
        listener.listen(1024)  # from now on clients wait where they were refused before
        # uvicorn ends on these and then raises them again, for handlers that were there before.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self.http_server().run(sockets=[listener])

    # Routes

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        entry = {"id": self.name, "object": "model", "created": self.created, "owned_by": "nlrl_jax"}
        entry["max_model_len"] = self.model.model.config.max_positions
        if "name" not in request.path_params:
            return JSONResponse({"object": "list", "data": [entry]})
        self._check_name(request.path_params["name"])
        return JSONResponse(entry)

    async def _chat(self, request: Request, body: dict[str, Any]) -> Response:
        chat = read_chat(body)
        prompt = await run_in_threadpool(self.prompts.of_chat, chat)
        return await self._answer(request, "chat.completion", chat, [prompt])

    async def _text(self, request: Request, body: dict[str, Any]) -> Response:
        text = read_text(body)
        prompts = await run_in_threadpool(self.prompts.of_texts, text)
        return await self._answer(request, "text_completion", text, prompts)

    async def _answer(
        self, http: Request, kind: str, request: ChatRequest | TextRequest, prompts: Sequence[Prompt]
    ) -> Response:
        options = request.options
        limits = [self._limit(prompt, options) for prompt in prompts]
        form = AnswerForm(kind, self.name, self.model.tokenizer, options.top_listed)
        choices = Choices(self.worker, prompts, options, limits)
        echoed = self._echoed(request, prompts)
        if echoed and options.top_listed is not None:
            choices.echo(prompts)
        prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        if options.is_stream:
            return StreamingResponse(_stream(choices, form, options, prompt_tokens), media_type="text/event-stream")
        with choices:
            await _all(choices, http)
        answers = []
        for choice in choices.all:
            text = echoed[choice.index // options.n] if echoed else ""
            listed = [*choice.echoed, *choice.listed()]
            answers.append(form.choice(choice.index, choice.text(), choice.reason, listed, text))
        return JSONResponse(form.whole(answers, usage(prompt_tokens, _written(choices))))

    def _echoed(self, request: ChatRequest | TextRequest, prompts: Sequence[Prompt]) -> list[str]:
        """The texts of the prompts that answers begin with; none where they do not."""
        if not (isinstance(request, TextRequest) and request.echoes):
            return []
        decode = self.model.tokenizer.decode
        return [
            text if isinstance(text, str) else decode(prompt.tokens) for text, prompt in zip(request.prompts, prompts)
        ]

    def _limit(self, prompt: Prompt, options: ReplyOptions) -> int:
        """The most tokens that a reply may have.

        Raises:
          ApiError: more are asked for than there is room for, or the prompt is too long, empty or of other tokens.
        """
        size, context = len(prompt.tokens), self.model.model.config.max_positions
        if not size:
            raise wrong("prompt", "is empty; it needs at least one token")
        if not 0 <= min(prompt.tokens) <= max(prompt.tokens) < self.model.model.config.vocab_size:
            raise wrong("prompt", f"has a token that is not in the vocabulary of {self.model.model.config.vocab_size}")
        room, longest = context - size, self.config.max_reply_tokens or context
        max_tokens = options.max_tokens
        needed = 1 if max_tokens is None else max_tokens
        if room < needed:
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens. However, you requested {size + needed} "
                f"tokens ({size} in the prompt, {needed} in the completion). Please reduce the length of the prompt or "
                "completion.",
                "messages" if prompt.is_chat else "prompt",
                "context_length_exceeded",
            )
        if needed > longest:
            raise wrong("max_tokens", f"is {needed}; this server writes at most {longest} tokens a reply")
        return min(room, longest) if max_tokens is None else max_tokens

    # What holds for all requests

    def _answering(self, answer: Callable[[Request, dict[str, Any]], Awaitable[Response]]):
        """A route that writes: it takes a place among those at once, and reads a body within limits."""

        async def route(request: Request) -> Response:
            if self.busy >= self.config.max_requests:
                message = f"{self.busy} requests are under way, the most that this server takes at once; try again soon"
                raise ApiError(429, message, code="rate_limit_exceeded")
            self.busy += 1
            try:
                body = await self._body(request)
                self._check_name(body.get("model"))
                response = await answer(request, body)
            except BaseException:
                self.busy -= 1
                raise
            return _CountedResponse(response, self._leave)

        return self._keyed(route)

    def _leave(self) -> None:
        self.busy -= 1

    def _keyed(self, route: Callable[[Request], Awaitable[Response]]):
        """A route that needs the key; its errors are JSON."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_key(request.headers.get("authorization", ""))
                return await route(request)
            except ApiError as error:
                headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
                return JSONResponse(error.as_json(), error.status, headers)

        return guarded

    def _check_key(self, header: str) -> None:
        key = self.config.api_key
        if key and not hmac.compare_digest(header.encode(), f"Bearer {key}".encode()):
            problem = "the API key is wrong" if header else "there is no API key: send 'Authorization: Bearer KEY'"
            raise ApiError(401, problem, code="invalid_api_key")

    def _check_name(self, name: Any) -> None:
        if name not in (None, self.name):
            message = f"there is no model {name!r} here; the model is {self.name!r}"
            raise ApiError(404, message, "model", "model_not_found")

    async def _body(self, request: Request) -> dict[str, Any]:
        limit, size, chunks = self.config.max_body_mb * 1e6, 0, []
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise ApiError(413, f"the request is larger than {self.config.max_body_mb:g} MB, this server's limit")
            chunks.append(chunk)
        content = b"".join(chunks)
        try:
            body = json.loads(content)
            if rb"\ud" in content.lower():  # halves of surrogate pairs are no text
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise ApiError(400, "the body must be a JSON object")
        return body


class _CountedResponse:
    """A response that counts as a request under way until it is sent, or its client has gone."""

    def __init__(self, response: Response, leave: Callable[[], None]):
        self._response, self._leave = response, leave

    async def __call__(self, scope, receive, send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._leave()


async def _all(choices: Choices, request: Request) -> None:
    """Waits for all replies, or for the client to go.

    Raises:
      ApiError: the model failed, or there is nobody to answer.
    """

    async def arrived() -> None:
        async for _ in choices.arriving():
            pass

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(arrived()), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ApiError(499, "the client has gone")
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def _stream(
    choices: Choices, form: AnswerForm, options: ReplyOptions, prompt_tokens: int
) -> AsyncIterator[bytes]:
    """The chunks of a stream: each reply as it is written, then the counts if they are wanted."""
    counts = options.includes_usage
    try:
        with choices:
            started: set[int] = set()
            async for choice in choices.arriving():
                text, listed = choice.new_parts()
                is_first = choice.index not in started
                if not (text.content or text.thought or text.calls or listed or choice.reason or is_first):
                    continue
                started.add(choice.index)
                yield form.chunk([form.part(choice.index, text, choice.reason, listed, is_first)], None, counts)
        if counts:
            yield form.chunk([], usage(prompt_tokens, _written(choices)), counts)
    except ApiError as error:  # the status has been sent
        yield b"data: " + json.dumps(error.as_json()).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _written(choices: Choices) -> int:
    return sum(len(choice.tokens) for choice in choices.all)


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
    if status == 404:  # a client of the Responses API, say, or a base URL without /v1
        message += f"; there are {', '.join(route.path for route in request.app.routes)}"
    return JSONResponse(ApiError(status, message).as_json(), status, getattr(error, "headers", None))


async def _broken(_: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    return JSONResponse(ApiError(500, "the server failed").as_json(), 500)
