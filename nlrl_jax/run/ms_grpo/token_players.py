"""Who plays a game of the host by tokens: in messages or in lines, whichever the options and the model ask for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from absl import flags

from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.roles.messages import system_text
from nlrl_jax.rollouts.conversations import ChatPlayer
from nlrl_jax.rollouts.lines import LinePlayer
from nlrl_jax.rollouts.transcripts import TokenPlayer, Writer
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of, learned_form
from nlrl_jax.run.ms_grpo.config import TurnsConfig
from nlrl_jax.types import HostGame, Sampling
from nlrl_jax.weights.load import BUILT_IN

# (the model with its weights, sampling of its replies) -> who plays
MakePlayer = Callable[[Writer, Sampling], TokenPlayer]
IN_CHAT, IN_LINES = ("think_tokens", "turn_actions"), ("examples",)  # options of one form alone


def settled(config: TurnsConfig, model: str, tokenizer: Tokenizer) -> TurnsConfig:
    """The options with "chat" or "lines" in place of "auto"; see there.

    Args:
      model: its name, or the folder of an adapter that says what it has learned.

    Raises:
      ValueError: the model has no chat template; an option on the command line does nothing in this form.
    """
    form, has_template = config.turns, tokenizer.chat_template is not None
    if form == "chat" and not has_template:
        raise ValueError(f"--turns chat needs a chat template, and {model} has none; leave --turns out")
    if form == "auto":
        learned = learned_form(model).get("turns", "lines" if model in BUILT_IN else "")
        # Commands from before there were chats show episodes first, which only lines do.
        asks_for_lines = any(name in flags.FLAGS and flags.FLAGS[name].present for name in IN_LINES)
        form = "lines" if asks_for_lines or not has_template else learned or "chat"
    leave_out(f"with --turns {form}", *(IN_CHAT if form == "lines" else IN_LINES))
    config = dataclasses.replace(config, turns=form)
    return dataclasses.replace(config, turn_actions=turn_actions_of(config, model))


def turn_actions_of(config: TurnsConfig, model: str) -> int:
    """How many actions a reply may hold: those of the option, else as the model, a name or a folder, has learned."""
    if config.turns == "lines":
        return 1
    return config.turn_actions or learned_form(model).get("turn_actions", 1)


def player_maker(
    game: HostGame, config: TurnsConfig, prompts: PromptConfig, model: str, tokenizer: Tokenizer, room: int
) -> MakePlayer:
    """Prepares the texts of a game's episodes, and in chat the form of its messages, which it prints.

    Args:
      config: `settled`. model: its name. room: tokens of its context.

    Raises:
      ValueError: the chat template refuses conversations, or has no thoughts to switch on.
    """
    if config.turns == "lines":
        dialogue = dialogue_for(game, prompts, model, tokenizer, config.think == "on")
        return lambda writer, sampling: LinePlayer(writer, dialogue, sampling, room)
    system = system_text(game, compact=prompts.form(model)[0] == "compact")
    thinks = {"auto": None, "off": False, "on": True}[config.think]
    form = ConversationForm.of(tokenizer, game.tools, thinks, bool(system))
    print("".join(f"chat template: {note}\n" for note in form.notes), end="", file=sys.stderr, flush=True)
    last = prompts.history or game.history
    return lambda writer, sampling: ChatPlayer(writer, form, system, sampling, room, config.think_tokens, last)


def dialogue_for(game: HostGame, prompts: PromptConfig, model: str, tokenizer: Tokenizer, think: bool) -> Dialogue:
    """The prompts of an agent that acts, or thinks and acts, in lines."""
    return dialogue_of(METHODS["cot" if think else "react"], game, prompts, model, tokenizer, 0)
