"""The decoder's parameters as a flat table: where each sits in the tree and how to fill it slice by slice.

A parameter is named by its path in the tree, e.g. ("blocks", "attention", "q", "kernel"). Those
under "blocks" carry a leading layers axis; a file holds one tensor a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, SingleDeviceSharding

from nlrl_jax.lm import sharding, transformer
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.transformer import Transformer, abstract_variables

Path = tuple[str, ...]
Fetch = Callable[[Path, int | None, tuple[slice, ...]], np.ndarray]


def shapes(config: ModelConfig, collection: str = "params") -> dict[Path, tuple[int, ...]]:
    """Path -> shape of every parameter, read off the decoder's own declarations."""
    tree = nn.meta.unbox(abstract_variables(Transformer(config)))[collection]
    return {path: leaf.shape for path, leaf in flatten_dict(tree).items()}


def stacked(path: Path) -> bool:
    """Whether the parameter has a leading layers axis."""
    return path[0] == "blocks"


def assemble(
    config: ModelConfig,
    fetch: Fetch,
    collection: str = "params",
    mesh: Mesh | None = None,
    dtype: Any = None,
    paths: set[Path] | None = None,
) -> dict[str, Any]:
    """Builds a parameter tree tensor by tensor; the host holds at most one stacked parameter besides the result.

    With a mesh every device gets its own slice of each parameter, and a process asks `fetch` only for
    the slices of its own devices.

    Args:
      fetch: (path, layer or None, index) -> the tensor of that layer in the decoder's orientation
        ([in, out] for kernels), cut by `index`, one slice a dimension.
      mesh: where the parameters go; the default device if None.
      dtype: dtype of the result; `config.param_dtype` if None.
      paths: build these only.

    Returns: the nested dict of `jax.Array` that `Transformer.apply` takes as `collection`.

    Raises:
      ValueError: the mesh would cut attention heads in two.
    """
    sharding.check_heads(config.num_heads, config.num_kv_heads, mesh)
    dtype = jax.numpy.dtype(dtype or config.param_dtype)
    wanted = {path: shape for path, shape in shapes(config, collection).items() if paths is None or path in paths}
    placement = _shardings(config, collection, mesh)
    tree = {}
    for path, shape in wanted.items():
        cut: dict[tuple, np.ndarray] = {}  # replicas of a slice are read once

        def read(index, path=path, shape=shape, cut=cut):
            key = tuple(s.indices(size)[:2] for s, size in zip(index, shape, strict=True))
            if key not in cut:
                cut[key] = _read(fetch, path, key, dtype)
            return cut[key]

        tree[path] = jax.make_array_from_callback(shape, placement[path], read)
    return unflatten_dict(tree)


def _read(fetch: Fetch, path: Path, bounds: tuple[tuple[int, int], ...], dtype: Any) -> np.ndarray:
    index = tuple(slice(*b) for b in bounds)
    if not stacked(path):
        return np.ascontiguousarray(fetch(path, None, index).astype(dtype, copy=False))
    out = np.empty([b - a for a, b in bounds], dtype)
    for row, layer in enumerate(range(*bounds[0])):
        out[row] = fetch(path, layer, index[1:])
    return out


def _shardings(config: ModelConfig, collection: str, mesh: Mesh | None) -> dict[Path, Any]:
    model = Transformer(config)
    tree = nn.meta.unbox(abstract_variables(model))[collection]
    if mesh is None:
        return {path: SingleDeviceSharding(jax.local_devices()[0]) for path in flatten_dict(tree)}
    return flatten_dict(sharding.shardings(tree, transformer.param_specs(model)[collection], mesh))


def merged_kernel(config: ModelConfig, kernel: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """kernel + alpha / rank * a @ b, summed in float32 and returned in kernel's dtype.

    Args:
      kernel: [..., in, out].
      a: [..., in, rank].
      b: [..., rank, out].
    """
    update = jnp.matmul(a, b, preferred_element_type=jnp.float32) * (config.lora.alpha / config.lora.rank)
    return (kernel.astype(jnp.float32) + update).astype(kernel.dtype)
