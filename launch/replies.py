"""What a demonstrator writes: replies in the form that a prompt asks for, as templates over the game's fields."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs import grid_text
from nlrl_jax.lm.generate import left_pad
from nlrl_jax.lm.score import score
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.losses import sft
from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.template import Choice, Literal, Repeat, Template
from nlrl_jax.types import TextGame

# Demonstrations of a batch: key -> (fields, each [B, ...]; actions int32 [B, A], -1 behind the last one).
Demonstrate = Callable[[jax.Array], tuple[dict[str, jax.Array], jax.Array]]


def reply_template(game: TextGame, prompt: str) -> Template:
    """A reply that names the actions in the fields "shown" int [A] and "num_shown": the form, and little thought."""
    word = Choice("shown", game.actions)
    listed = lambda separator: Repeat("num_shown", game.max_actions_per_turn, (word,), separator)
    action = Template((Literal("<action>"), listed(" || "), Literal("</action>")))
    if prompt == "compact":
        return action
    size = math.isqrt(len([part for part in game.board.parts if isinstance(part, Choice)]))
    who, aim = ("head", "Apples") if game.name.startswith("snake") else ("player", "The goal")
    observed = (Literal("<observe>I am at "), *grid_text.point(who, size), Literal(".</observe>\n"))
    thought = Literal(f"<think>{aim} and what ends the game are given as (X, Y).</think>\n<plan>I go ")
    return Template((*observed, thought, listed(", then "), Literal(".</plan>\n"))) + action


def demonstration_loss(policy: LanguageAgentPolicy, game: TextGame, prompt: str, demonstrate: Demonstrate):
    """SFT on new demonstrations: a pure (variables, key) -> (loss, metrics); prompts masked, the end learned."""
    assemble = compile_reply(game, prompt, policy.tokenizer)

    def loss_of(variables, key):
        fields, actions = demonstrate(key)
        prompts, lengths = jax.vmap(policy.template)(fields)
        replies, reply_lengths = jax.vmap(assemble)(fields, actions)
        log_probs = score(
            policy.model, variables, left_pad(prompts, lengths), lengths, replies, policy.prefix(variables)
        )
        return sft(log_probs, jnp.arange(replies.shape[1]) < reply_lengths[:, None])

    return loss_of


def compile_reply(game: TextGame, prompt: str, tokenizer: Tokenizer):
    """(fields, actions int32 [A]) -> (tokens int32 [K], length with the end token), for one state under jit."""
    compiled = compile_template(reply_template(game, prompt), tokenizer)
    first, end = len(compiled.prefix), tokenizer.eos_ids[0]

    def assemble(fields, actions):
        shown = {"shown": jnp.maximum(actions, 0), "num_shown": jnp.sum(actions >= 0, dtype=jnp.int32)}
        tokens, length = compiled({**fields, **shown})
        tokens = jnp.concatenate([jnp.asarray(compiled.prefix), tokens, jnp.zeros(1, tokens.dtype)])
        length = first + length
        return tokens.at[length].set(end), length + 1

    return assemble
