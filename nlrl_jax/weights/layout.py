"""The decoder's parameters as a flat table: where each sits in the tree, filled slice by slice, taken tensor by tensor.

A parameter is named by its path in the tree, e.g. ("blocks", "attention", "q", "kernel"). Those under "blocks" carry a
leading layers axis, and those of experts one more. A file holds one tensor a layer, or one for each expert of a layer:
its place is (), (layer,) or (layer, expert).

Where layers differ in kind, the tree has a stack for each place in a period of them, ("blocks", "layer_2", ...). That
is known here alone: paths and places of tensors name the layer itself (`in_tree`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from nlrl_jax.lm import sharding, transformer
from nlrl_jax.lm.acting import merged_kernel
from nlrl_jax.lm.block import layer_name
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, abstract_variables
from nlrl_jax.weights.checks import bits_of

Path = tuple[str, ...]
Place = tuple[int, ...]
Fetch = Callable[[Path, Place, tuple[slice, ...]], np.ndarray]

PIECE_BYTES = 2**25  # of a parameter, on the host at a time
_NUMBERS = 2**19  # fetched at a time
_OF_EACH_EXPERT = "gates", "ups", "downs"
_ROWS = 32  # transposed at a time: a block of columns of the result that stays in the processor's cache


def shapes(config: ModelConfig, collection: str = "params") -> dict[Path, tuple[int, ...]]:
    """Path -> shape of every parameter, read off the decoder's own declarations."""
    tree = _declared(config)[collection]
    return {path: leaf.shape for path, leaf in flatten_dict(tree).items()}


def in_tree(config: ModelConfig, path: Path, place: Place) -> tuple[Path, Place]:
    """Where in the tree the tensor of a layer lies: the path of its stack, and its place there."""
    if path[0] != "blocks" or config.period == 1:
        return path, place
    number, of_period = divmod(place[0], config.period)
    return ("blocks", layer_name(of_period), *path[1:]), (number, *place[1:])


def of_layer(config: ModelConfig, path: Path, place: Place) -> tuple[Path, Place]:
    """The path and place that a tensor is named by, of where it lies in the tree: the inverse of `in_tree`."""
    if path[0] != "blocks" or config.period == 1:
        return path, place
    names = [layer_name(i) for i in range(config.period)]
    return ("blocks", *path[2:]), (place[0] * config.period + names.index(path[1]), *place[1:])


def stack_axes(path: Path) -> int:
    """How many axes of the parameter come before those of one tensor: of layers, and of experts."""
    if path[0] != "blocks":
        return 0
    return 2 if path[-1] in _OF_EACH_EXPERT else 1


def transposed(path: Path) -> bool:
    """Whether files hold the parameter the other way round, [out, in]."""
    return path[-1] in ("kernel", "lm_head", "a", "b", "router", *_OF_EACH_EXPERT)


def tensors(config: ModelConfig, collection: str = "params") -> Iterator[tuple[Path, Place, tuple[int, ...]]]:
    """(path, place, shape in a file) of every tensor."""
    for path, shape in shapes(config, collection).items():
        axes = stack_axes(path)
        stored_shape = shape[axes:][::-1] if transposed(path) else shape[axes:]
        for place in itertools.product(*map(range, shape[:axes])):
            yield *of_layer(config, path, place), stored_shape


def assemble(
    config: ModelConfig,
    fetch: Fetch,
    collection: str = "params",
    mesh: Mesh | None = None,
    dtype: Any = None,
    paths: set[Path] | None = None,
) -> dict[str, Any]:
    """Builds a parameter tree piece by piece; the host holds two pieces of `PIECE_BYTES` besides the result
    (two slices of a device, where a mesh divides what has no layers).

    With a mesh every device gets its own slice of each parameter, and a process asks `fetch` only for
    the slices of its own devices, once for each.

    Args:
      fetch: (path, place, index) -> the tensor of that layer in the decoder's orientation ([in, out] for kernels), cut
        by `index`, one slice a dimension; it is copied.
      mesh: where the parameters go; the default device if None.
      dtype: dtype of the result; `config.param_dtype` if None.
      paths: build these only.

    Returns: the nested dict of `jax.Array` that `Transformer.apply` takes as `collection`.

    Raises:
      ValueError: the mesh would cut attention heads in two; a finite number is beyond the range of `dtype`.
    """
    sharding.check_heads(config.num_heads, config.num_kv_heads, mesh)
    dtype = jnp.dtype(dtype or config.param_dtype)
    placement = _shardings(config, collection, mesh)
    tree = {}

    def fetch_at(path, place, index):
        return fetch(*of_layer(config, path, place), index)

    for path, shape in shapes(config, collection).items():
        if paths is None or of_layer(config, path, (0,))[0] in paths:
            tree[path] = _build(fetch_at, path, shape, placement[path], dtype, committed=mesh is not None)
    return unflatten_dict(tree)


