"""Endpoints of a run: their options, their replies on disk, and what they can do, asked once."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from nlrl_jax.backends import endpoint_checks, prompt_forms
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.prompt_forms import PromptText
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.usage import Usage
from nlrl_jax.config import option
from nlrl_jax.files import write_atomically
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import processes
from nlrl_jax.run.flags import leave_out
from nlrl_jax.weights.load import load_tokenizer

_checks = Usage()  # of `check_answers`, until there is a ledger


@dataclasses.dataclass(frozen=True)
class Endpoint(EndpointOptions):
    """An OpenAI-compatible server: how it is reached, what it may cost, and which model it serves."""

    endpoint_model: str = option("", "endpoint: the server's name for the model")
    endpoint_tokenizer: str = option(
        "", "endpoint: its tokenizer as a folder or Hub id, to send prompts as text to /completions; empty: as chats"
    )
    cache_dir: str = option(
        "", "endpoint: the folder of replies that are paid for, which several runs may share; empty: RUN_DIR/cache"
    )


ENDPOINT = tuple(field.name for field in dataclasses.fields(Endpoint))  # options that do nothing without an endpoint


def check_endpoint_is_used(*names: str) -> None:
    """Refuses an endpoint's options on the command line where none of the models `names` is an endpoint.

    Raises:
      ValueError: names the first of these options.
    """
    if "endpoint" not in (part for name in names for part in name.split(",")):
        leave_out("where no model is an endpoint", *ENDPOINT)


def check_answers(endpoint: Endpoint, ask: bool) -> None:
    """Refuses an endpoint that cannot be used.

    Args:
      ask: it is asked for one short reply.

    Raises:
      FileNotFoundError, ValueError: no such tokenizer, no address, or no name of a model.
      LanguageModelError: the endpoint does not answer, or does not take the key or the model.
    """
    model = EndpointModel(endpoint, endpoint.endpoint_model, _checks)
    if endpoint.endpoint_tokenizer:
        load_tokenizer(endpoint.endpoint_tokenizer)
    if ask:
        processes.from_first(lambda: endpoint_checks.check_answers(model))


def endpoint_model(
    endpoint: Endpoint, run_dir: pathlib.Path, usage: Usage, templates: TemplateOptions | None = None
) -> EndpointModel:
    """The model of an endpoint. The first of several processes has a cache on disk.

    Args:
      endpoint: with a tokenizer it scores, and continues open messages by /completions (`EndpointModel.render`).
      usage: where its tokens are counted, those of earlier checks among them.
      templates: variables of the chat template that writes its prompts.

    Raises:
      FileNotFoundError, ValueError: no such tokenizer, no address, or no name of a model.
    """
    render = None
    if endpoint.endpoint_tokenizer:
        tokenizer = load_tokenizer(endpoint.endpoint_tokenizer, templates=templates)
        adds_bos = tokenizer.adds_bos and endpoint.extra_fields().get("add_special_tokens") is not False
        render = PromptText(tokenizer, adds_bos)
    model = EndpointModel(endpoint, endpoint.endpoint_model, usage, render=render)
    usage.take(_checks)
    if not processes.first():
        return model
    folder = pathlib.Path(os.path.expanduser(endpoint.cache_dir)) if endpoint.cache_dir else run_dir / "cache"
    cache = DiskCache(folder)  # made only for a valid endpoint
    return dataclasses.replace(model, cache=cache, cached_as=_first_address(cache, endpoint.url))


def with_abilities(model: EndpointModel, scores: bool) -> EndpointModel:
    """The model with what its server can do, which some small requests ask once in a run.

    Args:
      scores: whether log-probabilities are needed.
    """
    about = {"check": "abilities", "address": model.cached_as, "model": model.model, "text": model.render is not None}
    key = cache_key({**about, "scores": scores})
    stored = processes.from_first(lambda: model.cache and model.cache.get(key))
    if stored:
        return model.knowing(Abilities(**stored))
    fields = processes.from_first(lambda: dataclasses.asdict(endpoint_checks.abilities(model, scores)))
    if model.cache:
        model.cache.put(key, fields)
    abilities = Abilities(**fields)
    note = f"endpoint: prompts go {prompt_forms.FORMS[abilities.form]}"
    if abilities.top:
        note += f"; words are judged by the {abilities.top} likeliest tokens, and priors are those of drawn replies"
    print(note, flush=True)
    return model.knowing(abilities)


def _first_address(cache: DiskCache, url: str) -> str:
    """The address that the run began with, under which replies stay cached when the server moves."""
    path = cache.folder / ".address"
    if not path.is_file() or not any(cache.folder.glob("*/*.json")):
        write_atomically(path, url + "\n")
    return path.read_text().strip()
