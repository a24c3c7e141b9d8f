"""Bounds of the games' options."""

from __future__ import annotations

import numbers

from nlrl_jax.text.prompts import PROMPTS


def integer(name: str, value: int, minimum: int, maximum: int = 2**31 - 1) -> int:
    """Checks that an option is a whole number between `minimum` and `maximum`, the largest int32 by default.

    Raises:
      ValueError: it is not; the message names the option and the value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= value <= maximum:
        raise ValueError(f"{name} is {value!r}; it must be an integer from {minimum} to {maximum}")
    return int(value)


def check_text_game(prompt: str, max_steps: int = 1) -> None:
    """Raises ValueError for an unknown form of prompts, or a horizon below 1."""
    if prompt not in PROMPTS:
        raise ValueError(f"unknown prompt {prompt!r}; known prompts: {', '.join(PROMPTS)}")
    integer("max_steps", max_steps, 1)
