"""RAFA as the LAC paper runs it (C.2.4): Q is the share of the goal's sub-goals that are done at a rollout's end.

The model names the sub-goals and says how many are done in a line "Value:" behind the last imagined observation. The
paper's listing has one chain for each candidate here, where RAFA itself may search wider. A value that cannot be read
counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from nlrl_jax.algorithms.imagine import CRITIC, Caller, Future, PlanningConfig
from nlrl_jax.algorithms.lac import Decisions
from nlrl_jax.algorithms.planners.look_ahead import best_candidate
from nlrl_jax.roles.dialogues import Dialogue, History, read_number
from nlrl_jax.types import LanguageModel


def decide(
    model: LanguageModel,
    dialogue: Dialogue,
    histories: Sequence[History],
    actions: Sequence[str],
    config: PlanningConfig,
    seed: int,
) -> Decisions:
    """One action per history; see `look_ahead.best_candidate`. The dialogue has no notes: values are asked for."""

    def value(caller: Caller, futures: Sequence[Future], log_prior: Sequence[float]) -> list[float]:
        values = []
        for text in caller.lines(CRITIC, [dialogue.chat(future.history, "Value:") for future in futures]):
            number = read_number(text)
            caller.count(CRITIC, "" if number is not None else "no number")
            values.append(number or 0.0)
        return values

    return best_candidate(model, dialogue, histories, actions, config, seed, value)
