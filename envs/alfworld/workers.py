"""Processes that run the engine, one game's requests always in the same one.

A worker that dies, or does not answer in time, is replaced, and the request is made once more: an engine can repeat an
episode from its commands. If that fails too the game is given up.
"""

from __future__ import annotations

import os
import pathlib
import sys
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from nlrl_jax.envs.workers import TIMEOUT
from nlrl_jax.envs.workers.process import Process, WorkerLost, at_once, stop_all

_PROGRAM = pathlib.Path(__file__).with_name("engine.py")


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


class _Worker(Process):
    """One process."""

    def __init__(self, data: pathlib.Path, patience: float):
        super().__init__([sys.executable, str(_PROGRAM), str(data)])
        self.patience = patience

    def ask(self, request: EngineRequest) -> EngineAnswer:
        """Answers a request; an engine that is lost is started anew once."""
        for _ in range(2):
            try:
                return EngineAnswer(**self.exchange(request._asdict(), self.patience))
            except WorkerLost as loss:
                reason = str(loss)
        return EngineAnswer(error=f"its engine was lost twice at the same command ({reason})")


class Workers:
    """A pool; its processes start at the first request and end with it, or with this process.

    Args:
      data: the folder with ALFWorld's domain and grammar.
      number: of processes; 0 is one per core, at most 8.
      patience: seconds that a request may take; the slowest seen took 4.
    """

    def __init__(self, data: pathlib.Path, number: int = 0, patience: float = TIMEOUT):
        self.workers = [_Worker(data, patience) for _ in range(number or min(8, os.cpu_count() or 1))]
        self.homes: dict[str, int] = {}  # problem -> its worker
        weakref.finalize(self, stop_all, self.workers)

    def ask(self, requests: Sequence[EngineRequest]) -> list[EngineAnswer]:
        """Answers each request; those of different workers are served at the same time."""
        homes = [self.homes.setdefault(request.problem, len(self.homes) % len(self.workers)) for request in requests]
        answers: dict[int, EngineAnswer] = {}

        def serve(worker: _Worker, queue: list[int]) -> None:
            answers.update({i: worker.ask(requests[i]) for i in queue})

        at_once(serve, self.workers, homes)
        return [answers[i] for i in range(len(requests))]
