"""Warnings about training: measures of `algorithms/collapse.py` that fall, batches without a learning signal, and
games that pay no reward. `warnings` is for a run's page, `Watch` for a run that trains.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping

import numpy as np

from nlrl_jax.run.metrics import read_metrics

MEASURES = ("surprisal", "distinct_replies", "state_dependence", "return_spread")
_LONGER = "longer episodes (--max_turns, outside transcripts --max_steps too)"
_ENOUGH = 20  # iterations that `Watch` looks back on
_ENDS = 5  # iterations at least that are an end of a run; a run of fewer than two ends is short
_UNPAID = 10  # iterations without a reward of the game, after which that is said
_IN_VAIN = 3  # iterations without anything to learn from, after which that is said
MANY_BROKEN = 0.5  # share of episodes that broke off, above which an iteration teaches nothing
_CERTAIN = 0.01  # nats per token: below it, a model tries nothing new
_ALIKE = 0.25  # share of the first iteration's distinct replies, below which they have become alike
_IGNORED = 0.01  # nats per reply: below it, a reply owes nothing to its prompt
_FALLS = (  # a measure, the share of its first value below which it has fallen, what that means
    ("surprisal", 0.05, "The model hardly explores any more: almost every token is certain"),
    ("distinct_replies", 0.25, "Replies have become alike"),
    ("state_dependence", 0.1, "Replies hardly depend on the state any more"),
    ("return_spread", 0.1, "Episodes of a group end alike, so there is little to learn from"),
)


def warnings(run_dir: str | os.PathLike) -> list[str]:
    """Compares the last tenth of a run with its first; [] where nothing fell off, or the run is short."""
    metrics = read_metrics(run_dir)
    if len(metrics["iteration"]) < 2 * _ENDS:
        return []
    n = max(len(metrics["iteration"]) // 10, _ENDS)
    sentences = []
    for name, share, sentence in _FALLS:
        if name not in metrics:
            continue
        first, last = (float(np.mean(part)) for part in (metrics[name][:n], metrics[name][-n:]))
        best = max(first, float(np.max(metrics[name]))) if name == "state_dependence" else first  # it is learned
        is_noise = name == "surprisal" and last > 2 * first + 0.5
        if is_noise:
            sentence = "Replies turn into noise: their tokens have become unlikely"
        if is_noise or last < share * best:
            sentences.append(
                f"{sentence} ({name} {first:.3g} in the first {n} iterations, {last:.3g} in the last {n})."
            )
    if "actions_read" in metrics and not np.any(metrics["actions_read"]):
        sentences.append(f"{_UNREAD[0].upper()}{_UNREAD[1:]}.")
    if "env_return" in metrics and not np.any(metrics["env_return"][-max(n, _UNPAID) :]):
        sentences.append(f"T{_unpaid(max(n, _UNPAID))[1:]}.")
    return sentences


_UNREAD = (
    "no reply held an action that could be read, so the model has not played: look at its replies (nlrl-jax evaluate "
    "--watch) and at the form that the prompt asks for; cut replies need more --max_tokens, or --think_tokens"
)


class Watch:
    """Called with the metrics of each iteration; returns new warnings, each of them once.

    Looks at the last `_ENOUGH` iterations; episodes that nearly all succeed need no advice.
    """

    def __init__(self):
        self._rows: deque[Mapping[str, float]] = deque(maxlen=_ENOUGH)
        self._told: set[str] = set()
        self._first: Mapping[str, float] = {}

    def __call__(self, metrics: Mapping[str, float]) -> list[str]:
        self._rows.append(metrics)
        self._first = self._first or metrics
        if self._mean("success") > 0.9:
            return []
        warnings: dict[str, str] = {}
        if metrics.get("actions_read") == 0:
            warnings["unread"] = f"in this iteration {_UNREAD}"
        lately, last = f"of the last {_ENOUGH} iterations", list(self._rows)[-_IN_VAIN:]
        is_full = len(self._rows) == _ENOUGH
        surprisal = max(row.get("surprisal", 1.0) for row in last)
        if len(last) == _IN_VAIN and all(row.get("uninformative_groups") == 1 for row in last):
            warnings["equal"] = (
                f"in all groups of the last {_IN_VAIN} iterations all episodes had the same return: there was nothing "
                f"to learn from. {self._alike() or _advice(self._mean('steps'), self._mean('turns'), surprisal)}"
            )
        elif is_full and (equal := self._mean("uninformative_groups")) > 0.5:
            warnings["equal"] = (
                f"in {equal:.0%} of the groups {lately} all episodes had the same return: there is hardly anything to "
                f"learn from. {_advice(self._mean('steps'), self._mean('turns'))}"
            )
        unpaid = [row.get("env_return") for row in self._rows][-_UNPAID:]
        if len(unpaid) == _UNPAID and all(reward == 0 for reward in unpaid):
            warnings["unpaid"] = _unpaid(_UNPAID)
        if is_full and (broke := self._mean("broke_off")) > 0.1:
            warnings["broken"] = (
                f"{broke:.0%} of the episodes {lately} broke off, for the faults that are named above. They teach "
                "nothing"
            )
        if is_full and abs(depends := self._mean("state_dependence")) < _IGNORED:
            warnings["blind"] = (
                f"replies {lately} hardly depended on the state (state_dependence {depends:.2g} nats per reply), as if "
                "the model did not read the game. Try --prompt compact, a warm start with walkers that see (warm_start "
                "--skilled_share), more initial states (--num_groups) or a larger model"
            )
        new = {name: sentence for name, sentence in warnings.items() if name not in self._told}
        self._told |= new.keys()
        return list(new.values())

    def reason_to_stop(self) -> str:
        """Why it makes no sense to go on: most episodes of `_IN_VAIN` iterations in a row broke off; else ""."""
        shares = [row.get("broke_off", 0.0) for row in self._rows][-_IN_VAIN:]
        if len(shares) < _IN_VAIN or min(shares) <= MANY_BROKEN:
            return ""
        return (
            f"{min(shares):.0%} or more of the episodes broke off in each of the last {_IN_VAIN} iterations; warnings "
            "above name the faults. Mend the environment (or give the model a longer context), then continue with "
            "--resume"
        )

    def _alike(self) -> str:
        """What to do where replies have become alike since the first iteration; else "", as in a run that goes on."""
        first, last = (row.get("distinct_replies", 0.0) for row in (self._first, self._rows[-1]))
        if last >= _ALIKE * first or self._first.get("uninformative_groups") == 1:
            return ""
        return (
            f"Replies have become alike ({last:.2g} of them differ, {first:.2g} in the first iteration): begin again "
            "with a lower --learning_rate, and with fines that are small beside the reward (--invalid_action_reward; "
            "a higher --max_tokens, so that no reply is cut)"
        )

    def _mean(self, name: str) -> float:
        """Over the iterations that are looked at, nan where one lacks the metric."""
        return float(np.mean([row.get(name, np.nan) for row in self._rows]))


def _unpaid(iterations: int) -> str:
    return (
        f"the game paid no reward in the last {iterations} iterations: the model can only learn to avoid penalties, "
        f"best by risking nothing. Try {_LONGER}, more of them (--group_size, --num_groups), a higher "
        "--temperature, a larger --beta, or `nlrl-jax warm_start`"
    )


def _advice(steps: float, turns: float, surprisal: float = 1.0) -> str:
    if surprisal < _CERTAIN:
        return (
            f"The model is certain of nearly every token ({surprisal:.2g} nats) and explores no more: begin again with "
            "a lower --learning_rate, a larger --beta or more initial states (--num_groups)"
        )
    if steps < 0.5 * turns:
        return (
            f"An episode's {turns:.2g} replies made {steps:.2g} steps, so most could not be read or were not allowed: "
            "begin with `nlrl-jax warm_start` for this game"
        )
    return (
        "Try more episodes per group (--group_size), more initial states (--num_groups), a higher --temperature, "
        f"{_LONGER} or a game that also rewards the way to its goal"
    )
