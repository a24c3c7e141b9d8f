"""How far a training loop is: a live line in a terminal, an ordinary line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO


class Progress:
    """Context manager around a training loop.

        with Progress(total=300, start=0, columns=("return", "success")) as progress:
            for i in range(300):
                progress.update(i, metrics)

    Args:
      total: iterations of the whole run.
      start: first iteration of this process; above 0 in a resumed run.
      columns: metrics to show, in this order. A metric not seen yet is left out.
      every_seconds: without a terminal, a line at most so often (and for the first and the last iteration).
      file: where to write; standard output if not given.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        columns: Sequence[str] = (),
        every_seconds: float = 10.0,
        file: TextIO | None = None,
    ):
        from rich.console import Console

        self.total, self.start, self.columns, self.every_seconds = total, start, tuple(columns), every_seconds
        self._console = Console(file=file or sys.stdout)
        self._shown: dict[str, float] = {}
        self._bar = self._task = None
        self._begun = self._spoken = 0.0

    def __enter__(self) -> Progress:
        self._begun = time.monotonic()
        if self._console.is_terminal:
            from rich import progress as rich_progress
            from rich.table import Column

            self._bar = rich_progress.Progress(
                rich_progress.BarColumn(bar_width=24),
                rich_progress.MofNCompleteColumn(),
                rich_progress.TimeElapsedColumn(),
                rich_progress.TimeRemainingColumn(),
                rich_progress.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task("compiling", total=self.total, completed=self.start)
        return self

    def update(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Iteration `iteration` (counted from 0) is done."""
        self._shown |= {name: float(metrics[name]) for name in self.columns if name in metrics}
        text = "  ".join(f"{name} {self._shown[name]:.3g}" for name in self.columns if name in self._shown)
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration + 1, description=text)
            return
        now = time.monotonic()
        first, last = iteration == self.start, iteration + 1 >= self.total
        if first or last or now - self._spoken >= self.every_seconds:
            self._spoken = now
            print(f"[{iteration + 1}/{self.total}] {text}  {self._pace(iteration + 1, now)}", file=self._console.file)
            self._console.file.flush()

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _pace(self, done: int, now: float) -> str:
        seconds = (now - self._begun) / max(done - self.start, 1)
        left = round(seconds * (self.total - done))
        return f"({seconds:.2f} s/it, {left // 60}:{left % 60:02d} left)"
