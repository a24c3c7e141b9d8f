"""The moves of a run on disk, each step once it is made."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

from nlrl_jax.files import dump_json, write_atomically
from nlrl_jax.rollouts.host_games import StepDecisions


class _Stopped(Exception):
    """Another batch has failed."""


class Journal:
    """The moves of a run, on disk once they are made. Batches that run concurrently may share it.

    Attributes:
      rows: one for each step, or for each plan of all steps; those of an interrupted run first.
    """

    def __init__(self, path: pathlib.Path | None):
        self.path, self.rows, self.stopped = path, _read(path), False
        self._lock = threading.Lock()

    def moves(self, batch: int) -> list[dict[str, Any]]:
        """The moves of a batch so far, as the fields of `StepDecisions`."""
        moves = [move for row in self.of(batch) for move in row.get("plan", [row])]
        return [{name: move[name] for name in StepDecisions._fields if name in move} for move in moves]

    def of(self, batch: int) -> list[dict[str, Any]]:
        """The rows of a batch."""
        return [row for row in self.rows if row["part"] == batch]

    def drop(self, batch: int, rows: int) -> None:
        """Takes back the rows of a batch after the first `rows`."""
        with self._lock:
            dropped = set(map(id, self.of(batch)[rows:]))
            self.rows = [row for row in self.rows if id(row) not in dropped]
            if dropped and self.path:
                _write(self.path, self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Raises `_Stopped`, after writing, where the run has been `stopped`."""
        with self._lock:
            line = dump_json(row, self.path or "a step") + "\n"
            self.rows.append(row)
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(line)
        if self.stopped:
            raise _Stopped


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
    _write(journal, rows)
    return rows


def _write(journal: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    write_atomically(journal, "".join(dump_json(row, journal) + "\n" for row in rows))
