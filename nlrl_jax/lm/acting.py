"""The weights that play: made once for a rollout, read for each of its tokens.

    weights = acting(model, {"params": base, "lora": lora}, "merged")
    text_games.play(policy, game, weights, ...)

Decoding reads all weights for every token, so it pays to prepare them once. "shared" reads the arrays that also learn.
"apart" makes a copy with one array per layer: from stacked weights XLA:GPU copies a layer before cuBLAS multiplies by
it, for every token, and the same for keys and values. "merged" adds the adapter to that copy, which leaves fewer
kernels to launch; in 16 bits, rounding the sum changes the policy slightly. What a CPU or TPU reads stays stacked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nlrl_jax.lm import placement
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import memory_of, platform_of
from nlrl_jax.lm.transformer import KeyValues, Transformer

WEIGHTS = ("auto", "shared", "apart", "merged")


def acting(model: Transformer, variables: Any, weights: str = "shared") -> Any:
    """What a rollout reads in place of `variables`: gathered, the adapter in `config.dtype`, and as `weights` says.

    "auto" is "apart" on GPUs on which "fsdp" shards are gathered anyway, or that hold three times the weights.
    """
    config = model.config
    alone = platform_of(model.mesh) not in ("cpu", "tpu") and (
        weights in ("apart", "merged") or (weights == "auto" and _has_room(model, variables["params"]))
    )
    if alone:
        variables = by_layer(config, variables, weights == "merged")
    elif weights == "merged" and "lora" in variables:
        merge = lambda one: _merged(config, *one)
        blocks = jax.lax.map(merge, (variables["params"]["blocks"], variables["lora"]["blocks"]))
        variables = {"params": {**variables["params"], "blocks": blocks}}
    if "lora" in variables:
        variables = {**variables, "lora": in_dtype(config, variables["lora"])}
    return placement.gathered(model, variables)


def in_dtype(config: ModelConfig, lora: Any) -> Any:
    """An adapter in the type that the model computes in."""
    return jax.tree.map(lambda x: x.astype(config.dtype), lora)


def by_layer(config: ModelConfig, variables: Any, merge: bool) -> Any:
    """Variables whose blocks are a tuple with one entry per layer, the adapter ready to use (`Linear`) or merged."""
    params, lora = variables["params"], variables.get("lora")
    blocks = _layers(config, params["blocks"])
    if lora is None:
        return {"params": {**params, "blocks": blocks}}
    adapters = _layers(config, lora["blocks"])
    if merge:
        merged = []
        for pair in zip(blocks, adapters):
            if merged:  # one after another: a product is as large as its kernel
                pair = jax.lax.optimization_barrier((pair, merged[-1]))[0]
            merged.append(_merged(config, *pair))
        return {"params": {**params, "blocks": tuple(merged)}}
    scale = config.lora.alpha / config.lora.rank
    ready = lambda path, x: (x * scale if path[-1].key == "b" else x).astype(config.dtype)
    adapters = tuple(jax.tree_util.tree_map_with_path(ready, adapter) for adapter in adapters)
    return {"params": {**params, "blocks": blocks}, "lora": {**lora, "blocks": adapters}}


def _layers(config: ModelConfig, blocks: Any) -> tuple[Any, ...]:
    layer = lambda i: jax.tree.map(lambda x: x[i], blocks)
    return tuple(layer(i) for i in range(config.num_layers))


def merged_kernel(config: ModelConfig, kernel: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """kernel + alpha / rank * a @ b, summed in float32 and returned in kernel's dtype.

    Args:
      kernel: [..., in, out].
      a: [..., in, rank].
      b: [..., rank, out].
    """
    update = jnp.matmul(a, b, preferred_element_type=jnp.float32) * (config.lora.alpha / config.lora.rank)
    return (kernel.astype(jnp.float32) + update).astype(kernel.dtype)


def _merged(config: ModelConfig, block: Any, adapter: Any) -> Any:
    """A layer with its adapter in its kernels."""
    if "a" in adapter:
        return {**block, "kernel": merged_kernel(config, block["kernel"], adapter["a"], adapter["b"])}
    return {name: _merged(config, part, adapter[name]) if name in adapter else part for name, part in block.items()}


def _has_room(model: Transformer, params: Any) -> bool:
    parts = 1 if model.mesh is None else model.mesh.shape["tensor"]
    if model.mesh is not None and model.mesh.shape["fsdp"] > 1:
        return True
    memory = memory_of(model.mesh)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)) / parts
    return memory is not None and 3 * size <= memory


def own_slots(variables: Any, kv: KeyValues, rows: int) -> KeyValues:
    """Keys and values [layers, R or more, W, K, D] for a loop that decodes R `rows`: by layer if the blocks are."""
    if not isinstance(variables["params"]["blocks"], tuple):
        return kv
    return KeyValues(*(tuple(t[i : i + 1, :rows] for i in range(t.shape[0])) for t in kv))


def joined_slots(kv: KeyValues, after: KeyValues) -> KeyValues:
    """`kv` with what `own_slots` gave the loop as it is after it."""
    if not isinstance(after.k, tuple):
        return after
    for i, layer in enumerate(zip(*after)):
        kv = KeyValues(*(t.at[i : i + 1, : new.shape[1]].set(new) for t, new in zip(kv, layer)))
    return kv
