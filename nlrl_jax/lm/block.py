"""One layer of the decoder: attention, and an MLP or a mixture of them; `ModelConfig` says which, and which norms.

Letters: B batch, L tokens, S cache slots, P prefix tokens, H model width, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm import attention, blockwise, products
from nlrl_jax.lm.cache import Cache, HeadKeyValues, KeyValues
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.experts import Experts
from nlrl_jax.lm.sharding import constrain, platform_of


class Linear(nn.Module):
    """x @ kernel (+ bias) (+ alpha / rank * x @ a @ b where the "lora" collection holds an adapter).

    With `again`, which is x from `apart`, the adapter is one of `lm.acting`: already in `dtype`, alpha / rank within b.
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


class View(NamedTuple):
    """Where the tokens of a call stand and what they see, for the layers of a kind (full or sliding).

    cos, sin: float32 [B, L, 1, D / 2], the rotary tables.
    mask: bool [B, L, S], or a `Sight` where attention is done in blocks.
    prefix_mask: bool [B, L, P] or such a `Sight`; None where all see all of the prefix.
    """

    cos: jax.Array
    sin: jax.Array
    mask: jax.Array | blockwise.Sight
    prefix_mask: jax.Array | blockwise.Sight | None


def view_of(views: tuple[View, ...], slides: jax.Array | bool) -> View:
    """The view of a sliding or a full layer, of (full, sliding) or of the only kind that there is."""
    if isinstance(slides, bool) or len(views) == 1:
        return views[-1 if slides else 0]
    # One program for the layers of both kinds: their masks and tables are of one shape.
    return jax.tree.map(lambda full, sliding: jnp.where(slides, sliding, full), *views)


class Attention(nn.Module):
    config: ModelConfig
    mesh: Mesh | None
    blocks: blockwise.Blocks | None
    alone: bool

    @nn.compact
    def __call__(self, x, view: View, prefix, cache: Cache | None, layer):
        """x [B, L, H] -> (output [B, L, H], this layer's (k, v) of x, cache with x written into it)."""
        c = self.config
        B, L, _ = x.shape
        for_k, for_v, *for_lora = apart(x, 5, cache, self.mesh, self.alone)
        for_lora = for_lora if self.alone else (None,) * 3
        # Grouped-query attention: num_kv_heads keys and values serve num_heads queries.
        of_q, of_k = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        if self.get_variable("params", "qkv") is not None:  # joined by `lm.acting`
            qkv = Linear(c, of_q + 2 * of_k, ("embed", "heads"), c.qkv_bias, name="qkv")(x, for_lora[0])
            q, k, v = jnp.split(qkv, (of_q, of_q + of_k), axis=-1)
        else:
            q = Linear(c, of_q, ("embed", "heads"), c.qkv_bias, name="q")(x, for_lora[0])
            k = Linear(c, of_k, ("embed", "kv_heads"), c.qkv_bias, name="k")(for_k, for_lora[1])
            v = Linear(c, of_k, ("embed", "kv_heads"), c.qkv_bias, name="v")(for_v, for_lora[2])
        q = q.reshape(B, L, c.num_heads, c.head_dim)
        k, v = (t.reshape(B, L, c.num_kv_heads, c.head_dim) for t in (k, v))
        if c.qk_norm:
            q, k = RMSNorm(c, None, name="q_norm")(q), RMSNorm(c, None, name="k_norm")(k)
        # Keys are cached rotated, so that a later call need not know their positions.
        q, k = attention.rotate(q, view.cos, view.sin), attention.rotate(k, view.cos, view.sin)
        new = (k, v)
        if cache is not None and isinstance(cache.kv, HeadKeyValues):
            start = (layer, 0, 0, cache.index, 0)
            heads = [t.transpose(2, 0, 1, 3)[None] for t in new]
            kv = HeadKeyValues(*(jax.lax.dynamic_update_slice(old, t, start) for old, t in zip(cache.kv, heads)))
            cache = cache._replace(kv=kv)
            # [K, B, S, D] to [B, S, K, D]: attention takes this back, and the compiler leaves out both.
            k, v = (jax.lax.dynamic_index_in_dim(t, layer, keepdims=False).transpose(1, 2, 0, 3) for t in kv)
        elif cache is not None:
            # Written in place: cache [layers, B, S, K, D], this layer's rows from slot `index` on.
            start = (layer, 0, cache.index, 0, 0)
            kv = KeyValues(*(jax.lax.dynamic_update_slice(old, t[None], start) for old, t in zip(cache.kv, new)))
            cache = cache._replace(kv=kv)
            # Only the rows of this batch: the cache may have more.
            k, v = (jax.lax.dynamic_index_in_dim(t, layer, keepdims=False)[:B] for t in kv)
        scale = c.query_pre_attn_scalar and c.query_pre_attn_scalar**-0.5
        if self.blocks:
            out = blockwise.attend(q, k, v, view.mask, self.blocks, prefix, view.prefix_mask, scale)
        else:
            out = attention.attend(q, k, v, view.mask, prefix, view.prefix_mask, scale)
        out = out.reshape(B, L, c.num_heads * c.head_dim)
        for_lora = apart(out, 1, cache, self.mesh, self.alone)[0] if self.alone else None
        return Linear(c, c.hidden_size, ("heads", "embed"), name="o")(out, for_lora), new, cache


class Block(nn.Module):
    """One layer. `alone`: its weights are arrays of their own, and its adapter is one of `lm.acting`."""

    config: ModelConfig
    mesh: Mesh | None
    collect: bool
    blocks: blockwise.Blocks | None
    alone: bool = False

    @nn.compact
    def __call__(self, carry, prefix, layer, slides, views):
        c = self.config
        x, cache = carry
        view = view_of(views, slides)
        x = constrain(x, self.mesh, ("batch", "length", None))
        out, kv, cache = Attention(c, self.mesh, self.blocks, self.alone, name="attention")(
            RMSNorm(c, name="attention_norm")(x), view, prefix, cache, layer
        )
        x = x + (RMSNorm(c, name="attention_out_norm")(out) if c.sandwich_norms else out)
        h = RMSNorm(c, name="mlp_norm")(x)
        out = Experts(c, self.mesh, activation_of(c), name="experts")(h) if c.num_experts else self._mlp(h, cache)
        x = x + (RMSNorm(c, name="mlp_out_norm")(out) if c.sandwich_norms else out)
        return (x, cache), (kv if self.collect else None)

    def _mlp(self, h: jax.Array, cache: Cache | None) -> jax.Array:
        """The gated MLP that all tokens go through, [B, L, H] -> [B, L, H]."""
        c = self.config
        for_up, *for_lora = apart(h, 3, cache, self.mesh, self.alone)
        for_lora = for_lora if self.alone else (None,) * 2
        if self.get_variable("params", "gate_up") is not None:
            both = Linear(c, 2 * c.intermediate_size, ("embed", "mlp"), name="gate_up")(h, for_lora[0])
            gate, up = jnp.split(both, 2, axis=-1)
        else:
            gate = Linear(c, c.intermediate_size, ("embed", "mlp"), name="gate")(h, for_lora[0])
            up = Linear(c, c.intermediate_size, ("embed", "mlp"), name="up")(for_up, for_lora[1])
        # SwiGLU or GeGLU, split over "tensor" between the two products.
        h = constrain(activation_of(c)(gate) * up, self.mesh, ("batch", "length", "mlp"))
        last = apart(h, 1, cache, self.mesh, self.alone)[0] if self.alone else None
        return Linear(c, c.hidden_size, ("mlp", "embed"), name="down")(h, last)
