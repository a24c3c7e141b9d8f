"""Single values of a `config.json`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlrl_jax.lm.families import LARGEST


def size(hf: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive whole number; without a default it must be there."""
    value = hf[name] if default is None else hf.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {value!r:.60}; it must be a whole number from 1 to {LARGEST}")
    return value


def number(hf: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; without a default it must be there."""
    value = hf[name] if default is None else hf.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r:.60}; it must be a number above 0")
    return float(value)


def flag(hf: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false; the default where it is not there."""
    value = hf.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} is {value!r}; it must be true or false")
    return default if value is None else value
