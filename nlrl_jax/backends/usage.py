"""What the language models of a run were used for: calls, tokens, seconds and cache hits by role."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from nlrl_jax.backends.budget import Account
from nlrl_jax.files import write_atomically
from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score


@dataclasses.dataclass
class RoleUsage:
    """Sums over everything one role asked for.

    Attributes:
      calls: replies and scores.
      prompt_tokens, tokens: read and written. What came from a cache counts as none. A score has read its tokens. Of a
        call that raised, what the model's account says was paid for all the same.
      seconds: wall time inside the model, also of calls that raised.
      cache_hits: calls that came from a cache.
      cut: replies that did not end.
    """

    calls: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cache_hits: int = 0
    cut: int = 0


class Usage:
    """The accounts of a run; any number of models and threads may write into one."""

    def __init__(self):
        self._roles: dict[str, RoleUsage] = {}
        self._lock = threading.Lock()

    def add(self, role: str, **amounts: float) -> None:
        """Adds to the sums of a role; the names are those of `RoleUsage`."""
        with self._lock:
            sums = self._roles.setdefault(role, RoleUsage())
            for name, amount in amounts.items():
                setattr(sums, name, getattr(sums, name) + amount)

    def rows(self) -> list[dict[str, Any]]:
        """One row a role, by name: {"role": ..., "calls": ..., ...}."""
        with self._lock:
            return [{"role": role, **dataclasses.asdict(self._roles[role])} for role in sorted(self._roles)]

    def metrics(self) -> dict[str, float]:
        """The same as one flat dict: {"policy/calls": 12.0, ...}. "<role>/seconds" depends on the clock."""
        rows = self.rows()
        return {f"{row['role']}/{name}": float(row[name]) for row in rows for name in row if name != "role"}


@dataclasses.dataclass(frozen=True, eq=False)
class Metered:
    """A language model that keeps accounts of another one.

    Attributes:
      model: any `types.LanguageModel`.
      usage: where it writes.
    """

    model: LanguageModel
    usage: Usage

    @property
    def can_score(self) -> bool:
        return self.model.can_score

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`."""
        start, paid = time.perf_counter(), self._paid()
        try:
            replies = self.model.complete(chats, sampling, role, seed)
        except BaseException:
            self._add_failed(role, start, paid)
            raise
        fresh = [reply for reply in replies if not reply.cached]
        self.usage.add(
            role,
            calls=len(replies),
            prompt_tokens=sum(reply.prompt_tokens for reply in fresh),
            tokens=sum(reply.tokens for reply in fresh),
            seconds=time.perf_counter() - start,
            cache_hits=len(replies) - len(fresh),
            cut=sum(not reply.ended for reply in replies),
        )
        return replies

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`."""
        start, paid = time.perf_counter(), self._paid()
        try:
            scores = self.model.score(chats, continuations, role)
        except BaseException:
            self._add_failed(role, start, paid)
            raise
        self.usage.add(
            role,
            calls=sum(map(len, scores)),
            prompt_tokens=sum(score.tokens for row in scores for score in row),
            seconds=time.perf_counter() - start,
        )
        return scores

    def _paid(self) -> dict[str, float]:
        """What the model's account says so far; nothing where it has none."""
        account = getattr(self.model, "account", None)
        return {} if account is None else account.as_dict()

    def _add_failed(self, role: str, start: float, before: dict[str, float]) -> None:
        """Counts what a call that raised has cost: its answers are in the cache, where they will count as none."""
        now = self._paid()
        tokens = {name: now[name] - before[name] for name in ("prompt_tokens", "tokens") if name in now}
        self.usage.add(role, seconds=time.perf_counter() - start, **tokens)


class KeptAccount(Account):
    """An account that is on disk after every answer, so that a budget holds across restarts and kills."""

    def __init__(self, path: pathlib.Path):
        super().__init__(**(json.loads(path.read_text()) if path.exists() else {}))
        self._path, self._writing = path, threading.Lock()

    def add(self, **amounts: float) -> None:
        """See `Account`."""
        super().add(**amounts)
        with self._writing:
            write_atomically(self._path, json.dumps(self.as_dict(), indent=2) + "\n")


class KeptUsage(Usage):
    """What the models of a run were used for, in usage.json after every call: a resumed run counts on."""

    def __init__(self, run_dir: pathlib.Path):
        super().__init__()
        self._path, self._writing = run_dir / "usage.json", threading.Lock()
        for row in json.loads(self._path.read_text()) if self._path.exists() else []:
            super().add(**row)

    def add(self, role: str, **amounts: float) -> None:
        """See `Usage`."""
        super().add(role, **amounts)
        with self._writing:
            write_atomically(self._path, json.dumps(self.rows(), indent=2) + "\n")


def describe_usage(usage: Usage) -> list[str]:
    """A sentence a role, for a report."""
    return [
        f"{row['role']}: {row['calls']} calls, {row['prompt_tokens']} tokens read and {row['tokens']} written in "
        f"{row['seconds']:.0f} s, {row['cache_hits']} from the cache, {row['cut']} cut"
        for row in usage.rows()
    ]
