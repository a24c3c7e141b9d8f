"""What may be spent on a paid endpoint, and what has been."""

from __future__ import annotations

import dataclasses
import math
import threading

from nlrl_jax.types import LanguageModelError


class BudgetExceeded(LanguageModelError):
    """The limit is reached. Everything that was paid for is in the cache, if there is one."""


@dataclasses.dataclass
class Account:
    """A running total, shared by the models and threads that write into it.

    It outlives a process as `Account(**account.as_dict())`.

    Attributes:
      prompt_tokens, tokens: read and written.
      cost: in the currency of the prices.
      answers: requests that were answered, also where the answer was of no use but paid for.
      estimated: answers without token counts; a quarter of the bytes sent and received was taken instead.
      retries: requests that were sent again.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    cost: float = 0.0
    answers: int = 0
    estimated: int = 0
    retries: int = 0

    def __post_init__(self):
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Adds to the fields of these names."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def as_dict(self) -> dict[str, float]:
        """The numbers alone, JSON-able."""
        with self._lock:
            return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Budget:
    """A limit; no request starts at or above it.

    Requests that are on their way when the limit is reached are waited for, so the total may end above it by what
    `concurrency` requests take.

    Attributes:
      max_tokens: read and written together; None is no limit.
      max_cost: None is no limit.
      prompt_price, completion_price: of a million tokens. Without a `max_cost` they only fill `Account.cost`.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0

    def __post_init__(self):
        for name in ("max_tokens", "max_cost", "prompt_price", "completion_price"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise ValueError(f"{name} is {value}; it must be 0 or above (None is no limit)")
        if self.max_cost is not None and self.prompt_price == self.completion_price == 0:
            raise ValueError(f"max_cost is {self.max_cost}, but both prices are 0; give them per million tokens")

    def cost(self, prompt_tokens: int, tokens: int) -> float:
        """What these tokens cost."""
        return (prompt_tokens * self.prompt_price + tokens * self.completion_price) / 1e6

    def check(self, account: Account) -> None:
        """Raises BudgetExceeded where nothing more may be sent."""
        spent = account.as_dict()
        tokens = spent["prompt_tokens"] + spent["tokens"]
        if self.max_tokens is not None and tokens >= self.max_tokens:
            self._refuse(f"{tokens} tokens are spent and the limit is {self.max_tokens}", "--token_budget (max_tokens)")
        if self.max_cost is not None and spent["cost"] >= self.max_cost:
            self._refuse(f"{spent['cost']:.6g} is spent and the limit is {self.max_cost:.6g}", "max_cost")

    def _refuse(self, what: str, field: str) -> None:
        raise BudgetExceeded(f"{what}; raise {field} and run again: what is in the cache is not paid for twice")
