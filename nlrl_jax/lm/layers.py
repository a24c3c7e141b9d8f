"""Parts that layers of all kinds are made of: products with adapters, norms, the function of the MLP's gate.

Letters: B batch, L tokens, H model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm import products
from nlrl_jax.lm.cache import Cache
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import platform_of


class Linear(nn.Module):
    """x @ kernel (+ bias) (+ alpha / rank * x @ a @ b where the "lora" collection holds an adapter).

    With `lora_x`, x from `apart`, the adapter is one of `lm.acting`: already in `dtype`, alpha / rank within b.
    """

    config: ModelConfig
    features: int
    axes: tuple[str, str]
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, lora_x: jax.Array | None = None) -> jax.Array:
        c, rank = self.config, self.config.lora.rank
        init = nn.initializers.normal(0.02)
        shape = (x.shape[-1], self.features)
        if (turned := self.get_variable("params", "turned")) is not None:  # by `lm.acting`
            y = products.few_rows(x, turned.astype(c.dtype)).astype(c.dtype)
        else:
            kernel = self.param("kernel", nn.with_logical_partitioning(init, self.axes), shape, c.param_dtype)
            y = x @ kernel.astype(c.dtype)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
            y = y + self.param("bias", zeros, shape[1:], c.param_dtype).astype(c.dtype)
        if self.is_initializing() or self.has_variable("lora", "a"):
            a = self._adapter("a", nn.initializers.he_uniform(), (shape[0], rank), (self.axes[0], None))
            b = self._adapter("b", nn.initializers.zeros, (rank, shape[1]), (None, self.axes[1]))
            if lora_x is None:
                scale = jnp.asarray(c.lora.alpha / rank, c.dtype)
                y = y + products.low_rank(x, a.astype(c.dtype), b.astype(c.dtype)) * scale
            else:
                y = y + products.low_rank(lora_x, a, b)
        return y

    def _adapter(self, name: str, init: Any, shape: tuple[int, int], axes: tuple) -> jax.Array:
        boxed = nn.with_logical_partitioning(init, axes)
        return self.variable("lora", name, lambda: boxed(self.make_rng("params"), shape, jnp.float32)).value


class RMSNorm(nn.Module):
    config: ModelConfig
    axis: str | None = "embed"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        offset = self.config.norm_offset
        init = nn.with_logical_partitioning(nn.initializers.zeros if offset else nn.initializers.ones, (self.axis,))
        scale = self.param("scale", init, x.shape[-1:], self.config.param_dtype)
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.config.norm_eps)
        if offset:
            return (y * (1 + scale.astype(jnp.float32))).astype(x.dtype)
        # Cast before the scale, as the reference models do.
        return y.astype(x.dtype) * scale.astype(x.dtype)


def activation_of(config: ModelConfig) -> Callable[[jax.Array], jax.Array]:
    """The function of the MLP's gate."""
    return {"silu": jax.nn.silu, "gelu_tanh": jax.nn.gelu}[config.activation]


def apart(
    x: jax.Array, copies: int, cache: Cache | None, mesh: Mesh | None, alone: bool = False
) -> tuple[jax.Array, ...]:
    """`x` [B, L, H] so many times, for products that XLA is not to join where it decodes on an accelerator.

    It would write their weights side by side first, for every token: half of what decoding reads of Qwen2.5-3B. Those
    of layers that are `alone` are not written for a prompt either, but on a mesh that gathers them: with the barriers
    XLA takes 2.7 GiB more there (Qwen3-8B on eight H100s).
    """
    gathers = mesh is not None and mesh.shape["fsdp"] > 1
    decodes = cache is not None and x.shape[1] == 1
    if platform_of(mesh) == "cpu" or not (decodes or (alone and not gathers)):
        return (x,) * copies
    copies_of_x = [x]
    for _ in range(copies):  # copies from one barrier would be taken for one
        copies_of_x.append(jax.lax.optimization_barrier(copies_of_x[-1]))
    return tuple(copies_of_x[1:])
