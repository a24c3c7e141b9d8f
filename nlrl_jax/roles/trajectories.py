"""Episodes of a control agent as an analyst reads them, its verdicts, and its prompts (ULTRA)."""

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
class ControlEpisode:
    """One episode, on the host. T steps, observations of D numbers, actions of A numbers.

    Attributes:
      number: its index.
      observations: float [T + 1, D], before each step, and after the last.
      actions: int [T], or float [T, A], as executed.
      rewards: float [T], the environment's.
      terminated: the last step ended it; False where it was truncated.
    """

    number: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool

    def __len__(self) -> int:
        return len(self.rewards)

    def action(self, timeslot: int) -> Action:
        """Returns the action taken in `timeslot`."""
        action = self.actions[timeslot]
        return int(action) if np.ndim(action) == 0 else tuple(float(x) for x in action)


class Verdict(NamedTuple):
    """The analyst's verdict on one timeslot.

    critical: whether the action there decides much of the reward to come.
    action: a better one; None where the action taken was proper, or no better one is known.
    explanation: why.
    judged: False where it is critical, but the verdict says nothing usable about the action taken.
    """

    timeslot: int
    critical: bool
    action: Action | None
    explanation: str
    judged: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class AnalystRoles:
    """The prompts of one game for ULTRA's analyst, and the readers of its replies (sections 3.3 and 3.4).

    A chat's context holds its sources: `episode`, and `begin`, `end` / `verdicts` / `timeslot`, `action`, `analysis`.

    Attributes:
      chunk: maximum timeslots per identification prompt.
      identify: (episode, begin, end) -> the prompt for verdicts on the timeslots [begin, end): which are critical, and
        which action would have been better.
      read_verdicts: (reply, begin, end) -> the verdicts in order of time, at most one per timeslot, and the reply's
        faults, by kind (`analyst_replies.PROBLEMS`).
      analyse: (episode, verdicts) -> the prompt for the case analysis.
      reward: (episode, timeslot, action, case analysis) -> the prompt for a reward in [-1, 1] of `action` in that
        timeslot.
      read_reward: reply -> the reward, clipped to [-1, 1]; None where there is none.
      format_action: an action as the prompts write it.
      strategies: case analyses -> the prompt for strategies of refinement (section 4.2); None where a game has none.
    """

    chunk: int
    identify: Callable[[ControlEpisode, int, int], Chat]
    read_verdicts: Callable[[str, int, int], tuple[list[Verdict], Counter[str]]]
    analyse: Callable[[ControlEpisode, Sequence[Verdict]], Chat]
    reward: Callable[[ControlEpisode, int, Action, str], Chat]
    read_reward: Callable[[str], float | None]
    format_action: Callable[[Action], str]
    strategies: Callable[[Sequence[str]], Chat] | None = None
