"""One Flax decoder for all of `lm.families`; `ModelConfig` says which.

    model = Transformer(config)
    hidden, _ = model.apply({"params": base, "lora": lora}, tokens, positions, valid)
    logits = model.apply({"params": base}, hidden, method="unembed")

Leaving the "lora" collection out switches the adapters off: that *is* the reference model.
Blocks are stacked along a leading "layers" axis and run under one `scan`: those of all layers, or where layers differ
in kind, of each place in a period of them ("layer_0", "layer_1", ...). Or they are a tuple with one entry per layer
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
from nlrl_jax.lm.block import Block, Period, View, rematerialised
from nlrl_jax.lm.cache import Cache, KeyValues, States, num_slots
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import LARGEST
from nlrl_jax.lm.layers import RMSNorm
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
          segments: int [B, L], which sequence of its row a token belongs to, without a cache: none sees another. With
            linear layers sequences have no gaps, and those of a row have different numbers above 0.
          sees: bool [B, L, L], which tokens each one attends to, without a cache, in place of all before it.

        Returns: (hidden [B, L, H], the advanced cache; or the collected KeyValues [layers, B, L, K, D]; or None).

        Raises:
          ValueError: an array of another rank, or of other sizes; `sees` with linear layers.
        """
        c = self.config
        if sees is not None and c.num_linear_layers:
            raise ValueError("`sees` chooses what attention reads; this model also has recurrent (linear) layers")
        sizes = expect("B L", tokens=tokens)
        expect("rows L", {"L": sizes["L"]}, positions=positions)  # one row may serve all
        expect("B L", sizes, **present(segments=segments))
        expect("rows slots", **present(valid=valid))
        expect("rows L L", {"L": sizes["L"]}, **present(sees=sees))
        first, slots = (None, None) if cache is None else (cache.index, num_slots(cache.kv))
        prefix_tokens = 0 if prefix is None else jax.tree.leaves(prefix.k)[0].shape[-3]
        x, views, segments, blocks = self.enter(
            tokens, positions, valid, first, slots, prefix_tokens, segments=segments, sees=sees
        )
        if isinstance(self.get_variable("params", "blocks"), tuple):
            (x, cache), kv = self._one_by_one((x, cache), prefix, views, segments, (collect, blocks))
        else:
            (x, cache), kv = self._scan((x, cache), prefix, views, segments, (collect, blocks))
        hidden = self.leave(x)
        if collect:
            return hidden, kv
        if cache is not None:
            cache = cache._replace(index=cache.index + tokens.shape[1])
        return hidden, cache

    def enter(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        valid: jax.Array | None,
        first: jax.Array | None,
        slots: int | None,
        prefix_tokens: int,
        segments: jax.Array | None = None,
        sees: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[View, ...], jax.Array | None, blockwise.Blocks | None]:
        """What comes before the layers: arguments of `Block`, x [B, L, H], views and segments, and its `blocks`.

        Args:
          first, slots: of a cache the slot of the first token, and S; None without one. Others: see `__call__`.
        """
        (B, L), S = tokens.shape, slots or tokens.shape[1]
        # Tokens of a cache have positions without gaps, as its slots do; others may not (packed rows, tries).
        places = () if slots or self.config.window is None else (None, positions, positions)
        sight = blockwise.Sight(0 if first is None else first, valid, segments, sees, *places)
        blocks = blockwise.blocks_for(self.mesh, B, self.config.num_heads, L, prefix_tokens + S, sight.first)
        # Made once for all layers, of one kind or of two (full, sliding). Short texts have the whole mask [B, L, S] at
        # once, long ones ask for a block of it at a time.
        sizes, kinds = (B, L, S, prefix_tokens), sorted(set(self.config.slides))
        views = tuple(self._view(kind, sight, positions, sizes, blocks is None) for kind in kinds)
        x = self._embed(tokens, slots is None)
        segments = self._segments(valid, segments, first, (B, L)) if self.config.num_linear_layers else None
        return x, views, segments, blocks

    def leave(self, x: jax.Array) -> jax.Array:
        """What comes after the layers: the hidden states of x [B, L, H]."""
        return self.final_norm(x)

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

    def _segments(
        self, valid: jax.Array | None, segments: jax.Array | None, first: jax.Array | None, sizes: tuple[int, int]
    ) -> jax.Array | None:
        """Which sequence each token [B, L] belongs to, 0 for padding, as linear layers read it."""
        if segments is not None or valid is None:
            return segments
        if first is not None:
            valid = jax.lax.dynamic_slice_in_dim(valid, first, sizes[1], axis=1)
        return jnp.broadcast_to(valid.astype(jnp.int32), sizes)

    def _scan(self, carry: Any, prefix: KeyValues | None, views: Any, segments: Any, options: Any) -> tuple[Any, Any]:
        """Runs stacked blocks -> (carry, `KeyValues` of all layers if these are collected)."""
        c, (collect, blocks) = self.config, options
        slides = jnp.array(c.slides) if len(views) > 1 else None
        if c.period == 1:
            block = rematerialised(Block) if self.remat else Block
            arguments = c, self.mesh, collect, blocks, *c.kinds[0]
            stacks = None if prefix is None else (prefix.k, prefix.v)
        else:
            block, arguments = Period, (c, self.mesh, collect, blocks, self.remat)
            slides = slides if slides is None else slides.reshape(-1, c.period)
            stacks = prefix and jax.tree.map(self._by_period, ((prefix.k, prefix.v), prefix.states))
        # One program for all layers, or periods of them; weights and adapters lie along a leading axis "layers".
        layers = nn.scan(
            block,
            variable_axes={"params": 0, "lora": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, 0, nn.broadcast, nn.broadcast),
            length=c.num_layers // c.period,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(*arguments, name="blocks")
        carry, kept = layers(carry, stacks, jnp.arange(c.num_layers // c.period), slides, views, segments)
        if not collect:
            return carry, None
        if c.period == 1:
            return carry, KeyValues(*kept)
        (k, v), states = jax.tree.map(lambda t: t.reshape(-1, *t.shape[2:]), kept)
        return carry, KeyValues(k, v, states)

    def _by_period(self, stack: jax.Array) -> jax.Array:
        """[layers, ...] -> [periods, layers of a period, ...]."""
        periods = self.config.num_layers // self.config.period
        return stack.reshape(periods, len(stack) // periods, *stack.shape[1:])

    def _one_by_one(
        self, carry: Any, prefix: KeyValues | None, views: Any, segments: Any, options: Any
    ) -> tuple[Any, Any]:
        """The same for blocks that are a tuple; caches and prefixes may be tuples, too."""
        c, (collect, blocks), (x, cache) = self.config, options, carry
        params, lora = self.get_variable("params", "blocks"), self.get_variable("lora", "blocks")
        single = cache is not None and isinstance(cache.kv.k, tuple)
        # By kind, attention first: what its layers have read, and what of it is new.
        new = [], []
        prefixes = (None, None) if prefix is None else ((prefix.k, prefix.v), prefix.states)
        caches = (list(zip(*cache.kv[:2])), list(zip(*(cache.kv.states or ())))) if single else ()
        for layer in range(c.num_layers):
            is_linear, is_sparse = c.kinds[layer % c.period]
            i = len(new[is_linear])  # its number in its kind's stacks
            block = Block(c, self.mesh, collect, blocks, is_linear, is_sparse, alone=True, parent=None)
            variables = {"params": params[layer]} if lora is None else {"params": params[layer], "lora": lora[layer]}
            layer_prefix = prefixes[is_linear] and tuple(t[i] for t in prefixes[is_linear])
            if is_linear and layer_prefix:
                layer_prefix = States(*layer_prefix)
            layer_cache, number = cache, i
            if single:
                layer_cache, number = self._of_layer(cache, caches[is_linear][i], is_linear), 0
            (x, layer_cache), kept = block.apply(
                variables, (x, layer_cache), layer_prefix, number, c.slides[layer], views, segments
            )
            if single:
                kept = layer_cache.kv.states if is_linear else layer_cache.kv[:2]
            else:
                cache = layer_cache
            new[is_linear].append(kept)
        if single:
            k, v = zip(*new[False])
            states = States(*zip(*new[True])) if new[True] else None
            return (x, cache._replace(kv=type(cache.kv)(k, v, states))), None
        if not collect:
            return (x, cache), None
        stacks = [jax.tree.map(lambda *t: jnp.stack(t), *kept) if kept else None for kept in new]
        return (x, cache), KeyValues(*stacks[False], stacks[True])

    def _of_layer(self, cache: Cache, arrays: tuple, is_linear: bool) -> Cache:
        """A cache by layer with the arrays of one layer alone."""
        kv = cache.kv._replace(k=(), v=(), states=None)
        kv = kv._replace(states=States(*arrays)) if is_linear else kv._replace(k=arrays[0], v=arrays[1])
        return cache._replace(kv=kv)

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

    def initial_params(key):
        return nn.meta.unbox(_init(model, key))["params"]

    return jax.jit(initial_params)(key)


def init_lora(model: Transformer, key: jax.Array) -> Any:
    """A fresh adapter: `a` random, `b` zero, so it changes nothing. The base weights are never built."""

    def initial_lora(key):
        return nn.meta.unbox(_init(model, key))["lora"]

    return jax.jit(initial_lora)(key)


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
