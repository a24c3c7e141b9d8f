"""The weights that play: made once for a rollout, read for each of its tokens.

    weights = acting(model, {"params": base, "lora": lora}, "merged")
    text_games.play(policy, game, weights, ...)

Decoding reads all weights for every token, so it pays to prepare them once. "shared" reads the arrays that also learn.
"apart" makes a copy with one array per layer: from stacked weights XLA:GPU copies a layer before cuBLAS multiplies by
it, for every token, and the same for keys and values; XLA:CPU too. "merged" adds the adapter to that copy, which leaves
fewer kernels to launch; in 16 bits, rounding the sum changes the policy slightly. What a TPU reads stays stacked, and
on a CPU small layers (`LARGE`); large ones are also turned round there (`products.few_rows`). `views` are for a model
that only plays, on a CPU.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from nlrl_jax.lm import placement, products
from nlrl_jax.lm.block import layer_name
from nlrl_jax.lm.cache import HeadKeyValues, KeyValues, States
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import memory_of, platform_of
from nlrl_jax.lm.transformer import Transformer, param_specs

LARGE = 4e6  # bytes of a layer from which `views` pays: a smaller one stays in the processor's cache
WEIGHTS = ("auto", "shared", "apart", "merged")
JOINED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}  # products of one input


def acting(model: Transformer, variables: Any, weights: str = "shared") -> Any:
    """What a rollout reads in place of `variables`: gathered, the adapter in `config.dtype`, and as `weights` says.

    "auto" is "apart" on GPUs on which "fsdp" shards are gathered anyway, or that hold three times the weights. "apart"
    means something on GPUs, and on a CPU, without a mesh, for layers from `LARGE` bytes on, whose kernels and head are
    then turned round (`products.few_rows`).
    """
    config = model.config
    alone = _alone(model, variables["params"], weights)
    specs = param_specs(model)
    if alone:
        join = model.mesh is None or model.mesh.shape["tensor"] == 1  # else a device has its part of each kernel
        variables = by_layer(config, variables, weights == "merged", join)
        if any("qkv" in block.get("attention", ()) for block in variables["params"]["blocks"]):
            specs = {name: {**tree, "blocks": _joined(tree["blocks"], _first)} for name, tree in specs.items()}
    elif weights == "merged" and "lora" in variables:
        blocks = jax.lax.map(
            lambda layer: _merged(config, *layer), (variables["params"]["blocks"], variables["lora"]["blocks"])
        )
        variables = {"params": {**variables["params"], "blocks": blocks}}
    if "lora" in variables:
        variables = {**variables, "lora": in_dtype(config, variables["lora"])}
    if alone and products.on_cpu(model.mesh):
        params = variables["params"]
        head = {"turned": _turn(params["lm_head"])} if "lm_head" in params else {}
        blocks = tuple(_turned(block, _turn, lambda x: x) for block in params["blocks"])
        variables = {**variables, "params": {**params, **head, "blocks": blocks}}
    return placement.gathered(model, variables, specs)


def _turned(tree: Any, turn: Callable[[Any], Any], rest: Callable[[Any], Any]) -> Any:
    """A layer's tree with `turn` of each "kernel" [in, out] as "turned" [out, in], and `rest` of what else it holds."""
    if not isinstance(tree, dict):
        return rest(tree)
    turned = {name: _turned(part, turn, rest) for name, part in tree.items() if name != "kernel"}
    return {**turned, "turned": turn(tree["kernel"])} if "kernel" in tree else turned


def _turn(x: jax.Array) -> jax.Array:
    """x.T, the other way round in memory, where the compiler would make a view of x."""
    return with_layout_constraint(jax.lax.optimization_barrier(x.T), Layout((0, 1)))


def in_dtype(config: ModelConfig, lora: Any) -> Any:
    """An adapter in the type that the model computes in."""
    return jax.tree.map(lambda x: x.astype(config.dtype), lora)


