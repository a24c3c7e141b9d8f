"""The ledger of a run: calls, tokens, seconds and cache hits of its language models, by role."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.files import write_json
from nlrl_jax.types import LanguageModelError

CHECK = "check"  # the role of the requests before a run
_log = logging.getLogger(__name__)


class BudgetExceeded(LanguageModelError):
    """The token budget is spent. Every reply that was paid for is in the cache, if there is one."""


@dataclasses.dataclass
class RoleUsage:
    """The sums of one role.

    Attributes:
      calls: replies and scores.
      prompt_tokens, tokens: read and written. Cached replies count as none. A score counts the tokens it reads.
      paid: the tokens, read and written, of an endpoint, counted as each response arrives, useful or not. A request
        that was sent and has no answer, because of a kill or a time-out, counts as a quarter of its bytes and all that
        its response could hold.
      seconds: wall time inside the model, also of calls that raised.
      cache_hits: calls that came from a cache.
      cut: replies that reached `max_tokens` or never came.
      refused: prompts or replies stopped by a content filter or by the model itself.
      retries: requests that were sent again.
      estimated: responses without token counts; a quarter of the bytes sent and received counts instead.
      unanswered: requests that were sent and have no answer.
    """

    calls: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    paid: int = 0
    seconds: float = 0.0
    cache_hits: int = 0
    cut: int = 0
    refused: int = 0
    retries: int = 0
    estimated: int = 0
    unanswered: int = 0


class Usage:
    """The sums of a run by role. Any number of models and threads may share one.

    With a folder it is on disk (`usage.json`) after every change, from the first request after the checks on, so
    neither a kill nor a resume loses a count. A request under way is on disk as one without an answer.

    Attributes:
      section: goes in front of each role's name, e.g. "medium_2x1/"; a script may change it between its parts.
    """

    def __init__(self, folder: pathlib.Path | None = None):
        self.section = ""
        self._path = None if folder is None else folder / "usage.json"
        self._lock = threading.Lock()
        # A resumed run goes on from the sums that it left.
        rows = json.loads(self._path.read_text()) if self._path and self._path.exists() else []
        self._roles = {row.pop("role"): RoleUsage(**row) for row in rows}
        self._open: dict[str, list[int]] = {}  # the tokens of requests under way, by role
        # Requests of a killed run: said once, before the first new one is sent.
        self._lost = sum(row.unanswered for row in self._roles.values())

    def add(self, role: str, **amounts: float) -> None:
        """Adds to the sums of a role; the names are those of `RoleUsage`."""
        with self._lock:
            self._add(role, amounts)
            self._write()

    def sent(self, role: str, max_cost: int) -> None:
        """A request is about to be sent that costs so many tokens at most."""
        with self._lock:
            if self._lost:
                _log.warning(
                    "requests that were sent and have no answer: %d (the run was stopped, or they took too long); they "
                    "count as paid and are sent again", self._lost,
                )  # fmt: skip
            self._lost = 0
            self._open.setdefault(self.section + role, []).append(max_cost)
            self._write()

    def arrived(self, role: str, max_cost: int, lost: bool = False, **amounts: float) -> None:
        """Adds what a request has cost that `sent` was told of; lost: it has no answer, and counts as paid."""
        with self._lock:
            self._open[self.section + role].remove(max_cost)
            self._add(role, _unanswered([max_cost]) if lost else amounts)
            self._write()

    def take(self, source: Usage) -> None:
        """Moves another ledger's sums into this one."""
        for row in source.rows():
            self.add(row.pop("role"), **row)
        source._roles.clear()

    def rows(self) -> list[dict[str, Any]]:
        """One row per role, sorted by name: {"role": ..., "calls": ..., ...}."""
        with self._lock:
            return self._rows()

    def check_budget(self, tokens: int) -> None:
        """Raises BudgetExceeded where this many tokens are paid for; 0 is no limit."""
        paid = sum(row["paid"] for row in self.rows())
        if 0 < tokens <= paid:
            raise BudgetExceeded(
                f"{paid} tokens are spent and the limit is {tokens}; raise --token_budget and run again: cached "
                "replies are not paid for twice"
            )

    def _add(self, role: str, amounts: Mapping[str, float]) -> None:
        sums = self._roles.setdefault(self.section + role, RoleUsage())
        for name, amount in amounts.items():
            setattr(sums, name, getattr(sums, name) + amount)

    def _rows(self, with_open: bool = False) -> list[dict[str, Any]]:
        """The rows; with_open: requests under way are without an answer."""
        rows = {role: dataclasses.asdict(sums) for role, sums in self._roles.items()}
        for role, tokens in self._open.items() if with_open else ():
            row = rows.setdefault(role, dataclasses.asdict(RoleUsage()))
            rows[role] = row | {name: row[name] + amount for name, amount in _unanswered(tokens).items()}
        return [{"role": role, **rows[role]} for role in sorted(rows)]

    def _write(self) -> None:
        if self._path is None:
            return
        rows = self._rows(with_open=True)
        if any(row["calls"] or row["paid"] for row in rows if row["role"] != CHECK):
            write_json(self._path, rows, indent=2)
        else:
            self._path.unlink(missing_ok=True)  # checks alone leave no file: the folder stays free for another run


def _unanswered(tokens: Sequence[int]) -> dict[str, int]:
    return {"paid": sum(tokens), "estimated": len(tokens), "unanswered": len(tokens)}
