"""The language agent policy: Pi = (L, G, T, psi) of MS-GRPO, section "Language Agent Policy"."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm.cache import KeyValues
from nlrl_jax.lm.generate import compute_prefix, generate, left_pad
from nlrl_jax.lm.sharding import platform_of, whole_rows
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.text.compile import CompiledTemplate, compile_template
from nlrl_jax.text.parser import ParsedReply, ReplyFormat, compile_parser
from nlrl_jax.text.prompts import TAGS, chat_prompt
from nlrl_jax.types import Sampling, TextGame

TILE = 8  # 16-bit operands of cuBLAS products have multiples of this


class TokenTurn(NamedTuple):
    """What B agents read and wrote in one turn, in tokens. S prompt bucket, N reply tokens.

    prompts: int32 [B, S], left-padded, without the static prefix.
    prompt_lengths: int32 [B].
    replies: int32 [B, N], right-padded; reply_lengths: int32 [B], the end token included.
    log_probs: float32 [B, N], the sampler's log-probability of each token at temperature 1.
    ended: bool [B], False where the reply was cut at max_tokens.
    parsed: psi's reading of the reply; see `ParsedReply`, each with a leading [B].
    """

    prompts: jax.Array
    prompt_lengths: jax.Array
    replies: jax.Array
    reply_lengths: jax.Array
    log_probs: jax.Array
    ended: jax.Array
    parsed: ParsedReply


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageAgentPolicy:
    """A language model with everything that turns its text into actions. Holds no parameters.

    Attributes:
      model: L, applied to parameters that are passed in.
      sampling: G, the generation configuration.
      template: T with the game's observation in it, compiled to token ids.
      parse: psi, the action extraction function, compiled to an automaton.
      tokenizer: text to tokens and back, on the host.
      eos_ids: tokens that end a reply.
    """

    model: Transformer
    sampling: Sampling
    template: CompiledTemplate
    parse: Callable[[jax.Array, jax.Array], ParsedReply]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]

    @classmethod
    def for_game(
        cls,
        game: TextGame,
        model: Transformer,
        tokenizer: Tokenizer,
        sampling: Sampling,
        prompt: str = "paper",
    ) -> LanguageAgentPolicy:
        """Compiles the game's text for this tokenizer.

        Raises:
          ValueError: the tokenizer has more tokens than the model; no token ends a reply; the prompt and
            reply do not fit the model's context; or the tokenizer's borders break the template.
        """
        config = model.config
        tokenizer.check_fits(config.vocab_size)
        render = functools.partial(tokenizer.render_chat, thinks=False)  # the reply format has a thought of its own
        template = compile_template(chat_prompt(game, render, prompt, sampling.max_tokens), tokenizer)
        longest = len(template.prefix) + template.max_length + sampling.max_tokens
        if longest > config.max_positions:
            raise ValueError(
                f"prompt ({len(template.prefix)} + {template.max_length} tokens) and reply ({sampling.max_tokens}) "
                f"take {longest} positions; the model has {config.max_positions}. "
                "Lower max_tokens or use the compact prompt"
            )
        reply_format = ReplyFormat(tags=TAGS[prompt], actions=game.actions, max_actions=game.max_actions_per_turn)
        parse = compile_parser(reply_format, tokenizer)
        return cls(model, sampling, template, parse, tokenizer, tuple(tokenizer.eos_ids))

    def for_evaluation(self) -> LanguageAgentPolicy:
        """Returns the same policy with greedy sampling."""
        return dataclasses.replace(self, sampling=Sampling(self.sampling.max_tokens, temperature=0.0))

    def prefix(self, variables: Any) -> KeyValues | None:
        """Computes keys and values of the prompt's static part, [layers, P, K, D]: once per batch, not per row."""
        return compute_prefix(self.model, variables, self.template.prefix)

    def act(
        self,
        variables: Any,
        prefix: KeyValues | None,
        key: jax.Array,
        fields: dict[str, jax.Array],
        active: jax.Array,
    ) -> TokenTurn:
        """Plays one turn of B agents: construct the prompt, generate text, parse the action (paper, steps 1-3).

        Args:
          variables: {"params": ...} or {"params": ..., "lora": ...}.
          prefix: `self.prefix(variables)`.
          key: one key for the whole batch.
          fields: the game's fields, each [B, ...].
          active: bool [B]; agents whose episode is over write nothing.
        """
        tokens, lengths = jax.vmap(self.template)(fields)  # q_t = T(o_t)
        prompts = left_pad(tokens, lengths)
        padded = in_whole_tiles(self.model.mesh, self.sampling.max_tokens, prompts, lengths, active)
        reply = generate(  # c_t ~ L_theta|G(. | q_t)
            self.model, variables, *padded[:2], key, self.sampling, self.eos_ids, prefix, padded[2]
        )
        reply = jax.tree.map(lambda x: x[: len(lengths)], reply)
        # A model may have more ids than its tokenizer has tokens: those spell nothing.
        spelled = jnp.where(reply.tokens < self.tokenizer.vocab_size, reply.tokens, self.eos_ids[0])
        parsed = jax.vmap(self.parse)(spelled, reply.lengths)  # a_t = psi(c_t)
        return TokenTurn(prompts, lengths, reply.tokens, reply.lengths, reply.log_probs, reply.ended, parsed)

    def prompt_text(self, prompt: jax.Array, length: int) -> str:
        """Decodes one left-padded prompt [S], the static prefix included. Host only."""
        dynamic = [int(t) for t in prompt[len(prompt) - int(length) :]]
        return self.tokenizer.decode([int(t) for t in self.template.prefix] + dynamic, skip_special_tokens=False)

    def reply_text(self, reply: jax.Array, length: int) -> str:
        """Decodes one reply [N]. Host only."""
        ids = [int(t) for t in reply[: int(length)] if int(t) < self.tokenizer.vocab_size]
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def in_whole_tiles(
    mesh: Mesh | None, max_tokens: int, prompts: jax.Array, lengths: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pads prompts [B, S], their lengths and `active` to the rows and slots that a GPU's products take whole.

    XLA would fill up and cut the operands of every product for every token. Filled rows are not active.
    """
    if platform_of(mesh) in ("cpu", "tpu"):
        return prompts, lengths, active
    B, S = prompts.shape
    each = whole_rows(1, mesh) * TILE
    rows = (0, -B % each)
    slots = (-(S + max_tokens) % TILE, 0)
    return jnp.pad(prompts, (rows, slots)), jnp.pad(lengths, rows), jnp.pad(active, rows)
