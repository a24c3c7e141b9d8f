"""A language model that is a function, so that every algorithm runs, and can learn, without weights."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.types import Chat, Reply, Sampling, Score, cut

# (context of the chat, randomness) -> reply. At temperature 0 the same context must give the same text.
Script = Callable[[Mapping[str, Any], random.Random], str]


CHARACTERS = 4  # per token, about


@dataclasses.dataclass(frozen=True, eq=False)
class ScriptedModel:
    """Answers from the structured context that a chat was written from.

    Attributes:
      scripts: role -> script.
    """

    scripts: Mapping[str, Script]
    can_score: bool = dataclasses.field(default=False, init=False)

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`. Only `sampling.temperature` matters: above 0, each row has randomness of its own.

        Raises:
          ValueError: a role without a script.
        """
        if role not in self.scripts:
            raise ValueError(f"no script for the role {role!r}; there are {', '.join(self.scripts) or 'none'}")
        script = self.scripts[role]
        row = (lambda i: f"{seed}/{role}/{i}") if sampling.temperature > 0 else (lambda i: f"{role}")
        return [cut(Reply(script(chat.context, random.Random(row(i)))), stop) for i, chat in enumerate(chats)]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """Raises NotImplementedError: a script has no probabilities."""
        raise NotImplementedError("a scripted model cannot score; use the local model or an endpoint that scores")


@dataclasses.dataclass(frozen=True, eq=False)
class CountingModel:
    """Rules in a real model's place for a dry run: all replies have the maximum length.

    Behind `Metered` the real algorithm over this model counts calls and tokens by role. Replies are padded with blanks
    to `sampling.max_tokens`, inside a text of their JSON or else at the end, so that prompts which quote them have
    their full length.

    Attributes:
      scripts: as in `ScriptedModel`.
    """

    scripts: Mapping[str, Script]
    can_score = False

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`."""
        replies = ScriptedModel(self.scripts).complete(chats, sampling, role, seed, stop)
        size = lambda chat: sum(len(message["content"]) for message in chat.messages)
        return [
            Reply(_pad(reply.text, sampling.max_tokens), size(chat) // CHARACTERS, sampling.max_tokens)
            for chat, reply in zip(chats, replies, strict=True)
        ]


def _pad(text: str, tokens: int) -> str:
    width = CHARACTERS * tokens
    head, quote, tail = text.rpartition('",')  # where a text in JSON ends, and readers keep blanks
    return f"{head.ljust(width - len(tail) - 2)}{quote}{tail}" if quote else text.ljust(width)
