"""ICPI as the LAC paper runs it (C.2.3): Q is the return of a rollout whose rewards the model writes itself.

The dialogue's note is the reward behind each observation; the game has shown 0 until now. A reward that cannot be read
counts as 0. The paper leaves the discount open; it is `DISCOUNT` here.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import NOTE, Caller, Future, PlanningConfig
from nlrl_jax.algorithms.lac import Decisions
from nlrl_jax.algorithms.planners.look_ahead import best_candidate
from nlrl_jax.roles.dialogues import Dialogue, History, Step, read_number
from nlrl_jax.types import LanguageModel

DISCOUNT = 0.9


def decide(
    model: LanguageModel,
    dialogue: Dialogue,
    histories: Sequence[History],
    actions: Sequence[str],
    config: PlanningConfig,
    seed: int,
) -> Decisions:
    """One action per history; see `look_ahead.best_candidate`. The dialogue's label is "Reward".

    A rollout stops where the model says that the goal is reached (reward 1).
    """

    def reached(step: Step) -> bool:
        return (read_number(step.note) or 0.0) >= 1

    def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
        values = []
        for future in futures:
            rewards = [read_number(step.note) for step in future.imagined]
            caller.count(NOTE, "no reward", rewards.count(None))
            values.append(sum(DISCOUNT**t * (reward or 0.0) for t, reward in enumerate(rewards)))
        return values

    histories = [history.noted("0") if history.steps else history for history in histories]
    return best_candidate(model, dialogue, histories, actions, config, seed, value, reached)
