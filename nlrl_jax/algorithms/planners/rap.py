"""RAP as the LAC paper runs it (C.2.2): Q is the sum of the actions' log-probabilities along a greedy rollout.

The observation after the last action plays no part in that sum, so it is not imagined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import POLICY, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import planner
from nlrl_jax.roles.dialogues import History
from nlrl_jax.types import LanguageModel


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The sum of log-probabilities of each rollout's actions."""
    chats, texts, owner = [], [], []
    for i, future in enumerate(futures):
        steps, history = future.imagined, future.history
        base = max(0, len(history.steps) - len(steps))
        for k, step in enumerate(steps[1:], 1):
            before = dataclasses.replace(history, steps=history.steps[: base + k])
            chats.append(caller.dialogue.chat(before, "Action:"))
            texts.append([f" {step.action}"])
            owner.append(i)
    values = list(log_prior)
    for i, (log_prob,) in zip(owner, caller.log_probs(POLICY, chats, texts), strict=True):
        values[i] += log_prob
    return values


def check_scores(model: LanguageModel, histories: Sequence[History]) -> Sequence[History]:
    """Raises NotImplementedError: the model does not give log-probabilities."""
    if not model.can_score:
        raise NotImplementedError(
            "RAP adds up log-probabilities, which this model does not give; choose another planner"
        )
    return histories


decide = planner(value, outcome=False, prepare=check_scores)
