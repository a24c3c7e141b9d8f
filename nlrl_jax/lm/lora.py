"""Merging an adapter into the weights it belongs to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from nlrl_jax.lm.config import ModelConfig


def merged_kernel(config: ModelConfig, kernel: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """kernel + alpha / rank * a @ b, summed in float32 and returned in kernel's dtype.

    Args:
      kernel: [..., in, out].
      a: [..., in, rank].
      b: [..., rank, out].
    """
    update = jnp.matmul(a, b, preferred_element_type=jnp.float32) * (config.lora.alpha / config.lora.rank)
    return (kernel.astype(jnp.float32) + update).astype(kernel.dtype)


def merge_lora(config: ModelConfig, params: Any, lora: Any) -> Any:
    """The "params" collection whose kernels hold the adapter `lora`; the model then runs without it.

    Modules without an adapter keep their arrays.

    Raises:
      ValueError: an adapter for a module that `params` does not have.
    """
    kernels, adapters = flatten_dict(params), flatten_dict(lora)
    merged = dict(kernels)
    for path in {path[:-1] for path in adapters}:
        if (*path, "kernel") not in kernels:
            raise ValueError(f"the adapter has a module {'.'.join(path)}, which the weights have not")
        kernel = kernels[(*path, "kernel")]
        merged[(*path, "kernel")] = merged_kernel(config, kernel, adapters[(*path, "a")], adapters[(*path, "b")])
    return unflatten_dict(merged)
