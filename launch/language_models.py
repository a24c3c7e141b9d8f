"""From names on a command line to the language models of a host-side algorithm."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from launch import setup
from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.language_actor_critic import Learn
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends.cache import DiskCache
from nlrl_jax.backends.endpoint import Account, Budget, EndpointModel
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.generate import Sampling
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.run.directory import write_atomically
from nlrl_jax.types import Chat, LanguageModel, Reply, Score


def local_model(name: str, dtype: str = "", lora: LoraConfig | None = None, rows: int = 64) -> LocalModel:
    """A model in this process; see `weights.load.load_model` for names.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or it has no chat template.
    """
    loaded = setup.load(name, dtype, lora)
    if loaded.tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template, so it cannot be asked anything; give an instruct model")
    return LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, rows)


@dataclasses.dataclass(frozen=True, eq=False)
class KeepsAccount:
    """An endpoint's model whose account is on disk after every call, so that a budget holds across restarts."""

    model: EndpointModel
    path: pathlib.Path

    @property
    def can_score(self) -> bool:
        return self.model.can_score

    def complete(self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int = 0) -> list[Reply]:
        """See `types.LanguageModel`."""
        try:
            return self.model.complete(chats, sampling, role, seed)
        finally:
            self._keep()

    def score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """See `types.LanguageModel`."""
        try:
            return self.model.score(chats, continuations, role)
        finally:
            self._keep()

    def _keep(self) -> None:
        write_atomically(self.path, json.dumps(self.model.account.as_dict(), indent=2) + "\n")


def large_model(
    name: str, scripts: Mapping[str, Script], run_dir: pathlib.Path, token_budget: int = 0, **endpoint: Any
) -> LanguageModel:
    """The model of the roles that do not learn: "scripted", "endpoint", or a local one by name.

    Args:
      run_dir: where an endpoint's replies and account are kept.
      token_budget: tokens of an endpoint, read and written, after which it is asked nothing more; 0 is no limit.
      **endpoint: fields of `EndpointModel`: base_url, model, ...

    Raises:
      ValueError: an endpoint without an address or a model's name.
    """
    if name == "scripted":
        return ScriptedModel(scripts)
    if name != "endpoint":
        return local_model(name)
    if not endpoint.get("base_url") or not endpoint.get("model"):
        raise ValueError("an endpoint needs an address (--base_url http://.../v1) and the name of its model")
    path = run_dir / "account.json"
    account = Account(**json.loads(path.read_text())) if path.exists() else Account()
    budget = Budget(max_tokens=token_budget) if token_budget else None
    return KeepsAccount(
        EndpointModel(**endpoint, budget=budget, account=account, cache=DiskCache(run_dir / "cache")), path
    )


def large_model_of(config: Any, scripts: Mapping[str, Script], run_dir: pathlib.Path, usage: Usage) -> Metered:
    """The large model that a training script's config names, its calls counted. Errors: see `large_model`."""
    address = {"base_url": config.base_url, "model": config.endpoint_model}
    return Metered(large_model(config.aggregator, scripts, run_dir, config.token_budget, **address), usage)


def trainable_model(config: Any) -> LocalModel:
    """The local model that a training script's config names, with a fresh adapter where one is trained."""
    base = local_model(config.model, config.dtype, LoraConfig())
    if config.train != "lora":
        return base
    return base.with_variables({**base.variables, "lora": init_lora(base.model, jax.random.key(config.seed))})


def on_device(tree: Any) -> Any:
    """Copies on the first device: arrays that a state may own, and donate."""
    return jax.tree.map(lambda leaf: jax.device_put(jnp.array(leaf), jax.devices()[0]), tree)


def describe_usage(usage: Usage) -> list[str]:
    """A sentence a role, for a report."""
    return [
        f"{row['role']}: {row['calls']} calls, {row['prompt_tokens']} tokens read and {row['tokens']} written in "
        f"{row['seconds']:.0f} s, {row['cache_hits']} from the cache, {row['cut']} cut"
        for row in usage.rows()
    ]


def learner(config: Any, learning_rate: float, warmup: float = 0.0) -> Learn:
    """Fine-tunes a local model, alone or metered, on chats and replies, as a training script's config says."""
    names = ("epochs", "batch_size", "packed", "train", "seed")
    given = {name: getattr(config, name) for name in names}
    sft_config = SFTConfig(learning_rate=learning_rate, warmup=warmup, max_length=config.row_tokens, **given)

    def learn(model, pairs):
        if isinstance(model, Metered):
            inner, metrics = learn(model.model, pairs)
            return Metered(inner, model.usage), metrics
        variables, metrics = sft.fit(model.model, model.variables, sft.tokenize(model.tokenizer, pairs), sft_config)
        return model.with_variables(variables), metrics

    return learn
