"""A language model that is a function, so that every algorithm runs, and can learn, without weights."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.types import Answer, Chat, LanguageModel, Reply, Request, Sampling, Score, answer_batches, cut

# (context of the chat, randomness) -> reply. At temperature 0 the same context must give the same text.
Script = Callable[[Mapping[str, Any], random.Random], str]


@dataclasses.dataclass(frozen=True, eq=False)
class ScriptedModel(LanguageModel):
    """Answers from the structured context that a chat was written from.

    Attributes:
      scripts: role -> script.
    """

    scripts: Mapping[str, Script]

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """See `types.LanguageModel`. Only `sampling.temperature` matters: above 0, each row has randomness of its own.

        Raises:
          ValueError: a role without a script.
        """
        return answer_batches(requests, self._complete, self._score)

    def _complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int, stop: Sequence[str]
    ) -> list[Reply]:
        if role not in self.scripts:
            raise ValueError(f"no script for the role {role!r}; there are {', '.join(self.scripts) or 'none'}")
        replies = []
        for row, chat in enumerate(chats):
            rng = random.Random(f"{seed}/{role}/{row}" if sampling.temperature > 0 else role)
            replies.append(cut(Reply(self.scripts[role](chat.context, rng)), stop))
        return replies

    def _score(self, *_: Any) -> list[list[Score]]:
        raise NotImplementedError("a scripted model cannot score; use the local model or an endpoint that scores")
