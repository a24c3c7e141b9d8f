"""ICPI as the LAC paper runs it (C.2.3): Q is the return of a rollout whose rewards the model writes itself.

The dialogue's label is "Reward": the reward after each observation, 0 in the game until now. A rollout stops where the
model says that the goal is reached (reward 1). A reward that cannot be read counts as 0. The paper leaves the discount
open; it is `DISCOUNT` here.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import NOTE, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import planner
from nlrl_jax.roles.dialogues import History, Step, read_number
from nlrl_jax.types import LanguageModel

DISCOUNT = 0.9


def reached(step: Step) -> bool:
    """Whether the model says that the goal is reached."""
    return (read_number(step.note) or 0.0) >= 1


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The discounted return of each rollout."""
    values = []
    for future in futures:
        rewards = [read_number(step.note) for step in future.imagined]
        caller.count(NOTE, "no reward", rewards.count(None))
        values.append(sum(DISCOUNT**t * (reward or 0.0) for t, reward in enumerate(rewards)))
    return values


def without_rewards(model: LanguageModel, histories: Sequence[History]) -> list[History]:
    """The game has shown a reward of 0 until now."""
    return [history.noted("0") if history.steps else history for history in histories]


decide = planner(value, stop=reached, prepare=without_rewards)
