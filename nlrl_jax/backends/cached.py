"""Replies of a language model that are kept on disk: what took hours to write is not written again after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nlrl_jax.backends.cache import DiskCache, cache_key
from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score


@dataclasses.dataclass(frozen=True, eq=False)
class KeptReplies:
    """A language model that answers at temperature 0, each chat once and for all.

    Attributes:
      model: any `types.LanguageModel`.
      cache: of this model alone; its entries do not name it.
      piece: chats that the model gets at once; a kill loses the replies to so many at most.
    """

    model: LanguageModel
    cache: DiskCache
    piece: int = 256
    can_score: bool = dataclasses.field(default=False, init=False)

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`. `role` and `seed` decide nothing.

        Raises:
          ValueError: the temperature is not 0: a reply would depend on what else was asked.
        """
        if sampling.temperature != 0:
            raise ValueError(f"temperature is {sampling.temperature}; only replies at temperature 0 can be kept")
        keys = [_key(chat, sampling) for chat in chats]
        replies = {key: _read(self.cache, key) for key in keys}
        missing = {key: chat for key, chat in zip(keys, chats, strict=True) if replies[key] is None}
        pending = list(missing.items())
        for i in range(0, len(pending), self.piece):
            asked = dict(pending[i : i + self.piece])
            for key, reply in zip(asked, self.model.complete([*asked.values()], sampling, role, seed), strict=True):
                self.cache.put(key, {"text": reply.text, "ended": reply.ended})
                replies[key] = reply
        return [replies[key] for key in keys]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """Raises NotImplementedError: only replies are kept."""
        raise NotImplementedError("a model whose replies are kept does not score; ask the model itself")


def _key(chat: Chat, sampling: Sampling) -> str:
    return cache_key(
        {"messages": [dict(message) for message in chat.messages], "sampling": dataclasses.asdict(sampling)}
    )


def _read(cache: DiskCache, key: str) -> Reply | None:
    entry = cache.get(key)
    return None if entry is None else Reply(entry["text"], ended=entry["ended"], cached=True)
