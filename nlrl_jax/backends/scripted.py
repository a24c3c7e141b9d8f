"""A language model that is a function, so that every algorithm runs, and can learn, without weights."""

from __future__ import annotations

import dataclasses
import math
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
      can_score: whether it scores: every token has probability 1/2, and each score reads its whole chat, as on
        an endpoint.
    """

    scripts: Mapping[str, Script]
    can_score: bool = False

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`."""
        replies = ScriptedModel(self.scripts).complete(chats, sampling, role, seed, stop)
        return [
            Reply(_pad(reply.text, sampling.max_tokens), _tokens(chat), sampling.max_tokens)
            for chat, reply in zip(chats, replies, strict=True)
        ]

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`."""
        if not self.can_score:
            raise NotImplementedError("this model was made without scores")
        tokens = lambda text: -(-len(text) // CHARACTERS)
        return [
            [Score(-math.log(2) * tokens(text), tokens(text), prompt_tokens=_tokens(chat)) for text in texts]
            for chat, texts in zip(chats, continuations, strict=True)
        ]


def _tokens(chat: Chat) -> int:
    return sum(len(message["content"]) for message in chat.messages) // CHARACTERS


def _pad(text: str, tokens: int) -> str:
    width = CHARACTERS * tokens
    head, quote, tail = text.rpartition('",')  # where a text in JSON ends, and readers keep blanks
    return f"{head.ljust(width - len(tail) - 2)}{quote}{tail}" if quote else text.ljust(width)
