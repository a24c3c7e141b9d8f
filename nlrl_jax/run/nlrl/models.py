"""The models of a natural-language RL run, as options: one that learns, and others that do not."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

from nlrl_jax.algorithms import sft
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import Script
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.config import DTYPES, check, listed, option, part
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import endpoints, local_models, models, players
from nlrl_jax.types import Chat, LanguageModel


@dataclasses.dataclass(frozen=True)
class Learner:
    """The model that learns."""

    model: str = option("nano_board", "the model that learns: nano_board, smollm2, a Hugging Face folder or .gguf file")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    templates: TemplateOptions = part(TemplateOptions())

    def __post_init__(self):
        check(self)

    def load(self, train: str, seed: int) -> LocalModel:
        """The model before it learned anything; see `local_models.trainable_model`."""
        return local_models.trainable_model(
            self.model, self.dtype, train, seed, players.parse_mesh(self.mesh), self.templates
        )

    def prompt_for(self, style: str) -> str:
        """The style of its prompts; see `players.prompt_for`."""
        return players.prompt_for(self.model, style)


@dataclasses.dataclass(frozen=True)
class Models:
    """The model that learns, the large model, and models that play or judge as prompted."""

    learner: Learner = part(Learner(templates=TemplateOptions(shared=True)))
    aggregator: str = option(
        "scripted", "the large model, which aggregates and improves: scripted (rules), endpoint, or a local model"
    )
    prompted: str = option("", "other models, evaluated as prompted, separated by commas, such as smollm2 or endpoint")
    endpoint: endpoints.Endpoint = part(endpoints.Endpoint(), without=("endpoint_tokenizer",))

    def __post_init__(self):
        check(self)
        _ = self.labels  # raises where two are equal

    @property
    def labels(self) -> dict[str, str]:
        """Label of each of `prompted` in tables and plots -> its name.

        Raises:
          ValueError: two models have one label, or `scripted` is named: there are no rules for these roles.
        """
        every = listed("prompted", self.prompted) if self.prompted else []
        if "scripted" in every:
            raise ValueError("--prompted names scripted, but no rules play as prompted; give endpoint or local models")
        labels = {}
        for name in every:
            path = self.endpoint.endpoint_model if name == "endpoint" else name
            labels[f"{pathlib.PurePath(path).name} as prompted"] = name
        if len(labels) < len(every):
            raise ValueError(f"--prompted is {self.prompted!r}; two of these models would have one name in the plot")
        return labels

    @property
    def is_paid(self) -> bool:
        """Whether the large model is an endpoint."""
        return self.aggregator == "endpoint"

    def large(self, name: str, rules: Mapping[str, Script], run_dir: pathlib.Path, usage: Usage) -> LanguageModel:
        """The large model, or one that is evaluated as prompted, its calls counted; see `models.large_model`."""
        local = {"mesh": players.parse_mesh(self.learner.mesh), "templates": self.learner.templates}
        return metered(models.large_model(name, rules, run_dir, usage, self.endpoint, **local), usage)

    def validate(
        self,
        examples: Sequence[tuple[Chat, str]],
        row_tokens: int,
        max_tokens: int,
        large_max_tokens: int,
        prompt_of: Callable[[str], Chat],
        ask: bool,
    ) -> None:
        """Refuses models that cannot do what is asked of them, before anything is made; see `check_rows`.

        Args:
          examples, row_tokens, max_tokens: of the model that learns. large_max_tokens: per reply of the others.
          prompt_of: name of a model that is evaluated as prompted -> its longest prompt.
          ask: see `models.check_large_model`.
        """
        taught = large_max_tokens * (self.aggregator != "scripted")
        model, templates, names = self.learner.model, self.learner.templates, self.labels.values()
        check_rows(model, examples, row_tokens, max_tokens, taught, templates)
        local_models.check_templates(templates, model, self.aggregator, *names)
        for name, chats in ((self.aggregator, []), *((name, [prompt_of(name)]) for name in names)):
            models.check_large_model(name, self.endpoint, large_max_tokens, chats, ask, templates)


def check_rows(
    model: str,
    examples: Sequence[tuple[Chat, str]],
    row_tokens: int,
    max_tokens: int,
    large_max_tokens: int = 0,
    templates: TemplateOptions | None = None,
) -> None:
    """Refuses SFT rows that are too short for the examples, before anything is made, loaded or paid for.

    Args:
      model: the model that learns.
      examples: its longest prompts, each with a typical reply.
      max_tokens: per reply of the model.
      large_max_tokens: per reply of the large model that it learns from; 0 where rules write its examples.

    Raises:
      FileNotFoundError, ValueError: no such model, or rows too short.
    """
    tokenized = sft.tokenize(local_models.tokenizer_of(model, templates), examples)
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