def _build(fetch: Fetch, path: Path, shape: tuple[int, ...], sharding: Any, dtype: Any, committed: bool) -> jax.Array:
    """One parameter; a large one is filled where it lies, a few layers, or rows of the file's tensor, at a time.

    Not `committed`, it lies on the default device, but goes to any other that it is used with: an optimizer's fresh
    state or tokens on a mesh.
    """
    axis = 0 if stack_axes(path) else _rows_axis(path, shape)
    size = max(1, PIECE_BYTES * shape[axis] // (math.prod(shape) * dtype.itemsize))
    if size >= shape[axis] or sharding.shard_shape(shape)[axis] < shape[axis]:
        return _piece(fetch, path, shape, sharding if committed else None, dtype)
    sharding = sharding if committed else None
    whole = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=sharding)(shape, dtype)
    fill = jax.jit(_fill, static_argnums=3, donate_argnums=0, out_shardings=sharding)
    for first in range(0, shape[axis], size):
        part = (*shape[:axis], min(size, shape[axis] - first), *shape[axis + 1 :])
        piece = _piece(fetch, path, part, sharding, dtype, (axis, first), bits_of(dtype))
        whole = jax.block_until_ready(fill(whole, piece, first, axis))
    return whole


def _fill(whole: jax.Array, bits: jax.Array, first: jax.Array, axis: int) -> jax.Array:
    """The piece that begins at `first`, in place and as plain numbers: CPUs would copy all of a bfloat16 array."""
    numbers = jax.lax.bitcast_convert_type(whole, bits.dtype)
    numbers = jax.lax.dynamic_update_slice_in_dim(numbers, bits, first, axis)
    return jax.lax.bitcast_convert_type(numbers, whole.dtype)


def _rows_axis(path: Path, shape: tuple[int, ...]) -> int:
    """The axis of a parameter, or of one layer of it, along which a file holds its rows."""
    return len(shape) - 1 if transposed(path) else 0


def _piece(
    fetch: Fetch,
    path: Path,
    shape: tuple[int, ...],
    sharding: Any,
    dtype: Any,
    offset: tuple[int, int] = (0, 0),
    seen_as: Any = None,
) -> jax.Array:
    """A parameter, or a piece of it from `offset` (axis, first) on, its bytes `seen_as` another dtype.

    It lies as `sharding` says, or uncommitted on the default device where that is None.
    """
    cut: dict[tuple, np.ndarray] = {}  # replicas of a slice are read once
    axis, first = offset

    def read(index):
        bounds = [s.indices(size)[:2] for s, size in zip(index, shape, strict=True)]
        bounds[axis] = (bounds[axis][0] + first, bounds[axis][1] + first)
        if (key := tuple(bounds)) not in cut:
            cut[key] = _read(fetch, path, key, dtype).view(seen_as or dtype)
        return cut[key]

    if sharding is None:
        return jax.device_put(read((slice(None),) * len(shape)), may_alias=False)
    return jax.make_array_from_callback(shape, sharding, read)


def _read(fetch: Fetch, path: Path, bounds: tuple[tuple[int, int], ...], dtype: Any) -> np.ndarray:
    out, axes = np.empty([b - a for a, b in bounds], dtype), stack_axes(path)
    for place in itertools.product(*(range(*bound) for bound in bounds[:axes])):
        at = tuple(number - first for number, (first, _) in zip(place, bounds))
        _fetch_into(out[at], fetch, path, place, bounds[axes:])
    return out


