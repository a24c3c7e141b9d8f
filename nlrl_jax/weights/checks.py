"""What a file holds, checked against what the decoder's config calls for."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nlrl_jax.lm.config import ModelConfig

_FAR = 16  # times as large: no near miss, which `check_tensors` names better


def check_tensors(
    source: pathlib.Path,
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, tuple[int, ...]],
    wanted_by: str,
    missing_hint: str = "",
) -> None:
    """Checks that a file holds exactly the tensors expected.

    Args:
      expected, stored: name -> shape.
      wanted_by: what the expected shapes follow from, such as "config.json calls for".

    Raises:
      ValueError: a tensor is missing, unexpected or of another shape, by name.
    """
    differences = (
        (expected.keys() - stored.keys(), f"missing{missing_hint}"),
        (stored.keys() - expected.keys(), "unexpected in this model"),
    )
    for names, problem in differences:
        if names:
            first = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise ValueError(f"{source}: tensor{'s' if len(names) > 1 else ''} {first} {problem}")
    for name, shape in expected.items():
        if stored[name] != shape:
            raise ValueError(f"{source}: {name} has shape {stored[name]}; {wanted_by} {shape}")


def check_sizes(
    source: pathlib.Path, config: ModelConfig, stored: Mapping[str, tuple[int, ...]], wanted_by: str
) -> None:
    """Checks that no size of a config is far beyond a file's tensors, before anything of such a size is made.

    Args:
      stored: name -> shape. wanted_by: see `check_tensors`.

    Raises:
      ValueError: a size that is too large, in words.
    """
    largest = max((size for shape in stored.values() for size in shape), default=0)
    sizes = {
        "layers": (config.num_layers, len(stored)),
        "numbers for all heads": (max(config.num_heads, config.num_kv_heads) * config.head_dim, largest),
        "tokens": (config.vocab_size, largest),
        "hidden numbers": (config.hidden_size, largest),
        "experts": (config.num_experts, max(largest, len(stored))),
        "intermediate numbers": (config.expert_size if config.num_experts else config.intermediate_size, largest),
    }
    for unit, (size, limit) in sizes.items():
        if size > _FAR * limit:
            raise ValueError(
                f"{source}: {wanted_by} {size} {unit}, which its {len(stored)} tensors, of sizes up to {largest}, "
                "cannot hold"
            )


def finite(values: np.ndarray, source: Any, name: str) -> np.ndarray:
    """The values themselves. A part of a nanosecond a number, on plain numbers, which NumPy compares faster.

    Raises:
      ValueError: one of them is not finite; says which tensor of the source holds it.
    """
    infinity = np.array(np.inf, values.dtype).view(bits_of(values.dtype))
    if values.size and (values.view(infinity.dtype) & infinity).max() == infinity:
        wrong = values[~np.isfinite(values)][0]
        raise ValueError(f"{source}: {name} holds {wrong:g}, which is no number a model can compute with")
    return values


def bits_of(dtype: Any) -> np.dtype:
    """The plain numbers of the same size."""
    return np.dtype(f"uint{8 * dtype.itemsize}")