def by_layer(config: ModelConfig, variables: Any, merge: bool, join: bool = False) -> Any:
    """Variables whose blocks are a tuple with one entry per layer, the adapter ready to use (`Linear`) or merged.

    Args:
      join: make one kernel of query, key and value, and one of gate and up.
    """
    params, lora = variables["params"], variables.get("lora")
    blocks, adapters = _layers(config, params["blocks"]), ()
    if lora is not None:
        adapters = _layers(config, lora["blocks"])
        one_period = {layer_name(i): adapter for i, adapter in enumerate(adapters[: config.period])}
        names = {key.key for path, _ in jax.tree_util.tree_leaves_with_path(one_period) for key in path}
        join = join and names.issuperset(part for parts in JOINED.values() for part in parts)
    if merge and adapters:
        merged = []
        for pair in zip(blocks, adapters):
            if merged:  # one after another: a product is as large as its kernel
                pair = jax.lax.optimization_barrier((pair, merged[-1]))[0]
            merged.append(_merged(config, *pair))
        blocks, adapters = merged, ()
    scale = config.lora.alpha / config.lora.rank

    def scaled(path, x):
        return (x * scale if path[-1].key == "b" else x).astype(config.dtype)

    adapters = [jax.tree_util.tree_map_with_path(scaled, adapter) for adapter in adapters]
    if join:
        blocks, adapters = ([_joined(layer, _side_by_side) for layer in layers] for layers in (blocks, adapters))
    layered = {"params": {**params, "blocks": tuple(blocks)}}
    return {**layered, "lora": {**lora, "blocks": tuple(adapters)}} if adapters else layered


def views(model: Transformer, variables: Any) -> Any:
    """What decodes on a CPU outside of a program that also learns: blocks by layer, if they are large.

    From stacked weights XLA:CPU copies a layer, too, before it multiplies by it. Where the machine's memory holds three
    times the weights, the kernels and the head are copies, turned round for `products.few_rows`; else all arrays share
    the stacked ones' memory, as far as these are aligned to 64 bytes.

    Args:
      variables: {"params": ...} or {"params": ..., "lora": ...}, as arrays (not traced).
    """
    params = variables["params"]
    leaves = jax.tree.leaves(params)
    on_cpu = isinstance(leaves[0], jax.Array) and next(iter(leaves[0].devices())).platform == "cpu"
    if model.mesh is not None or _of_a_layer(model, params) < LARGE or not on_cpu:
        return variables
    turn = 3 * sum(leaf.nbytes for leaf in leaves) <= memory_of_host()  # the weights, their copy, and as much to spare
    sharding = leaves[0].sharding if leaves[0].committed else None

    def put(x):
        return jax.device_put(x, sharding, may_alias=True)

    def turned(x):
        return put(np.ascontiguousarray(x.T))

    head = {"turned": turned(np.asarray(params["lm_head"]))} if turn and "lm_head" in params else {}
    arrays = jax.tree.map(np.asarray, params["blocks"])  # no copy: a slice of a NumPy array is a view of it
    layers = _layers(model.config, arrays)
    blocks = tuple(_turned(layer, turned, put) if turn else jax.tree.map(put, layer) for layer in layers)
    if "lora" in variables:  # its copy is small
        adapter = by_layer(model.config, {"params": {"blocks": {}}, "lora": variables["lora"]}, False)["lora"]
        variables = {**variables, "lora": adapter}
    return {**variables, "params": {**params, **head, "blocks": blocks}}


