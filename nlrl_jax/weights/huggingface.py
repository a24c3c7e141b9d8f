"""Hugging Face folders in and out: config.json and safetensors, one file or several.

    config, params = load("Qwen2.5-0.5B-Instruct")
    save("my-model", config, params, tokenizer)

Pickled weights (`pytorch_model.bin`) are never opened.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from nlrl_jax.files import read_json
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.weights import layout

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TOP = {
    ("embedding",): "model.embed_tokens.weight",
    ("final_norm", "scale"): "model.norm.weight",
    ("lm_head",): "lm_head.weight",
}
_BLOCK = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("mlp_norm", "scale"): "post_attention_layernorm.weight",
    ("attention", "q_norm", "scale"): "self_attn.q_norm.weight",
    ("attention", "k_norm", "scale"): "self_attn.k_norm.weight",
}
LINEAR = {
    ("attention", "q"): "self_attn.q_proj",
    ("attention", "k"): "self_attn.k_proj",
    ("attention", "v"): "self_attn.v_proj",
    ("attention", "o"): "self_attn.o_proj",
    ("gate",): "mlp.gate_proj",
    ("up",): "mlp.up_proj",
    ("down",): "mlp.down_proj",
}
_BUFFER = re.compile(r".*\.rotary_emb\.inv_freq$")  # old Llama files carry the frequencies; they follow from the config
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def tensor_name(path: layout.Path, layer: int | None) -> str:
    """The name a Hugging Face checkpoint gives the parameter at `path` (of one layer)."""
    if not layout.stacked(path):
        return _TOP[path]
    inside = path[1:]
    if inside in _BLOCK:
        name = _BLOCK[inside]
    else:
        name = f"{LINEAR[inside[:-1]]}.{'weight' if inside[-1] == 'kernel' else 'bias'}"
    return f"model.layers.{layer}.{name}"


def transposed(path: layout.Path) -> bool:
    """Whether the file holds the parameter as [out, in]."""
    return path[-1] in ("kernel", "lm_head")


def load(
    folder: str | os.PathLike,
    dtype: str | None = None,
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    **overrides: Any,
) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads a folder with config.json and model.safetensors (or its sharded index).

    Tensors stream from the file into the stacked parameters: the host's peak is one copy of the
    weights plus one stacked parameter, or with `mesh` one parameter's slices for its own devices.

    Args:
      folder: a local folder.
      dtype: dtype of the activations; that of the weights if None.
      param_dtype: dtype of the weights; that of the checkpoint's embedding if None, so bfloat16 stays bfloat16.
      mesh: where the weights go (`lm.sharding`'s rules); the default device if None.
      **overrides: fields of `ModelConfig`, e.g. `lora=LoraConfig(rank=8)`.

    Returns: (config, the "params" collection of `lm.transformer.Transformer(config)`).

    Raises:
      FileNotFoundError: no config.json or no safetensors; the message lists what the folder holds.
      ValueError: a damaged file; an unknown architecture or option; a tensor that is missing, unexpected or of a
        wrong shape or dtype, by name.
    """
    folder = pathlib.Path(folder)
    config = dataclasses.replace(read_config(folder), **overrides)
    with _Tensors(folder) as tensors:
        _check(folder, config, tensors)
        stored = _DTYPES.get(tensors.dtype(_TOP[("embedding",)]))
        param_dtype = param_dtype or stored
        config = dataclasses.replace(config, param_dtype=param_dtype, dtype=dtype or param_dtype)

        def fetch(path, layer, index):
            name = tensor_name(path, layer)
            return tensors.read(name, index[::-1]).T if transposed(path) else tensors.read(name, index)

        return config, layout.assemble(config, fetch, mesh=mesh)


