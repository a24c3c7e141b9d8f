"""A model on an OpenAI-compatible server: what a request to it looks like, and the key of its answer in the cache."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.backends import prompt_forms
from nlrl_jax.backends.call_progress import CallProgress
from nlrl_jax.backends.connection import ApiKey
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.optional_fields import NO_LIMIT, KnownFields
from nlrl_jax.backends.prompt_forms import Messages, PromptText, Route
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.usage import Usage
from nlrl_jax.types import Sampling

MAX_STOPS = 4  # stop strings that a server takes
_FORMAT = 1  # of the cache's entries; part of their keys


@dataclasses.dataclass(frozen=True)
class Abilities:
    """What a server can do, as `endpoint_checks.abilities` finds out.

    Attributes:
      form: of open messages, one of `prompt_forms.FORMS`.
      echo: whether /completions echoes a prompt with its log-probabilities.
      top: how many likeliest tokens it lists with each one it writes; 0: none, or nobody has asked.
      adds_bos: whether it puts a bos before a text of /completions; None: it does not say, or nobody has asked.
    """

    form: str
    echo: bool = False
    top: int = 0
    adds_bos: bool | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class EndpointServer:
    """A server and a model on it.

    Attributes:
      options: address, limits and further fields of each request, which replace ours of the same name.
      model: the server's name for it.
      usage: the ledger; its `paid` tokens count towards the budget.
      cache: None requests everything anew.
      render: messages -> the model's prompt as text, up to where its reply begins (`Tokenizer.render_chat`): for open
        messages, and for scores by a server whose /completions echoes a prompt with its log-probabilities (vLLM and
        SGLang do; OpenAI and llama.cpp do not); see `prompt_forms.PromptText`.
      cached_as: the address in the cache's keys, where it is another one than the server has now.
      abilities: what the server can do; by default texts with echo where there is a `render`, else continued messages.
      known: which fields its answers have shown it to take.
      calls: shows the calls under way.

    Raises:
      ValueError: no address, one with a secret in it, or a key that a header cannot hold.
    """

    options: EndpointOptions
    model: str
    usage: Usage = dataclasses.field(default_factory=Usage, repr=False)
    cache: DiskCache | None = None
    render: Callable[[Messages], str] | None = None
    cached_as: str = ""
    abilities: Abilities | None = None
    known: KnownFields = dataclasses.field(default_factory=KnownFields, repr=False)
    calls: CallProgress = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        self.options.check_address()
        if not self.model:
            raise ValueError("an endpoint needs the name of its model (--endpoint_model NAME)")
        ApiKey(self.options.api_key_env)
        object.__setattr__(self, "calls", CallProgress(self.usage, self.options.token_budget))
        if self.abilities is None:
            text = Abilities(prompt_forms.TEXT, echo=True)
            object.__setattr__(self, "abilities", text if self.render else Abilities(prompt_forms.CONTINUED))

    def knowing(self, abilities: Abilities) -> EndpointServer:
        """The same with what has been found out."""
        render = self.render
        if isinstance(render, PromptText) and abilities.adds_bos is not None:
            render = dataclasses.replace(render, adds_bos=abilities.adds_bos)
        return dataclasses.replace(self, abilities=abilities, render=render)

    def route(self, messages: Messages, words: Sequence[str] = ()) -> Route:
        """How a chat is sent; `words`: what its reply is one of."""
        return prompt_forms.route(messages, self.abilities.form, self.render, self.options.extra_fields(), words)

    def reply_fields(self, sampling: Sampling, stop: Sequence[str] = ()) -> dict[str, Any]:
        """The fields of a request for replies, but for the chat; `extra` adds to them and replaces them. What is not
        limited is sent too: servers have limits of their own."""
        no_limit = NO_LIMIT if sampling.temperature > 0 else {"repetition_penalty": NO_LIMIT["repetition_penalty"]}
        fields = {
            "model": self.model,
            "max_tokens": int(sampling.max_tokens),
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            **no_limit,
        }
        if sampling.top_k > 0:
            fields["top_k"] = int(sampling.top_k)
        if stop:
            fields["stop"] = list(stop[:MAX_STOPS])
        return _without_none({**fields, **self.options.extra_fields()})

    def key(
        self, route: Route, fields: dict[str, Any], seed: int | None, part: int | str, stop: Sequence[str] = ()
    ) -> str:
        """The cache's key of an answer: the `part`-th reply to a chat, or a score."""
        content = route.content
        prompt = json.dumps(content["messages"], sort_keys=True) if route.is_chat else content["prompt"]
        url = (self.cached_as or self.options.url) + route.path
        fixed = self.options.extra_fields()
        request = {name: value for name, value in fields.items() if name in fixed or value != NO_LIMIT.get(name)}
        parts = {"format": _FORMAT, "url": url, "request": request, "seed": seed}
        parts |= {"stop": list(stop)} if stop else {}
        return cache_key({**parts, "asked": prompt, "which": part})


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
