"""RAFA as the LAC paper runs it (C.2.4): Q is the largest share of the goal's sub-goals that a rollout completes.

    Q(a) = max over t of DISCOUNT^t v_t        v_t: the line "Value:" after the rollout's observation t, 0 to 1

The model names the sub-goals and says how many are done after every imagined step; a rollout stops where all are. As in
the paper's listing each candidate has one chain, where RAFA itself may search wider, and values stay out of the
transcript that the rollout continues. Ties: of equal shares the one that is reached first (the discount is so weak that
it decides little else), then the likelier candidate; the paper names no rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import CRITIC, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import Planner, numbers

DISCOUNT = 0.99


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The best discounted value of each rollout's steps."""
    # Not the last value: a rollout may lead past its best state.
    return [max(DISCOUNT**t * v for t, v in enumerate(numbers(caller, CRITIC, future))) for future in futures]


decide = Planner(value, "Value").decide
