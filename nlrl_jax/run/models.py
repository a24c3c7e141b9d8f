"""From names on a command line to the language models of a host-side algorithm."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.cache import DiskCache
from nlrl_jax.backends.endpoint import EndpointModel, EndpointOptions
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_dtype
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.types import Chat, Learn
from nlrl_jax.weights.load import load_config, load_model, load_tokenizer

# Options of an endpoint that do not change what is computed.
MAY_CHANGE = ("api_key_env", "concurrency", "timeout", "max_retries", "token_budget")


def local_model(
    name: str, dtype: str = "", lora: LoraConfig | None = None, rows: int = 64, param_dtype: str = ""
) -> LocalModel:
    """A model in this process; see `weights.load.load_model` for names.

    Args:
      dtype, param_dtype: of the computation and of the weights; empty keeps the checkpoint's, for weights `dtype`.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or it has no chat template.
    """
    overrides = {} if lora is None else {"lora": lora}
    loaded = load_model(name, dtype=dtype or None, param_dtype=param_dtype or dtype or None, **overrides)
    _check_chat(name, loaded.tokenizer)
    return LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, rows)


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a model with a chat template. Errors: see `local_model`."""
    tokenizer = load_tokenizer(name)
    _check_chat(name, tokenizer)
    return tokenizer


def _check_chat(name: str, tokenizer: Tokenizer) -> None:
    if tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template, so it cannot be prompted; give an instruct model")


def large_model(
    name: str,
    scripts: Mapping[str, Script],
    run_dir: pathlib.Path,
    usage: Usage,
    options: EndpointOptions,
    endpoint_model: str,
) -> Metered:
    """The model of the roles that do not learn, its calls counted: "scripted", "endpoint", or a local one by name.

    Args:
      run_dir: where an endpoint's replies are cached.
      options, endpoint_model: the endpoint, and its name for the model.

    Raises:
      ValueError: an endpoint without an address or a model's name.
    """
    if name == "scripted":
        model = ScriptedModel(scripts)
    elif name == "endpoint":
        model = EndpointModel(options, endpoint_model, usage)
        model = dataclasses.replace(model, cache=DiskCache(run_dir / "cache"))  # a folder only for a valid endpoint
    else:
        model = local_model(name)
    return Metered(model, usage)


def large_model_of(config: Any, scripts: Mapping[str, Script], run_dir: pathlib.Path, usage: Usage) -> Metered:
    """The large model that a training script's config names. Errors: see `large_model`."""
    return large_model(config.aggregator, scripts, run_dir, usage, config, config.endpoint_model)


def check_models(config: Any, examples: Sequence[tuple[Chat, str]]) -> None:
    """Refuses a training script's impossible settings, before anything is made, loaded or paid for.

    Args:
      examples: the longest prompts that are learned from, each with a reply of the usual form.

    Raises:
      FileNotFoundError, ValueError: no such model, an endpoint without an address, or rows too short for what is
        learned.
    """
    check_dtype(config.dtype)
    tokenizer = tokenizer_of(config.model)
    starts, lengths = zip(*((start, len(tokens)) for tokens, start in sft.tokenize(tokenizer, examples)))
    prompt = max(starts)
    needed = max(*lengths, prompt + config.max_tokens + 1)
    if needed > config.row_tokens:
        raise ValueError(
            f"--row_tokens is {config.row_tokens}, but a prompt takes {prompt} tokens of {config.model}, and with a "
            f"reply (--max_tokens is {config.max_tokens}) {needed}; it must be at least that"
        )
    check_large_model(config)
    longest = prompt + config.large_max_tokens + 1
    if config.aggregator != "scripted" and longest > config.row_tokens:
        print(
            f"note: the large model's replies may take {longest} tokens with their prompts (--large_max_tokens is "
            f"{config.large_max_tokens}), and more where {config.model} splits text more finely; examples longer than "
            f"--row_tokens {config.row_tokens} are left out and counted as too_long",
            flush=True,
        )


def check_large_model(config: Any, chats: Sequence[Chat] = ()) -> None:
    """Refuses a `config.aggregator` that cannot be used.

    Args:
      chats: some of its prompts, where they are known.

    Raises:
      FileNotFoundError, ValueError: no such model, an endpoint without an address, a local model without the room for
        a reply.
    """
    if config.aggregator == "endpoint":
        EndpointModel(config, config.endpoint_model)
    elif config.aggregator != "scripted":
        tokenizer = tokenizer_of(config.aggregator)
        prompt = max((len(tokenizer.encode(tokenizer.render_chat(chat.messages))) for chat in chats), default=1)
        room, needed = load_config(config.aggregator).max_positions, prompt + config.large_max_tokens
        if needed > room:
            raise ValueError(
                f"{config.aggregator} has {room} positions, but a prompt and --large_max_tokens "
                f"{config.large_max_tokens} take {needed} or more; lower it"
            )


def trainable_model(config: Any) -> LocalModel:
    """The local model that a training script's config names, with a fresh adapter where one is trained.

    Weights that are trained are float32, whatever is computed in: small steps would round to nothing in bfloat16.
    """
    param_dtype = "" if config.train == "lora" else "float32"
    base = local_model(config.model, config.dtype, LoraConfig(), param_dtype=param_dtype)
    if config.train != "lora":
        return base
    return base.with_variables({**base.variables, "lora": init_lora(base.model, jax.random.key(config.seed))})


def on_device(tree: Any) -> Any:
    """Copies on the first device: arrays that a state may own, and donate."""
    return jax.tree.map(lambda leaf: jax.device_put(jnp.array(leaf), jax.devices()[0]), tree)


def learner(config: Any, learning_rate: float, warmup: float = 0.0) -> Learn:
    """Fine-tunes a local model, alone or metered, on chats and replies, as a training script's config says.

    Where no example fits a row, or there is none, the model stays as it is, and the metrics say so.
    """
    names = ("epochs", "batch_size", "packed", "train", "seed")
    fields = {name: getattr(config, name) for name in names}
    sft_config = SFTConfig(learning_rate=learning_rate, warmup=warmup, max_length=config.row_tokens, **fields)

    def learn(model, pairs):
        if isinstance(model, Metered):
            inner, metrics = learn(model.model, pairs)
            return Metered(inner, model.usage), metrics
        examples = sft.tokenize(model.tokenizer, pairs)
        if all(len(example.tokens) > sft_config.max_length for example in examples):
            return model, {"examples": 0, "too_long": len(examples)}
        variables, metrics = sft.fit(model.model, model.variables, examples, sft_config)
        return model.with_variables(variables), metrics

    return learn
