"""Language GPI: the prompts of its roles, and how their replies are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nlrl_jax.types import Chat

State, Variation = Any, Any  # the game's own


class GPIRoles(Protocol):
    """A game's prompts and readers for language GPI (NLRL, algorithm 1). Actions are ids.

    Attributes:
      actions: the words of the actions.
    """

    actions: tuple[str, ...]

    def candidates(self, state: State) -> Sequence[int]:
        """Lists the actions to choose from, at least one."""

    def look_ahead(
        self, states: Sequence[State], actions: Sequence[int], steps: int, rng: np.random.Generator
    ) -> list[Variation]:
        """Plays one variation each: the action, then `steps` steps of the policy that is evaluated."""

    def policy(self, state: State) -> Chat:
        """Asks for an action of pi_L."""

    def q(self, state: State, action: int) -> Chat:
        """Asks for Q^L(s, a) with no look-ahead."""

    def value(self, state: State, variation: Variation) -> Chat:
        """Asks for V^L of the state in which the variation ends."""

    def describe(self, state: State, variation: Variation) -> str:
        """Puts the variation into words (d)."""

    def aggregate(self, state: State, action: int, descriptions: Sequence[str], evaluations: Sequence[str]) -> Chat:
        """Asks for the evaluation of an action out of its variations (G2 and G1)."""

    def improve(self, state: State, values: Mapping[int, str]) -> Chat:
        """Asks for the best action by the evaluations, {action: text} (I)."""

    def read_action(self, text: str) -> tuple[int, str]:
        """Reads (action or -1, problem or "")."""

    def read_evaluation(self, text: str) -> tuple[str, str]:
        """Reads (evaluation as text, problem or "")."""
