"""Hugging Face folders in and out: config.json and safetensors, one file or several.

    config, params = load("Qwen2.5-0.5B-Instruct")
    save("my-model", config, params, tokenizer)

Pickled weights (`pytorch_model.bin`) are never opened.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from nlrl_jax.files import read_json, write_json
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer_files import read_token_ids
from nlrl_jax.weights import checks, layout
from nlrl_jax.weights.layout import transposed
from nlrl_jax.weights.names import TEXT_PARTS, hugging_face, of_text_part
from nlrl_jax.weights.safetensors_file import DTYPES, check_dtypes, temporary, write
from nlrl_jax.weights.tensors import INDEX, SINGLE, Tensors, listing, remove_weights, weight_map

_EMBEDDING, _HEAD = hugging_face(("embedding",)), hugging_face(("lm_head",))
# Old Llama files carry the rotary frequencies or tables; they follow from the config.
_BUFFER = re.compile(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


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
      param_dtype: dtype of the weights; the checkpoint's if None, so bfloat16 stays bfloat16. If it has several, the
        one that config.json says, else the narrowest that holds all, with a warning.
      mesh: where the weights go (`lm.sharding`'s rules); the default device if None.
      **overrides: fields of `ModelConfig`, e.g. `lora=LoraConfig(rank=8)`.

    Returns: (config, the "params" collection of `lm.transformer.Transformer(config)`). The config says whether the
    embeddings are tied in fact (`_tie`).

    Raises:
      FileNotFoundError: no config.json or no safetensors; the message lists what the folder holds.
      ValueError: a damaged file; an unknown architecture or option; a tensor that is missing, unexpected or of a
        wrong shape or dtype, by name; a number too large for `param_dtype`.
    """
    folder = pathlib.Path(folder)
    config = dataclasses.replace(read_config(folder), **overrides)
    tensors = Tensors(folder)
    if config.architecture in TEXT_PARTS:
        _leave_text(folder, tensors)
    config = _tie(folder, config, tensors)
    _check(folder, config, tensors)
    param_dtype = param_dtype or _stored_dtype(folder, config, tensors)
    config = dataclasses.replace(config, param_dtype=param_dtype, dtype=dtype or param_dtype)

    def fetch(path, place, index):
        name = hugging_face(path, place, config.sandwich_norms)
        values = tensors.read(name, index[::-1]).T if transposed(path) else tensors.read(name, index)
        return checks.finite(values, folder, name)

    return config, layout.assemble(config, fetch, mesh=mesh)


def read_config(folder: str | os.PathLike) -> ModelConfig:
    """The configuration of a folder, without its weights. Errors: see `load`."""
    folder = pathlib.Path(folder)
    file = folder / "config.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give one with config.json and {SINGLE}")
    if not file.exists():
        raise FileNotFoundError(f"{folder} holds no config.json; it holds {listing(folder)}")
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

    Raises:
      ValueError: the index of an earlier save is damaged or names files outside the folder; nothing is written.
    """
    folder = pathlib.Path(folder)
    first, together = jax.process_index() == 0, layout.spread((params, lora))
    if (first or together) and (folder / INDEX).exists():
        weight_map(folder)
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
    remove_weights(folder)
    for file in files:
        os.replace(temporary(folder / file), folder / file)
    if len(files) > 1:
        weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(struct.size * struct.dtype.itemsize for shard in shards for _, _, struct in shard.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)


def _write_about(folder: pathlib.Path, config: ModelConfig, dtype: str, tokenizer: Any, eos_ids: Sequence[int]) -> None:
    """The tokenizer, generation_config.json and, last, config.json."""
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    ids = dict.fromkeys(f"{role}_token_id" for role in ("bos", "eos", "pad"))  # or transformers takes 1 and 2
    ids |= getattr(tokenizer, "token_ids", {})
    if eos := list(eos_ids) or _eos_of(tokenizer):
        write_json(folder / "generation_config.json", {**ids, "eos_token_id": eos}, indent=2)
        ids["eos_token_id"] = eos[0] if len(eos) == 1 else eos
    write_json(folder / "config.json", {**config.to_hf(), "torch_dtype": dtype, **ids}, indent=2)


def _names(config: ModelConfig) -> dict[str, tuple[layout.Path, layout.Place, tuple[int, ...]]]:
    """Name in a file -> (path, place, shape in the file) of every tensor."""
    return {hugging_face(at[0], at[1], config.sandwich_norms): at for at in layout.tensors(config)}


def _leave_text(folder: pathlib.Path, tensors: Tensors) -> None:
    """Gives the tensors of a model that sees, too, the names that they have in a model of text alone."""
    skipped = 0
    for name in list(tensors):
        text_name = of_text_part(name)
        if text_name is None:
            tensors.drop(name)
            skipped += 1
        elif text_name != name:
            tensors.rename(name, text_name)
    if skipped:
        warnings.warn(
            f"{folder}: {skipped} tensors for images or MTP are skipped; the text part is loaded", stacklevel=3
        )


def _tie(folder: pathlib.Path, config: ModelConfig, tensors: Tensors) -> ModelConfig:
    """Whether the head is the embedding, as `transformers` decides: a head of its own in the files is used whatever
    the config says, and a head alone serves as the embedding too."""
    head, embedding = _HEAD, _EMBEDDING
    if not config.tie_embeddings or head not in tensors:
        return config
    if embedding not in tensors or tensors.equal(head, embedding):
        tensors.rename(head, embedding)
        return config
    warnings.warn(
        f"{folder}: tie_word_embeddings is true, but {head} differs from {embedding}; it is used, not tied",
        stacklevel=3,
    )
    return dataclasses.replace(config, tie_embeddings=False)


def _stored_dtype(folder: pathlib.Path, config: ModelConfig, tensors: Tensors) -> str:
    """The checkpoint's dtype. See `load` for one that has several."""
    stored = (tensors.dtype(name) for name in _names(config))
    dtypes = sorted({DTYPES[dtype] for dtype in stored})
    if len(dtypes) == 1:
        return dtypes[0]
    contents = read_json(folder / "config.json")
    stated = contents.get("dtype") or contents.get("torch_dtype")
    is_dtype = stated in DTYPES.values()
    dtype = stated if is_dtype else functools.reduce(jnp.promote_types, dtypes).name
    reason = "as config.json says" if is_dtype else "which holds them all"
    warnings.warn(
        f"{folder}: the tensors are {' and '.join(dtypes)}; they are loaded as {dtype}, {reason}; param_dtype chooses",
        stacklevel=3,
    )
    return dtype


