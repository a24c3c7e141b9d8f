"""Supervised fine-tuning on demonstrations that are made on the device: games, their text and the loss in one program.

show = demonstrations(policy, reply_template, demonstrate)       # key -> rows of tokens
step = make_sft_step(demonstration_loss(policy), optimizer)      # see algorithms/sft.py
variables, opt_state, metrics = step(variables, opt_state, show(key))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nlrl_jax import losses
from nlrl_jax.lm.generate import compute_prefix, left_pad
from nlrl_jax.lm.score import score
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.template import Template

# Demonstrations of a batch: key -> (fields, each [B, ...]; actions int32 [B, A], -1 after the last one).
Demonstrate = Callable[[jax.Array], tuple[dict[str, jax.Array], jax.Array]]


class Shown(NamedTuple):
    """Demonstrations as tokens, after the prompts' static part. B rows, S prompt bucket, K reply tokens.

    prompts int32 [B, S], left-padded; lengths int32 [B]; replies int32 [B, K], right-padded; reply_lengths int32 [B].
    """

    prompts: jax.Array
    lengths: jax.Array
    replies: jax.Array
    reply_lengths: jax.Array


def demonstrations(policy: LanguageAgentPolicy, reply: Template, demonstrate: Demonstrate):
    """New demonstrations from a key: a pure key -> `Shown`."""
    assemble = compile_reply(reply, policy.tokenizer)

    def show(key):
        fields, actions = demonstrate(key)
        prompts, lengths = jax.vmap(policy.template)(fields)
        return Shown(left_pad(prompts, lengths), lengths, *jax.vmap(assemble)(fields, actions))

    return show


def demonstration_loss(policy: LanguageAgentPolicy, remat: bool = False):
    """SFT on demonstrations: a pure (variables, `Shown`) -> (loss, metrics); prompts masked, the end learned."""
    model = policy.model.clone(remat=remat)

    def loss_of(variables, rows):
        lengths = jnp.maximum(rows.lengths, 1)  # a row of zeros weighs nothing
        prefix = compute_prefix(model, variables, policy.template.prefix)
        log_probs = score(model, variables, rows.prompts, lengths, rows.replies, prefix)
        return losses.sft(log_probs, jnp.arange(rows.replies.shape[1]) < rows.reply_lengths[:, None])

    return loss_of


def compile_reply(reply: Template, tokenizer: Tokenizer):
    """(fields, actions int32 [A]) -> (tokens int32 [K], length with the end token), for one state under jit."""
    compiled = compile_template(reply, tokenizer, continues=True)
    first, end = len(compiled.prefix), tokenizer.end_id

    def assemble(fields, actions):
        action_fields = {"shown": jnp.maximum(actions, 0), "num_shown": jnp.sum(actions >= 0, dtype=jnp.int32)}
        tokens, length = compiled({**fields, **action_fields})
        # One slot more than the longest reply, for its end token.
        tokens = jnp.concatenate([jnp.asarray(compiled.prefix), tokens, jnp.zeros(1, tokens.dtype)])
        length = first + length
        return tokens.at[length].set(end), length + 1

    return assemble
