"""An OpenAI-compatible server on loopback that misbehaves on demand."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass
class Request:
    """What arrived: number from 0, in order of arrival; time by the monotonic clock."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    time: float

    @property
    def asked(self) -> str:
        return self.body["messages"][-1]["content"] if "messages" in self.body else self.body["prompt"]


Behaviour = Callable[[http.server.BaseHTTPRequestHandler, Request], None]


def answer(request: Request, n: int | None = None, **fields: Any) -> dict[str, Any]:
    """What a healthy server says: each choice names the last message, the seed and its place among the choices."""
    n = request.body.get("n", 1) if n is None else n
    texts = [f"re: {request.asked} [{request.body.get('seed')}/{i}]" for i in range(n)]
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 5 * n, "total_tokens": 10 + 5 * n}
    return {"object": "chat.completion", "choices": choices, "usage": usage, **fields}


def send(handler, body: bytes | dict, status: int = 200, **headers: str) -> None:
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.leave()  # before the client can know, and send the next
    handler.wfile.write(body)


def well(handler, request) -> None:
    send(handler, answer(request))


def says(change: Callable[[dict[str, Any]], Any]) -> Behaviour:
    """A healthy answer after a change."""

    def behave(handler, request):
        whole = answer(request)
        change(whole)
        send(handler, whole)

    return behave


def writes(text: str, finish_reason: str = "stop") -> Callable[[Request], Behaviour]:
    """Writes this, on both paths, whatever the question."""

    def behave(handler, request):
        whole = answer(request)
        for choice in whole["choices"]:
            choice["finish_reason"] = finish_reason
            choice["message"]["content"] = text
            if request.path.endswith("/v1/completions"):
                choice["text"] = choice.pop("message")["content"]
        send(handler, whole)

    return lambda request: behave


def slow(seconds: float) -> Behaviour:
    def behave(handler, request):
        time.sleep(seconds)
        well(handler, request)

    return behave


def status(code: int, body: str = "no", **headers: str) -> Behaviour:
    return lambda handler, request: send(handler, body.encode(), code, **headers)


def raw(body: bytes) -> Behaviour:
    return lambda handler, request: send(handler, body)


def half(handler, request) -> None:
    """A whole HTTP answer with half a JSON in it."""
    whole = json.dumps(answer(request)).encode()
    send(handler, whole[: len(whole) // 2])


def cut(handler, request) -> None:
    """The connection ends in the middle of the body."""
    whole = json.dumps(answer(request)).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])
    handler.wfile.flush()
    handler.close_connection = True


def closed(handler, request) -> None:
    """The connection ends without an answer."""
    handler.close_connection = True


def drips(head: bytes, body: bytes = b"") -> Behaviour:
    """One byte each 50 ms after this: no single read times out."""

    def behave(handler, request):
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + head)
            for byte in body + b"x" * 1000:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)

    return behave


def choices(n: int) -> Behaviour:
    """This many choices, whatever was asked for."""
    return lambda handler, request: send(handler, answer(request, n))


null = says(lambda whole: [choice["message"].update(content=None) for choice in whole["choices"]])


def echo_key(code: int) -> Behaviour:
    """Refuses and says with which key one came."""
    return lambda handler, request: send(handler, {"error": f"bad {request.headers['Authorization']}"}, code)


class Server:
    """The server while its `with` block runs.

    Attributes:
      plan: behaviours of the first requests, in order of arrival; the rest goes well.
      behaviour: request -> behaviour, instead of the plan.
      requests: what has arrived.
      most_at_once: the greatest number of requests that were open at one time.
      url: to give as base_url.
    """

    def __init__(self, *plan: Behaviour, behaviour: Callable[[Request], Behaviour] | None = None):
        self.plan, self.behaviour = list(plan), behaviour
        self.requests: list[Request] = []
        self.most_at_once = self._open = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Server:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                server._serve(self)

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_):
                pass  # a client that hung up

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._http.shutdown()
        self._http.server_close()

    def asked(self) -> Iterator[str]:
        return (request.asked for request in self.requests)

    def _serve(self, handler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            request = Request(len(self.requests), handler.path, dict(handler.headers), body, time.monotonic())
            self.requests.append(request)
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
        inside = [None]

        def leave():
            with self._lock:
                self._open -= len(inside)
                inside.clear()

        handler.leave = leave
        try:
            if self.behaviour is not None:
                behave = self.behaviour(request)
            else:
                behave = self.plan[request.number] if request.number < len(self.plan) else well
            behave(handler, request)
        finally:
            leave()
