"""Frozen dataclasses as configuration: a field carries its default, its help text and its bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any


def option(default: Any, help: str) -> Any:
    """A dataclass field with a help text."""
    return dataclasses.field(default=default, metadata={"help": help})


def check(
    config: Any,
    at_least_one: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    positive: Sequence[str] = (),
    finite: Sequence[str] = (),
) -> None:
    """Checks the numbers of a config, field names by what they must be. Call it from `__post_init__`.

    Raises:
      ValueError: a number out of its range, infinite or nan.
    """
    rules = (
        (at_least_one, "a finite number of at least 1", lambda value: value >= 1),
        (not_negative, "a finite number and not negative", lambda value: value >= 0),
        (positive, "a finite number above 0", lambda value: value > 0),
        (finite, "a finite number", lambda value: True),
    )
    for names, wanted, holds in rules:
        for name in names:
            value = getattr(config, name)
            if not (math.isfinite(value) and holds(value)):
                raise ValueError(f"--{name} is {value!r}; it must be {wanted}")


def check_dtype(dtype: str) -> None:
    """Raises ValueError for what `--dtype` may not be."""
    if dtype not in ("", "float32", "bfloat16"):
        raise ValueError(f"--dtype is {dtype!r}; it must be float32 or bfloat16, or empty for the checkpoint's")
