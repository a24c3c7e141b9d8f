"""Which model is served: one by its name, perhaps with an adapter, or a run's, asked as the run asked it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.config import DTYPES, check, of_stored, option, part, pick
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run.directory import holds_run
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.ms_grpo.config import TurnsConfig
from nlrl_jax.run.ms_grpo.token_players import settled
from nlrl_jax.run.players import MODELS, load, load_trained
from nlrl_jax.run.serving.prompts import PromptWriter
from nlrl_jax.weights import peft

LINES = (
    "the run was trained in lines: ask for the next line of a transcript, by a chat whose last message is the open one "
    'of the assistant ("continue_final_message": true), with "stop": ["\\n"]'
)


@dataclasses.dataclass(frozen=True)
class ServedConfig:
    """The model that is served."""

    model: str = option("", f"{MODELS}; empty: nano, or the model of the run in --adapter")
    revision: str = option("", "branch, tag or commit of a Hub id")
    adapter: str = option(
        "", "the folder of a run, whose latest checkpoint is served, or of a LoRA adapter in PEFT's format"
    )
    served_name: str = option("", "the name that clients ask for; empty: that of the model, or of the run's folder")
    dtype: str = option("", "float32 or bfloat16; empty keeps the checkpoint's", choices=DTYPES)
    templates: TemplateOptions = part(TemplateOptions())
    rows: int = option(64, "replies that are written at once; others wait", least=1, most=1024)
    cache_mb: float = option(
        1000.0, "memory for keys and values, of prompts under way and of earlier ones, MB", least=0
    )
    part: str = option("", "with a run: which model of an actor-critic, policy or value")

    def __post_init__(self):
        check(self)


class Served(NamedTuple):
    """A model, the name and the prompts with which it is served, and what to tell whoever starts the server."""

    name: str
    model: LocalModel
    prompts: PromptWriter
    notes: tuple[str, ...]


def load_served(config: ServedConfig) -> Served:
    """Loads what is to be served.

    Raises:
      FileNotFoundError, ValueError: there is no such model, adapter, run or checkpoint, or they do not fit together.
    """
    folder = pathlib.Path(os.path.expanduser(config.adapter)).absolute()
    if config.adapter and any(holds_run(path) for path in (folder, *folder.parents)):
        if not (folder / peft.CONFIG).is_file():
            return _of_run(config, folder)
    leave_out("without --adapter RUN_DIR", "part")
    name = config.model or "nano"
    loaded = load(name, config.dtype, revision=config.revision, templates=config.templates)
    model_config, variables = loaded.config, {"params": loaded.params}
    if config.adapter:
        model_config, variables["lora"] = peft.load(config.adapter, model_config)
    model = _local(config, Transformer(model_config), variables, loaded.tokenizer)
    path = pathlib.Path(os.path.expanduser(config.adapter or name))
    served_name = path.name if path.exists() else name
    return Served(config.served_name or served_name, model, PromptWriter(loaded.tokenizer), ())


def _of_run(config: ServedConfig, folder: pathlib.Path) -> Served:
    leave_out("with the run in --adapter, which has its own", "model", "revision", "dtype", "template", "date")
    loaded, lora, step, run = load_trained(folder, config.part)
    variables = {"params": loaded.params, **({} if lora is None else {"lora": lora})}
    prompts, notes = _asked_as(run, loaded.tokenizer)
    model = _local(config, Transformer(loaded.config), variables, loaded.tokenizer)
    trained = f"{run['model']} as trained in {folder.name}, iteration {step}"
    return Served(config.served_name or folder.name, model, prompts, (trained, *notes))


def _asked_as(run: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[PromptWriter, tuple[str, ...]]:
    """How prompts are written so that they are those of the run."""
    if run.get("context") != "transcript":
        return PromptWriter(tokenizer), ()
    turns = settled(pick(TurnsConfig, of_stored(TurnsConfig, run)), run["model"], tokenizer)
    if turns.turns == "lines":
        return PromptWriter(tokenizer), (LINES,)
    form = ConversationForm.of(tokenizer, thinks={"auto": None, "off": False, "on": True}[turns.think])
    turn_form = form.plan.form
    prompts = PromptWriter(form.tokenizer, turn_form.variables, turn_form.suffix, turn_form.in_user)
    return prompts, tuple(f"chat template: {note}" for note in form.notes)


def _local(config: ServedConfig, network: Transformer, variables: Any, tokenizer: Tokenizer) -> LocalModel:
    return LocalModel(network, variables, tokenizer, config.rows, kv_session=Session(config.cache_mb, few_lengths=True))
