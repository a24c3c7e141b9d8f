"""The shapes that functions of arrays want: a wrong one is named, where NumPy would broadcast it or fail far away.

    sizes = expect("T B", rewards=rewards, values=values)
    expect("B", sizes, bonus=bonus)                          # the same B

Everything is read off shapes, so nothing is computed and a compiled program is the same with or without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Sizes = dict[str, int | tuple[int, ...]]


def expect(axes: str, sizes: Mapping[str, Any] = {}, **arrays: Any) -> Sizes:
    """Checks that arrays have the axes `axes`, such as "T B": the same letter is the same size in all of them.

    Args:
      axes: names, or sizes, divided by blanks; "..." in front is any number of axes, the same ones in all. "" is a
        scalar.
      sizes: of letters whose sizes are fixed already.
      arrays: by the names that the error is to use. A Python number is a scalar; see `present`.

    Returns: the sizes of all letters.

    Raises:
      ValueError: not an array (a list, say); another rank; a size that differs. The message names the
        array, its shape and the one that is wanted.
    """
    names = axes.split()
    found: Sizes = {**sizes, **{name: int(name) for name in names if name.isdigit()}}
    leading, tail = names[:1] == ["..."], names[names[:1] == ["..."] :]
    for name, array in arrays.items():
        shape = _shape(name, array, axes)
        extra = len(shape) - len(tail)
        parts = [*([("...", shape[:extra])] if leading else []), *zip(tail, shape[extra:] if tail else ())]
        fits = extra >= 0 if leading else extra == 0
        if not fits or any(found.get(letter, size) != size for letter, size in parts):
            raise ValueError(f"{name} has shape {shape}; it must be {_wanted(names, found)}")
        found.update(parts)
    return found


def present(**arrays: Any) -> dict[str, Any]:
    """The arrays that are not None."""
    return {name: array for name, array in arrays.items() if array is not None}


def floating(array: jax.Array) -> jax.Array:
    """Integers and booleans as float32, whose sums would wrap around; real numbers as they are."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)


def _shape(name: str, array: Any, axes: str) -> tuple[int, ...]:
    if isinstance(array, bool | int | float):
        return ()
    if not isinstance(array, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        raise ValueError(f"{name} is a {type(array).__name__}; it must be an array [{', '.join(axes.split())}]")
    return tuple(array.shape)


def _wanted(names: list[str], known: Sizes) -> str:
    """[T, B], and with numbers where they are known."""
    plain = f"[{', '.join(names)}]"
    numbers = []
    for name in names:
        value = known.get(name, name)
        numbers += map(str, value) if isinstance(value, tuple) else [str(value)]
    return plain if numbers == names else f"{plain}, here [{', '.join(numbers)}]"
