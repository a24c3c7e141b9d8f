"""The language models of the roles that do not learn, by the names that a command line gives them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends import wrappers
from nlrl_jax.backends.endpoint import NO_SCORES, EndpointModel
from nlrl_jax.backends.scripted import Script, ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import endpoints, local_models, processes
from nlrl_jax.run.endpoints import Endpoint
from nlrl_jax.types import Chat, LanguageModel, LanguageModelError
from nlrl_jax.weights.load import load_config


def ledger(run_dir: pathlib.Path) -> Usage:
    """The usage of a run, stored on disk by the first of several processes."""
    return Usage(run_dir if processes.first() else None)


class Scores(NamedTuple):
    """Log-probabilities that a run needs.

    words, texts: of single words, and of any texts.
    instead: what the user can do without, as the end of a sentence, e.g. "choose --critic direct".
    """

    words: bool
    texts: bool
    instead: str

    def check(self, model: LanguageModel) -> None:
        """Raises LanguageModelError where a model does not give them."""
        if self.texts and not model.can_score or self.words and not model.can_judge:
            missing = NO_SCORES if model.can_judge else "this model does not score"
            raise LanguageModelError(self.sentence(missing))

    def sentence(self, missing: str) -> str:
        return f"log-probabilities of given words are needed, but {missing}; or {self.instead}"


def large_model(
    name: str,
    scripts: Mapping[str, Script],
    run_dir: pathlib.Path,
    usage: Usage,
    endpoint: Endpoint,
    scores: Scores | None = None,
    **local: Any,
) -> LanguageModel:
    """The model of the roles that do not learn: "scripted", "endpoint", or a local one by name. Calls are not counted.

    Args:
      run_dir: where an endpoint's replies are cached. usage: where its tokens are counted.
      scores: what transcripts need of it. An endpoint is then asked what it can do, before anything else is paid for,
        and how it continues transcripts; a model that cannot give them is refused.
      local: options of `local_models.local_model`; its templates also write an endpoint's prompts.

    Raises:
      FileNotFoundError, ValueError: no such model or tokenizer; an endpoint without an address or a model's name.
      LanguageModelError: it cannot give the scores, or cannot be reached.
    """
    if name == "scripted":
        model: LanguageModel = ScriptedModel(scripts)
    elif name == "endpoint":
        model = endpoints.endpoint_model(endpoint, run_dir, usage, local.get("templates"))
        model = prepared(model, scores) if scores else model
        model = wrappers.first_process_asks(model) if processes.several() else model
    else:
        model = local_models.local_model(name, **local)
    if scores:
        scores.check(model)
    return model


def prepared(model: EndpointModel, scores: Scores) -> EndpointModel:
    """An endpoint's model, ready to continue transcripts and to score: asked for what it can do.

    Raises:
      LanguageModelError: it cannot give the scores, or cannot be reached.
    """
    try:
        model = endpoints.with_abilities(model, scores.words or scores.texts)
    except NotImplementedError as error:
        raise LanguageModelError(scores.sentence(str(error))) from None
    scores.check(model)
    return model


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
        endpoints.check_answers(endpoint, ask)
    elif name != "scripted":
        tokenizer = local_models.tokenizer_of(name, templates)
        prompt = max((len(tokenizer.encode(tokenizer.render_chat(chat.messages))) for chat in chats), default=1)
        room, needed = load_config(name).max_positions, prompt + max_tokens
        if needed > room:
            instead = "lower it" if prompt < room else "the prompt alone is too long; give a model with more positions"
            raise ValueError(
                f"{name} has {room} positions, but a prompt and --large_max_tokens {max_tokens} take {needed} or "
                f"more; {instead}"
            )
