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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from nlrl_jax.files import read_json, write_atomically
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer_files import read_token_ids
from nlrl_jax.weights import layout
from nlrl_jax.weights.safetensors_file import DTYPES, SafetensorsFile, temporary, write

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

    Slices stream from the files to their devices: besides what the devices hold, the host needs a few layers of one
    parameter or one tensor (`layout.assemble`), and each process reads the slices of its own devices only.

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
    tensors = _Tensors(folder)
    _check(folder, config, tensors)
    stored = DTYPES.get(tensors.dtype(_TOP[("embedding",)]))
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
    return read_token_ids(pathlib.Path(folder))["eos"]


def save(
    folder: str | os.PathLike,
    config: ModelConfig,
    params: Any,
    tokenizer: Any = None,
    lora: Any = None,
    eos_ids: Sequence[int] = (),
    max_shard_bytes: int = 5 * 2**30,
) -> None:
    """Writes a folder that `transformers` and `load` read; the host holds one tensor at a time.

    The weights are complete under other names before they replace those of an earlier save, and config.json comes
    last: a killed save leaves the earlier model, or a folder without config.json, which `load` refuses.

    Where several processes hold parts of the weights or of the adapter, all must call; the first writes, and all return
    when it has.

    Args:
      params: the "params" collection. Stored in its own dtype.
      tokenizer: anything with `save_pretrained(folder)`; its `eos_ids` or `eos_id` is used where `eos_ids` is empty.
      lora: an adapter to merge into the weights. Without it the base model alone is written
        (`weights.peft.save` keeps an adapter apart).
      eos_ids: ids that end a generation, written to generation_config.json if there are any.
      max_shard_bytes: weights above this many bytes go into several files and an index.
    """
    folder = pathlib.Path(folder)
    first, together = jax.process_index() == 0, layout.spread((params, lora))
    flat, adapter = flatten_dict(params), flatten_dict(lora or {})
    shards = _plan(config, flat, max_shard_bytes)
    count = len(shards)
    files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] if count > 1 else [SINGLE]
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        for remains in folder.glob(".*.safetensors.tmp"):  # of a save that was killed
            remains.unlink()
    for file, shard in zip(files, shards, strict=True):
        tensors = (_stored(config, flat, adapter, path, layer) for path, layer, _ in shard.values())
        structs = {name: struct for name, (_, _, struct) in shard.items()}
        write(temporary(folder / file), structs, tensors, together)
    if first:
        _replace_weights(folder, files, shards)
        _write_about(folder, config, jnp.dtype(flat[("embedding",)].dtype).name, tokenizer, eos_ids)
    if together:
        multihost_utils.sync_global_devices(f"saved {folder}")


def _replace_weights(folder: pathlib.Path, files: list[str], shards: list[_Shard]) -> None:
    """Gives the weights their names. In between the folder has no config.json, so that old and new are never mixed."""
    (folder / "config.json").unlink(missing_ok=True)
    _remove_weights(folder)
    for file in files:
        os.replace(temporary(folder / file), folder / file)
    if len(files) > 1:
        weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(struct.size * struct.dtype.itemsize for shard in shards for _, _, struct in shard.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_about(folder: pathlib.Path, config: ModelConfig, dtype: str, tokenizer: Any, eos_ids: Sequence[int]) -> None:
    """The tokenizer, generation_config.json and, last, config.json."""
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    ids = dict.fromkeys(f"{role}_token_id" for role in ("bos", "eos", "pad"))  # or transformers takes 1 and 2
    ids |= getattr(tokenizer, "token_ids", {})
    if eos := list(eos_ids) or _eos_of(tokenizer):
        _write_json(folder / "generation_config.json", {**ids, "eos_token_id": eos})
        ids["eos_token_id"] = eos[0] if len(eos) == 1 else eos
    _write_json(folder / "config.json", {**config.to_hf(), "torch_dtype": dtype, **ids})


class _Tensors:
    """The tensors of a folder by name, read slice by slice."""

    def __init__(self, folder: pathlib.Path):
        self.files = {name: file for file in map(SafetensorsFile, _weight_files(folder)) for name in file}
        if not (folder / SINGLE).exists():
            for name, file in _weight_map(folder).items():
                if name not in self.files or self.files[name].path != folder / file:
                    raise ValueError(f"{folder / INDEX} places tensor {name!r} in {file}, which does not hold it")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.files[name].shape(name)

    def dtype(self, name: str) -> str:
        return self.files[name].dtype(name)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.files[name].read(name, index)


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
        if tensors.dtype(name) not in DTYPES:
            raise ValueError(f"{folder}: {name} has dtype {tensors.dtype(name)}; one of {', '.join(DTYPES)} is needed")


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


_Shard = dict[str, tuple[layout.Path, int | None, jax.ShapeDtypeStruct]]  # name -> what it is, as the file holds it


def _plan(config: ModelConfig, flat: dict, max_bytes: int) -> list[_Shard]:
    """Tensors in the order of the layers, cut into shards of at most `max_bytes` (or one tensor)."""
    order = []
    for path, leaf in flat.items():
        layers = range(leaf.shape[0]) if layout.stacked(path) else (None,)
        shape = leaf.shape[1:] if layout.stacked(path) else leaf.shape
        struct = jax.ShapeDtypeStruct(shape[::-1] if transposed(path) else shape, leaf.dtype)
        first = -1 if path == ("embedding",) else config.num_layers
        for layer in layers:
            place = first if layer is None else layer
            order.append((place, tensor_name(path, layer), (path, layer, struct)))
    shards, filled = [{}], 0
    for _, name, tensor in sorted(order, key=lambda item: item[:2]):
        size = tensor[2].size * tensor[2].dtype.itemsize
        if shards[-1] and filled + size > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += size
    widest = lambda item: -item[1][2].dtype.itemsize  # numbers must lie at multiples of their size
    return [dict(sorted(shard.items(), key=widest)) for shard in shards]


def _stored(config: ModelConfig, flat: dict, adapter: dict, path: layout.Path, layer: int | None) -> np.ndarray:
    """One tensor as the file holds it, with its adapter if it has one."""
    pair = tuple(adapter[key] for part in "ab" if (key := (*path[:-1], part)) in adapter and path[-1] == "kernel")
    return layout.take(config, flat[path], layer, transposed(path), adapter=pair)


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
    write_atomically(file, json.dumps(contents, indent=2) + "\n")