def memory_of_host(limit: pathlib.Path = pathlib.Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of this machine's memory, or as many of them as its control group may take; 0 where nobody says."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        group_memory = limit.read_text().strip() if limit.is_file() else "max"
    except (AttributeError, OSError, ValueError):
        return 0
    return memory if group_memory == "max" else min(memory, int(group_memory))


def _joined(block: Any, together: Callable[[list[Any]], Any]) -> Any:
    """A layer's tree in which products of one input are one; `together` makes one module's tree of several."""
    if not isinstance(block, dict):
        return block
    for name, parts in JOINED.items():
        if all(part in block for part in parts):
            rest = {key: tree for key, tree in block.items() if key not in parts}
            block = {**rest, name: together([block[part] for part in parts])}
    return {key: tree if key in JOINED else _joined(tree, together) for key, tree in block.items()}


def _first(parts: list[Any]) -> Any:
    return parts[0]


def _side_by_side(parts: list[Any]) -> Any:
    def join(name, *arrays):
        # x @ [a1 a2] @ diag(b1, b2) = [x a1 b1, x a2 b2]
        return jax.scipy.linalg.block_diag(*arrays) if name == "b" else jnp.concatenate(arrays, axis=-1)

    return {name: join(name, *(part[name] for part in parts)) for name in parts[0]}


def is_large(config: ModelConfig) -> bool:
    """Whether a layer's weights do not stay in a processor's cache, so that each of them is read for every token."""
    heads = 1 if config.tie_embeddings else 2
    blocks = config.num_params - heads * config.vocab_size * config.hidden_size
    return 4 * blocks / config.num_layers >= LARGE


def _layers(config: ModelConfig, blocks: Any) -> tuple[Any, ...]:
    """The tree of each layer, of stacked ones."""

    def of_layer(layer):
        number, place = divmod(layer, config.period)
        stack = blocks.get(layer_name(place), {}) if config.period > 1 else blocks
        return jax.tree.map(lambda x: x[number], stack)

    return tuple(map(of_layer, range(config.num_layers)))


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


def _alone(model: Transformer, params: Any, weights: str) -> bool:
    platform = platform_of(model.mesh)
    if weights == "shared" or platform == "tpu":
        return False
    if platform == "cpu":  # "auto" stays stacked: all loops over layers unrolled take four times as long to compile
        # But from a stack of experts all of a layer's would be copied, those that no row chose too.
        asked = weights != "auto" or model.config.num_experts > 0
        return asked and model.mesh is None and _of_a_layer(model, params) >= LARGE
    return weights != "auto" or _has_room(model, params)


def _of_a_layer(model: Transformer, params: Any) -> float:
    """Bytes of a layer's weights."""
    leaves = jax.tree.leaves(params["blocks"])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / model.config.num_layers


def _has_room(model: Transformer, params: Any) -> bool:
    parts = 1 if model.mesh is None else model.mesh.shape["tensor"]
    if model.mesh is not None and model.mesh.shape["fsdp"] > 1:
        return True
    memory = memory_of(model.mesh)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params)) / parts
    return memory is not None and 3 * size <= memory


def own_slots(variables: Any, kv: KeyValues | HeadKeyValues, rows: int) -> KeyValues | HeadKeyValues:
    """A cache of R `rows` or more for a loop that decodes R `rows`: by layer if the blocks are."""
    if not isinstance(variables["params"]["blocks"], tuple):
        return kv

    def by_layer(t, rows):
        return tuple(t[i : i + 1, :rows] for i in range(len(t)))

    own_rows = None if isinstance(kv, HeadKeyValues) else rows
    states = kv.states and States(*(by_layer(t, rows) for t in kv.states))
    return type(kv)(by_layer(kv.k, own_rows), by_layer(kv.v, own_rows), states)


def own_prefix(variables: Any, prefix: KeyValues | None) -> KeyValues | None:
    """A shared prefix for a loop that decodes: by layer if the blocks are."""
    if prefix is None or not isinstance(variables["params"]["blocks"], tuple):
        return prefix
    return jax.tree.map(lambda t: tuple(t[i] for i in range(len(t))), prefix)


def joined_slots(kv: KeyValues | HeadKeyValues, after: KeyValues | HeadKeyValues) -> KeyValues | HeadKeyValues:
    """`kv` with what `own_slots` gave the loop as it is after it."""
    if not isinstance(after.k, tuple):
        return after

    def join(stacks, by_layer):
        for i, layer in enumerate(zip(*by_layer)):
            stacks = [t.at[i : i + 1, : new.shape[1]].set(new) for t, new in zip(stacks, layer)]
        return stacks

    states = kv.states and States(*join(kv.states, after.states))
    return type(kv)(*join(kv[:2], after[:2]), states)
