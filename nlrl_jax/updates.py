"""Around an update, inside `jit`: keep the old state where the new one is not finite, and stack the states of seeds.
And what weights must be to learn.

update = jax.jit(keep_finite(ppo.make_update(env, env_params, config)), donate_argnums=0)

many = keep_finite(over_seeds(update, vectorize=True))             # one seed fails: all keep their state
states, metrics = jax.jit(many)(stack([init(key) for key in keys]), keys)      # metrics: each [n]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def where(mask: jax.Array, new: Any, old: Any) -> Any:
    """`new` in the rows where `mask` [B, ...] is True, else `old`: for trees whose leaves are [B, ...].

    Raises:
      ValueError: a leaf that has not the mask's axes in front, or not the same shape in both trees.
    """

    def pick(path, a, b):
        if a.shape != b.shape or a.shape[: mask.ndim] != mask.shape:
            raise ValueError(
                f"leaf {jax.tree_util.keystr(path)} has shape {a.shape} in the new tree and {b.shape} in the old; both "
                f"must have one shape that begins with the mask's, {mask.shape}"
            )
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree_util.tree_map_with_path(pick, new, old)


def masters(weights: Any) -> Any:
    """Weights as they must be to learn: those of fewer than 32 bits as float32, the others as they are.

    In bfloat16 a step below 1/512 of a weight rounds to nothing, so that small learning rates would learn nothing.
    """
    return jax.tree.map(lambda x: x.astype(jnp.float32) if _is_short(x) else x, weights)


def check_masters(weights: Any) -> None:
    """Raises ValueError: weights of fewer than 32 bits, which must not learn; see `masters`."""
    short = sorted({str(x.dtype) for x in jax.tree.leaves(weights) if _is_short(x)})
    if short:
        raise ValueError(
            f"the weights that learn are {', '.join(short)}, in which small steps round to nothing; they must be "
            "float32 (`nlrl_jax.updates.masters` makes them so), whatever the model computes in"
        )


def _is_short(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32


def keep_finite(update: Callable[..., tuple[Any, dict[str, jax.Array]]]) -> Callable[..., Any]:
    """`update(state, *args) -> (state, metrics)`, which returns the old state where the new one is not finite.

    Not finite: `metrics["finite"]` has a 0 in it, or a number of the state that was finite is no more. The metric
    "finite" becomes one boolean, also for a whole stack of states. Leaves that `update` passes on untouched (frozen
    weights) cost nothing.
    """

    def kept(state: Any, *args: Any) -> tuple[Any, dict[str, jax.Array]]:
        new, metrics = update(state, *args)
        pairs = [(a, b) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True) if a is not b]
        finite = jnp.all(jnp.asarray(metrics.get("finite", True), bool))
        for a, b in pairs:
            if jnp.issubdtype(a.dtype, jnp.inexact):
                finite &= jnp.all(jnp.isfinite(a) | ~jnp.isfinite(b))

        def keep(a, b):
            return b if a is b else jnp.where(finite, a, b)

        return jax.tree.map(keep, new, state), {**metrics, "finite": finite}

    return kept


def stack(states: Sequence[Any]) -> Any:
    """n states as one with a leading axis [n] on everything but `params`, which they share. ValueError: n is 0."""
    if not states:
        raise ValueError("there is no state to stack; give at least one")
    params = states[0].params
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state.replace(params=None) for state in states))
    return stacked.replace(params=params)


def seed_mesh(seeds: int) -> Mesh:
    """A mesh ("seeds",) of as many devices as take equally many of the seeds each. ValueError: no seed."""
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it must be at least 1")
    devices = jax.devices()
    number = max(n for n in range(1, len(devices) + 1) if seeds % n == 0)
    return jax.make_mesh((number,), ("seeds",), axis_types=(AxisType.Auto,), devices=devices[:number])


def spread(states: Any, mesh: Mesh) -> Any:
    """A stack of states with its seeds on the devices of a `seed_mesh`, and the `params` they share on all; copies,
    which an update may be given to keep."""

    def put(tree, axis):
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(axis)), may_alias=False)

    return put(states.replace(params=None), "seeds").replace(params=put(states.params, None))


def over_seeds(
    update: Callable[..., tuple[Any, dict[str, jax.Array]]], vectorize: bool, mesh: Mesh | None = None
) -> Callable[..., Any]:
    """`update(state, key)` for a stack of states and one key each: (states, keys [n]) -> (states, metrics [n]).

    The states share their frozen `params`, of which there is one copy.

    Args:
      vectorize: all seeds at once (`jax.vmap`): what an accelerator with memory to spare wants. Otherwise one after
        the other inside the program (`jax.lax.map`), which gives the bits of single runs and takes the memory of one.
      mesh: a `seed_mesh`: each device takes its share of the seeds, and none waits for another.
    """

    def each(params: Any, stacked: Any, keys: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        def one(state_and_key):
            state, key = state_and_key
            state, metrics = update(state.replace(params=params), key)
            return state.replace(params=None), metrics

        return jax.vmap(one)((stacked, keys)) if vectorize else jax.lax.map(one, (stacked, keys))

    if mesh is not None:
        per_seed = PartitionSpec("seeds")
        each = jax.shard_map(
            each, mesh=mesh, in_specs=(PartitionSpec(), per_seed, per_seed), out_specs=per_seed, check_vma=False
        )

    def many(states: Any, keys: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        new, metrics = each(states.params, states.replace(params=None), keys)
        return new.replace(params=states.params), metrics

    return many
