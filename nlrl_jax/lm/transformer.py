"""One Flax decoder for Llama, Qwen2, Qwen3, Qwen3-MoE, Mistral, Gemma and Gemma 3; `ModelConfig` says which.

    model = Transformer(config)
    hidden, _ = model.apply({"params": base, "lora": lora}, tokens, positions, valid)
    logits = model.apply({"params": base}, hidden, method="unembed")

Leaving the "lora" collection out switches the adapters off: that *is* the reference model.
Blocks are stacked along a leading "layers" axis and run under one `scan`, or are a tuple with one entry per layer
(`lm.acting`) and run one after another.
Letters: B batch, L tokens, S cache slots, P prefix tokens, H model width, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nlrl_jax.arrays import expect, present
from nlrl_jax.lm import attention, blockwise, products
from nlrl_jax.lm.block import Block, RMSNorm, View
from nlrl_jax.lm.cache import Cache, KeyValues, num_slots
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import LARGEST
from nlrl_jax.lm.sharding import constrain, lookup, spec


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
