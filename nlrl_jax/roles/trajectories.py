"""An episode of a control agent as a language model meets it, and what the model says of its timeslots (ULTRA)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.types import Chat

# An action as the host holds it: an id, or the numbers of a continuous one.
Action = int | tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """One episode, on the host. T steps, observations of D numbers, actions of A numbers.

    Attributes:
      number: which one.
      observations: float [T + 1, D], what the agent saw before each step, and after the last.
      actions: int [T], or float [T, A]: what was executed.
      rewards: float [T], the environment's.
      terminated: the last step ended it; False where it was cut.
    """

    number: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool

    def __len__(self) -> int:
        return len(self.rewards)

    def action(self, timeslot: int) -> Action:
        """The action taken in `timeslot`."""
        taken = self.actions[timeslot]
        return int(taken) if np.ndim(taken) == 0 else tuple(float(x) for x in taken)


class Verdict(NamedTuple):
    """What the analyst says of one timeslot.

    critical: whether the action there decides much of the reward to come.
    action: a better one; None where the action taken stands, or nothing is known of a better one.
    explanation: why.
    judged: False where it is critical, but nothing that can be used was said of the action taken.
    """

    timeslot: int
    critical: bool
    action: Action | None
    explanation: str
    judged: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class AnalystRoles:
    """What ULTRA's language model is told of one game, and how its answers are read (sections 3.3 and 3.4).

    A chat's context holds what it was written from: `episode`, and `begin`, `end` / `verdicts` / `timeslot`, `action`,
    `analysis`.

    Attributes:
      chunk: timeslots that one identification prompt shows at most.
      identify: (episode, begin, end) -> the chat that asks which of the timeslots [begin, end) are critical and what
        would have been the better action.
      read_verdicts: (reply, begin, end) -> the verdicts on the timeslots it speaks of, in order of time, each at most
        once, and what was wrong with the reply, by kind (`verdicts.PROBLEMS`).
      analyse: (episode, verdicts) -> the chat that asks for the case analysis.
      reward: (episode, timeslot, action, case analysis) -> the chat that asks for a reward in [-1, 1] of `action` in
        that timeslot.
      read_reward: reply -> the reward, clipped to [-1, 1]; None where there is none.
      format_action: an action as the prompts write it.
    """

    chunk: int
    identify: Callable[[Episode, int, int], Chat]
    read_verdicts: Callable[[str, int, int], tuple[list[Verdict], Counter[str]]]
    analyse: Callable[[Episode, Sequence[Verdict]], Chat]
    reward: Callable[[Episode, int, Action, str], Chat]
    read_reward: Callable[[str], float | None]
    format_action: Callable[[Action], str]
