"""Servers in a thread of the test's process: over a tiny random model, or over replies that a test has written."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import jax

from nlrl_jax.backends.batch_worker import STOP, Generation, WrittenToken
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run.serving.config import LOOPBACK, ServerConfig, bound
from nlrl_jax.run.serving.prompts import PromptWriter
from nlrl_jax.run.serving.server import ModelServer
from nlrl_jax.weights.load import load_tokenizer


def tiny(tokenizer: str = "nano_board", positions: int = 320, rows: int = 8) -> LocalModel:
    """A random model that hardly ever ends a reply by itself."""
    text_side = load_tokenizer(tokenizer)
    network = Transformer(ModelConfig(text_side.vocab_size, 16, 24, 1, 2, 1, 8, positions))
    params = jax.tree.map(lambda leaf: leaf * 3, init_params(network, jax.random.key(0)))
    return LocalModel(network, {"params": params}, text_side, rows, kv_session=Session(20))


@contextlib.contextmanager
def running(server: ModelServer) -> Iterator[str]:
    """The address of a server while it runs."""
    http = server.http_server()
    with bound(dataclasses.replace(server.config, port=0)) as listener:
        thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: http.started)
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        finally:
            http.should_exit = True
            thread.join(20)


def serving(model: LocalModel, name: str = "m", **config) -> ModelServer:
    return ModelServer(name, model, PromptWriter(model.tokenizer), ServerConfig(**config))


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


class ScriptedWorker:
    """Writes these replies in turn, a few tokens at a time, in place of the model; None is one that never ends."""

    def __init__(self, model: LocalModel, replies: Sequence[str | None], size: int = 3):
        self.model, self.replies, self.size = model, list(replies), size
        self.cancelled = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def warm_up(self) -> None:
        pass

    def submit(self, job: Generation) -> None:
        threading.Thread(target=self._write, args=(job, self.replies.pop(0)), daemon=True).start()

    def _write(self, job: Generation, reply: str | None) -> None:
        tokenizer = self.model.tokenizer
        while reply is None:
            job.listener.more([WrittenToken(tokenizer.encode("a")[0], -1.0)], "")
            if job.is_cancelled:
                self.cancelled.set()
                return
            time.sleep(0.01)
        ids = [*tokenizer.encode(reply), tokenizer.eos_ids[0]]
        for start in range(0, len(ids), self.size):
            new = [WrittenToken(token, -0.5) for token in ids[start : start + self.size]]
            if not job.listener.more(new, STOP if start + self.size >= len(ids) else ""):
                return


@contextlib.contextmanager
def scripted(*replies: str | None, template: str | None = None, **config) -> Iterator[tuple[str, ScriptedWorker]]:
    """The address of a server whose model says these replies, and its worker."""
    model = tiny(positions=2048)
    if template is not None:
        model = dataclasses.replace(model, tokenizer=dataclasses.replace(model.tokenizer, chat_template=template))
    server = serving(model, **config)
    server.worker = ScriptedWorker(model, replies)
    with running(server) as url:
        yield url, server.worker
