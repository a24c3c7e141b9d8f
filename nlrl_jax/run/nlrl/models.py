"""The models of a natural-language RL run, as options: one that learns, and others that do not."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.scripted import Script
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.config import DTYPES, check, option, part
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.run import models, players
from nlrl_jax.types import Chat


@dataclasses.dataclass(frozen=True)
class Models:
    """The model that learns, the large model, and models that play or judge as prompted."""

    model: str = option("nano_board", "the model that learns: nano_board, smollm2, a Hugging Face folder or .gguf file")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    mesh: str = option("", players.MESH)
    aggregator: str = option(
        "scripted", "the large model, which aggregates and improves: scripted (rules), endpoint, or a local model"
    )
    prompted: str = option("", "other models, evaluated as prompted, separated by commas, such as smollm2 or endpoint")
    endpoint: models.Endpoint = part(models.Endpoint(), without=("endpoint_tokenizer",))
    templates: TemplateOptions = part(TemplateOptions(shared=True))

    def __post_init__(self):
        check(self)
        models.labels(self.prompted, self.endpoint.endpoint_model)

    @property
    def labels(self) -> dict[str, str]:
        """Label of each of `prompted` in tables and plots -> its name."""
        return models.labels(self.prompted, self.endpoint.endpoint_model)

    @property
    def is_paid(self) -> bool:
        """Whether the large model is an endpoint."""
        return self.aggregator == "endpoint"

    def base(self, train: str, seed: int) -> LocalModel:
        """The model that learns, before it has; see `models.trainable_model`."""
        mesh = players.parse_mesh(self.mesh)
        return models.trainable_model(self.model, self.dtype, train, seed, mesh, self.templates)

    def large(self, name: str, rules: Mapping[str, Script], run_dir: pathlib.Path, usage: Usage) -> Metered:
        """The large model, or one that is evaluated as prompted; see `models.large_model`."""
        local = {"mesh": players.parse_mesh(self.mesh), "templates": self.templates}
        return models.large_model(name, rules, run_dir, usage, self.endpoint, **local)

    def validate(
        self,
        examples: Sequence[tuple[Chat, str]],
        row_tokens: int,
        max_tokens: int,
        large_max_tokens: int,
        prompt_of: Callable[[str], Chat],
        ask: bool,
    ) -> None:
        """Refuses models that cannot do what is asked of them, before anything is made; see `models.check_rows`.

        Args:
          examples, row_tokens, max_tokens: of the model that learns. large_max_tokens: per reply of the others.
          prompt_of: name of a model that is evaluated as prompted -> its longest prompt.
          ask: see `models.check_large_model`.
        """
        taught = large_max_tokens * (self.aggregator != "scripted")
        models.check_rows(self.model, examples, row_tokens, max_tokens, taught, self.templates)
        names = self.labels.values()
        models.check_templates(self.templates, self.model, self.aggregator, *names)
        for name, chats in ((self.aggregator, []), *((name, [prompt_of(name)]) for name in names)):
            models.check_large_model(name, self.endpoint, large_max_tokens, chats, ask, self.templates)