def read_config(folder: str | os.PathLike) -> ModelConfig:
    """The configuration of a folder, without its weights. Errors: see `load`."""
    folder = pathlib.Path(folder)
    file = folder / "config.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give one with config.json and {SINGLE}")
    if not file.exists():
        raise FileNotFoundError(f"{folder} holds no config.json; it holds {_listing(folder)}")
    contents = read_json(file)
    try:
        return ModelConfig.from_hf(contents)
    except KeyError as error:
        raise ValueError(f"{file} lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None


def read_eos_ids(folder: str | os.PathLike) -> tuple[int, ...]:
    """Ids that end a generation, from generation_config.json, else config.json; () where neither says."""
    for name in ("generation_config.json", "config.json"):
        file = pathlib.Path(folder) / name
        eos = read_json(file).get("eos_token_id") if file.exists() else None
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (eos,)
    return ()


def save(
    folder: str | os.PathLike,
    config: ModelConfig,
    params: Any,
    tokenizer: Any = None,
    lora: Any = None,
    eos_ids: Sequence[int] = (),
    max_shard_bytes: int = 5 * 2**30,
) -> None:
    """Writes a folder that `transformers` and `load` read; the host's peak is one shard.

    Args:
      params: the "params" collection. Stored in its own dtype.
      tokenizer: anything with `save_pretrained(folder)`; its `eos_ids` or `eos_id` is used where `eos_ids` is empty.
      lora: an adapter to merge into the weights. Without it the base model alone is written
        (`weights.peft.save` keeps an adapter apart).
      eos_ids: ids that end a generation, written to generation_config.json if there are any.
      max_shard_bytes: weights above this many bytes go into several files and an index.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_weights(folder)
    flat = flatten_dict(params)
    dtype = jnp.dtype(flat[("embedding",)].dtype).name
    shards = _plan(config, flat, max_shard_bytes)
    count = len(shards)
    files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] if count > 1 else [SINGLE]
    for file, names in zip(files, shards, strict=True):
        tensors = {name: _host(config, flat, lora, path, layer) for name, path, layer in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if count > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name, _, _ in names}
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in flat.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    eos = list(eos_ids) or _eos_of(tokenizer)
    ids = {"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {}
    _write_json(folder / "config.json", {**config.to_hf(), "torch_dtype": dtype, **ids})
    if eos:
        _write_json(folder / "generation_config.json", ids)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


class _Tensors:
    """The tensors of a folder by name, read slice by slice."""

    def __init__(self, folder: pathlib.Path):
        self._open = {file: open_safetensors(file) for file in _weight_files(folder)}
        self.files: dict[str, pathlib.Path] = {}
        for file, handle in self._open.items():
            self.files.update(dict.fromkeys(handle.keys(), file))
        if not (folder / SINGLE).exists():
            for name, file in _weight_map(folder).items():
                if self.files.get(name) != folder / file:
                    raise ValueError(f"{folder / INDEX} places tensor {name!r} in {file}, which does not hold it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._open.clear()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        return self._slice(name).get_dtype()

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self._slice(name)[index]

    def _slice(self, name: str) -> Any:
        return self._open[self.files[name]].get_slice(name)


def open_safetensors(file: pathlib.Path) -> Any:
    """`safetensors.safe_open`, for numpy.

    Raises:
      ValueError: it is no safetensors file, or a damaged one.
    """
    try:
        return safe_open(file, "numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{file} is not a whole safetensors file ({error}); it may be cut off, an error page or a Git LFS pointer: "
            "download it again"
        ) from None


def _weight_map(folder: pathlib.Path) -> dict[str, str]:
    """The index's table: tensor -> file."""
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict):
        raise ValueError(f"{folder / INDEX} lacks 'weight_map'")
    return listed


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        files = sorted({folder / file for file in _weight_map(folder).values()})
        missing = [f.name for f in files if not f.exists()]
        if missing:
            raise FileNotFoundError(f"{folder / INDEX} names {', '.join(missing)}, not in the folder")
        return files
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickles:
        raise FileNotFoundError(
            f"{folder} holds pickled weights only ({', '.join(pickles)}), which are never opened because a pickle runs "
            f"code; convert them with transformers' save_pretrained, which writes {SINGLE}"
        )
    raise FileNotFoundError(f"{folder} holds no {SINGLE} and no {INDEX}; it holds {_listing(folder)}")


def _listing(folder: pathlib.Path) -> str:
    return ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"


