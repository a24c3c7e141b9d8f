"""Several language models as one: the role of a call decides which of them answers it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from nlrl_jax.types import Chat, LanguageModel, Reply, Sampling, Score, can_judge


@dataclasses.dataclass(frozen=True, eq=False)
class ByRole:
    """A language model made of others.

    Attributes:
      model: answers every role that `others` does not have.
      others: role -> the model that answers it.
    """

    model: LanguageModel
    others: Mapping[str, LanguageModel]

    @property
    def can_score(self) -> bool:
        return all(one.can_score for one in (self.model, *self.others.values()))

    @property
    def can_judge(self) -> bool:
        return all(can_judge(one) for one in (self.model, *self.others.values()))

    def complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0, stop: Sequence[str] = ()
    ) -> list[Reply]:
        """See `types.LanguageModel`."""
        return self._of(role).complete(chats, sampling, role, seed, stop)

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`."""
        return self._of(role).score(chats, continuations, role)

    def _of(self, role: str) -> LanguageModel:
        return self.others.get(role, self.model)
