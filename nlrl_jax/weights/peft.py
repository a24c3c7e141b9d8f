"""LoRA adapters in the format of the `peft` package: adapter_config.json and adapter_model.safetensors.

    save("my-adapter", config, lora, base_model="Qwen/Qwen2.5-0.5B-Instruct")
    config, lora = load("my-adapter", config)

The file holds lora_A [rank, in] and lora_B [out, rank] for each layer; the decoder holds a [layers,
in, rank] and b [layers, rank, out].
"""

from __future__ import annotations

import dataclasses
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

from nlrl_jax.files import read_json, write_json
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.weights import checks, layout
from nlrl_jax.weights.names import LINEAR, TEXT_PARTS, of_text_part
from nlrl_jax.weights.safetensors_file import SafetensorsFile, check_dtypes, temporary, write

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PARTS = {"a": "lora_A", "b": "lora_B"}
_BASE = "base_model.model."
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
        (path, (layer,))
        for path in sorted(flat, key=lambda path: -dtypes[path].itemsize)  # numbers lie at multiples of their size
        for layer in range(flat[path].shape[0])
    ]
    structs = {
        _tensor_name(*layout.of_layer(config, *at)): jax.ShapeDtypeStruct(flat[at[0]].shape[:0:-1], dtypes[at[0]])
        for at in places
    }
    tensors = (layout.take(config, flat[path], place, True, dtypes[path]) for path, place in places)
    if first:
        folder.mkdir(parents=True, exist_ok=True)
    write(temporary(folder / WEIGHTS), structs, tensors, together)
    if first:
        (folder / CONFIG).unlink(missing_ok=True)  # so that a killed save leaves no mixture of two adapters
        os.replace(temporary(folder / WEIGHTS), folder / WEIGHTS)
        write_json(folder / CONFIG, _options(config, base_model, flat), indent=2)
    if together:
        multihost_utils.sync_global_devices(f"saved {folder}")


def _options(config: ModelConfig, base_model: str | None, flat: dict[layout.Path, Any]) -> dict[str, Any]:
    """What adapter_config.json says."""
    alpha, adapted = config.lora.alpha, {layout.of_layer(config, path, (0,))[0] for path in flat}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.lora.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(name for name, path in _MODULES.items() if ("blocks", *path, "a") in adapted),
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
    the adapter's target modules only). `use_rslora` becomes an equivalent alpha. With ranks or alphas of their own for
    some modules (`rank_pattern`, `alpha_pattern`) the config has those of a module of the largest rank; the other
    modules' b is scaled to that, and smaller ranks are filled up with zeros. A module that is adapted in some layers
    only has zeros in the others. Training leaves these zeros at zero.

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
    file = SafetensorsFile(folder / WEIGHTS)
    stored, prefix = _of_text(folder, config, file)
    try:
        adapted = _adapted(folder, options, config, prefix)
    except re.error as error:
        raise ValueError(f"{folder / CONFIG}: an expression for modules is malformed: {error}") from None
    rank, alpha = max(adapted.values())
    config = dataclasses.replace(config, lora=LoraConfig(rank, float(alpha)))
    expected = {}
    for path, place, (size, width) in layout.tensors(dataclasses.replace(config, lora=LoraConfig(1)), "lora"):
        if of := adapted.get((path[:-1], place)):
            expected[_tensor_name(path, place, prefix)] = (of[0], width) if path[-1] == "a" else (size, of[0])
    checks.check_tensors(
        folder,
        expected,
        {name: file.shape(name) for name in stored},
        "this base model and rank call for",
    )
    check_dtypes(folder, file, expected)

    def fetch(path, place, index):
        """As the decoder has it; padded and scaled where the module's rank or alpha is not the config's."""
        if (path[:-1], place) not in adapted:
            return np.zeros([part.stop - part.start for part in index], np.float32)
        name, (own_rank, own_alpha) = _tensor_name(path, place, prefix), adapted[path[:-1], place]
        if (own_rank, own_alpha) == (rank, alpha):
            return checks.finite(file.read(name, index[::-1]).T, folder, name)
        whole = checks.finite(file.read(name, (slice(None),) * 2).T.astype(np.float32), folder, name)
        if path[-1] == "a":
            return np.pad(whole, ((0, 0), (0, rank - own_rank)))[index]
        return np.pad(whole * np.float32(own_alpha / own_rank / (alpha / rank)), ((0, rank - own_rank), (0, 0)))[index]

    paths = {(*path, part) for path, _ in adapted for part in _PARTS}
    return config, layout.assemble(config, fetch, "lora", mesh, "float32", paths)


def _tensor_name(path: layout.Path, place: layout.Place, prefix: str = "model.") -> str:
    """Args:
    prefix: of the base model's modules, see `_of_text`.
    """
    return f"{_BASE}{prefix}layers.{place[0]}.{LINEAR[path[1:-1]]}.{_PARTS[path[-1]]}.weight"


def _of_text(folder: pathlib.Path, config: ModelConfig, file: SafetensorsFile) -> tuple[list[str], str]:
    """The tensors that adapt text, and what stands before "layers" in the names of their modules.

    An adapter of a model that sees, too, names its text part, and may adapt what it sees with.
    """
    if config.architecture not in TEXT_PARTS:
        return list(file), "model."
    names = [name for name in file if of_text_part(name.removeprefix(_BASE)) is not None]
    if skipped := len(list(file)) - len(names):
        warnings.warn(
            f"{folder}: {skipped} tensors for images or MTP are skipped; the text part is loaded", stacklevel=3
        )
    prefixes = (name.removeprefix(_BASE).partition("layers.")[0] for name in names)
    return names, next((prefix for prefix in prefixes if of_text_part(prefix) == "model."), "model.")


