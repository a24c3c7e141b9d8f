"""Dry runs: what a run would ask its language models, from a small run that rules play.

A script plays a small part of its run with the models of a `CallPlan`: rules whose replies have the maximum length, and
which count calls and tokens. Each model says how many times larger the planned run is than what is played.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import CHARACTERS, at_full_length, metered
from nlrl_jax.types import LanguageModel

_AMOUNTS = ("calls", "prompt_tokens", "tokens")


class _Counted(NamedTuple):
    """A model of a plan; see `CallPlan.model`."""

    usage: Usage
    times: float
    label: str
    is_paid: bool
    once: Mapping[str, float]


class CallPlan:
    """The calls and tokens of a planned run, by role.

    Args:
      scripts: role -> the rule that replies.
      can_score: whether the models score too; see `wrappers.at_full_length`.
    """

    def __init__(self, scripts: Mapping[str, Script], can_score: bool = False):
        self._rules = at_full_length(ScriptedModel(scripts), can_score)
        self._counted: list[_Counted] = []

    def model(
        self, times: float, label: str = "{}", is_paid: bool = True, once: Mapping[str, float] | None = None
    ) -> LanguageModel:
        """A model for the small run.

        Args:
          times: how many calls of the planned run each of its calls stands for.
          label: the name in the table of what it is asked; {} is the role.
          is_paid: whether its tokens count against --token_budget.
          once: role -> times, for roles whose calls do not grow with the size of the planned run.
        """
        usage = Usage()
        self._counted.append(_Counted(usage, times, label, is_paid, once or {}))
        return metered(self._rules, usage)

    def rows(self) -> dict[str, Counter]:
        """{label: {"calls", "prompt_tokens", "tokens"}} of the planned run."""
        rows: dict[str, Counter] = {}
        for usage, times, label, _, once in self._counted:
            for row in usage.rows():
                factor = once.get(row["role"], times)
                amounts = {name: factor * row[name] for name in _AMOUNTS}
                rows.setdefault(label.format(row["role"]), Counter()).update(amounts)
        return rows

    def paid(self) -> tuple[float, float]:
        """The tokens that are paid for: (whatever the run's size, in proportion to it)."""
        fixed = growing = 0.0
        for usage, times, _, is_paid, once in self._counted:
            for row in usage.rows() if is_paid else ():
                tokens = row["prompt_tokens"] + row["tokens"]
                if row["role"] in once:
                    fixed += once[row["role"]] * tokens
                else:
                    growing += times * tokens
        return fixed, growing

    def table(self, budget: int = 0, option: str = "", value: int = 1) -> str:
        """The calls and tokens as a table, and a line about --token_budget.

        Args:
          budget: tokens; 0 is no limit.
          option, value: the option in proportion to which the run grows, and what it is.
        """
        rows = self.rows()
        lines = [f"{'role':20}{'calls':>14}{'tokens read, about':>22}{'written, at most':>20}"]
        for label, row in rows.items():
            lines.append(f"{label:20}{row['calls']:>14,.0f}{row['prompt_tokens']:>22,.0f}{row['tokens']:>20,.0f}")
        total = sum(row["prompt_tokens"] + row["tokens"] for row in rows.values())
        lines.append(f"{total / 1e6:,.1f} million tokens at most, at {CHARACTERS} characters per token")
        fixed, growing = self.paid()
        if budget and growing:
            lines.append(_within(budget, option, value, fixed, growing / value))
        return "\n".join(lines)


def _within(budget: int, option: str, value: int, fixed: float, each: float) -> str:
    """The largest value of an option with which `fixed + each * value` tokens stay below a budget."""

    def tokens(value: int) -> str:
        return f"{fixed + each * value:,.0f} tokens at most"

    largest = math.ceil((budget - fixed) / each) - 1
    if largest < 1:
        return f"--token_budget {budget:,}: too little even for --{option} 1 ({tokens(1)})"
    verdict = "within it" if value <= largest else "too much"
    return (
        f"--token_budget {budget:,}: --{option} {value} ({tokens(value)}) is {verdict}; "
        f"the largest below it is --{option} {largest} ({tokens(largest)})"
    )