def _fetch_into(out: np.ndarray, fetch: Fetch, path: Path, place: Place, bounds: tuple[tuple[int, int], ...]) -> None:
    """Fills `out` with the part of a tensor within `bounds`, some of the file's rows at a time."""
    name = "/".join(path) + "".join(f" of {unit} {number}" for unit, number in zip(("layer", "expert"), place))
    axis = _rows_axis(path, out.shape)
    rows = max(_ROWS, 1 << (_NUMBERS * out.shape[axis] // out.size | 1).bit_length() - 1)
    index, target = [slice(*b) for b in bounds], [slice(None)] * out.ndim
    for start in range(0, out.shape[axis], rows):
        stop = min(start + rows, out.shape[axis])
        index[axis], target[axis] = slice(bounds[axis][0] + start, bounds[axis][0] + stop), slice(start, stop)
        _convert(fetch(path, place, tuple(index)), out[tuple(target)], name)


def _convert(source: np.ndarray, out: np.ndarray, name: str) -> None:
    """`_copy` into a dtype that may be too narrow for a number, which is refused."""
    with np.errstate(over="ignore"):
        _copy(source, out)
    largest = float(jnp.finfo(out.dtype).max)
    narrower = source.size and float(jnp.finfo(source.dtype).max) > largest
    if narrower and not -largest <= source.min() <= source.max() <= largest:
        lost = np.isinf(out) & np.isfinite(source)
        if lost.any():
            raise ValueError(
                f"{name} holds {source[lost][0]:g}, which {out.dtype} (at most {largest:g}) cannot hold; "
                "load the weights as float32 or bfloat16"
            )


def _copy(source: np.ndarray, out: np.ndarray) -> None:
    """out[...] = source; a transposed source by blocks of its rows, which is several times as fast."""
    if source.dtype == out.dtype:  # as plain numbers, which NumPy copies faster
        source, out = source.view(bits_of(out.dtype)), out.view(bits_of(out.dtype))
    if source.ndim == 2 and source.strides[0] < source.strides[1]:
        for start in range(0, source.shape[1], _ROWS):
            columns = slice(start, start + _ROWS)
            out[:, columns] = source[:, columns]
    else:
        out[...] = source


def _shardings(config: ModelConfig, collection: str, mesh: Mesh | None) -> dict[Path, Any]:
    tree = _declared(config)[collection]
    if mesh is None:
        return {path: SingleDeviceSharding(jax.local_devices()[0]) for path in flatten_dict(tree)}
    return flatten_dict(sharding.shardings(tree, transformer.param_specs(Transformer(config))[collection], mesh))


@functools.lru_cache(maxsize=8)
def _declared(config: ModelConfig) -> dict[str, Any]:
    """The decoder's variables without their numbers; tracing it takes a good part of a small model's loading."""
    return nn.meta.unbox(abstract_variables(Transformer(config)))


def take(
    config: ModelConfig, stack: Any, place: Place, transpose: bool, dtype: Any = None, adapter: tuple = ()
) -> np.ndarray:
    """One tensor on the host, whole; the devices cut, merge and turn it. If it is `spread`, all processes must call.

    Args:
      stack: a parameter. place: what is taken of its leading axes.
      transpose: [in, out] -> [out, in].
      dtype: of the result; its own if None.
      adapter: (a, b), stacked like the parameter, to add to it as `merged_kernel` does.

    Raises:
      ValueError: the result, or what the adapter is added to, is float16, and a number is beyond its range.
    """
    arrays = (stack, *adapter)
    if not spread(arrays):
        arrays = tuple(_local(array) for array in arrays)
    if isinstance(arrays[0], np.ndarray):
        arrays, place = tuple(array[place] for array in arrays), ()
    tensor = np.asarray(_take(arrays, place, config, transpose, dtype, shardings_at(arrays, place), spread(arrays)))
    tensor = tensor.view(jnp.dtype(dtype or stack.dtype))
    if tensor.dtype == np.float16 and (adapter or stack.dtype != tensor.dtype) and not np.isfinite(tensor).all():
        raise ValueError("a number is beyond the range of float16 (at most 65504); save as float32 or bfloat16")
    return tensor


def shardings_at(arrays: tuple, place: Place) -> tuple[NamedSharding | None, ...]:
    """Where the devices of a mesh hold what is at a place of each array; None for others."""
    shardings = []
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if isinstance(sharding, NamedSharding):
            axes = sharding.spec[len(place) :]  # without those of layers and experts
            shardings.append(NamedSharding(sharding.mesh, PartitionSpec(*axes)))
        else:
            shardings.append(None)
    return tuple(shardings)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5, 6))
def _take(arrays, place, config, transpose, dtype, shardings, everywhere):
    """Devices cut their own slices before any are exchanged; with `everywhere` each gets the whole tensor."""
    for number in place:
        arrays = [jax.lax.dynamic_index_in_dim(array, number, keepdims=False) for array in arrays]
    hold = jax.lax.with_sharding_constraint
    arrays = [hold(array, place) if place else array for array, place in zip(arrays, shardings)]
    tensor = merged_kernel(config, *arrays) if len(arrays) > 1 else arrays[0]
    tensor = tensor.astype(dtype or tensor.dtype)
    if everywhere:  # as plain numbers: CPUs would exchange bfloat16 as float32
        bits = jax.lax.bitcast_convert_type(hold(tensor, shardings[0]), bits_of(tensor.dtype))
        tensor = hold(hold(bits, shardings[0]), NamedSharding(shardings[0].mesh, PartitionSpec()))
    # A copy, as JAX keeps what the host has seen of an array for as long as the array lives.
    return jnp.copy(tensor.T if transpose else tensor)


def spread(tree: Any) -> bool:
    """Whether other processes hold parts of the arrays that this one lacks."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return any(not array.is_fully_addressable and not array.is_fully_replicated for array in arrays)


def _local(array: Any) -> Any:
    """This process's own copy of an array that every process has."""
    return array.addressable_data(0) if isinstance(array, jax.Array) and not array.is_fully_addressable else array
