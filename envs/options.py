"""Bounds of the games' options."""

from __future__ import annotations

import numbers


def integer(name: str, value: int, least: int, most: int = 2**31 - 1) -> int:
    """An option that is a whole number between `least` and `most`, the largest int32 by default.

    Raises:
      ValueError: it is not; the message names the option and the value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be an integer from {least} to {most}")
    return int(value)
