"""One Flax decoder for Llama 2/3/3.1, Qwen2/2.5, Qwen3, Mistral, Gemma and Gemma 3; `ModelConfig` says which.

    model = Transformer(config)
    hidden, _ = model.apply({"params": base, "lora": lora}, tokens, positions, valid)
    logits = model.apply({"params": base}, hidden, method="unembed")

Leaving the "lora" collection out switches the adapters off: that *is* the reference model.
Blocks are stacked along a leading "layers" axis and run under one `scan`, or are a tuple with one entry per layer
(`lm.acting`) and run one after another. Letters: B batch, L
tokens, S cache slots, P prefix tokens, H model width, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nlrl_jax.arrays import expect, present
from nlrl_jax.lm import attention, blockwise, products
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.experts import Experts
from nlrl_jax.lm.families import LARGEST
from nlrl_jax.lm.sharding import constrain, lookup, platform_of, spec


class KeyValues(NamedTuple):
    """Keys and values of all layers.

    As a cache: [layers, B, S, K, D], or a tuple with [1, B, S, K, D] per layer. As a shared prefix: [layers, P, K, D],
    no batch axis, or a tuple with [P, K, D] per layer.
    """

    k: jax.Array
    v: jax.Array


class HeadKeyValues(NamedTuple):
    """A cache with the heads in front: [layers, K, B, S, D], or a tuple with [1, K, B, S, D] per layer.

    Attention reads it as it lies. From `KeyValues` XLA:CPU copies all keys and values of a layer for every token, which
    takes six times as long as attention itself; programs that keep their cache from call to call have this one.
    """

    k: jax.Array
    v: jax.Array


def prefix_length(prefix: KeyValues | None) -> int:
    """P, or 0 without a prefix."""
    return 0 if prefix is None else prefix.k.shape[1]


class Cache(NamedTuple):
    """Key/value slots of a batch; `index` is the slot where the next token is written.

    It may have more rows than the tokens that it is given with: those use its first rows.
    """

    kv: KeyValues | HeadKeyValues
    index: jax.Array  # int32 []


def num_slots(kv: KeyValues | HeadKeyValues) -> int:
    """S of a cache's keys and values."""
    return jax.tree.leaves(kv)[0].shape[3 if isinstance(kv, HeadKeyValues) else 2]


def empty_cache(config: ModelConfig, batch: int, slots: int) -> Cache:
    """A cache with no token in it. Shapes: see `KeyValues`."""
    shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Cache(KeyValues(zeros, zeros), jnp.zeros((), jnp.int32))


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


