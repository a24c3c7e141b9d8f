"""Which other process of a run has ended, and why, learned through JAX's coordination service.

Every process keeps counting up under `beat/` in the service's key-value store; the process whose count stands still has
died. A process that fails writes its reason under `ended/`. JAX's own heartbeat notices the death of a process whose
peers wait without a collective; its report becomes the same sentence.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import jax
from jax._src import distributed
from jax._src.lib import _jax

HEARTBEAT = 15  # seconds without a sign of life after which JAX takes a process for dead
_INTERVAL = 0.5  # seconds between two counts
_PAUSE = 3.0  # seconds in which a dead process's count has visibly stood still, or a living one has told its reason
_PATIENCE = 300  # seconds for the others to end, such as the first one, which writes the report
_ROOM = "nlrl_jax/"  # in the key-value store


class Peers:
    """The processes of a run as this one sees them, from `join` on.

    Args:
      process: the number of this process. count: of all processes.
    """

    def __init__(self, process: int, count: int):
        self.process, self.count = process, count
        self.reason = ""  # why another process has failed, in its own words
        self._client = distributed.global_state.client
        self._last_change = [time.monotonic()] * count  # of each process's count
        self._is_first_silent = False  # the first process holds the store
        self._ended, self._exit_lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def exchange(self, facts: Mapping[str, Any], patience: float) -> list[dict[str, Any]]:
        """The facts (JSON) of all processes, in order of their numbers."""
        self._client.key_value_set(f"{_ROOM}facts/{self.process}", json.dumps({**facts, "--num_processes": self.count}))

        def read(process: int) -> dict[str, Any]:
            return json.loads(self._client.blocking_key_value_get(f"{_ROOM}facts/{process}", int(1000 * patience)))

        first = read(0)
        return [first, *(read(process) for process in range(1, first["--num_processes"]))]

    def leave(self) -> None:
        """Waits until the work of all processes is done."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.wait_at_barrier(f"{_ROOM}end", 1000 * _PATIENCE)
        # A thread within a call of the store would abort the interpreter's end.
        self._ended.set()
        self._thread.join()

    def verdict(self) -> str:
        """Why another process has ended; "" where none has. Takes a few seconds."""
        time.sleep(_PAUSE)
        silent = min(range(self.count), key=self._last_change.__getitem__)
        silence = time.monotonic() - self._last_change[silent]
        if self.reason or silence < _PAUSE - 2 * _INTERVAL:
            return self.reason
        # Without the first process the store is gone, and every count seems to stand still from then on.
        silent = 0 if self._is_first_silent and silence < HEARTBEAT / 2 else silent
        return f"process {silent} of this run died; start all again with --resume"

    def exit(self, status: str | int, reason: str = "") -> NoReturn:
        """Ends this process at once, as an ordinary exit would wait for the others.

        Args:
          status: an exit status, or what to print. reason: tells the others why this process has failed.
        """
        self._exit_lock.acquire()  # for good: the thread that comes first speaks
        try:
            if isinstance(status, str):
                print(status, file=sys.stderr)
            if reason:
                text = f"process {self.process} ended: {reason[:1000]}"
                self._client.key_value_set(f"{_ROOM}ended/{self.process}", text)
                if self.process == 0:
                    time.sleep(_PAUSE / 2)  # the store ends with this process, and the others are to read it
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads what is printed, or the store is gone
            os._exit(status if isinstance(status, int) else 1)

    def _watch(self) -> None:
        """Counts up, and reads the counts and the reasons of the others."""
        counts: dict[str, str] = {}
        number = 0
        while not self._ended.wait(_INTERVAL):
            number += 1
            try:
                self._client.key_value_set(f"{_ROOM}beat/{self.process}", str(number), allow_overwrite=True)
                rows = self._client.key_value_dir_get(f"{_ROOM}beat/")
                reasons = self._client.key_value_dir_get(f"{_ROOM}ended/")
            except jax.errors.JaxRuntimeError:
                self._is_first_silent = True
                return
            for key, count in rows:
                if counts.get(key) != count:
                    counts[key] = count
                    self._last_change[int(key.rpartition("/")[2])] = time.monotonic()
            if reasons:
                self.reason = reasons[0][1]
                time.sleep(_PAUSE)  # in which this process may end by itself, with a reason of its own
                self.exit(f"error: {self.reason}")


def join(address: str, count: int, process: int, patience: float) -> Peers:
    """Joins JAX's coordination service, before JAX looks for devices."""
    peers: list[Peers] = []

    def lost(*status: Any) -> None:
        """Called by JAX instead of ending this process with a stack trace when another one has died."""
        if peers:
            peers[0].exit(f"error: {peers[0].verdict() or 'JAX lost the other processes of this run'}")

    connect = _jax.get_distributed_runtime_client
    # jax.distributed.initialize has no argument for the callback.
    _jax.get_distributed_runtime_client = functools.partial(connect, missed_heartbeat_callback=lost)
    try:
        jax.distributed.initialize(
            address, count, process, initialization_timeout=int(patience), heartbeat_timeout_seconds=HEARTBEAT
        )
    finally:
        _jax.get_distributed_runtime_client = connect
    peers.append(Peers(process, count))
    _call_at_terminate(lost)
    return peers[0]


def _call_at_terminate(function: Any) -> None:
    """Calls a function where C++ would abort: jaxlib 0.10.2 calls no callback of Python's, as it cannot convert the
    status that is its argument, and throws std::bad_cast instead."""
    global _handler
    _handler = ctypes.CFUNCTYPE(None)(function)  # C++ keeps no reference
    library = ctypes.CDLL("libstdc++.so.6" if sys.platform == "linux" else None)
    library._ZSt13set_terminatePFvvE(_handler)  # std::set_terminate
