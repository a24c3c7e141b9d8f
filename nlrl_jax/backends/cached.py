"""A language model whose replies and scores are kept on disk, so that a resumed run does not compute them again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from nlrl_jax.backends.cache import DiskCache, cache_key
from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score

A = TypeVar("A", Reply, Score)
PIECE = 256  # chats, or continuations, per call of the model; a kill loses at most this many answers


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


def _key(chat: Chat, options: Mapping[str, Any]) -> str:
    return cache_key({"messages": [dict(message) for message in chat.messages], **options})
