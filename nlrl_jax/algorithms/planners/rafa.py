"""RAFA as the LAC paper runs it (C.2.4): Q is the share of the goal's sub-goals that are done at a rollout's end.

The model names the sub-goals and says how many are done in a line "Value:" after the last imagined observation; the
dialogue has no notes. As in the paper's listing each candidate has one chain, where RAFA itself may search wider. A
value that cannot be read counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import CRITIC, Caller, Future
from nlrl_jax.algorithms.planners.look_ahead import planner
from nlrl_jax.roles.dialogues import read_number


def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
    """The share of sub-goals done at the end of each rollout, as the model writes it."""
    values = []
    for text in caller.lines(CRITIC, [caller.dialogue.chat(future.history, "Value:") for future in futures]):
        number = read_number(text)
        caller.count(CRITIC, "" if number is not None else "no number")
        values.append(number or 0.0)
    return values


decide = planner(value)
