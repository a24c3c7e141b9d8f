"""What RAP, ICPI and RAFA share: candidates, an imagined rollout after each, a value of the rollout, the best.

A rollout is one chain, continued greedily until the task is done or `depth` steps are imagined: after each imagined
observation the model writes a line (ICPI "Reward:", RAP and RAFA "Value:") whose number is 1 once the task is done. Of
candidates with equal values the likelier one under the prior is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nlrl_jax.algorithms.imagine import Caller, Future, imagine, propose
from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.roles.written_numbers import read_share
from nlrl_jax.rollouts.host_games import StepDecisions


class Planner(NamedTuple):
    """A planner: how a rollout's steps are read and what the rollout is worth.

    Attributes:
      value: (caller, rollouts, log-prior of each first action) -> Q of each.
      note: label of the line after each imagined observation.
      outcome: whether what follows the last action counts; see `imagine`.
      shown: whether the game's own steps have such a line, with the number 0 until now.
      scores: whether log-probabilities are needed.
    """

    value: Callable[[Caller, Sequence[Future], Sequence[float]], Sequence[float]]
    note: str
    outcome: bool = True
    shown: bool = False
    scores: bool = False

    def decide(self, caller: Caller, histories: Sequence[History], actions: Sequence[str]) -> StepDecisions:
        """One decision for each history; see `lac.decide`.

        Raises:
          NotImplementedError: the model does not give the log-probabilities that are needed.
          ValueError: the depth is 0.
        """
        if self.scores and not caller.model.can_score:
            raise NotImplementedError(
                "RAP adds up log-probabilities, which this model does not give; choose another planner"
            )
        if caller.config.depth < 1:
            raise ValueError("depth is 0; this planner needs rollouts of at least one step")
        if self.shown:
            # Examples have a reward after each step: real steps get one too, so that the model keeps the form.
            histories = [history.noted("0") if history.steps else history for history in histories]
        short = caller.trim(histories)
        candidates = propose(caller, short, actions)
        # Rollouts of all candidates of all games side by side, in one list.
        firsts = [action for proposal in candidates for action in proposal.actions]
        starts = [history for history, proposal in zip(short, candidates, strict=True) for _ in proposal.actions]
        rollouts = imagine(caller, starts, firsts, actions, done, outcome=self.outcome, note=self.note)
        futures = [leaves[0] for leaves in rollouts]
        # Dealt out again, candidate by candidate.
        values = iter(self.value(caller, futures, [p for proposal in candidates for p in proposal.log_prior]))
        leaves, picked, thinking = iter(futures), [], []
        for proposal in candidates:
            q = [float(next(values)) for _ in proposal.actions]
            imagined = [[[list(step) for step in next(leaves).imagined]] for _ in proposal.actions]
            picked.append(proposal.actions[int(np.argmax(q))])  # the likeliest comes first
            record = {"candidates": list(proposal.actions), "log_prior": list(proposal.log_prior)}
            thinking.append(record | {"q": q, "futures": imagined})
        return caller.decisions(picked, short, thinking)


def done(step: Step) -> bool:
    """Whether the model says that the task is done after an imagined step."""
    return number(step) >= 1


def number(step: Step) -> float:
    """The number that the model writes after an imagined step, from 0 to 1; 0 where it writes none, or another."""
    return read_share(step.note) or 0.0


def numbers(caller: Caller, role: str, future: Future) -> list[float]:
    """The number after each step of a rollout; where the model writes none, it is 0 and counted."""
    missing = sum(read_share(step.note) is None for step in future.imagined)
    caller.count(role, "no number", missing)
    return [number(step) for step in future.imagined]
