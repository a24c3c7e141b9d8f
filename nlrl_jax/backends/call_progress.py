"""Progress of an endpoint's calls: calls done of how many, tokens, what is left of the budget, and the time left."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from nlrl_jax.backends.usage import Usage

QUIET = 2.0  # seconds of work before anything is shown in a terminal
EVERY = 30.0  # seconds between lines elsewhere


class CallProgress:
    """Shows the calls under way: in a terminal one line that changes, elsewhere a line every `EVERY` seconds.

    Any number of threads may `begin` and `done`; the calls of all of them are counted together.

    Args:
      usage, token_budget: for the tokens; 0 is no limit.
      file: where to write; standard error by default.
    """

    def __init__(self, usage: Usage, token_budget: int = 0, file: TextIO | None = None):
        self.usage, self.token_budget, self._file = usage, token_budget, file
        self.total = self.finished = 0
        self._begun = self._shown = 0.0
        self._width = 0
        self._lock = threading.Lock()

    def begin(self, calls: int) -> None:
        """So many further calls are to be made."""
        with self._lock:
            if self.finished >= self.total:  # nothing is under way: a new count
                self.total = self.finished = 0
                self._begun = self._shown = time.monotonic()
            self.total += calls

    def done(self, calls: int = 1) -> None:
        """So many have been answered, or have been given up."""
        with self._lock:
            self.finished += calls
            self._show()

    def waiting(self, reason: str) -> None:
        """A call has failed and is made again after a while."""
        with self._lock:
            self._show(f"; {reason}")

    def text(self) -> str:
        """The line, without the time left before one call is done."""
        paid = sum(row["paid"] for row in self.usage.rows())
        parts = [f"endpoint: {self.finished:,} of {self.total:,} calls", f"{paid:,} tokens"]
        if self.token_budget:
            parts.append(f"{max(self.token_budget - paid, 0):,} left of the budget")
        if 0 < self.finished < self.total:
            seconds = (time.monotonic() - self._begun) / self.finished * (self.total - self.finished)
            parts.append(f"about {int(seconds) // 60}:{int(seconds) % 60:02d} left")
        return ", ".join(parts)

    def _show(self, suffix: str = "") -> None:
        file, now = self._file or sys.stderr, time.monotonic()
        if file.isatty() and (self._file or file is sys.__stderr__):  # not where a bar of rich prints what comes by
            if self.finished >= self.total:
                text = ""
            elif now - self._begun < QUIET or now - self._shown < 0.2:  # a flickering line cannot be read
                return
            else:
                text = self.text() + suffix
            if text or self._width:
                file.write(f"\r{text.ljust(self._width)}" + "\r" * (not text))  # blanks over a longer line before
                file.flush()
            self._shown, self._width = now, len(text)
        elif now - self._shown >= EVERY:
            self._shown = now
            print(self.text() + suffix, file=file, flush=True)
