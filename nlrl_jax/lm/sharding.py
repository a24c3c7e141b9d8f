"""One mesh ("data", "fsdp", "tensor") and the rules from logical axes to its axes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

# data: copies of the model; fsdp: shards of each weight, gathered before use; tensor: heads and MLP columns.
AXES = ("data", "fsdp", "tensor")
# Logical axis -> mesh axes. Rows of a batch are shared by "data" and "fsdp": both hold different rows.
RULES = {
    "batch": ("data", "fsdp"),
    "group": "data",  # the rows of all devices that share the weights
    "length": None,
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    None: None,
}
MEMORY = {  # bytes of the GPUs that programs are compiled for without having them
    "NVIDIA H100 80GB HBM3": 84942979072,
    "NVIDIA H200": 150110011392,
    "NVIDIA A100-SXM4-80GB": 85100068864,
}
PREALLOCATED = 0.75  # of a GPU's memory, which JAX takes unless told otherwise


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, devices: Any = None) -> Mesh:
    """A mesh of data * fsdp * tensor devices.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if data * fsdp * tensor != len(devices):
        raise ValueError(
            f"mesh data={data} x fsdp={fsdp} x tensor={tensor} needs {data * fsdp * tensor} devices; "
            f"there are {len(devices)}"
        )
    return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def check_heads(num_heads: int, num_kv_heads: int, mesh: Mesh | None) -> None:
    """Refuses a mesh that would cut attention heads in two.

    Raises:
      ValueError: "tensor" divides not both numbers of heads.
    """
    tensor = 1 if mesh is None else mesh.shape["tensor"]
    if num_heads % tensor or num_kv_heads % tensor:
        raise ValueError(
            f"mesh tensor={tensor} would cut heads in two: the model has {num_heads} query and {num_kv_heads} "
            f"key/value heads; tensor may be {math.gcd(num_heads, num_kv_heads)} or a divisor of it, and fsdp the rest"
        )


def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The PartitionSpec of logical `axes`."""
    return PartitionSpec(*(RULES[axis] for axis in axes))


def constrain(x: jax.Array, mesh: Mesh | None, axes: tuple[str | None, ...]) -> jax.Array:
    """Asks the compiler to lay `x` out by its logical axes; nothing without a mesh.

    A dimension smaller than the number of devices along its axis stays whole: the one row of a shared prefix, say.
    """
    if mesh is None:
        return x
    names = (RULES[axis] if size >= devices_of(mesh, RULES[axis]) else None for size, axis in zip(x.shape, axes))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*names)))


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of a table [V, H] by ids [...]: [..., H], which lie as the ids do where these are on an Explicit mesh."""
    sharding = jax.typeof(ids).sharding
    if not sharding.mesh.explicit_axes:
        return jnp.take(table, ids, axis=0)
    rows = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, None))
    return table.at[ids].get(mode="fill", out_sharding=rows)


def devices_of(mesh: Mesh, axes: str | tuple[str, ...] | None) -> int:
    """How many devices lie along axes of the mesh."""
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))


def platform_of(mesh: Mesh | None) -> str:
    """ "cpu", "gpu" or "tpu": of the mesh's devices, or of those at hand."""
    return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def memory_of(mesh: Mesh | None) -> int | None:
    """Bytes that a program may use on each device of the mesh, or on the one at hand; None where nobody says."""
    devices = jax.local_devices()[:1] if mesh is None else mesh.devices.flat
    device = next(
        (candidate for candidate in devices if candidate in jax.local_devices()), devices[0]
    )  # another process's does not say
    if device.device_kind in MEMORY and device.client is not jax.local_devices()[0].client:
        return int(MEMORY[device.device_kind] * PREALLOCATED)
    return (device.memory_stats() or {}).get("bytes_limit")


def whole_rows(size: int, mesh: Mesh | None) -> int:
    """`size` rows of a batch, rounded up so that all devices that share them have equally many."""
    parts = 1 if mesh is None else devices_of(mesh, RULES["batch"])
    return -(-size // parts) * parts


def shard(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """Lays the arrays of `tree` out over `mesh` by `specs` (same structure).

    An axis that a dimension's size does not divide by is left whole for that array.
    """
    return jax.device_put(tree, shardings(tree, specs, mesh))


def shardings(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """NamedShardings for the arrays (or shapes) of `tree`, dropping axes that do not divide a dimension."""

    def one(leaf, partition):
        names_by_axis = []
        for size, names in zip(leaf.shape, tuple(partition) + (None,) * (len(leaf.shape) - len(partition))):
            names_by_axis.append(names if size % devices_of(mesh, names) == 0 else None)
        return NamedSharding(mesh, PartitionSpec(*names_by_axis))

    return jax.tree.map(one, tree, specs)


def whole(tree: Any) -> Any:
    """Arrays with shards in other processes, whole on every device; others as they are. All processes must call."""

    def one(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return leaf
        # A jitted identity: only a program can move shards between processes.
        replicated = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        return jax.jit(lambda x: x, out_shardings=replicated)(leaf)

    return jax.tree.map(one, tree)
