"""One layer of the decoder: a mixer of tokens (attention or Gated DeltaNet), and an MLP or a mixture of them.

`ModelConfig` says which, and which norms.

Letters: B batch, L tokens, S cache slots, P prefix tokens, H model width, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm import attention, blockwise, products
from nlrl_jax.lm.cache import Cache, HeadKeyValues
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.delta_net import DeltaNet
from nlrl_jax.lm.experts import Experts
from nlrl_jax.lm.layers import Linear, RMSNorm, activation_of, apart
from nlrl_jax.lm.sharding import constrain


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
        heads_q, of_k = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        of_q = heads_q * (2 if c.gated_attention else 1)
        if self.get_variable("params", "qkv") is not None:  # joined by `lm.acting`
            qkv = Linear(c, of_q + 2 * of_k, ("embed", "heads"), c.qkv_bias, name="qkv")(x, for_lora[0])
            q, k, v = jnp.split(qkv, (of_q, of_q + of_k), axis=-1)
        else:
            q = Linear(c, of_q, ("embed", "heads"), c.qkv_bias, name="q")(x, for_lora[0])
            k = Linear(c, of_k, ("embed", "kv_heads"), c.qkv_bias, name="k")(for_k, for_lora[1])
            v = Linear(c, of_k, ("embed", "kv_heads"), c.qkv_bias, name="v")(for_v, for_lora[2])
        q = q.reshape(B, L, c.num_heads, of_q // c.num_heads)
        q, gate = jnp.split(q, 2, axis=-1) if c.gated_attention else (q, None)  # side by side in each head
        k, v = (t.reshape(B, L, c.num_kv_heads, c.head_dim) for t in (k, v))
        if c.qk_norm:
            q, k = RMSNorm(c, None, name="q_norm")(q), RMSNorm(c, None, name="k_norm")(k)
        # Keys are cached rotated, so that a later call need not know their positions.
        q, k = attention.rotate(q, view.cos, view.sin), attention.rotate(k, view.cos, view.sin)
        new = (k, v)
        in_span = cache is not None and cache.first is not None and not self.blocks
        if cache is not None and isinstance(cache.kv, HeadKeyValues):
            start = (layer, 0, 0, cache.index, 0)
            heads = [t.transpose(2, 0, 1, 3)[None] for t in new]
            k, v = (jax.lax.dynamic_update_slice(old, t, start) for old, t in zip(cache.kv[:2], heads))
            cache = cache._replace(kv=cache.kv._replace(k=k, v=v))
            if not in_span:
                # [K, B, S, D] to [B, S, K, D]: attention takes this back, and the compiler leaves out both.
                k, v = (jax.lax.dynamic_index_in_dim(t, layer, keepdims=False).transpose(1, 2, 0, 3) for t in (k, v))
        elif cache is not None:
            # Written in place: cache [layers, B, S, K, D], this layer's rows from slot `index` on.
            start = (layer, 0, cache.index, 0, 0)
            k, v = (jax.lax.dynamic_update_slice(old, t[None], start) for old, t in zip(cache.kv[:2], new))
            cache = cache._replace(kv=cache.kv._replace(k=k, v=v))
            # Only the rows of this batch: the cache may have more.
            k, v = (jax.lax.dynamic_index_in_dim(t, layer, keepdims=False)[:B] for t in (k, v))
        scale = c.query_pre_attn_scalar and c.query_pre_attn_scalar**-0.5
        if in_span:
            span = attention.Span(layer, cache.first, cache.index)
            out = attention.attend_span(q, k, v, view.mask, span, prefix, view.prefix_mask, scale)
        elif self.blocks:
            out = blockwise.attend(q, k, v, view.mask, self.blocks, prefix, view.prefix_mask, scale)
        else:
            out = attention.attend(q, k, v, view.mask, prefix, view.prefix_mask, scale)
        if c.gated_attention:
            out = out * jax.nn.sigmoid(gate)
        out = out.reshape(B, L, heads_q)
        for_lora = apart(out, 1, cache, self.mesh, self.alone)[0] if self.alone else None
        return Linear(c, c.hidden_size, ("heads", "embed"), name="o")(out, for_lora), new, cache


class Block(nn.Module):
    """One layer. `alone`: its weights are arrays of their own, and its adapter is one of `lm.acting`.

    is_linear, is_sparse: see `ModelConfig.kinds`.
    """

    config: ModelConfig
    mesh: Mesh | None
    collect: bool
    blocks: blockwise.Blocks | None
    is_linear: bool
    is_sparse: bool
    alone: bool = False

    @nn.compact
    def __call__(self, carry, prefix, layer, slides, views, segments):
        """carry: (x [B, L, H], cache) -> (the next carry, (k, v) or `States` of x if `collect`).

        prefix: of this layer: (k, v) or `States`. layer: its number among those of the cache's stack.
        """
        c = self.config
        x, cache = carry
        view = None if self.is_linear else view_of(views, slides)
        x = constrain(x, self.mesh, ("batch", "length", None))
        h = RMSNorm(c, name="attention_norm")(x)
        if self.is_linear:
            out, new, cache = DeltaNet(c, self.mesh, self.alone, name="delta")(h, segments, prefix, cache, layer)
        else:
            attend = Attention(c, self.mesh, self.blocks, self.alone, name="attention")
            out, new, cache = attend(h, view, prefix, cache, layer)
        x = x + (RMSNorm(c, name="attention_out_norm")(out) if c.sandwich_norms else out)
        h = RMSNorm(c, name="mlp_norm")(x)
        out = Experts(c, self.mesh, activation_of(c), name="experts")(h) if self.is_sparse else self._mlp(h, cache)
        x = x + (RMSNorm(c, name="mlp_out_norm")(out) if c.sandwich_norms else out)
        return (x, cache), (new if self.collect else None)

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

        def out(block, gate, up):
            # SwiGLU or GeGLU, split over "tensor" between the two products.
            h = constrain(activation_of(c)(gate) * up, self.mesh, ("batch", "length", "mlp"))
            last = apart(h, 1, cache, self.mesh, self.alone)[0] if self.alone else None
            return Linear(c, c.hidden_size, ("mlp", "embed"), name="down")(h, last)

        # On a CPU a gradient keeps gate and up of a wide MLP, and makes what is as wide and cheap from them again.
        is_wide = products.on_cpu(self.mesh) and c.hidden_size * c.intermediate_size >= products.WIDE
        return (rematerialised(out) if is_wide else out)(self, gate, up)


class Period(nn.Module):
    """The layers of one `ModelConfig.period`, named by their place in it: what repeats where layers differ.

    Arguments are those of `Block`, with one more axis in front where a layer has its own: of its kind's layers in the
    period.
    """

    config: ModelConfig
    mesh: Mesh | None
    collect: bool
    blocks: blockwise.Blocks | None
    remat: bool

    @nn.compact
    def __call__(self, carry, prefix, number, slides, views, segments):
        block = rematerialised(Block) if self.remat else Block
        kinds, new = self.config.kinds, ([], [])
        for place, (is_linear, is_sparse) in enumerate(kinds):
            i, per_period = len(new[is_linear]), sum(kind[0] == is_linear for kind in kinds)
            layer = block(
                self.config, self.mesh, self.collect, self.blocks, is_linear, is_sparse, name=layer_name(place)
            )
            # Of attention and of linear layers there are stacks of their own: [False] and [True].
            layer_prefix = prefix and jax.tree.map(lambda t, i=i: t[i], prefix[is_linear])
            slide = None if slides is None else slides[place]
            carry, kept = layer(carry, layer_prefix, number * per_period + i, slide, views, segments)
            new[is_linear].append(kept)
        if not self.collect:
            return carry, None
        return carry, tuple(jax.tree.map(lambda *t: jnp.stack(t), *kept) if kept else None for kept in new)


def layer_name(place: int) -> str:
    """What the layers at a place of each period are called in the tree of weights."""
    return f"layer_{place}"


def rematerialised(block: Any) -> Any:
    """A block, or a function of one, whose inner numbers are computed again in the backward pass."""
    return nn.remat(block, prevent_cse=False, policy=jax.checkpoint_policies.nothing_saveable)