def _check(folder: pathlib.Path, config: ModelConfig, tensors: _Tensors) -> None:
    """Checks that exactly the tensors of the config are there, in their shapes and a known dtype."""
    expected = {name: (path, shape) for name, path, shape in _expected(config)}
    present = {name for name in tensors.files if not _BUFFER.match(name)}
    head, embedding = _TOP[("lm_head",)], _TOP[("embedding",)]
    if config.tie_embeddings and head in present:
        everything = (slice(None),) * 2
        same = tensors.shape(head) == tensors.shape(embedding) and np.array_equal(
            tensors.read(head, everything), tensors.read(embedding, everything)
        )
        if not same:
            warnings.warn(
                f"{folder}: tie_word_embeddings is true, so {head}, which differs from {embedding}, is not used",
                stacklevel=3,
            )
        present.discard(head)
    missing = sorted(expected.keys() - present)
    if missing:
        hint = " (tie_word_embeddings is false in config.json)" if head in missing else ""
        raise ValueError(f"{folder}: {_some(missing)} missing{hint}")
    unexpected = sorted(present - expected.keys())
    if unexpected:
        raise ValueError(f"{folder}: {_some(unexpected)} unexpected in a {config.architecture} of this config")
    rows = tensors.shape(embedding)[0]
    if rows != config.vocab_size:
        raise ValueError(
            f"{folder}: {embedding} has {rows} rows but vocab_size={config.vocab_size} in config.json; they must agree"
        )
    for name, (_, shape) in expected.items():
        if tensors.shape(name) != shape:
            raise ValueError(f"{folder}: {name} has shape {tensors.shape(name)}; config.json calls for {shape}")
        if tensors.dtype(name) not in _DTYPES:
            raise ValueError(f"{folder}: {name} has dtype {tensors.dtype(name)}; one of {', '.join(_DTYPES)} is needed")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"tensor{'s' if len(names) > 1 else ''} {shown}"


def _expected(config: ModelConfig) -> Iterator[tuple[str, layout.Path, tuple[int, ...]]]:
    """(name, path, shape in the file) of every tensor."""
    for path, shape in layout.shapes(config).items():
        layers = range(config.num_layers) if layout.stacked(path) else (None,)
        one = shape[1:] if layout.stacked(path) else shape
        for layer in layers:
            yield tensor_name(path, layer), path, one[::-1] if transposed(path) else one


def _plan(config: ModelConfig, flat: dict, max_bytes: int) -> list[list[tuple[str, layout.Path, int | None]]]:
    """Tensors in the order of the layers, cut into shards of at most `max_bytes` (or one tensor)."""
    order = []
    for path, leaf in flat.items():
        size = leaf.size * leaf.dtype.itemsize
        if layout.stacked(path):
            order += [(i, tensor_name(path, i), path, i, size // leaf.shape[0]) for i in range(leaf.shape[0])]
        else:
            first = -1 if path == ("embedding",) else config.num_layers
            order.append((first, tensor_name(path, None), path, None, size))
    shards, filled = [[]], 0
    for _, name, path, layer, size in sorted(order, key=lambda item: item[:2]):
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append((name, path, layer))
        filled += size
    return shards


def _host(config: ModelConfig, flat: dict, lora: Any, path: layout.Path, layer: int | None) -> np.ndarray:
    """One tensor as the file holds it."""
    tensor = flat[path] if layer is None else flat[path][layer]
    if lora is not None and path[-1] == "kernel":
        adapter = flatten_dict(lora)
        a, b = adapter.get((*path[:-1], "a")), adapter.get((*path[:-1], "b"))
        if a is not None:
            tensor = layout.merged_kernel(config, tensor, a[layer], b[layer])
    tensor = np.asarray(tensor)
    return np.ascontiguousarray(tensor.T if transposed(path) else tensor)


def _remove_weights(folder: pathlib.Path) -> None:
    """Deletes the weights of an earlier save, so that no stale shard or index is read."""
    if (folder / INDEX).exists():
        for file in set(_weight_map(folder).values()):
            (folder / file).unlink(missing_ok=True)
    for name in (INDEX, SINGLE):
        (folder / name).unlink(missing_ok=True)


def _eos_of(tokenizer: Any) -> list[int]:
    ids = getattr(tokenizer, "eos_ids", None)
    if ids is None:
        ids = getattr(tokenizer, "eos_id", None)
    if ids is None:
        return []
    return [int(i) for i in ids] if isinstance(ids, (tuple, list)) else [int(ids)]


def _write_json(file: pathlib.Path, contents: dict[str, Any]) -> None:
    file.write_text(json.dumps(contents, indent=2) + "\n")
