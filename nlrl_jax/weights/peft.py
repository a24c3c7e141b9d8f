"""LoRA adapters in the format of the `peft` package: adapter_config.json and adapter_model.safetensors.

    save("my-adapter", config, lora, base_model="Qwen/Qwen2.5-0.5B-Instruct")
    config, lora = load("my-adapter", config)

The file holds lora_A [rank, in] and lora_B [out, rank] for each layer; the decoder holds a [layers,
in, rank] and b [layers, rank, out].
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from nlrl_jax.files import read_json, write_atomically
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.weights import layout
from nlrl_jax.weights.huggingface import LINEAR
from nlrl_jax.weights.safetensors_file import SafetensorsFile, temporary, write

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PARTS = {"a": "lora_A", "b": "lora_B"}
_MODULES = {name.split(".")[-1]: path for path, name in LINEAR.items()}  # "q_proj" -> ("attention", "q")
# Options of peft's LoraConfig that change the computation or the files, and the value implemented here.
_REFUSED = {
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "modules_to_save": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "exclude_modules": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "use_qalora": False,
    "use_bdlora": None,
    "kasa_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "arrow_config": None,
    "alora_invocation_tokens": None,
}
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")  # the others (pissa, ...) change the base weights


def save(
    folder: str | os.PathLike, config: ModelConfig, lora: Any, base_model: str | None = None, dtype: str | None = None
) -> None:
    """Writes an adapter that `peft.PeftModel.from_pretrained` loads; the host holds one tensor at a time.

    Where several processes hold parts of the adapter, all must call; the first writes, and all return when it has.

    Args:
      config: its `lora` gives rank and alpha.
      lora: the "lora" collection; modules it lacks are left out of `target_modules`.
      base_model: name or folder of the base weights, noted in the file.
      dtype: dtype in the file; the adapter's own if None.
    """
    folder, flat = pathlib.Path(folder), flatten_dict(lora)
    first, together = jax.process_index() == 0, layout.spread(lora)
    dtypes = {path: jnp.dtype(dtype or leaf.dtype) for path, leaf in flat.items()}
    places = [
        (path, layer)
        for path in sorted(flat, key=lambda path: -dtypes[path].itemsize)  # numbers lie at multiples of their size
        for layer in range(flat[path].shape[0])
    ]
    structs = {_tensor_name(*at): jax.ShapeDtypeStruct(flat[at[0]].shape[:0:-1], dtypes[at[0]]) for at in places}
    tensors = (layout.take(config, flat[path], layer, True, dtypes[path]) for path, layer in places)
    if first:
        folder.mkdir(parents=True, exist_ok=True)
    write(temporary(folder / WEIGHTS), structs, tensors, together)
    if first:
        (folder / CONFIG).unlink(missing_ok=True)  # so that a killed save leaves no mixture of two adapters
        os.replace(temporary(folder / WEIGHTS), folder / WEIGHTS)
        write_atomically(folder / CONFIG, json.dumps(_options(config, base_model, flat), indent=2) + "\n")
    if together:
        multihost_utils.sync_global_devices(f"saved {folder}")


def _options(config: ModelConfig, base_model: str | None, flat: dict[layout.Path, Any]) -> dict[str, Any]:
    """What adapter_config.json says."""
    alpha = config.lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.lora.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(name for name, path in _MODULES.items() if ("blocks", *path, "a") in flat),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def load(
    folder: str | os.PathLike, config: ModelConfig, mesh: Mesh | None = None
) -> tuple[ModelConfig, dict[str, Any]]:
    """Reads an adapter for the base model that `config` describes.

    Args:
      mesh: where the adapter goes (`lm.sharding`'s rules); the default device if None.

    Returns: (config with the adapter's rank and alpha, the "lora" collection in float32, which holds
    the adapter's target modules only). `use_rslora` becomes an equivalent alpha.

    Raises:
      FileNotFoundError: no adapter_config.json or no adapter_model.safetensors.
      ValueError: a damaged file; an option that is not implemented; a tensor that is missing, unexpected or of a
        wrong shape, by name.
    """
    folder = pathlib.Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            content = ", ".join(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else "no such folder"
            raise FileNotFoundError(
                f"{folder} holds no {name} (found: {content or 'nothing'}); a pickle is never opened"
            )
    options = read_json(folder / CONFIG)
    modules = _targets(folder, options)
    rank, alpha = options.get("r"), options.get("lora_alpha")
    for name, value in (("r", rank), ("lora_alpha", alpha)):
        if not isinstance(value, int | float):
            raise ValueError(f"{folder / CONFIG}: {name} is {value!r}; it must be a number")
    alpha *= math.sqrt(rank) if options.get("use_rslora") else 1.0
    config = dataclasses.replace(config, lora=LoraConfig(rank, float(alpha)))
    paths = {("blocks", *_MODULES[m], part) for m in modules for part in _PARTS}
    file = SafetensorsFile(folder / WEIGHTS)
    _check(folder, config, paths, {name: file.shape(name) for name in file})

    def fetch(path, layer, index):
        return file.read(_tensor_name(path, layer), index[::-1]).T

    return config, layout.assemble(config, fetch, "lora", mesh, "float32", paths)


def _tensor_name(path: layout.Path, layer: int) -> str:
    return f"base_model.model.model.layers.{layer}.{LINEAR[path[1:-1]]}.{_PARTS[path[-1]]}.weight"


def _targets(folder: pathlib.Path, options: dict[str, Any]) -> list[str]:
    """The adapted modules' names, after refusing what is not implemented."""
    if options.get("peft_type") != "LORA":
        raise ValueError(f"{folder}: peft_type {options.get('peft_type')!r} is not implemented; only 'LORA' is")
    for option, value in _REFUSED.items():
        if options.get(option, value) not in (value, None):
            raise ValueError(f"{folder}: {option}={options[option]!r} is not implemented; {option}={value!r} is")
    if options.get("init_lora_weights") not in _PLAIN_INITS:
        raise ValueError(
            f"{folder}: init_lora_weights={options['init_lora_weights']!r} changes the base weights and is not "
            "implemented; save the adapter with peft's path_initial_model_for_weight_conversion"
        )
    modules = options.get("target_modules")
    modules = list(_MODULES) if modules == "all-linear" else modules
    if not isinstance(modules, list) or not modules or set(modules) - _MODULES.keys():
        raise ValueError(f"{folder}: target_modules={modules!r} must be a list of names out of {', '.join(_MODULES)}")
    return modules


def _check(folder: pathlib.Path, config: ModelConfig, paths: set[layout.Path], found: dict[str, tuple]) -> None:
    shapes = layout.shapes(config, "lora")
    expected = {_tensor_name(p, layer): shapes[p][:0:-1] for p in paths for layer in range(config.num_layers)}
    for what, names in (("missing", expected.keys() - found.keys()), ("unexpected", found.keys() - expected.keys())):
        if names:
            raise ValueError(f"{folder}: {len(names)} {what} tensors, the first {min(names)}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"{folder}: {name} has shape {found[name]}; this base model and rank call for {shape}")
