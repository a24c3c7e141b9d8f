"""`MovePolicy`: a language model that chooses a move by scoring words, in one forward pass and without writing text.

A move's score is the log-probability of its word as the beginning of the reply; `move_log_probs` turns the scores into
a policy over the legal moves. Words of several tokens are read as a trie after the prompt (`text/word_trie.py`), so
even those of breakthrough take one pass; a model with recurrent layers reads each word after a copy of the prompt. The
bare word is scored, also where the prompt asks for a JSON object. Games are played in `rollouts/scored_words.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.arrays import single_or_wider
from nlrl_jax.lm.cache import KeyValues, prefix_length
from nlrl_jax.lm.generate import compute_prefix, left_pad
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.text.compile import CompiledTemplate, compile_template, sample_fields
from nlrl_jax.text.prompts import chat_prompt, in_chat
from nlrl_jax.text.template import Template
from nlrl_jax.text.word_trie import WordTrie, word_trie
from nlrl_jax.types import Chat, TextGame


@dataclasses.dataclass(frozen=True, eq=False)
class MovePolicy:
    """A language model that chooses a game's actions by the scores of their words. Holds no parameters.

    Attributes:
      model: applied to parameters that are passed in.
      template: the prompt with the game's observation in it, compiled to token ids.
      words: the tokens of each action's word as the beginning of the reply; with the reply's end token if a word is the
        beginning of another, as breakthrough's `b4a3` is of `b4a3*`.
    """

    model: Transformer
    template: CompiledTemplate
    words: WordTrie

    @classmethod
    def for_game(
        cls, game: TextGame, model: Transformer, tokenizer: Tokenizer, user: Template | None = None, system: str = ""
    ) -> MovePolicy:
        """Compiles the prompt.

        Args:
          user, system: the messages; `user` reads the game's fields. None: the game's rules and observation, no reply
            format.

        Raises:
          ValueError: the game has no field "legal" [A]; a word's tokens depend on the prompt, or two words have the
            same; prompt and word do not fit the model.
        """

        def first_fields(key: jax.Array) -> dict[str, jax.Array]:
            return game.fields(game.env.reset_env(key, game.params)[1])

        legal = jax.eval_shape(first_fields, jax.random.key(0)).get("legal")
        if legal is None or legal.shape != (len(game.actions),):
            raise ValueError(f"{game.name} has no field 'legal' of {len(game.actions)} values, one per action")
        render_chat = functools.partial(tokenizer.render_chat, thinks=False)  # a word is no thought
        if user is None:
            template = chat_prompt(game, render_chat, "compact", max_tokens=1)
        else:
            template = in_chat(user, lambda text: render_chat(Chat.of(text, system).messages), game.name)
        text = template.render(sample_fields(template, num_random=1)[-1])
        before, words = tokenizer.encode(text), []
        for word in game.actions:
            ids = tokenizer.encode(text + word)
            if ids[: len(before)] != before or len(ids) == len(before):
                raise ValueError(
                    f"this tokenizer joins the action {word!r} of {game.name} with the end of the prompt, "
                    f"{text[-12:]!r}; a move's score needs tokens of its own"
                )
            words.append(ids[len(before) :])
        if any(word != longer and longer[: len(word)] == word for word in words for longer in words):
            words = [[*word, tokenizer.end_id] for word in words]
        try:
            trie = word_trie(words)
        except ValueError as error:
            raise ValueError(f"the actions of {game.name} in this tokenizer's tokens: {error}") from None
        compiled = compile_template(template, tokenizer)
        longest = len(compiled.prefix) + compiled.max_length + max(trie.depth, default=0)
        if longest > model.config.max_positions:
            raise ValueError(f"prompt and word take {longest} positions; the model has {model.config.max_positions}")
        return cls(model, compiled, trie)

    def prefix(self, variables: Any) -> KeyValues | None:
        """Computes keys and values of the prompt's static part, [layers, P, K, D]."""
        return compute_prefix(self.model, variables, self.template.prefix)

    def read(self, fields: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Compiles the prompts after the prefix: fields [B, ...] -> (int32 [B, S] left-padded, lengths int32 [B])."""
        tokens, lengths = jax.vmap(self.template)(fields)
        return left_pad(tokens, lengths), lengths

    def forward(
        self, variables: Any, prefix: KeyValues | None, prompts: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Scores the words after B prompts: (scores [B, A], last hidden state of the prompt [B, H]).

        Scores are the words' log-probabilities, up to a constant of the row that no softmax over moves sees.
        """
        S, words = prompts.shape[1], self.words
        # Prompts are left-padded, so slot S - 1 holds every prompt's last token; the trie's tokens stand behind it.
        slots = jnp.arange(S)[None, :] - (S - lengths)[:, None]
        positions = prefix_length(prefix) + jnp.maximum(slots, 0)
        if not words.tokens.size:
            hidden, _ = self.model.apply(variables, prompts, positions, valid=slots >= 0, prefix=prefix)
            hidden = hidden[:, -1]
            return self._first_token_logits(variables["params"], hidden), hidden
        if self.model.config.num_linear_layers:
            return self._word_by_word(variables, prefix, prompts, lengths)
        tokens = jnp.concatenate([prompts, _each(words.tokens, len(prompts))], axis=1)
        depth = prefix_length(prefix) + lengths[:, None] - 1 + words.depth
        hidden, _ = self.model.apply(
            variables, tokens, jnp.concatenate([positions, depth], axis=1), prefix=prefix, sees=self._sees(slots >= 0)
        )
        hidden = hidden[:, S - 1 :]
        log_probs = token_log_probs(
            self.model, variables, hidden[:, words.parent], _each(words.predicted, len(prompts))
        )
        return log_probs @ words.path.T, hidden[:, 0]

    def _word_by_word(
        self, variables: Any, prefix: KeyValues | None, prompts: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The same for a recurrent state, which has no branches: each word [W] after a copy of its prompt."""
        (B, S), (words_AW, mask_AW) = prompts.shape, self.words.words
        A, W = words_AW.shape
        targets = _each(words_AW, B).reshape(B * A, W)
        # The last token of a word is only predicted.
        tokens = jnp.concatenate([jnp.repeat(prompts, A, axis=0), targets[:, :-1]], axis=1)
        slots = jnp.arange(S + W - 1)[None, :] - jnp.repeat(S - lengths, A)[:, None]
        positions = prefix_length(prefix) + jnp.maximum(slots, 0)
        hidden, _ = self.model.apply(variables, tokens, positions, valid=slots >= 0, prefix=prefix)
        hidden = hidden[:, S - 1 :]
        log_probs = token_log_probs(self.model, variables, hidden, targets).reshape(B, A, W)
        return jnp.sum(log_probs * mask_AW, axis=2), hidden.reshape(B, A, W, -1)[:, 0, 0]

    def _sees(self, valid: jax.Array) -> jax.Array:
        """Builds the attention mask of prompt [B, S] and trie: a word's token sees the prompt and its own beginning."""
        B, S = valid.shape
        M = self.words.tokens.size
        prompt = jnp.tril(jnp.ones((S, S), bool)) & valid[:, None, :]
        prompt = jnp.concatenate([prompt, jnp.zeros((B, S, M), bool)], axis=2)
        words = jnp.broadcast_to(valid[:, None, :], (B, M, S))
        return jnp.concatenate([prompt, jnp.concatenate([words, _each(self.words.sees, B)], axis=2)], axis=1)

    def _first_token_logits(self, params: Any, hidden: jax.Array) -> jax.Array:
        """Computes logits [B, A] where every word is one token: the words' columns alone, as [B, V] would be large."""
        columns = self.words.predicted[self.words.path.argmax(axis=1)]
        tied = self.model.config.tie_embeddings
        table = params["embedding"][columns].T if tied else params["lm_head"][:, columns]
        return jnp.matmul(hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)


def _each(x: np.ndarray, rows: int) -> jax.Array:
    """Repeats an array for every row: [...] -> [rows, ...]."""
    return jnp.broadcast_to(jnp.asarray(x), (rows, *x.shape))


def move_log_probs(scores: jax.Array, legal: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Computes log softmax(scores / temperature) over the legal moves, about -1e30 elsewhere: float32 [..., A]."""
    return jax.nn.log_softmax(jnp.where(legal, single_or_wider(scores) / temperature, -1e30), axis=-1)
