"""The language models of host-side algorithms, by the names that a command line gives them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends import endpoint_checks, prompt_forms
from nlrl_jax.backends.endpoint import NO_SCORES, EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.prompt_forms import PromptText
from nlrl_jax.backends.reply_cache import DiskCache, cache_key
from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_seed, option
from nlrl_jax.files import write_atomically
from nlrl_jax.lm import placement
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.control_tokens import broken
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run import processes
from nlrl_jax.run.flags import leave_out
from nlrl_jax.types import Chat, LanguageModel, LanguageModelError, Learn, Reply, Score, can_judge
from nlrl_jax.weights.load import load_config, load_model, load_tokenizer

_checks = Usage()  # of `check_large_model`, until there is a ledger


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


def local_model(
    name: str,
    dtype: str = "",
    lora: LoraConfig | None = None,
    chat: bool = True,
    cache_mb: float = 0.0,
    rows: int = 64,
    mesh: Mesh | None = None,
    templates: TemplateOptions | None = None,
) -> LocalModel:
    """A model in this process; see `weights.load.load_model` for names and `templates`.

    Args:
      dtype: of the computation and the weights; empty keeps the checkpoint's.
      chat: whether it needs a chat template; without one it can only continue open messages.
      cache_mb, rows: memory of the key/value cache, and replies written at once; see `LocalModel`.
      mesh: where its weights lie; the first device if None.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or it has no chat template.
    """
    given = {"mesh": mesh, "templates": templates, **({} if lora is None else {"lora": lora})}
    loaded = load_model(name, dtype or None, dtype or None, **given)
    if chat:
        _check_chat(name, loaded.tokenizer)
    return LocalModel(
        Transformer(loaded.config, mesh=mesh), {"params": loaded.params}, loaded.tokenizer, rows, cache_mb=cache_mb
    )


def check_endpoint_is_used(*names: str) -> None:
    """Refuses an endpoint's options on the command line where none of the models `names` is an endpoint.

    Raises:
      ValueError: names the first of these options.
    """
    if "endpoint" not in (one for name in names for one in name.split(",")):
        leave_out("where no model is an endpoint", *ENDPOINT)


def tokenizer_of(name: str, templates: TemplateOptions | None = None) -> Tokenizer:
    """The tokenizer of a model with a chat template. Errors: see `local_model`."""
    tokenizer = load_tokenizer(name, templates=templates)
    _check_chat(name, tokenizer)
    return tokenizer


def check_templates(templates: TemplateOptions, *names: str) -> None:
    """Refuses chat template variables that no local model among `names` reads.

    Raises:
      FileNotFoundError, ValueError: no such model, or a variable that none of them reads.
    """
    if not templates.variables():
        return
    local = [name for name in dict.fromkeys(names) if name not in ("", "scripted", "endpoint")]
    if not local:
        raise ValueError(
            "--template is for the chat template of a local model, and there is none here; an endpoint takes "
            "--extra 'chat_template_kwargs={\"enable_thinking\": false}', say"
        )
    sources = [load_tokenizer(name).chat_template for name in local]
    templates.check_read([source for source in sources if source], f"the chat template of {' or '.join(local)}")


def _check_chat(name: str, tokenizer: Tokenizer) -> None:
    if tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template, so it cannot be prompted; give an instruct model")


def ledger(run_dir: pathlib.Path) -> Usage:
    """The usage of a run, stored on disk by the first of several processes."""
    return Usage(run_dir if processes.first() else None)


def large_model(
    name: str, scripts: Mapping[str, Script], run_dir: pathlib.Path, usage: Usage, endpoint: Endpoint, **local: Any
) -> Metered:
    """The model of the roles that do not learn, its calls counted: "scripted", "endpoint", or a local one by name.

    Args:
      run_dir: where an endpoint's replies are cached.
      endpoint: with a tokenizer it scores, and continues open messages by /completions (`EndpointModel.render`).
      local: options of `local_model`; its templates also write an endpoint's prompts.

    Raises:
      FileNotFoundError, ValueError: no such model or tokenizer; an endpoint without an address or a model's name.
    """
    if name == "scripted":
        return Metered(ScriptedModel(scripts), usage)
    if name != "endpoint":
        return Metered(local_model(name, **local), usage)
    render = None
    if endpoint.endpoint_tokenizer:
        render = _prompt_text(load_tokenizer(endpoint.endpoint_tokenizer, templates=local.get("templates")), endpoint)
    model = EndpointModel(endpoint, endpoint.endpoint_model, usage, render=render)
    usage.take(_checks)
    if processes.first():  # a folder only for a valid endpoint
        folder = pathlib.Path(os.path.expanduser(endpoint.cache_dir)) if endpoint.cache_dir else run_dir / "cache"
        cache = DiskCache(folder)
        model = dataclasses.replace(model, cache=cache, cached_as=_first_address(cache, endpoint.url))
    return Metered(FromFirst(model) if processes.several() else model, usage)


def _first_address(cache: DiskCache, url: str) -> str:
    """The address that the run began with, under which replies stay cached when the server moves."""
    path = cache.folder / ".address"
    if not path.is_file() or not any(cache.folder.glob("*/*.json")):
        write_atomically(path, url + "\n")
    return path.read_text().strip()


def _prompt_text(tokenizer: Tokenizer, options: EndpointOptions) -> PromptText:
    """How chats become text for a server whose model has this tokenizer.

    The server reads control tokens in it, so those in contents get a blank: "< |im_end|>".
    """
    render = lambda messages: broken(tokenizer.render_chat(messages))
    adds_bos = tokenizer.adds_bos and options.extra_fields().get("add_special_tokens") is not False
    return PromptText(render, tokenizer.bos_token or "", adds_bos)


def prepared(model: LanguageModel, words: bool, texts: bool, instead: str) -> LanguageModel:
    """The model, ready to continue transcripts and to score; one that cannot is refused before anything else is paid
    for. An endpoint is asked by some small requests what it can do; what it answers is said, and kept in its cache.

    Args:
      words, texts: whether log-probabilities of single words, and of any texts, are needed.
      instead: what the user can do without, as the end of a sentence, e.g. "choose --critic direct".

    Raises:
      LanguageModelError: it cannot score, or cannot be reached.
    """
    if isinstance(model, Metered | FromFirst):
        return dataclasses.replace(model, model=prepared(model.model, words, texts, instead))
    try:
        if isinstance(model, EndpointModel):
            model = model.knowing(_abilities(model, words or texts))
        if texts and not model.can_score or words and not can_judge(model):
            raise NotImplementedError(NO_SCORES if can_judge(model) else "this model does not score")
    except NotImplementedError as error:
        raise LanguageModelError(f"log-probabilities of given words are needed, but {error}; or {instead}") from None
    return model


def _abilities(model: EndpointModel, scores: bool) -> Abilities:
    """What an endpoint can do, asked once in a run."""
    about = {"check": "abilities", "address": model.cached_as, "model": model.model, "text": model.render is not None}
    key = cache_key({**about, "scores": scores})
    known = processes.from_first(lambda: model.cache and model.cache.get(key))
    if known:
        return Abilities(**known)
    found = Abilities(**processes.from_first(lambda: dataclasses.asdict(endpoint_checks.abilities(model, scores))))
    if model.cache:
        model.cache.put(key, dataclasses.asdict(found))
    said = f"endpoint: prompts go {prompt_forms.FORMS[found.form]}"
    if found.top:
        said += f"; words are judged by the {found.top} likeliest tokens, and priors are those of drawn replies"
    print(said, flush=True)
    return found


def check_large_model(
    name: str,
    endpoint: Endpoint,
    max_tokens: int,
    chats: Sequence[Chat] = (),
    ask: bool = True,
    templates: TemplateOptions | None = None,
) -> None:
    """Refuses a `large_model` that cannot be used, before a folder or a thread is made.

    Args:
      max_tokens: per reply.
      chats: some of its prompts, if known.
      ask: an endpoint is asked for one short reply; a resumed run may have all its replies and need no server.

    Raises:
      FileNotFoundError, ValueError: no such model or tokenizer, an endpoint without an address, or a local model whose
        context is too short for a reply.
      LanguageModelError: the endpoint does not answer, or does not take the key or the model.
    """
    if name == "endpoint":
        model = EndpointModel(endpoint, endpoint.endpoint_model, _checks)
        if endpoint.endpoint_tokenizer:
            load_tokenizer(endpoint.endpoint_tokenizer)
        if ask:
            processes.from_first(lambda: endpoint_checks.check_answers(model))
    elif name != "scripted":
        tokenizer = tokenizer_of(name, templates)
        prompt = max((len(tokenizer.encode(tokenizer.render_chat(chat.messages))) for chat in chats), default=1)
        room, needed = load_config(name).max_positions, prompt + max_tokens
        if needed > room:
            instead = "lower it" if prompt < room else "the prompt alone is too long; give a model with more positions"
            raise ValueError(
                f"{name} has {room} positions, but a prompt and --large_max_tokens {max_tokens} take {needed} or "
                f"more; {instead}"
            )


def trainable_model(
    name: str, dtype: str, train: str, seed: int, mesh: Mesh | None = None, templates: TemplateOptions | None = None
) -> LocalModel:
    """A local model by name, on the mesh or the first device, with a fresh adapter if `train` is "lora".

    Weights that learn are float32, whatever `dtype` computes: small steps would be lost to rounding in bfloat16.
    """
    if train != "lora":
        loaded = load_model(name, dtype or None, "float32", mesh=mesh, templates=templates, lora=LoraConfig())
        _check_chat(name, loaded.tokenizer)
        return LocalModel(Transformer(loaded.config, mesh=mesh), {"params": loaded.params}, loaded.tokenizer, 64)
    base = local_model(name, dtype, LoraConfig(), mesh=mesh, templates=templates)
    lora = placement.fresh_lora(base.model, jax.random.key(check_seed(seed)))
    return base.with_variables({**base.variables, "lora": lora})


def on_device(tree: Any) -> Any:
    """Copies that a state may own and donate: arrays on a mesh stay there, others go to the first device."""

    def copy(leaf):
        on_mesh = isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding)
        return jnp.copy(leaf) if on_mesh else jax.device_put(jnp.array(leaf), jax.local_devices()[0])

    return jax.tree.map(copy, tree)


@dataclasses.dataclass(frozen=True)
class FromFirst:
    """A model that only the first of several processes asks; the others receive its replies, so each is paid once."""

    model: LanguageModel

    @property
    def can_score(self) -> bool:
        return self.model.can_score

    @property
    def can_judge(self) -> bool:
        return can_judge(self.model)

    def complete(self, chats, sampling, role, seed=0, stop=()) -> list[Reply]:
        ask = lambda: [list(reply) for reply in self.model.complete(chats, sampling, role, seed, stop)]
        return [Reply(*fields) for fields in processes.from_first(ask)]

    def score(self, chats, continuations, role) -> list[list[Score]]:
        ask = lambda: [[list(one) for one in row] for row in self.model.score(chats, continuations, role)]
        return [[Score(*fields) for fields in row] for row in processes.from_first(ask)]


def learner(config: SFTConfig) -> Learn:
    """A function that fine-tunes a local model, metered or not, on chats and replies.

    Where there is no example, or none fits a row, the model stays as it is and the metrics say so.
    """

    def learn(model, pairs):
        if isinstance(model, Metered):
            inner, metrics = learn(model.model, pairs)
            return Metered(inner, model.usage), metrics
        examples = sft.tokenize(model.tokenizer, pairs)
        if all(len(example.tokens) > config.max_length for example in examples):
            return model, {"examples": 0, "too_long": len(examples)}
        variables, metrics = sft.fit(model.model, model.variables, examples, config)
        return model.with_variables(variables), metrics

    return learn
