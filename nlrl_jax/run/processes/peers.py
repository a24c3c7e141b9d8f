"""Which other process of a run has ended, and why, learned through JAX's coordination service.

JAX's heartbeat notices that a process has died, but does not tell Python which: every process counts up under `beat/`
in the service's key-value store, and the count of a dead one stands still. A process that fails writes its reason under
`ended/`.
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
_PAUSE = 3.0  # seconds in which the other processes have read a reason, or tell one of their own
_PATIENCE = 300  # seconds for the others to end, such as the first one, which writes the report
_ROOM = "nlrl_jax/"  # in the key-value store


class Peers:
    """The processes of a run as this one sees them, once it has joined JAX's coordination service.

    Args:
      address: of process 0. count: of all processes. process: the number of this one.
      patience: seconds to wait until all have joined.

    Raises:
      RuntimeError: they have not.
    """

    def __init__(self, address: str, count: int, process: int, patience: float):
        self.process, self.count = process, count
        self._reason = ""  # why another process has failed, in its own words
        self._last_change = [time.monotonic()] * count  # of each process's count
        self._ended, self._exit_lock = threading.Event(), threading.Lock()
        # jax.distributed.initialize has no argument for the callback.
        connect = _jax.get_distributed_runtime_client
        _jax.get_distributed_runtime_client = functools.partial(connect, missed_heartbeat_callback=self.lost)
        try:
            jax.distributed.initialize(
                address, count, process, initialization_timeout=int(patience), heartbeat_timeout_seconds=HEARTBEAT
            )
        finally:
            _jax.get_distributed_runtime_client = connect
        # jaxlib 0.10.2 cannot convert the callback's argument to Python: C++ throws std::bad_cast, and would abort.
        self._handler = ctypes.CFUNCTYPE(None)(self.lost)  # C++ keeps no reference
        library = ctypes.CDLL("libstdc++.so.6" if sys.platform == "linux" else None)
        library._ZSt13set_terminatePFvvE(self._handler)  # std::set_terminate
        self._client = distributed.global_state.client
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

    def lost(self, *_: Any) -> NoReturn:
        """Ends this process because another one has died or failed; JAX calls this when its heartbeat stops."""
        silent = min(range(self.count), key=self._last_change.__getitem__)
        # The store is in the first process: where all have counted until just now, that one is gone.
        silent = silent if time.monotonic() - self._last_change[silent] > HEARTBEAT / 2 else 0
        self.exit(f"error: {self._reason or f'process {silent} of this run died; start all again with --resume'}")

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
            except jax.errors.JaxRuntimeError:  # the store is gone, as JAX notices, too
                return
            for key, count in rows:
                if counts.get(key) != count:
                    counts[key] = count
                    self._last_change[int(key.rpartition("/")[2])] = time.monotonic()
            if reasons:
                self._reason = reasons[0][1]
                time.sleep(_PAUSE)  # in which this process may end by itself, with a reason of its own
                self.lost()
