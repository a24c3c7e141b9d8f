"""Where a model's variables and what an optimizer keeps of them lie on the model's mesh."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nlrl_jax.lm.block import layer_name
from nlrl_jax.lm.sharding import shardings
from nlrl_jax.lm.transformer import Transformer, init_lora, param_specs


def of_variables(model: Transformer, variables: Any) -> Any:
    """NamedShardings of the arrays, or shapes, of {"params": ...} and {"lora": ...}, in their structure."""
    specs = param_specs(model)
    return {name: shardings(tree, specs[name], model.mesh) for name, tree in variables.items()}


def of_optimizer(optimizer: optax.GradientTransformation, state: Any, learned: Any, mesh: Mesh) -> Any:
    """NamedShardings of an optimizer's state: what it keeps of a weight lies with it, the rest on every device.

    Args:
      state: the state or its shapes.
      learned: NamedShardings of what the optimizer was initialised with.
    """
    whole = NamedSharding(mesh, PartitionSpec())

    def masked(leaf):
        return isinstance(leaf, optax.MaskedNode)  # a part of the weights that it does not train

    def keep(leaf, place):
        return leaf if masked(leaf) else place

    return optax.tree.map_params(optimizer, keep, state, learned, transform_non_params=lambda _: whole, is_leaf=masked)


def fresh_lora(model: Transformer, key: jax.Array) -> Any:
    """`init_lora`, on the model's mesh."""
    if model.mesh is None:
        return init_lora(model, key)

    def fresh(key):
        return {"lora": init_lora(model, key)}

    return jax.jit(fresh, out_shardings=of_variables(model, jax.eval_shape(fresh, key)))(key)["lora"]


def start(optimizer: optax.GradientTransformation, learned: Any, mesh: Mesh | None) -> Any:
    """`optimizer.init(learned)`, laid out so that a jitted step finds it where it leaves it."""
    if mesh is None:
        return optimizer.init(learned)
    places = jax.tree.map(lambda leaf: leaf.sharding, learned)
    # Shapes alone say where each array goes, so that it is made there and never whole on one device.
    state_places = of_optimizer(optimizer, jax.eval_shape(optimizer.init, learned), places, mesh)
    return jax.jit(optimizer.init, out_shardings=state_places)(learned)


def stay(
    model: Transformer, optimizer: optax.GradientTransformation, train: str, learned: Any, opt_state: Any, other: Any
) -> tuple[Any, Any, Any]:
    """What a step returns, laid out as `start` and the loader lay it out, so that the next step is the same program.

    Args:
      train: the collection that learns. other: metrics and what else is whole on every device.
    """
    if model.mesh is None:
        return learned, opt_state, other
    weight_places = of_variables(model, {train: learned})[train]
    whole = jax.tree.map(lambda _: NamedSharding(model.mesh, PartitionSpec()), other)
    places = weight_places, of_optimizer(optimizer, opt_state, weight_places, model.mesh), whole
    return jax.lax.with_sharding_constraint((learned, opt_state, other), places)


def gathered(model: Transformer, variables: Any, specs: Any = None) -> Any:
    """The variables with each "fsdp" group's shards in one piece on all of its devices; "tensor" stays. Without such
    a group, `variables`.

    For as long as they stay the same, a rollout say: they are exchanged once, not for every token. Layer by layer and
    in their own order, as all layers at once would be written a second time in another one.

    Args:
      specs: PartitionSpecs of the variables; by default the model's own.
    """
    if model.mesh is None or model.mesh.shape["fsdp"] == 1:
        return variables

    def whole(p):
        return PartitionSpec(*(None if name == "fsdp" else name for name in p))

    specs = jax.tree.map(whole, specs or param_specs(model), is_leaf=lambda p: isinstance(p, PartitionSpec))

    def bring(tree, specs, after=()):
        """One leaf after another: exchanges in any order make CPU devices that share a core wait for each other."""
        gathered_trees, after = [], list(after)
        for leaf, place in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree, specs, model.mesh)), strict=True):
            # The barrier ties this exchange to the one before it.
            *_, leaf = jax.lax.optimization_barrier((*after, leaf))
            leaf = jax.lax.with_sharding_constraint(leaf, place)
            gathered_trees.append(with_layout_constraint(leaf, Layout(tuple(range(leaf.ndim)))))
            after = gathered_trees[-1:]
        return jax.tree.unflatten(jax.tree.structure(tree), gathered_trees)

    def of(tree, specs, after):
        # Specs of one layer, or of a period of them: those of stacked blocks without their leading "layers".
        layer = jax.tree.map(
            lambda p: PartitionSpec(*p[1:]), specs["blocks"], is_leaf=lambda p: isinstance(p, PartitionSpec)
        )
        period = model.config.period
        if isinstance(tree["blocks"], tuple):
            blocks = []
            for i, block in enumerate(tree["blocks"]):
                blocks.append(bring(block, layer if period == 1 else layer[layer_name(i % period)], after))
                after = jax.tree.leaves(blocks[-1])[-1:]
            blocks = tuple(blocks)
        else:
            blocks = jax.lax.optimization_barrier((tree["blocks"], after))[0]
            blocks = bring(jax.lax.map(lambda block: bring(block, layer), blocks), specs["blocks"])
        rest = {name: leaf for name, leaf in tree.items() if name != "blocks"}
        rest = bring(rest, {name: specs[name] for name in rest}, jax.tree.leaves(blocks)[-1:])
        return {**rest, "blocks": blocks}

    gathered_trees = {}
    for name, tree in variables.items():
        gathered_trees[name] = of(tree, specs[name], jax.tree.leaves(gathered_trees)[-1:])
    return gathered_trees
