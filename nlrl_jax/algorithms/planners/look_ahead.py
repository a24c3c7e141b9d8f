"""What RAP, ICPI and RAFA share: candidates, an imagined rollout after each, a value of the rollout, the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nlrl_jax.algorithms.imagine import Caller, Future, PlanningConfig, imagine, propose
from nlrl_jax.algorithms.lac import Decisions
from nlrl_jax.roles.dialogues import Dialogue, History, Step
from nlrl_jax.types import LanguageModel

# (caller, rollouts, log-prior of each first action) -> a value each
Value = Callable[[Caller, Sequence[Future], Sequence[float]], Sequence[float]]
Decide = Callable[[LanguageModel, Dialogue, Sequence[History], Sequence[str], PlanningConfig, int], Decisions]


def planner(
    value: Value,
    stop: Callable[[Step], bool] = lambda step: False,
    outcome: bool = True,
    prepare: Callable[[LanguageModel, Sequence[History]], Sequence[History]] = lambda model, histories: histories,
) -> Decide:
    """A rule of decision: the candidate whose rollout has the highest value; the likelier one of equals.

    Args:
      value: of rollouts; the dialogue is `caller.dialogue`. stop, outcome: see `imagine`.
      prepare: changes the histories first, or refuses a model.

    Returns: decide(model, dialogue, histories, actions, config, seed) -> decisions, as `lac.decide`. It raises a
      ValueError if `config.depth` is 0.
    """

    def decide(model, dialogue, histories, actions, config, seed):
        histories = prepare(model, histories)
        if config.depth < 1:
            raise ValueError("depth is 0; this planner needs rollouts of at least one step")
        caller = Caller(model, config, seed, dialogue)
        short = caller.trim(dialogue, histories)
        candidates = propose(caller, dialogue, short, actions)
        pairs = [(i, action) for i, one in enumerate(candidates) for action in one.actions]
        first = [short[i] for i, _ in pairs], [action for _, action in pairs]
        futures = [leaves[0] for leaves in imagine(caller, dialogue, *first, actions, stop, 1, outcome)]
        values = iter(value(caller, futures, [p for one in candidates for p in one.log_prior]))
        leaves, picked, thinking = iter(futures), [], []
        for one in candidates:
            q = [float(next(values)) for _ in one.actions]
            own = [[[list(step) for step in next(leaves).imagined]] for _ in one.actions]
            picked.append(one.actions[int(np.argmax(q))])
            record = {"candidates": list(one.actions), "log_prior": list(one.log_prior), "q": q, "futures": own}
            thinking.append(record)
        notes = [history.last_note for history in short]
        return Decisions(picked, notes, [[]] * len(picked), thinking, caller.problems, caller.calls)

    return decide
