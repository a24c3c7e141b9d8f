"""Metrics of a run: metrics.jsonl is the truth; TensorBoard, metrics.csv and wandb show the same numbers.

metrics.jsonl holds one line per iteration, `{"iteration": 3, "return": 0.25, ...}`, and nothing that
depends on the clock: a run that was killed and resumed leaves the same bytes as one that was not.
Seconds are in timings.jsonl. Numbers that JSON has no word for are the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nlrl_jax.run.metric_sinks import sinks_of

_WORDS = {  # metrics whose names say too little on a page
    "env_return": "return of the game",
    "env_return_std": "standard deviation of the return",
    "env_reward": "return less fines for invalid actions",
    "kl": "KL divergence",
    "grad_norm": "gradient norm",
    "row_use": "share of row steps that write a token",
}
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


def words(name: str) -> str:
    """A metric's name as a page and a picture call it: "eval/env_return" is "return of the game, evaluated", and with
    "/snake" behind it "return of the game, evaluated in snake"."""
    metric = name.removeprefix("eval/")
    whole, _, kind = metric.partition("/")
    if kind and whole in _WORDS:
        return words(name.removesuffix(f"/{kind}")) + f" in {kind}"
    return _WORDS.get(metric, metric.replace("_", " ")) + ", evaluated" * (metric != name)


class MetricsWriter:
    """Appends metrics to a run's folder. One process at a time (`directory.open_run` sees to it).

    Args:
      run_dir: the run's folder.
      resume_from: the next iteration to run; lines from there on, and a line cut off by a kill, are dropped. None: a
        new run.

    Raises:
      ValueError: a new run, but there are metrics already; or a line in the middle of the file is damaged.
    """

    def __init__(self, run_dir: str | os.PathLike, resume_from: int | None = None):
        run_dir = pathlib.Path(run_dir)
        for name in (METRICS, TIMINGS):
            path = run_dir / name
            if resume_from is not None:
                _drop_from(path, resume_from)
            elif path.exists() and path.stat().st_size:
                raise ValueError(f"{path} already holds a run's metrics; resume it or choose another --run_dir")
        self._sinks = sinks_of(run_dir, read_rows(run_dir))
        self._metrics = open(run_dir / METRICS, "a", encoding="utf-8")  # noqa: SIM115
        self._timings = open(run_dir / TIMINGS, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, iteration: int, metrics: Mapping[str, Any], seconds: float | None = None) -> None:
        """Appends one iteration's scalars and its duration. A kill of the process after the return loses nothing.

        Raises:
          ValueError: a metric is named "iteration".
        """
        if "iteration" in metrics:
            raise ValueError('a metric cannot be named "iteration"')
        metrics = {name: float(value) for name, value in metrics.items()}
        row = {"iteration": int(iteration), **metrics}
        _append(self._metrics, row)
        if seconds is not None:
            _append(self._timings, {"iteration": int(iteration), "seconds": float(seconds)})
        for sink in self._sinks:
            sink.add(row)

    def close(self) -> None:
        """Flushes and closes the files."""
        self._metrics.close()
        self._timings.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def read_rows(run_dir: str | os.PathLike, name: str = METRICS) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl (or timings.jsonl) in order; "iteration" is an int, the others are floats.

    An incomplete last line (being written, or cut off by a kill) is left out; without a file there are no rows.

    Raises:
      ValueError: another line is damaged.
    """
    return [row for _, row in _parse(pathlib.Path(run_dir) / name)]


def read_metrics(run_dir: str | os.PathLike, name: str = METRICS) -> dict[str, np.ndarray]:
    """metrics.jsonl by column: "iteration" int64 [N], every other metric float64 [N], nan where it was not written."""
    rows = read_rows(run_dir, name)
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {key: np.array([row.get(key, math.nan) for row in rows], np.float64) for key in names}
    return columns | {"iteration": np.array([row["iteration"] for row in rows], np.int64)}


def _append(file, row: dict[str, Any]) -> None:
    row = {name: value if math.isfinite(value) else str(value) for name, value in row.items()}
    file.write(json.dumps(row, allow_nan=False) + "\n")
    file.flush()


def _parse(path: pathlib.Path) -> list[tuple[bytes, dict[str, Any]]]:
    """(raw line, row) of every complete line."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it does not end")
            row = json.loads(line)
            row = {name: value if name == "iteration" else float(value) for name, value in row.items()}
            if type(row["iteration"]) is not int:
                raise ValueError("iteration is not a number")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}, is damaged ({error}): {line[:80]!r}") from None
        rows.append((line, row))
    return rows


def _drop_from(path: pathlib.Path, iteration: int) -> None:
    remaining = [line for line, row in _parse(path) if row["iteration"] < iteration]
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(b"".join(remaining))
    os.replace(temporary, path)
