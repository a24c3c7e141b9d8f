"""What the processes of a run tell one another once JAX has joined them. Alone, each function returns at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from nlrl_jax.types import LanguageModelError

T = TypeVar("T")
_LEAST = 1024  # bytes of a message


def several() -> bool:
    """Whether more than this process computes."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def every(value: T) -> list[T]:
    """The value (JSON) of each process, by its number; all processes must call."""
    if not several():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text), np.int32))
    # Few different lengths, since each is compiled.
    buffer = np.zeros(max(_LEAST, 1 << int(sizes.max() - 1).bit_length()), np.uint8)
    buffer[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(buffer))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def any_of(flag: bool) -> bool:
    """Whether `flag` holds in any process; all processes must call."""
    return bool(np.any(multihost_utils.process_allgather(np.array(flag)))) if several() else flag


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns (JSON) or raises in the first process, in all of them; all processes must call."""
    if not several():
        return make()
    outcome: dict[str, Any] = {}
    if first():
        try:
            outcome = {"value": make()}
        except (ValueError, OSError, LanguageModelError) as error:
            outcome = {"error": str(error)}
    outcome = every(outcome)[0]
    if "error" in outcome:
        raise LanguageModelError(outcome["error"])
    return outcome["value"]


def wait() -> None:
    """Returns once all processes have come here."""
    any_of(False)
