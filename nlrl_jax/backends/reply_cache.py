"""Replies and scores on disk, and a language model that answers each question once, also across a kill."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from nlrl_jax.files import dump_json
from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score

A = TypeVar("A", Reply, Score)
PIECE = 256  # chats, or continuations, per call of the model; a kill loses at most this many answers


def cache_key(parts: Mapping[str, Any]) -> str:
    """A sha256 in hex of everything that decides an entry. The order of the fields does not matter.

    Raises:
      TypeError: a part is not JSON-able.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class DiskCache:
    """A folder of entries, each a JSON object under a sha256.

    An entry is written beside its place and moved there, so it is whole or absent whenever the process is killed.
    Nothing is flushed to the disk: a power cut may tear the last entries. A torn entry counts as absent.

    Attributes:
      folder: made if missing. Several caches, in several processes, may share it.

    Raises:
      ValueError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(os.path.expanduser(folder)).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ValueError(f"the cache folder {self.folder} cannot be written: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r})"

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry; None where it is absent or torn, or has a number that is not finite."""
        try:
            entry = json.loads(self._path(key).read_text(), parse_constant=_refuse)
        except (FileNotFoundError, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Writes an entry, in place of an earlier one.

        Raises:
          ValueError: a number in it is not finite.
        """
        path, text = self._path(key), dump_json(entry, "a reply in the cache")
        path.parent.mkdir(exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(unfinished, path)
        except BaseException:
            pathlib.Path(unfinished).unlink(missing_ok=True)
            raise

    def get_reply(self, key: str) -> Reply | None:
        """An entry as a reply that cost nothing."""
        entry = self.get(key)
        if entry is None:
            return None
        return Reply(**{**entry, "log_probs": tuple(entry.get("log_probs", ()))}, cached=True)

    def put_reply(self, key: str, reply: Reply) -> None:
        """Writes a reply without its token counts."""
        entry = {name: getattr(reply, name) for name in ("text", "ended", "refused")}
        rare = {name: getattr(reply, name) for name in ("log_probs", "more") if getattr(reply, name)}
        self.put(key, {**entry, **rare})

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / key[:2] / (key + ".json")


@dataclasses.dataclass(frozen=True, eq=False)
class CachedModel:
    """A language model that answers each chat at temperature 0, and scores each continuation, once.

    Attributes:
      model: any `types.LanguageModel`.
      cache: for this model alone; its entries do not name it.
    """

    model: LanguageModel
    cache: DiskCache

    @property
    def can_score(self) -> bool:
        return self.model.can_score

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Replies do not depend on `role` and `seed`.

        Raises:
          ValueError: the temperature is not 0: a reply would depend on the other chats of the call.
        """
        if sampling.temperature != 0:
            raise ValueError(f"temperature is {sampling.temperature}; only replies at temperature 0 can be cached")
        options = {"sampling": dataclasses.asdict(sampling)} | ({"stop": list(stop)} if stop else {})
        keys = [_key(chat, options) for chat in chats]
        compute = lambda missing: self.model.complete(missing, sampling, role, seed, stop)
        replies = self._answers(dict(zip(keys, chats)), self.cache.get_reply, compute, self.cache.put_reply)
        return [replies[key] for key in keys]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`. Scores do not depend on `role`.

        Raises:
          NotImplementedError: the model does not score.
          ValueError: not one row of continuations per chat.
        """
        rows = [
            [(_key(chat, {"continuation": text}), chat, text) for text in texts]
            for chat, texts in zip(chats, continuations, strict=True)
        ]
        pairs = {key: (chat, text) for key, chat, text in itertools.chain.from_iterable(rows)}

        def get(key: str) -> Score | None:
            entry = self.cache.get(key)
            return entry and Score(**entry, cached=True)

        def put(key: str, score: Score) -> None:
            if math.isfinite(score.log_prob):
                self.cache.put(key, {"log_prob": score.log_prob, "tokens": score.tokens})

        def compute(missing: Sequence[tuple[Chat, str]]) -> list[Score]:
            by_chat: dict[int, tuple[Chat, list[str]]] = {}  # continuations of one chat object stay together
            for chat, text in missing:
                by_chat.setdefault(id(chat), (chat, []))[1].append(text)
            distinct, texts = zip(*by_chat.values())
            scores = dict(zip(by_chat, map(iter, self.model.score(distinct, texts, role))))
            return [next(scores[id(chat)]) for chat, _ in missing]

        scores = self._answers(pairs, get, compute, put)
        return [[scores[key] for key, _, _ in row] for row in rows]

    def _answers(
        self,
        requests: Mapping[str, Any],
        get: Callable[[str], A | None],
        compute: Callable[[Sequence[Any]], Sequence[A]],
        put: Callable[[str, A], None],
    ) -> dict[str, A]:
        """The answers by key: from the cache, or computed in pieces and put there."""
        answers = {key: get(key) for key in requests}
        missing = [key for key in requests if answers[key] is None]
        for i in range(0, len(missing), PIECE):
            keys = missing[i : i + PIECE]
            for key, answer in zip(keys, compute([requests[key] for key in keys]), strict=True):
                put(key, answer)
                answers[key] = answer
        return answers


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _key(chat: Chat, options: Mapping[str, Any]) -> str:
    return cache_key({"messages": [dict(message) for message in chat.messages], **options})
