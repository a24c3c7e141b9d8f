"""From names on a command line to the language models of a host-side algorithm."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.sft import SFTConfig
from nlrl_jax.backends import endpoint_checks
from nlrl_jax.backends.endpoint import EndpointModel
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import check_seed, listed
from nlrl_jax.files import write_atomically
from nlrl_jax.lm import placement
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import LoraConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run import processes
from nlrl_jax.run.flags import leave_out
from nlrl_jax.types import Chat, LanguageModel, LanguageModelError, Learn, Reply, Score
from nlrl_jax.weights.load import load_config, load_model, load_tokenizer

_checks = Usage()  # of `check_large_model`, until there is a ledger
# Options that do nothing without an endpoint.
ENDPOINT = ("endpoint_model", "endpoint_tokenizer", *(field.name for field in dataclasses.fields(EndpointOptions)))


def local_model(
    name: str,
    dtype: str = "",
    lora: LoraConfig | None = None,
    param_dtype: str = "",
    chat: bool = True,
    cache_mb: float = 0.0,
    rows: int = 64,
    mesh: Mesh | None = None,
    templates: TemplateOptions | None = None,
) -> LocalModel:
    """A model in this process; see `weights.load.load_model` for names and `templates`.

    Args:
      chat: whether it needs a chat template; without one it can only continue open messages.
      cache_mb, rows: memory for what it has read, and replies written at once; see `LocalModel`.
      dtype, param_dtype: of the computation and of the weights; empty keeps the checkpoint's, for weights `dtype`.
      mesh: where its weights lie; the first device if None.

    Raises:
      FileNotFoundError, ValueError: there is no such model, or it has no chat template.
    """
    given = {"mesh": mesh, "templates": templates, **({} if lora is None else {"lora": lora})}
    loaded = load_model(name, dtype=dtype or None, param_dtype=param_dtype or dtype or None, **given)
    if chat:
        _check_chat(name, loaded.tokenizer)
    network = Transformer(loaded.config, mesh=mesh)
    return LocalModel(network, {"params": loaded.params}, loaded.tokenizer, rows, cache_mb=cache_mb)


def check_endpoint_is_used(*names: str) -> None:
    """Refuses options of an endpoint on the command line where none of the models that take part is one.

    Raises:
      ValueError: names the first of these options.
    """
    if "endpoint" not in (one for name in names for one in name.split(",")):
        leave_out("where no model is an endpoint", *ENDPOINT)


def labels(names: str, endpoint_model: str) -> dict[str, str]:
    """Label in tables and plots -> name of each of the models in `names`, which commas separate.

    Raises:
      ValueError: two with one label, or rules, which cannot do what is asked of a model.
    """
    every = listed("prompted", names) if names else []
    if "scripted" in every:
        raise ValueError("--prompted names scripted, which cannot play; give endpoint or local models")
    label = lambda name: pathlib.PurePath(endpoint_model if name == "endpoint" else name).name
    found = {f"{label(name)} as prompted": name for name in every}
    if len(found) < len(every):
        raise ValueError(f"--prompted is {names!r}; two of these models would have one name in the plot")
    return found


def tokenizer_of(name: str, templates: TemplateOptions | None = None) -> Tokenizer:
    """The tokenizer of a model with a chat template. Errors: see `local_model`."""
    tokenizer = load_tokenizer(name, templates=templates)
    _check_chat(name, tokenizer)
    return tokenizer


def check_templates(templates: TemplateOptions, *names: str) -> None:
    """Refuses variables of chat templates that no local model among `names` reads.

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
    """The usage of a run, on disk; of several processes the first one keeps it."""
    return Usage(run_dir if processes.first() else None)


