"""What games share as gymnax environments: places on meshes, and the shell of those with discrete actions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, auto_axes

from nlrl_jax.gymnax_base import environment, spaces


def on_any_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one game's arrays that also works inside `shard_map` and with a batch on an Explicit mesh.

    On an Explicit mesh JAX wants a sharding for every gather: the axes of the mesh are Auto inside. In `shard_map` a
    result that depends on no argument, such as a clock at 0, varies over the mesh as the arguments do, so that a scan
    can carry it. Where there is no mesh, nothing is added.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, options))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        meshes = [jax.typeof(array).sharding.mesh for array in arrays.values()]
        mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)

        def of_arrays(arrays: dict[int, jax.Array]) -> Any:
            args, options = jax.tree.unflatten(tree, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            return function(*args, **options)

        if mesh is not None:
            with jax.sharding.use_abstract_mesh(mesh):  # the caller need not have set it
                return auto_axes(of_arrays, axes=mesh.explicit_axes, out_sharding=PartitionSpec())(arrays)
        return varying_as(list(arrays.values()), function(*args, **options))

    return call


def varying_as(arrays: Any, tree: Any) -> Any:
    """A tree of arrays that vary over the axes of `shard_map` over which some of other `arrays` do."""
    axes = frozenset().union(*map(_manual_axes, jax.tree.leaves(arrays)))

    def vary(leaf: Any) -> jax.Array:
        missing = tuple(axes - _manual_axes(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, tree) if axes else tree


def _manual_axes(array: Any) -> frozenset[str]:
    """The axes of a mesh over which an array varies inside `shard_map`."""
    kind = jax.typeof(array)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # by version of JAX


class DiscreteGame(environment.Environment):
    """A gymnax environment with discrete actions and observations in a box.

    A game adds `observe`, `is_terminated`, `start(key, params)`, which returns the first state of an episode, and
    `advance(key, state, action, params)`, which returns (state, reward, terminated, info).

    Args:
      words: of the actions. shape: of an observation. params: the default parameters.
      low, high: bounds of an observation's numbers.
    """

    def __init__(
        self, words: tuple[str, ...], shape: tuple[int, ...], params: Any, low: jax.Array = 0, high: jax.Array = 1
    ):
        super().__init__()
        self.words, self.shape, self.low, self.high = words, shape, low, high
        self._default_params = params

    @property
    def default_params(self) -> Any:
        return self._default_params

    @property
    def num_actions(self) -> int:
        return len(self.words)

    @on_any_mesh
    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        """Begins an episode: (obs, state); see `start`."""
        state = self.start(key, params)
        return self.observe(key, state, None, params), state

    @on_any_mesh
    def step_env(self, key, state, action, params):
        """Steps an episode: (obs, state, reward, terminated, info); see `advance`."""
        state, reward, terminated, info = self.advance(key, state, action, params)
        return self.observe(key, state, action, params), state, reward, terminated, info

    @functools.partial(jax.jit, static_argnames=("self",))
    def step(self, key, state, action, params=None):
        """Steps an episode and begins the next where it ends, as gymnax's `step`, but observes the state of both once.

        Returns:
          (obs, state, reward, terminated, truncated, info), with "terminated", "truncated" and "final_observation", the
          one before the next episode, in info.
        """
        params = self.default_params if params is None else params
        key_step, key_reset = jax.random.split(key)
        final_observation, after, reward, terminated, info = self.step_env(key_step, state, action, params)
        truncated = self.is_truncated(after, params)
        done = terminated | truncated
        _, first = self.reset_env(key_reset, params)
        state = jax.tree.map(lambda *leaves: jax.lax.select(done, *leaves), first, after)
        obs = on_any_mesh(self.observe)(key_step, state, action, params)
        info |= {"terminated": terminated, "truncated": truncated, "final_observation": final_observation}
        return obs, state, reward, terminated, truncated, info

    def action_space(self, params: Any = None) -> spaces.Discrete:
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, self.shape, jnp.float32)
