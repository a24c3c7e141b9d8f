"""RAP as the LAC paper runs it (C.2.2): Q is the sum of the actions' log-probabilities along a greedy rollout.

What the last action leads to plays no part in that sum, so it is not imagined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import POLICY, Caller, Future, PlanningConfig
from nlrl_jax.algorithms.lac import Decisions
from nlrl_jax.algorithms.planners.look_ahead import best_candidate
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.types import LanguageModel


def decide(
    model: LanguageModel,
    dialogue: Dialogue,
    histories: Sequence[History],
    actions: Sequence[str],
    config: PlanningConfig,
    seed: int,
) -> Decisions:
    """One action per history; see `look_ahead.best_candidate`.

    Raises:
      NotImplementedError: the model cannot score.
    """
    if not model.can_score:
        raise NotImplementedError(
            "RAP adds up log-probabilities, which this model does not give; choose another planner"
        )

    def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
        chats, texts, owner = [], [], []
        for i, future in enumerate(futures):
            steps, history = future.imagined, future.history
            base = max(0, len(history.steps) - len(steps))
            for k, step in enumerate(steps[1:], 1):
                before = dataclasses.replace(history, steps=history.steps[: base + k])
                chats.append(dialogue.chat(before, "Action:"))
                texts.append([f" {step.action}"])
                owner.append(i)
        values = list(log_prior)
        for i, (log_prob,) in zip(owner, caller.log_probs(POLICY, chats, texts), strict=True):
            values[i] += log_prob
        return values

    return best_candidate(model, dialogue, histories, actions, config, seed, value, outcome=False)