def large_model(
    name: str,
    scripts: Mapping[str, Script],
    run_dir: pathlib.Path,
    usage: Usage,
    options: EndpointOptions,
    endpoint_model: str,
    endpoint_tokenizer: str = "",
    chat: bool = True,
    cache_mb: float = 0.0,
    rows: int = 64,
    mesh: Mesh | None = None,
    templates: TemplateOptions | None = None,
) -> Metered:
    """The model of the roles that do not learn, its calls counted: "scripted", "endpoint", or a local one by name.

    Args:
      run_dir: where an endpoint's replies are cached.
      options, endpoint_model: the endpoint, and its name for the model.
      endpoint_tokenizer: the endpoint's model as `weights.load.load_tokenizer` takes it, so that it scores and
        continues open messages by /completions (`EndpointModel.render`); empty: it does not score.
      chat, cache_mb, rows, mesh, templates: of a local model; see `local_model`.

    Raises:
      FileNotFoundError, ValueError: no such model or tokenizer; an endpoint without an address or a model's name.
    """
    if name == "scripted":
        model = ScriptedModel(scripts)
    elif name == "endpoint":
        text_of = lambda name: _prompt_text(load_tokenizer(name, templates=templates), options)
        render = text_of(endpoint_tokenizer) if endpoint_tokenizer else None
        model = EndpointModel(options, endpoint_model, usage, render=render)
        usage.take(_checks)
        if processes.first():  # a folder only for a valid endpoint
            cache = DiskCache(run_dir / "cache")
            model = dataclasses.replace(model, cache=cache, cached_as=_first_address(cache, options.url))
        model = FromFirst(model) if processes.several() else model
    else:
        model = local_model(name, chat=chat, cache_mb=cache_mb, rows=rows, mesh=mesh, templates=templates)
    return Metered(model, usage)


def _first_address(cache: DiskCache, url: str) -> str:
    """The address that a run began with: its replies stay in the cache when the server moves."""
    path = cache.folder / ".address"
    if not path.is_file() or not any(cache.folder.glob("*/*.json")):
        write_atomically(path, url + "\n")
    return path.read_text().strip()


def _prompt_text(tokenizer: Tokenizer, options: EndpointOptions) -> Callable[[Sequence[Mapping[str, str]]], str]:
    """Messages -> the prompt as text, less a beginning-of-sequence token that the server puts in front by itself."""
    bos = json.dumps(tokenizer.bos_token, ensure_ascii=False)
    added = bos in json.dumps(tokenizer.post_processor, ensure_ascii=False)
    if tokenizer.bos_token and added and options.extra_fields().get("add_special_tokens") is not False:
        return lambda messages: tokenizer.render_chat(messages).removeprefix(tokenizer.bos_token)
    return tokenizer.render_chat


def check_scores(model: LanguageModel, instead: str) -> None:
    """Refuses a model that cannot score, before anything else is spent: an endpoint is asked for one small score.

    Args:
      instead: what the user can do, as the end of a sentence, e.g. "choose --critic direct".

    Raises:
      LanguageModelError: it cannot score, or cannot be reached.
    """
    inner = model.model if isinstance(model, Metered) else model
    try:
        if isinstance(inner, EndpointModel):
            endpoint_checks.check_scores(inner)
        elif not model.can_score:
            raise NotImplementedError("this model does not score")
    except NotImplementedError as error:
        raise LanguageModelError(f"log-probabilities of given words are needed, but {error}; or {instead}") from None


def check_large_model(
    name: str,
    options: EndpointOptions,
    endpoint_model: str,
    max_tokens: int,
    chats: Sequence[Chat] = (),
    endpoint_tokenizer: str = "",
    chat: bool = True,
    ask: bool = True,
    templates: TemplateOptions | None = None,
) -> None:
    """Refuses a `large_model` that cannot be used, before there is a folder or a thread.

    Args:
      max_tokens: per reply.
      chats: some of its prompts, where they are known.
      endpoint_tokenizer, chat, templates: as in `large_model`.
      ask: an endpoint is asked for one short reply; a resumed run may have all its replies and need no server.

    Raises:
      FileNotFoundError, ValueError: no such model or tokenizer, an endpoint without an address, a local model without
        the room for a reply.
      LanguageModelError: the endpoint does not answer, or does not take the key or the model.
    """
    if name == "endpoint":
        model = EndpointModel(options, endpoint_model, _checks)
        if endpoint_tokenizer:
            load_tokenizer(endpoint_tokenizer)
        if ask:
            processes.from_first(lambda: endpoint_checks.check_answers(model))
    elif name != "scripted":
        tokenizer = tokenizer_of(name, templates) if chat else load_tokenizer(name, templates=templates)
        prompt = max((len(tokenizer.encode(tokenizer.render_chat(chat.messages))) for chat in chats), default=1)
        room, needed = load_config(name).max_positions, prompt + max_tokens
        if needed > room:
            instead = "lower it" if prompt < room else "the prompt alone is too long; give a model with more positions"
            raise ValueError(
                f"{name} has {room} positions, but a prompt and --large_max_tokens {max_tokens} take {needed} or "
                f"more; {instead}"
            )


