"""Prompts that fit the model: its form, its context, its tokenizer and the words it must tell apart."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from nlrl_jax.algorithms.imagine import POLICY
from nlrl_jax.algorithms.planners.methods import Method
from nlrl_jax.backends import wrappers
from nlrl_jax.config import check, option
from nlrl_jax.files import read_json, write_json
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.roles.messages import ChatDialogue
from nlrl_jax.types import HostGame, LanguageModel, Start
from nlrl_jax.weights.load import BUILT_IN, load_config

# In the folder of a model or adapter that has learned transcripts: {"prompt", "examples"} that it learned from, and the
# "turns" of its transcripts, "chat" or "lines" (also where nothing is said).
FORM = "dialogue.json"


@dataclasses.dataclass(frozen=True)
class PromptConfig:
    """How episodes become prompts.

    turns: "lines", or "chat" for a method that acts by messages; set by the scripts that have such methods.
    """

    prompt: str = option(
        "auto",
        "paper (instructions), compact (for built-in models), or auto: as the model was fine-tuned "
        "(nlrl-jax finetune_lac), else compact for built-in models and paper for others",
        choices=("auto", "paper", "compact"),
    )
    examples: int | str = option(
        "auto",
        "episodes that the model reads first, in the prompt `paper`; auto: as many as in fine-tuning, else 1",
        least=0,
        most=8,
        auto=True,
    )
    history: int = option(
        0, "maximum steps that a prompt shows; 0: the game's own (16 in Crafter, no limit elsewhere)", least=0
    )
    context_tokens: int = option(0, "maximum tokens of a prompt with its reply; 0 is the local model's own", least=0)

    turns: str = "lines"

    def __post_init__(self):
        check(self)

    def form(self, model: str) -> tuple[str, int]:
        """("paper" or "compact", number of examples) of the prompts of a model by its name."""
        tuned = learned_form(model)
        usual = tuned.get("prompt", "compact" if model in BUILT_IN else "paper")
        examples = tuned.get("examples", 1) if self.examples == "auto" else self.examples
        return (usual if self.prompt == "auto" else self.prompt), examples


def dialogue_of(
    method: Method, game: HostGame, config: PromptConfig, model: str, tokenizer: Tokenizer | None, room: int
) -> Dialogue:
    """The dialogue that a method holds with a model about a game, in inference and in fine-tuning.

    Args:
      model: its name. tokenizer: that counts its tokens; None where there is none.
      room: tokens of its context, 0 if unknown.
    """
    form, number = config.form(model)
    if method.shots is not None:
        number = max(number, 1) if method.shots else 0
    with_examples = number and form == "paper" and game.examples
    label = "Think" if method.thinks else method.label
    examples = tuple(game.examples(label, number)) if with_examples else ()
    is_set = 0 < room == config.context_tokens
    if tokenizer and room:  # the chat template takes its share
        empty = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        room -= len(tokenizer.encode(tokenizer.render_chat(empty))) + 2
    limits = {"count": counter(tokenizer), "room": room, "last": config.history or game.history, "is_set": is_set}
    if config.turns == "chat":
        return ChatDialogue.about(game, form == "compact", **limits)
    return method.dialogue(game.rules, form == "compact", examples=examples, **limits)


def acts_apart(model: LanguageModel, policy: LanguageModel, dialogue: Dialogue) -> LanguageModel:
    """A model whose actions are `policy`'s, in prompts of `dialogue`; reflections, imagination and verdicts stay."""
    return wrappers.by_role(model, {POLICY: wrappers.in_dialogue(policy, dialogue)})


def learned_form(folder: str | os.PathLike) -> dict[str, Any]:
    """The prompts and turns that a model or adapter has learned, see `FORM`; {} where its folder does not say."""
    path = pathlib.Path(os.path.expanduser(folder)) / FORM
    return {"turns": "lines", **read_json(path)} if folder and path.is_file() else {}


def write_form(folder: pathlib.Path, config: PromptConfig, model: str, **notes: Any) -> None:
    """Notes in a fine-tuned model's folder which prompts and turns it has learned, and further `notes`."""
    prompt, examples = config.form(model)
    write_json(folder / FORM, {"prompt": prompt, "examples": examples, "turns": config.turns, **notes})


def check_room(
    dialogue: Dialogue, starts: Sequence[Start], reserve: int, names: tuple[str, str], chosen: int = 0
) -> None:
    """Refuses a model whose context cannot hold the first prompts with `reserve` more tokens. names: (model, game).

    Args:
      chosen: --context_tokens, where it is less than the model has.

    Raises:
      ValueError: it cannot.
    """
    for start in starts:
        try:
            dialogue.trim(History(start.goal, start.observation), reserve)
        except ValueError as error:
            advice = f", or raise --context_tokens, which is {chosen}" if chosen else ""
            raise ValueError(f"--model {names[0]} cannot hold a prompt of {names[1]}: {error}{advice}") from None


def counter(tokenizer: Tokenizer | None) -> Callable[[str], int]:
    """Text -> its tokens; without a tokenizer a third of its characters, which is more than most have."""
    if tokenizer is None:
        return lambda text: -(-len(text) // 3)

    @functools.lru_cache(1 << 14)  # transcripts grow by lines
    def tokens_of_line(line: str) -> int:
        return len(tokenizer.encode(tokenizer.as_content(line), continues=True))

    return lambda text: sum(tokens_of_line(line) + 1 for line in text.split("\n")) - 1


def check_words(tokenizer: Tokenizer, words: Sequence[str]) -> None:
    """Refuses a pair of words that the model cannot tell apart by their probabilities.

    Raises:
      ValueError: a word is not in the vocabulary, or both have the same tokens.
    """
    ids = [tokenizer.encode(f" {word}", continues=True) for word in words]
    for word, tokens in zip(words, ids, strict=True):
        if tokenizer.decode(tokens).strip() != word:
            raise ValueError(
                f"the model's tokenizer cannot write {word!r} (it reads {tokenizer.decode(tokens)!r}); "
                "choose other --words, or --critic direct"
            )
    if ids[0] == ids[1]:
        raise ValueError(f"the model's tokenizer cannot tell {words[0]!r} from {words[1]!r}; choose other --words")


def context_within(model: str, tokens: int) -> int:
    """Tokens of a local model's context: `tokens`, or its own for 0.

    Raises:
      ValueError: it has fewer.
    """
    room = load_config(model).max_positions
    if tokens > room:
        raise ValueError(f"--context_tokens is {tokens}, but {model} has {room} positions; give at most {room}")
    return tokens or room


def context_of(model: LanguageModel, tokens: int) -> int:
    """Tokens of the model's context: `tokens`, or its own for 0; 0 if unknown."""
    return min(filter(None, (tokens, model.facts.room)), default=0)
