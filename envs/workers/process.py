"""A process that answers each line of JSON with another one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class WorkerLost(Exception):
    """A worker has died or was too slow; says which."""


class Process:
    """A program that answers each line of JSON on its input with one on its output.

    Args:
      command: starts it. variables: of its environment, beside ours.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None):
        self.command, self.variables = list(command), dict(variables or {})
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts the program, unless it runs."""
        if self.process is None:
            # What it prints beside its answers is shown to those who look for an error. In a session of its own, Ctrl-C
            # reaches only us, who end an iteration first, and all that it starts can be ended with it.
            stderr = None if os.environ.get("NLRL_TRACEBACK") else subprocess.DEVNULL
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
                env={**os.environ, **self.variables}, start_new_session=True,
            )  # fmt: skip

    def exchange(self, request: Any, patience: float) -> Any:
        """Asks and answers in JSON. Raises WorkerLost: it has ended, or took more than `patience` seconds and is ended.

        After that, it is not running.
        """
        is_late = threading.Event()
        try:
            self.start()
            deadline = threading.Timer(patience, lambda: (is_late.set(), self._kill()))
            deadline.start()
            try:
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            finally:
                deadline.cancel()
            if line.endswith("\n"):
                return json.loads(line)
            reason = ""
        except (OSError, ValueError) as error:
            reason = str(error)
        status = self.stop()
        reason = f"took longer than {patience:g} seconds" if is_late.is_set() else reason or f"ended ({status})"
        raise WorkerLost(f"its worker process {reason}")

    def stop(self) -> str:
        """Ends the process and what it has started -> how it ended."""
        if self.process is None:
            return ""
        status = self.process.poll()  # by itself
        self._kill()
        with contextlib.suppress(OSError):
            self.process.communicate()  # waits, and closes the pipes
        status = self.process.returncode if status is None else status
        self.process = None
        return f"signal {-status}" if status < 0 else f"status {status}"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def at_once(function: Callable[[Any, list[int]], None], workers: Sequence[Any], homes: Sequence[int]) -> None:
    """Calls function(worker, positions of its requests) for all workers that have some, at the same time.

    Args:
      homes: the number of the worker of each request.
    """
    queues: dict[int, list[int]] = {}
    for position, home in enumerate(homes):
        queues.setdefault(home, []).append(position)
    if len(queues) == 1:
        ((home, queue),) = queues.items()
        function(workers[home], queue)
    elif queues:
        with ThreadPoolExecutor(len(queues)) as threads:
            list(threads.map(function, [workers[home] for home in queues], queues.values()))


def stop_all(workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.stop()
