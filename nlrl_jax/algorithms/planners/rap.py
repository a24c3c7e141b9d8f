"""RAP as the LAC paper runs it (C.2.2): Q is the sum of the actions' log-probabilities along a greedy rollout.

    Q(a_0) = sum over t of log pi(a_t | g, h_t)

A rollout stops at a terminal state. The paper does not say how one is noticed: here the model is asked for a line
"Value:" as in RAFA, and the task is done where its number is 1. What follows the last action of a full rollout plays no
part and is not imagined. A shorter sum is a larger one, so that a rollout that ends early is ahead. Ties: the likelier
candidate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import POLICY, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import Planner


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The sum of log-probabilities of each rollout's actions."""
    chats, texts, owner = [], [], []
    for i, future in enumerate(futures):
        steps, history = future.imagined, future.history
        # The imagined steps are the history's last ones; what stood before them was trimmed to fit.
        base = max(0, len(history.steps) - len(steps))
        # From the second on: the first action's log-probability is the prior of its candidate.
        for k, step in enumerate(steps[1:], 1):
            before = dataclasses.replace(history, steps=history.steps[: base + k])
            chats.append(caller.dialogue.chat(before, "Action:"))
            texts.append([f" {step.action}"])
            owner.append(i)
    # log pi(a_0) + sum_k log pi(a_k | what came before), all scored in one call.
    values = list(log_prior)
    for i, (log_prob,) in zip(owner, caller.log_probs(POLICY, chats, texts), strict=True):
        values[i] += log_prob
    return values


decide = Planner(value, "Value", outcome=False, scores=True).decide
