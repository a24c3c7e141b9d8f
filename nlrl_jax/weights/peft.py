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
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from nlrl_jax.files import read_json, write_atomically
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.weights import layout
from nlrl_jax.weights.names import LINEAR
from nlrl_jax.weights.safetensors_file import SafetensorsFile, check_dtypes, temporary, write

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PARTS = {"a": "lora_A", "b": "lora_B"}
_MODULES = {name.split(".")[-1]: path for path, name in LINEAR.items()}  # "q_proj" -> ("attention", "q")
# Options of peft's LoraConfig that change the computation or the files, and the values, besides null, that do not.
_NEUTRAL = {
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "target_parameters": ([],),
    "use_qalora": (False,),
    "use_bdlora": (),
    "kasa_config": (),
    "velora_config": (),
    "monteclora_config": (),
    "arrow_config": (),
    "megatron_config": ({},),
    "alora_invocation_tokens": ([],),
}
# Options that are read, or play no part once an adapter is trained. `fan_in_fan_out` is for GPT-2's layers.
_KNOWN = {
    *(
        "peft_type",
        "task_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
    ),
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core", "qalora_group_size"),
    *("runtime_config", "ensure_weight_tying"),
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
    the adapter's target modules only). `use_rslora` becomes an equivalent alpha; a module that is adapted in some
    layers only has zeros in the others, which training leaves at zero.

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
    _refuse_unsupported(folder, options)
    rank, alpha = options.get("r", 8), options.get("lora_alpha", 8)  # peft's defaults
    for name, value, kind in (("r", rank, int), ("lora_alpha", alpha, int | float)):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{folder / CONFIG}: {name} is {value!r}; it must be a {'whole ' * (kind is int)}number")
    for pattern, value in (("rank_pattern", rank), ("alpha_pattern", alpha)):
        found = options.get(pattern) or {}
        if not isinstance(found, dict) or any(other != value for other in found.values()):
            raise ValueError(
                f"{folder}: {pattern}={options[pattern]!r} is not implemented; one value for all layers is"
            )
    alpha *= math.sqrt(rank) if options.get("use_rslora") else 1.0
    config = dataclasses.replace(config, lora=LoraConfig(rank, float(alpha)))
    try:
        targets = _targets(folder, options, config.num_layers)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{folder / CONFIG}: target_modules or another choice of modules is malformed: {error}"
        ) from None
    file = SafetensorsFile(folder / WEIGHTS)
    shapes = layout.shapes(config, "lora")
    expected = {
        _tensor_name(path, layer): shape
        for path, layer, shape in layout.tensors(config, "lora")
        if (path, layer) in targets
    }
    found = {name: file.shape(name) for name in file}
    layout.check_tensors(folder, expected, found, "this base model and rank call for")
    check_dtypes(folder, file, expected)

    def fetch(path, layer, index):
        if (path, layer) not in targets:
            return np.zeros(shapes[path][1:], np.float32)[index]
        return file.read(_tensor_name(path, layer), index[::-1]).T

    return config, layout.assemble(config, fetch, "lora", mesh, "float32", {path for path, _ in targets})


def _tensor_name(path: layout.Path, layer: int) -> str:
    return f"base_model.model.model.layers.{layer}.{LINEAR[path[1:-1]]}.{_PARTS[path[-1]]}.weight"


def _refuse_unsupported(folder: pathlib.Path, options: dict[str, Any]) -> None:
    if options.get("peft_type") != "LORA":
        raise ValueError(f"{folder}: peft_type {options.get('peft_type')!r} is not implemented; only 'LORA' is")
    for option, values in _NEUTRAL.items():
        if options.get(option) not in (None, *values):
            wanted = values[0] if values else None
            raise ValueError(f"{folder}: {option}={options[option]!r} is not implemented; {option}={wanted!r} is")
    if options.get("init_lora_weights") not in _PLAIN_INITS:
        raise ValueError(
            f"{folder}: init_lora_weights={options['init_lora_weights']!r} changes the base weights and is not "
            "implemented; save the adapter with peft's path_initial_model_for_weight_conversion"
        )
    unknown = sorted(name for name, value in options.items() if value and name not in _NEUTRAL and name not in _KNOWN)
    if unknown:
        warnings.warn(f"{folder / CONFIG}: unknown, and ignored: {', '.join(unknown)}", stacklevel=3)


def _targets(folder: pathlib.Path, options: dict[str, Any], num_layers: int) -> set[tuple[layout.Path, int]]:
    """(path, layer) of every part of the adapter, by peft's rules.

    A module is adapted if its full name (model.layers.0.self_attn.q_proj) or an end of it is listed, or matches an
    expression as a whole; unless it is excluded in the same way, or its layer is not among `layers_to_transform`.
    """
    modules, excluded = options.get("target_modules"), options.get("exclude_modules")
    layers, pattern = options.get("layers_to_transform"), options.get("layers_pattern") or "[^.]*"
    modules = ["q_proj", "v_proj"] if modules is None else modules  # peft's default for these families
    if isinstance(modules, str) and modules.lower() == "all-linear":
        modules = list(_MODULES)
    if layers in (None, []):
        if options.get("layers_pattern"):
            raise ValueError(f"{folder}: layers_pattern={pattern!r} needs layers_to_transform")
        layers = range(num_layers)
    elif isinstance(modules, str):
        raise ValueError(f"{folder}: layers_to_transform={layers!r} needs a list as target_modules, not {modules!r}")
    layers = [layers] if isinstance(layers, int) else layers
    patterns = [pattern] if isinstance(pattern, str) else pattern
    for name in ("lm_head", "model.embed_tokens"):
        if _named(modules, name) and not _named(excluded or [], name):
            raise ValueError(f"{folder}: target_modules={modules!r} adapts {name}, which is not implemented")
    found = set()
    for path, name in LINEAR.items():
        for layer in range(num_layers):
            full = f"model.layers.{layer}.{name}"
            meant = layer in layers and any(re.match(rf"(?:^|.*?\.){p}\.\d+\.", full) for p in patterns)
            if meant and _named(modules, full) and not _named(excluded or [], full):
                found |= {(("blocks", *path, part), layer) for part in _PARTS}
    if not found:
        raise ValueError(
            f"{folder}: target_modules={modules!r} names no linear layer; give some of {', '.join(_MODULES)}"
        )
    return found


def _named(names: list[str] | str, full: str) -> bool:
    """Whether a list has a module's name or an end of it, or an expression matches the whole name."""
    if isinstance(names, str):
        return re.fullmatch(names, full) is not None
    return any(full == name or full.endswith(f".{name}") for name in names)
