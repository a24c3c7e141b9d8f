"""ICPI as the LAC paper runs it (C.2.3): Q is the return of a rollout whose rewards the model writes itself.

    Q(a) = sum over t of DISCOUNT^t r_t        r_t: the line "Reward:" after the rollout's observation t, 0 to 1

A rollout stops where the reward is 1: the goal is reached. The game's own observations are followed by a reward of 0.
The paper leaves the discount open. Ties: the likelier candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import NOTE, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import Planner, numbers

DISCOUNT = 0.9


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The discounted return of each rollout."""
    # G = sum_t gamma^t r_t, of the rewards that the model writes after each imagined step.
    return [sum(DISCOUNT**t * r for t, r in enumerate(numbers(caller, NOTE, future))) for future in futures]


decide = Planner(value, "Reward", shown=True).decide
