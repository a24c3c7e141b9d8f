"""The shapes that functions of arrays want: a wrong one is named, where NumPy would broadcast it or fail far away.

    sizes = expect("T B", rewards=rewards, values=values)
    expect("B", sizes, bonus=bonus)                          # the same B

Everything is read off shapes, so nothing is computed and a compiled program is the same with or without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, auto_axes

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
    letters: Sizes = {**sizes, **{name: int(name) for name in names if name.isdigit()}}
    leading, tail = names[:1] == ["..."], names[names[:1] == ["..."] :]
    for name, array in arrays.items():
        shape = _shape(name, array, axes)
        extra = len(shape) - len(tail)
        parts = [*([("...", shape[:extra])] if leading else []), *zip(tail, shape[extra:] if tail else ())]
        fits = extra >= 0 if leading else extra == 0
        if not fits or any(letters.get(letter, size) != size for letter, size in parts):
            raise ValueError(f"{name} has shape {shape}; it must be {_wanted(names, letters)}")
        letters.update(parts)
    return letters


def present(**arrays: Any) -> dict[str, Any]:
    """The arrays that are not None."""
    return {name: array for name, array in arrays.items() if array is not None}


def floating(array: jax.Array) -> jax.Array:
    """Integers and booleans as float32, whose sums would wrap around; real numbers as they are."""
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.float32)


def single_or_wider(array: jax.Array) -> jax.Array:
    """As float32, or as float64 where it is that: half precision is too coarse for differences of returns."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def flat_steps(array: jax.Array) -> jax.Array:
    """[T, B, ...] as rows [T * B, ...]."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def is_traced(value: Any) -> bool:
    """Whether the value is not known yet, so that it cannot be checked."""
    return isinstance(value, jax.core.Tracer)


def batch_laid_out_by_compiler(function: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
    """`function(key, positions)`, also where the positions [B, ...] lie along an axis of an Explicit mesh.

    There JAX wants a sharding for every gather, which a tree search has many of. So the axis is Auto inside, and the
    results lie as the positions do.

    Args:
      axes: where the results have the batch: a number, or a tree of numbers that is a prefix of theirs.
    """

    @functools.wraps(function)
    def call(key: jax.Array, positions: Any) -> Any:
        sharding = jax.typeof(jax.tree.leaves(positions)[0]).sharding
        names = sharding.spec[0] if sharding.spec else None
        if names is None:  # on one device, whole on each, an Auto mesh, or inside shard_map
            return function(key, positions)
        places = jax.tree.map(lambda axis: PartitionSpec(*[None] * axis, names), axes)
        with jax.sharding.use_abstract_mesh(sharding.mesh):  # the caller need not have set it
            return auto_axes(function, axes=sharding.mesh.explicit_axes, out_sharding=places)(key, positions)

    return call


def _shape(name: str, array: Any, axes: str) -> tuple[int, ...]:
    if isinstance(array, bool | int | float):
        return ()
    if not isinstance(array, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        raise ValueError(f"{name} is a {type(array).__name__}; it must be an array [{', '.join(axes.split())}]")
    return tuple(array.shape)


def _wanted(names: list[str], sizes: Sizes) -> str:
    """[T, B], and with numbers where they are known."""
    plain = f"[{', '.join(names)}]"
    numbers = []
    for name in names:
        value = sizes.get(name, name)
        numbers += map(str, value) if isinstance(value, tuple) else [str(value)]
    return plain if numbers == names else f"{plain}, here [{', '.join(numbers)}]"
