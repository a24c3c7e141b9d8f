"""Processes that run the engine, one game's requests always in the same one.

A worker that dies, or does not answer in time, is replaced, and the request is made once more: an engine can repeat an
episode from its commands. If that fails too the game is given up.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

_PROGRAM = pathlib.Path(__file__).with_name("engine.py")
_PATIENCE = 120.0  # seconds for one request; the slowest seen took 4


class EngineRequest(NamedTuple):
    """A command to run in a game, after those before it.

    Attributes:
      problem: PDDL.
      commands: those so far.
      action: the next one; None: only the last observation.
    """

    problem: str
    commands: tuple[str, ...]
    action: str | None


class EngineAnswer(NamedTuple):
    """What an engine answers to a command.

    Attributes:
      observation: in words.
      won: the goal is reached.
      error: why there is no answer, else empty.
    """

    observation: str = ""
    won: bool = False
    error: str = ""


class _Worker:
    """One process."""

    def __init__(self, data: pathlib.Path, patience: float):
        self.data, self.patience = data, patience
        self.process: subprocess.Popen | None = None

    def ask(self, request: EngineRequest) -> EngineAnswer:
        """Answers a request; an engine that is lost is started anew once."""
        for _ in range(2):
            try:
                reply = json.loads(self._exchange(json.dumps(request._asdict())))
                return EngineAnswer(**reply)
            except (OSError, ValueError, EOFError) as problem:
                reason = str(problem)
                self.stop()
        return EngineAnswer(error=f"its engine was lost twice at the same command ({reason})")

    def _exchange(self, line: str) -> str:
        """Exchanges one line; a process that takes longer than `patience` is killed and answers nothing."""
        if self.process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen([sys.executable, str(_PROGRAM), str(self.data)], text=True, **pipes)
        deadline = threading.Timer(self.patience, self.process.kill)
        deadline.start()
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        finally:
            deadline.cancel()
        if not reply.endswith("\n"):
            raise EOFError(f"the process ended, or took longer than {self.patience:.0f} seconds")
        return reply

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate()  # waits, and closes the pipes
            self.process = None


class Workers:
    """A pool; its processes start at the first request and end with it, or with this process.

    Args:
      data: the folder with ALFWorld's domain and grammar.
      number: of processes; 0 is one per core, at most 8.
      patience: seconds that a request may take.
    """

    def __init__(self, data: pathlib.Path, number: int = 0, patience: float = _PATIENCE):
        self.workers = [_Worker(data, patience) for _ in range(number or min(8, os.cpu_count() or 1))]
        self.homes: dict[str, int] = {}  # problem -> its worker
        weakref.finalize(self, _stop_all, self.workers)

    def ask(self, requests: Sequence[EngineRequest]) -> list[EngineAnswer]:
        """Answers each request; those of different workers are served at the same time."""
        queues: list[list[int]] = [[] for _ in self.workers]
        for i, request in enumerate(requests):
            home = self.homes.setdefault(request.problem, len(self.homes) % len(self.workers))
            queues[home].append(i)
        answers: dict[int, EngineAnswer] = {}

        def serve(worker: _Worker, queue: Sequence[int]) -> None:
            answers.update({i: worker.ask(requests[i]) for i in queue})

        with ThreadPoolExecutor(len(self.workers)) as threads:
            list(threads.map(serve, self.workers, queues))
        return [answers[i] for i in range(len(requests))]


def _stop_all(workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.stop()
