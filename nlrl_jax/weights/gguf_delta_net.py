"""Layers of Gated DeltaNet in GGUF files (`general.architecture` qwen35), as llama.cpp writes and reads them.

Its converter (conversion/qwen.py) puts the value heads in another order: a file's head r * K + k is the model's head
k * R + r, with K key heads and R value heads to each. It stores -exp(A_log) for A_log, and the convolution without its
middle axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, DeltaNetSizes
from nlrl_jax.weights.gguf_file import GGUFFile
from nlrl_jax.weights.layout import Path

_OF_VALUES = "in_z", "in_b", "in_a", "A_log", "dt_bias"  # rows are those of value heads; of in_qkv and conv the last


def config_fields(keys: Any, num_layers: int, head_dim: int) -> dict[str, Any]:
    """The fields of `ModelConfig` that only such models have. Errors: those of `gguf._Keys`."""
    interval = keys.size("full_attention_interval", 4)
    num_value_heads = keys.size("ssm.time_step_rank")
    return dict(
        layer_types=tuple(LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers)),
        partial_rotary_factor=keys.size("rope.dimension_count", head_dim // 4) / head_dim,
        delta_net=DeltaNetSizes(
            num_key_heads=keys.size("ssm.group_count"),
            num_value_heads=num_value_heads,
            key_head_dim=keys.size("ssm.state_size"),
            value_head_dim=keys.size("ssm.inner_size") // num_value_heads,
            conv_width=keys.size("ssm.conv_kernel"),
        ),
    )


def stored_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in a GGUF file of what has `shape` in Hugging Face's."""
    return (shape[0], shape[2]) if path[-2:] == ("delta", "conv") else shape


def read(file: GGUFFile, config: ModelConfig, name: str, path: Path, index: tuple[slice, ...]) -> np.ndarray:
    """The part of a tensor of a linear layer that `index` cuts out, in the decoder's orientation, float32."""
    module, sizes = path[2], config.delta_net
    order = _row_order(module, sizes)
    if path[-1] == "kernel":
        columns, rows = index
        if module == "out":  # what it reads is in the order of the value heads
            return file.read(name, (rows, slice(None)))[:, _of_heads(sizes, sizes.value_head_dim)][:, columns].T
        return file.read(name, (rows, columns), order).T
    if module == "conv":
        channels, _, taps = index
        return file.read(name, (channels, taps), order)[:, None]
    values = file.read(name, (slice(None),))
    values = (values if order is None else values[order])[index]
    return np.log(-values) if module == "A_log" else values


def _row_order(module: str, sizes: DeltaNetSizes) -> np.ndarray | None:
    """Where each row of a tensor stands in the file; None where they are in their order."""
    if module in _OF_VALUES:
        return _of_heads(sizes, sizes.value_head_dim if module == "in_z" else 1)
    if module in ("in_qkv", "conv"):
        first = 2 * sizes.num_key_heads * sizes.key_head_dim
        return np.concatenate([np.arange(first), first + _of_heads(sizes, sizes.value_head_dim)])
    return None


def _of_heads(sizes: DeltaNetSizes, width: int) -> np.ndarray:
    """Where each of `width` rows of each value head stands in the file."""
    K, V = sizes.num_key_heads, sizes.num_value_heads
    heads = np.arange(V).reshape(V // K, K).T.reshape(-1)
    return (heads[:, None] * width + np.arange(width)).reshape(-1)
