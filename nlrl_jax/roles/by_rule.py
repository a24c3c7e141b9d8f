"""What language models by rule share: models that know nothing but the text of the transcript they continue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nlrl_jax.roles.dialogues import BAD, GOOD
from nlrl_jax.types import Chat, Reply, Score, cut

_CHARACTERS = 4  # per token, about


def reply(chat: Chat, text: str, stop: Sequence[str]) -> Reply:
    """`text` as the reply to a chat, its tokens counted by characters."""
    return cut(Reply(text, _tokens(chat), _length(text)), stop)


def scores(chat: Chat, texts: Sequence[str], table: Mapping[str, float], unlikely: float) -> list[Score]:
    """The log-probabilities of texts behind a chat, which the first has read; `unlikely` where the table has none."""
    first, *rest = [Score(table.get(text, unlikely), _length(text)) for text in texts]
    return [first._replace(prompt_tokens=_tokens(chat)), *rest]


def verdicts(logit: float) -> dict[str, float]:
    """Log-probabilities of GOOD and BAD behind "This step is", whose difference is `logit`."""
    return {f" {GOOD}": -math.log1p(math.exp(-logit)), f" {BAD}": -math.log1p(math.exp(logit))}


def _tokens(chat: Chat) -> int:
    return sum(_length(message["content"]) for message in chat.messages)


def _length(text: str) -> int:
    return -(-len(text) // _CHARACTERS)
