"""Parts of a run that are played at once, in threads: a journal on disk, and a model and a game for each."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nlrl_jax.backends.by_role import ByRole
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.usage import Metered
from nlrl_jax.files import write_atomically
from nlrl_jax.types import HostGame, LanguageModel

A = TypeVar("A")


class _Stopped(Exception):
    """Another part has failed."""


class Journal:
    """The moves of a run, on disk once they are made. Parts that run at once may share it.

    Attributes:
      rows: all moves, those of an interrupted run first.
    """

    def __init__(self, path: pathlib.Path | None):
        self.path, self.rows, self.stopped = path, _read(path), False
        self._lock = threading.Lock()

    def of(self, part: int) -> list[dict[str, Any]]:
        """The moves of a part so far."""
        return [row for row in self.rows if row["part"] == part]

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Raises `_Stopped` behind the writing where the run has been `stopped`."""
        with self._lock:
            self.rows += rows
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write("".join(json.dumps(row) + "\n" for row in rows))
        if self.stopped:
            raise _Stopped


def in_threads(run: Callable[[int], A], number: int, jobs: int, journal: Journal) -> list[A]:
    """run(0), run(1), ..., `jobs` at once. Where one fails, the others end after their step."""
    if jobs == 1:
        return [run(i) for i in range(number)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, i) for i in range(number)]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            journal.stopped = True
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def alone(model: LanguageModel, jobs: int) -> LanguageModel:
    """The model with an empty cache of its own, where it has one."""
    if isinstance(model, Metered):
        own = alone(model.model, jobs)
        return model if own is model.model else Metered(own, model.usage)
    if isinstance(model, ByRole):
        others = {role: alone(one, jobs) for role, one in model.others.items()}
        return ByRole(alone(model.model, jobs), others)
    if not isinstance(model, LocalModel) or model.cache is None:
        return model
    return dataclasses.replace(model, cache_mb=model.cache_mb / jobs)


def one_at_a_time(game: HostGame) -> HostGame:
    """The game for several threads."""
    lock = threading.Lock()

    def locked(call):
        def one(*args):
            with lock:
                return call(*args)

        return one

    return dataclasses.replace(game, reset=locked(game.reset), step=locked(game.step))


def inner_model(model: LanguageModel) -> LanguageModel:
    """The model behind a meter; of models by role, the one that answers most roles."""
    return inner_model(model.model) if isinstance(model, Metered | ByRole) else model


def _read(journal: pathlib.Path | None) -> list[dict[str, Any]]:
    """The moves of an interrupted run; a line that a kill has cut is dropped, and with it the file is cleaned."""
    if journal is None or not journal.is_file():
        return []
    rows = []
    for line in journal.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    write_atomically(journal, "".join(json.dumps(row) + "\n" for row in rows))
    return rows
