"""Devices that are not here: H100s, H200s and A100s to compile for, without a GPU or a driver.

    pip install jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2      # the extra `aot`; Python 3.12
    python -m benchmarks.aot --target h100 --mesh 1,8,1

Matrix products go to cuBLAS (`compiled`): without a device XLA cannot time its Triton kernels. Memory, collectives,
loops, types and operations carry over to a device; copies in front of a product must be looked at there again.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
from jax.experimental import topologies

# Data sheet values in the form of XLA's GpuTargetConfigProto.
_GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: {smem}  threads_per_core_limit: 2048  core_count: {cores}  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}  l2_cache_size: {l2}  clock_rate_ghz: {clock}  device_memory_size: {memory}
  shared_memory_per_block_optin: {optin}  cuda_compute_capability {{ major: {major} {feature} }}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
_HOPPER = {
    "smem": 233472, "cores": 132, "fpus": 128, "l2": 52428800, "clock": 1.98, "optin": 232448, "major": 9,
    "feature": "feature_extension: ACCELERATED_FEATURES",
}  # fmt: skip
_AMPERE = {
    "smem": 167936, "cores": 108, "fpus": 64, "l2": 41943040, "clock": 1.41, "optin": 166912, "major": 8, "feature": "",
}  # fmt: skip
GPUS = {
    "h100": _GPU.format(bandwidth=3352320000000, memory=84942979072, name="NVIDIA H100 80GB HBM3", **_HOPPER),
    "h200": _GPU.format(bandwidth=4814000000000, memory=150110011392, name="NVIDIA H200", **_HOPPER),
    "a100": _GPU.format(bandwidth=2039040000000, memory=85100068864, name="NVIDIA A100-SXM4-80GB", **_AMPERE),
}
PER_HOST = 8
_WITHOUT_DEVICE = {"xla_gpu_enable_triton_gemm": False}


def available() -> bool:
    """Whether the packages that compile for GPUs are installed."""
    return importlib.util.find_spec("jax_cuda13_plugin") is not None


def devices(target: str, count: int = 1) -> list[Any]:
    """`count` devices to compile for: of `GPUS`, of a TPU topology such as v5e:2x4, or this machine's (cpu).

    Raises:
      ValueError: an unknown target, or fewer devices than asked for.
      ModuleNotFoundError: the packages that compile for GPUs are missing.
    """
    if target in GPUS:
        if not available():
            raise ModuleNotFoundError("compiling for GPUs needs jax-cuda13-plugin and jax-cuda13-pjrt (the extra aot)")
        hosts, each = max(1, count // PER_HOST), min(count, PER_HOST)
        topology = f"1x{hosts}x{each}"
        available_devices = topologies.get_topology_desc(
            platform="cuda", target_config=GPUS[target], topology=topology
        ).devices
    elif target == "cpu":
        available_devices = jax.devices("cpu")[:count]
    elif ":" in target:
        available_devices = topologies.get_topology_desc(platform="tpu", topology_name=target).devices
    else:
        raise ValueError(f"unknown target {target!r}; give {', '.join(GPUS)}, cpu, or a TPU topology such as v5e:2x4")
    if len(available_devices) < count:
        raise ValueError(f"{target} has {len(available_devices)} devices, {count} were requested")
    return list(available_devices[:count])


def compiled(lowered: Any, mesh: jax.sharding.Mesh | None) -> Any:
    """Compiles what was lowered for a mesh, whose devices may not be here."""
    absent = mesh is not None and mesh.devices.flat[0].platform in ("cuda", "gpu") and jax.default_backend() == "cpu"
    return lowered.compile(compiler_options=_WITHOUT_DEVICE if absent else None)
