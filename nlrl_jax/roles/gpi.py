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
        """The actions to choose from, at least one."""

    def look_ahead(
        self, states: Sequence[State], actions: Sequence[int], steps: int, rng: np.random.Generator
    ) -> list[Variation]:
        """A variation each: the action, then `steps` steps of the policy that is evaluated."""

    def policy(self, state: State) -> Chat:
        """pi_L."""

    def q(self, state: State, action: int) -> Chat:
        """Q^L(s, a) with no look-ahead."""

    def value(self, state: State, variation: Variation) -> Chat:
        """V^L of the state in which the variation ends."""

    def describe(self, state: State, variation: Variation) -> str:
        """d, the variation in words."""

    def aggregate(self, state: State, action: int, descriptions: Sequence[str], evaluations: Sequence[str]) -> Chat:
        """G2 and G1: the evaluation of an action out of its variations."""

    def improve(self, state: State, values: Mapping[int, str]) -> Chat:
        """I: the best action by the evaluations, {action: text}."""

    def read_action(self, text: str) -> tuple[int, str]:
        """(action or -1, problem or "")."""

    def read_evaluation(self, text: str) -> tuple[str, str]:
        """(evaluation as text, problem or "")."""