def check_rows(
    model: str,
    examples: Sequence[tuple[Chat, str]],
    row_tokens: int,
    max_tokens: int,
    large_max_tokens: int = 0,
    templates: TemplateOptions | None = None,
) -> None:
    """Refuses rows too short for SFT's examples, before anything is made, loaded or paid for.

    Args:
      model: the one that learns.
      examples: the longest prompts, each with a reply of the usual form.
      max_tokens: per reply of the model.
      large_max_tokens: per reply of a large model that it learns from; 0 where rules write its examples.

    Raises:
      FileNotFoundError, ValueError: no such model, or rows too short.
    """
    tokenized = sft.tokenize(tokenizer_of(model, templates), examples)
    prompt = max(example.start for example in tokenized)
    needed = max(*(len(example.tokens) for example in tokenized), prompt + max_tokens + 1)
    if needed > row_tokens:
        raise ValueError(
            f"--row_tokens is {row_tokens}, but a prompt takes {prompt} tokens of {model}, and with a reply "
            f"(--max_tokens is {max_tokens}) {needed}; it must be at least that"
        )
    longest = prompt + large_max_tokens + 1
    if large_max_tokens and longest > row_tokens:
        print(
            f"note: the large model's replies may take {longest} tokens with their prompts (--large_max_tokens is "
            f"{large_max_tokens}), and more where {model} splits text more finely; examples longer than --row_tokens "
            f"{row_tokens} are left out and counted as too_long",
            flush=True,
        )


def trainable_model(
    name: str, dtype: str, train: str, seed: int, mesh: Mesh | None = None, templates: TemplateOptions | None = None
) -> LocalModel:
    """A local model by name, on the mesh or the first device, with a fresh adapter if `train` is "lora".

    Trained weights are float32 whatever `dtype` is computed in: small steps would round to nothing in bfloat16.
    """
    param_dtype = "" if train == "lora" else "float32"
    base = local_model(name, dtype, LoraConfig(), param_dtype, mesh=mesh, templates=templates)
    if train != "lora":
        return base
    return base.with_variables(
        {**base.variables, "lora": placement.fresh_lora(base.model, jax.random.key(check_seed(seed)))}
    )


def on_device(tree: Any) -> Any:
    """Copies where the arrays lie, others on the first device: arrays that a state may own, and donate."""

    def copy(leaf):
        on_mesh = isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding)
        return jnp.copy(leaf) if on_mesh else jax.device_put(jnp.array(leaf), jax.local_devices()[0])

    return jax.tree.map(copy, tree)


@dataclasses.dataclass(frozen=True)
class FromFirst:
    """A model that the first of several processes asks; the others get its replies. It costs what one process costs."""

    model: LanguageModel

    @property
    def can_score(self) -> bool:
        return self.model.can_score

    def complete(self, chats, sampling, role, seed=0, stop=()) -> list[Reply]:
        ask = lambda: [list(reply) for reply in self.model.complete(chats, sampling, role, seed, stop)]
        return [Reply(*fields) for fields in processes.from_first(ask)]

    def score(self, chats, continuations, role) -> list[list[Score]]:
        ask = lambda: [[list(one) for one in row] for row in self.model.score(chats, continuations, role)]
        return [[Score(*fields) for fields in row] for row in processes.from_first(ask)]


def learner(config: SFTConfig) -> Learn:
    """Fine-tunes a local model, alone or metered, on chats and replies.

    Where no example fits a row, or there is none, the model stays as it is, and the metrics say so.
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