class Transformer(nn.Module):
    """The decoder. `remat` recomputes each block in the backward pass; `mesh` turns on activation constraints."""

    config: ModelConfig
    remat: bool = False
    mesh: Mesh | None = None

    def setup(self):
        c = self.config
        embed_init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocab", "embed"))
        self.embedding = self.param("embedding", embed_init, (c.vocab_size, c.hidden_size), c.param_dtype)
        if not c.tie_embeddings:
            head_init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("embed", "vocab"))
            self.lm_head = self.param("lm_head", head_init, (c.hidden_size, c.vocab_size), c.param_dtype)
        self.final_norm = RMSNorm(c)

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        valid: jax.Array | None = None,
        cache: Cache | None = None,
        prefix: KeyValues | None = None,
        collect: bool = False,
        segments: jax.Array | None = None,
        sees: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache | KeyValues | None]:
        """Hidden states after the final norm.

        Args:
          tokens: int [B, L].
          positions: int [B, L], rotary positions (a prefix of P tokens occupies 0 .. P-1).
          valid: bool, which own key slots hold a token: [B, S] with a cache, else [B, L]; all if None.
          cache: slots to read and to write this call's L tokens into, at `cache.index`.
          prefix: keys and values of a prefix that all rows share.
          collect: return the keys and values of these tokens (then `cache` must be None).
          segments: int [B, L], which sequence of its row a token belongs to, without a cache: none sees another.
          sees: bool [B, L, L], which tokens each one attends to, without a cache, in place of all before it.

        Returns: (hidden [B, L, H], the advanced cache; or the collected KeyValues [layers, B, L, K, D]; or None).

        Raises:
          ValueError: an array of another rank, or of other sizes.
        """
        c = self.config
        sizes = expect("B L", tokens=tokens)
        expect("rows L", {"L": sizes["L"]}, positions=positions)  # one row may serve all
        expect("B L", sizes, **present(segments=segments))
        expect("rows slots", **present(valid=valid))
        expect("rows L L", {"L": sizes["L"]}, **present(sees=sees))
        B, L = tokens.shape
        slots = L if cache is None else num_slots(cache.kv)
        first = 0 if cache is None else cache.index
        # Tokens of a cache have positions without gaps, as its slots do; others may not (packed rows, tries).
        places = () if cache is not None or c.window is None else (None, positions, positions)
        sight = blockwise.Sight(first, valid, segments, sees, *places)
        prefix_tokens = 0 if prefix is None else jax.tree.leaves(prefix.k)[0].shape[-3]
        blocks = blockwise.blocks_for(self.mesh, B, c.num_heads, L, prefix_tokens + slots, first)
        # Made once for all layers, of one kind or of two (full, sliding). Short texts have the whole mask [B, L, S] at
        # once, long ones ask for a block of it at a time.
        sizes = B, L, slots, prefix_tokens
        views = tuple(self._view(kind, sight, positions, sizes, blocks is None) for kind in sorted(set(c.slides)))
        x = self._embed(tokens, cache is None)

        block = Block
        if self.remat:
            block = nn.remat(Block, prevent_cse=False, policy=jax.checkpoint_policies.nothing_saveable)
        # One block's program for all layers, whose weights and adapters lie along a leading axis "layers".
        layers = nn.scan(
            block,
            variable_axes={"params": 0, "lora": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, 0, nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c, self.mesh, collect, blocks, name="blocks")
        prefix = None if prefix is None else tuple(prefix)
        if isinstance(self.get_variable("params", "blocks"), tuple):
            unstacked = Block(c, self.mesh, collect, blocks, alone=True, parent=None)
            (x, cache), kv = self._one_by_one(unstacked, (x, cache), prefix, views)
        else:
            slides = jnp.array(c.slides) if len(views) > 1 else None
            (x, cache), kv = layers((x, cache), prefix, jnp.arange(c.num_layers), slides, views)
        hidden = self.final_norm(x)
        if collect:
            return hidden, KeyValues(*kv)
        if cache is not None:
            cache = cache._replace(index=cache.index + L)
        return hidden, cache

    def _view(
        self, sliding: bool, sight: blockwise.Sight, positions: jax.Array, sizes: tuple[int, int, int, int], short: bool
    ) -> View:
        """What the tokens [B, L] see in full or `sliding` layers.

        Args:
          sight: without windows.
          sizes: B, L, S and P.
          short: make masks, not `Sight`s.
        """
        (B, L, S, P), window, prefix_sight = sizes, self.config.window, None
        if window is not None:
            # Masks of both kinds have one shape, so that a layer can choose: a full layer has a window over everything.
            window = window if sliding else LARGEST // 2
            sight = sight._replace(window=window)
            prefix_sight = blockwise.Sight(None, window=window, query_positions=positions) if P else None
        mask, prefix_mask = sight, prefix_sight
        if short:
            mask = jnp.broadcast_to(sight.mask(0, L, 0, S), (B, L, S))
            prefix_mask = prefix_sight and jnp.broadcast_to(prefix_sight.mask(0, L, 0, P), (B, L, P))
        return View(*attention.rotary_tables(self.config, positions, sliding), mask, prefix_mask)

    def _scaled(self, x: jax.Array) -> jax.Array:
        """Embeddings of tokens as the first layer reads them."""
        if not self.config.scale_embeddings:
            return x
        return x * jnp.asarray(np.float32(self.config.hidden_size**0.5), x.dtype)

    def _embed(self, tokens: jax.Array, slices: bool) -> jax.Array:
        """[B, L, H]. With `slices` each "fsdp" device looks all tokens up in its own part of H, and parts of tokens are
        exchanged: the table is not gathered, and its gradient is added up where it lies."""
        if not slices:  # one token a row, from weights that were gathered for many
            table = constrain(self.embedding, self.mesh, ("vocab", None))
            return self._scaled(lookup(table, tokens).astype(self.config.dtype))
        x = lookup(self.embedding, constrain(tokens, self.mesh, ("group", None))).astype(self.config.dtype)
        x = self._scaled(x)
        return constrain(constrain(x, self.mesh, ("group", "length", "embed")), self.mesh, ("batch", "length", None))

    def _one_by_one(self, block: Block, carry: Any, prefix: Any, views: tuple[View, ...]) -> tuple[Any, Any]:
        """What the `scan` over stacked blocks computes, for blocks that are a tuple."""
        (x, cache), kvs = carry, []
        params, lora = self.get_variable("params", "blocks"), self.get_variable("lora", "blocks")
        single = cache is not None and isinstance(cache.kv.k, tuple)
        written_caches: list[KeyValues] = []
        for i in range(self.config.num_layers):
            variables = {"params": params[i]} if lora is None else {"params": params[i], "lora": lora[i]}
            layer_prefix = prefix and tuple(t[i] for t in prefix)
            layer_cache = cache._replace(kv=type(cache.kv)(cache.kv.k[i], cache.kv.v[i])) if single else cache
            layer, slides = 0 if single else i, self.config.slides[i]
            (x, layer_cache), kv = block.apply(variables, (x, layer_cache), layer_prefix, layer, slides, views)
            kvs.append(kv)
            if single:
                written_caches.append(layer_cache.kv)
            else:
                cache = layer_cache
        if single:
            cache = cache._replace(kv=type(cache.kv)(*zip(*written_caches)))
        return (x, cache), jax.tree.map(lambda *t: jnp.stack(t), *kvs)

    def unembed(self, hidden: jax.Array, head: tuple[jax.Array, jax.Array] | None = None) -> jax.Array:
        """Logits, float32 [..., V], of hidden states [..., H]. Call it on the positions that count only.

        Args:
          head: from `head`, made once for many calls.
        """
        is_short = hidden.size <= products.FEW * hidden.shape[-1]
        if head is None and is_short and (turned := self._turned_head()) is not None:
            return products.few_rows(hidden, turned.astype(hidden.dtype))
        return products.logits(hidden, *(head or self.head(hidden.dtype, gathered=True)))

    def _turned_head(self) -> jax.Array | None:
        """The head [V, H] where `products.few_rows` pays and it is at hand: the embedding, or from `lm.acting`."""
        if not self.config.tie_embeddings:
            return self.get_variable("params", "turned")
        return self.embedding if products.on_cpu(self.mesh) and self.embedding.size >= products.WIDE else None

    def head(self, dtype: Any, gathered: bool = False) -> tuple[jax.Array, jax.Array]:
        """The head [H, V] as it is stored, and as a constant in `dtype` with its "fsdp" shards in one piece.

        Args:
          gathered: they may be so already, as in a rollout. Else they are cast first, and then exchanged.
        """
        table = self.embedding.T if self.config.tie_embeddings else self.lm_head
        ready = table.astype(dtype)
        if not gathered:
            ready = constrain(ready, self.mesh, ("embed", "vocab"))
        return table, jax.lax.stop_gradient(constrain(ready, self.mesh, (None, "vocab")))


def init_params(model: Transformer, key: jax.Array) -> Any:
    """Random base weights, in `param_dtype`. Returns the "params" collection."""
    return jax.jit(lambda k: nn.meta.unbox(_init(model, k))["params"])(key)


def init_lora(model: Transformer, key: jax.Array) -> Any:
    """A fresh adapter: `a` random, `b` zero, so it changes nothing. The base weights are never built."""
    return jax.jit(lambda k: nn.meta.unbox(_init(model, k))["lora"])(key)


def abstract_variables(model: Transformer) -> Any:
    """Shapes, dtypes and logical axes of all variables, as boxed `ShapeDtypeStruct`s; computes nothing."""
    return jax.eval_shape(lambda: _init(model, jax.random.key(0)))


def _init(model: Transformer, key: jax.Array) -> Any:
    # Shapes of weights do not depend on the tokens.
    dummy = jnp.zeros((1, 1), jnp.int32)
    return model.init(key, dummy, dummy)


def param_specs(model: nn.Module) -> dict[str, Any]:
    """PartitionSpecs of the model's collections "params" and "lora", read off its declarations."""
    boxed = abstract_variables(model)
    return jax.tree.map(
        lambda leaf: spec(leaf.names), boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
