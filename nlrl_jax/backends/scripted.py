"""A language model that is a function, so that every algorithm runs, and can learn, without weights."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.types import Chat, Reply, Sampling, Score

# (context of the chat, randomness) -> reply. At temperature 0 the same context must give the same text.
Script = Callable[[Mapping[str, Any], random.Random], str]


@dataclasses.dataclass(frozen=True, eq=False)
class ScriptedModel:
    """Answers from the structured context that a chat was written from.

    Attributes:
      scripts: role -> script.
    """

    scripts: Mapping[str, Script]
    can_score: bool = dataclasses.field(default=False, init=False)

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`. Only `sampling.temperature` matters: above 0, each row has randomness of its own.

        Raises:
          ValueError: a role without a script.
        """
        if role not in self.scripts:
            raise ValueError(f"no script for the role {role!r}; there are {', '.join(self.scripts) or 'none'}")
        script = self.scripts[role]
        row = (lambda i: f"{seed}/{role}/{i}") if sampling.temperature > 0 else (lambda i: f"{role}")
        return [Reply(script(chat.context, random.Random(row(i)))) for i, chat in enumerate(chats)]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """Raises NotImplementedError: a script has no probabilities."""
        raise NotImplementedError("a scripted model cannot score; use the local model or an endpoint that scores")