def _check(folder: pathlib.Path, config: ModelConfig, tensors: Tensors) -> None:
    """Checks that exactly the tensors of the config are there, in their shapes and a known dtype."""
    shapes = {name: tensors.shape(name) for name in tensors if not _BUFFER.match(name)}
    checks.check_sizes(folder, config, shapes, "config.json calls for")
    expected = {name: shape for name, (_, _, shape) in _names(config).items()}
    own_head = _HEAD in expected.keys() - shapes.keys()
    hint = " (tie_word_embeddings is false in config.json)" if own_head else ""
    checks.check_tensors(folder, expected, shapes, "config.json calls for", hint)
    check_dtypes(folder, tensors, expected)


_Shard = dict[str, tuple[layout.Path, layout.Place, jax.ShapeDtypeStruct]]  # name -> what it is, as the file holds it


def _plan(config: ModelConfig, flat: dict, max_bytes: int) -> list[_Shard]:
    """Tensors in the order of the layers, cut into shards of at most `max_bytes` (or one tensor)."""
    order = []
    for name, (path, place, shape) in _names(config).items():
        # The embedding first, then layer after layer, and what comes after them.
        layer = -1 if path == ("embedding",) else place[0] if place else config.num_layers
        struct = jax.ShapeDtypeStruct(shape, flat[layout.in_tree(config, path, place)[0]].dtype)
        order.append((layer, name, (path, place, struct)))
    shards, filled = [{}], 0
    for _, name, tensor in sorted(order, key=lambda item: item[:2]):
        size = tensor[2].size * tensor[2].dtype.itemsize
        if shards[-1] and filled + size > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += size
    # The widest first: numbers must lie at multiples of their size.
    return [dict(sorted(shard.items(), key=lambda row: -row[1][2].dtype.itemsize)) for shard in shards]


def _stored(config: ModelConfig, flat: dict, adapter: dict, path: layout.Path, place: layout.Place) -> np.ndarray:
    """One tensor as the file holds it, with its adapter if it has one."""
    path, place = layout.in_tree(config, path, place)
    pair = tuple(adapter[key] for part in "ab" if (key := (*path[:-1], part)) in adapter and path[-1] == "kernel")
    return layout.take(config, flat[path], place, transposed(path), adapter=pair)


def _eos_of(tokenizer: Any) -> list[int]:
    ids = getattr(tokenizer, "eos_ids", None)
    if ids is None:
        ids = getattr(tokenizer, "eos_id", None)
    if ids is None:
        return []
    return [int(i) for i in ids] if isinstance(ids, (tuple, list)) else [int(ids)]