def _refuse_unsupported(folder: pathlib.Path, options: dict[str, Any]) -> None:
    if options.get("peft_type") != "LORA":
        raise ValueError(f"{folder}: peft_type {options.get('peft_type')!r} is not implemented; only 'LORA' is")
    for option, values in _NEUTRAL.items():
        if options.get(option) not in (None, *values):
            implemented = values[0] if values else None
            raise ValueError(f"{folder}: {option}={options[option]!r} is not implemented; {option}={implemented!r} is")
    if options.get("init_lora_weights") not in _PLAIN_INITS:
        raise ValueError(
            f"{folder}: init_lora_weights={options['init_lora_weights']!r} changes the base weights and is not "
            "implemented; save the adapter with peft's path_initial_model_for_weight_conversion"
        )
    unknown = sorted(name for name, value in options.items() if value and name not in _NEUTRAL and name not in _KNOWN)
    if unknown:
        warnings.warn(f"{folder / CONFIG}: unknown, and ignored: {', '.join(unknown)}", stacklevel=3)


def _adapted(
    folder: pathlib.Path, options: dict[str, Any], config: ModelConfig, prefix: str = "model."
) -> dict[tuple[layout.Path, layout.Place], tuple[int, float]]:
    """(path, place) -> (rank, alpha) of every module that is adapted, by peft's rules.

    A module is adapted if its full name (model.layers.0.self_attn.q_proj) is listed, or an end of it is and its layer
    is among `layers_to_transform`, or if an expression matches the name as a whole; unless it is excluded by its name,
    an end of it or an expression. The first key of a pattern that matches an end of the name counts.
    """
    for name in ("target_modules", "exclude_modules", "layers_pattern"):
        value = options.get(name)
        if not isinstance(value, str | None) and not (isinstance(value, list) and all(type(n) is str for n in value)):
            raise ValueError(f"{folder / CONFIG}: {name} is {value!r}; it must be names or an expression")
    modules, excluded = options.get("target_modules"), options.get("exclude_modules") or []
    modules = ["q_proj", "v_proj"] if modules is None else modules  # peft's default for these families
    if isinstance(modules, str) and modules.lower() == "all-linear":
        modules = list(_MODULES)
    layers, prefixes = _layers(folder, options)

    def is_adapted(full):
        if _named(excluded, full):
            return False
        if isinstance(modules, str) or full in modules or layers is None:
            return _named(modules, full)
        match = next(filter(None, (re.match(rf"{prefix}\.(?P<layer>\d+)\.", full) for prefix in prefixes)), None)
        return _named(modules, full) and match is not None and int(match["layer"]) in layers

    for name in ("lm_head", f"{prefix}embed_tokens"):
        if is_adapted(name):
            raise ValueError(f"{folder}: target_modules={modules!r} adapts {name}, which is not implemented")
    adaptable = {(path[:-1], place) for path, place, _ in layout.tensors(config, "lora")}  # experts are not
    names = {at: f"{prefix}layers.{at[1][0]}.{LINEAR[at[0][1:]]}" for at in sorted(adaptable)}
    ranks = {at: _rank_and_alpha(folder, options, full) for at, full in names.items() if is_adapted(full)}
    if not ranks:
        raise ValueError(
            f"{folder}: target_modules={modules!r} names no linear layer; give some of {', '.join(_MODULES)}"
        )
    return ranks


def _layers(folder: pathlib.Path, options: dict[str, Any]) -> tuple[set[int] | None, list[str]]:
    """(`layers_to_transform`, None for all; expressions for what may stand before a layer's number)."""
    layers, patterns = options.get("layers_to_transform"), options.get("layers_pattern")
    if layers in (None, []):
        if patterns and layers is None:
            raise ValueError(f"{folder}: layers_pattern={patterns!r} needs layers_to_transform")
        return None, []
    if isinstance(modules := options.get("target_modules"), str):
        raise ValueError(f"{folder}: layers_to_transform={layers!r} needs a list as target_modules, not {modules!r}")
    layers = layers if isinstance(layers, list) else [layers]
    if any(type(layer) is not int for layer in layers):
        raise ValueError(f"{folder / CONFIG}: layers_to_transform is {layers!r}; it must be whole numbers")
    patterns = [patterns] if isinstance(patterns, str) and patterns else patterns
    return set(layers), [rf"(?:^|.*?\.){pattern}" for pattern in patterns] if patterns else [r".*?\.[^.]*"]


def _rank_and_alpha(folder: pathlib.Path, options: dict[str, Any], full: str) -> tuple[int, float]:
    """Of one module; alpha is such that the update is scaled by alpha / rank."""
    numbers = []
    for name, pattern, kind in (("r", "rank_pattern", int), ("lora_alpha", "alpha_pattern", int | float)):
        value, by_module = options.get(name, 8), options.get(pattern) or {}  # peft's defaults
        if not isinstance(by_module, dict):
            raise ValueError(f"{folder / CONFIG}: {pattern} is {by_module!r}; it must be an object")
        key = next((key for key in by_module if re.match(rf"(.*\.)?({key})$", full)), None)
        name, value = (name, value) if key is None else (f"{pattern}[{key!r}]", by_module[key])
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ValueError(
                f"{folder / CONFIG}: {name} is {value!r}; it must be a {'whole ' * (kind is int)}number above 0"
            )
        numbers.append(value)
    rank, alpha = numbers
    return rank, alpha * (math.sqrt(rank) if options.get("use_rslora") else 1.0)


def _named(names: list[str] | str, full: str) -> bool:
    """Whether a list has a module's name or an end of it, or an expression matches the whole name."""
    if isinstance(names, str):
        return re.fullmatch(names, full) is not None
    return any(full == name or full.endswith(f".{name}") for name in names)
