"""A language model whose replies are kept on disk, so that a resumed run does not compute them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nlrl_jax.backends.cache import DiskCache, cache_key
from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score

PIECE = 256  # chats per call of the model; a kill loses at most this many replies


@dataclasses.dataclass(frozen=True, eq=False)
class CachedModel:
    """A language model at temperature 0 that answers each chat once.

    Attributes:
      model: any `types.LanguageModel`.
      cache: for this model alone; its entries do not name it.
    """

    model: LanguageModel
    cache: DiskCache
    can_score: bool = dataclasses.field(default=False, init=False)

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`. Replies do not depend on `role` and `seed`.

        Raises:
          ValueError: the temperature is not 0: a reply would depend on the other chats of the call.
        """
        if sampling.temperature != 0:
            raise ValueError(f"temperature is {sampling.temperature}; only replies at temperature 0 can be cached")
        keys = [_key(chat, sampling) for chat in chats]
        replies = {key: self.cache.get_reply(key) for key in keys}
        missing = list({key: chat for key, chat in zip(keys, chats, strict=True) if replies[key] is None}.items())
        for i in range(0, len(missing), PIECE):
            pending = dict(missing[i : i + PIECE])
            for key, reply in zip(pending, self.model.complete([*pending.values()], sampling, role, seed), strict=True):
                self.cache.put_reply(key, reply)
                replies[key] = reply
        return [replies[key] for key in keys]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """Raises NotImplementedError: only replies are cached."""
        raise NotImplementedError("a cached model does not score; call the model itself")


def _key(chat: Chat, sampling: Sampling) -> str:
    messages = [dict(message) for message in chat.messages]
    return cache_key({"messages": messages, "sampling": dataclasses.asdict(sampling)})
