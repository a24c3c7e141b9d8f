"""The language model in this process: chats and texts in, replies and scores out; `backends.engine` does the work."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.backends import batching, engine
from nlrl_jax.backends.prefill import Network
from nlrl_jax.backends.session import Session
from nlrl_jax.lm import malloc
from nlrl_jax.lm.placement import gathered
from nlrl_jax.lm.thoughts import answer, thought_end
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.roles.thoughts import answered
from nlrl_jax.types import (
    Answer,
    Chat,
    Facts,
    LanguageModel,
    Reply,
    Request,
    Sampling,
    Score,
    Written,
    answer_batches,
    check_stop,
    cut,
)

_gathered = jax.jit(gathered, static_argnums=0)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalModel(LanguageModel):
    """A language model that runs here.

    A reply depends on the weights, its chat, the sampling, the role, the seed and the chat's place in the list;
    not on the other chats or on the options below, up to the rounding of matrix products of another shape.

    Attributes:
      model, variables, tokenizer: the network, {"params": ...} or {"params": ..., "lora": ...}, and its text side. On
        a mesh the network has it, and the variables lie there.
      rows: replies written at once.
      refill: the share of rows that must be free before waiting prompts are let in; 1 waits for the whole batch. On a
        CPU, 64 rows, replies of 18 to 21 tokens of 60: a quarter took 0.6 of the CPU time of whole batches, and an
        eighth to a half took the same within a tenth (benchmarks/local_backend.py).
      kv_session: what grows from call to call, of these weights alone: the counts of what was computed, and with memory
        for it the keys and values of texts that later calls may go on with. That pays where texts grow
        (benchmarks/local_backend.py --lac). It decides how long a call takes, not what it returns.
      fewest_rows: a batch of a small model on a CPU has at least so many rows, of which some may be empty: programs of
        one size, for a caller whose calls shrink as episodes end.
    """

    model: Transformer
    variables: Any = dataclasses.field(repr=False)
    tokenizer: Tokenizer
    rows: int = 64
    refill: float = 0.25
    kv_session: Session = dataclasses.field(default_factory=Session, repr=False)
    fewest_rows: int = 1

    def __post_init__(self):
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}; it must be at least 1")
        if not 0 < self.refill <= 1:
            raise ValueError(f"refill is {self.refill}; it must be above 0 and at most 1 (no refill)")
        self.tokenizer.check_fits(self.model.config.vocab_size)

    def with_variables(self, variables: Any) -> LocalModel:
        """The same model with other weights and an empty session. Nothing is compiled again."""
        return dataclasses.replace(self, variables=variables, kv_session=self.kv_session.fresh())

    @property
    def facts(self) -> Facts:
        """See `types.Facts`."""
        return Facts(True, True, self.tokenizer, self.model.config.max_positions, local=self)

    @property
    def memories(self) -> tuple[Session, ...]:
        """See `types.LanguageModel`."""
        return (self.kv_session,) if self.kv_session.megabytes else ()

    def session(self, number: int = 1) -> LocalModel:
        """The same model with an empty session of its own, where it has memory: a part of it."""
        if not self.kv_session.megabytes:
            return self
        return dataclasses.replace(self, kv_session=self.kv_session.fresh(number))

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """See `types.LanguageModel`, and for what is refused `_complete` and `_score`."""
        return answer_batches(requests, self._complete, self._score)

    def _complete(
        self, chats: Sequence[Chat], sampling: Sampling, role: str, seed: int, stop: Sequence[str]
    ) -> list[Reply]:
        """One reply per chat. A reply's token counts are those of its text, also where a duplicate cost nothing.

        A reply is what follows its thoughts, also where the chat template opens them; one that never ends them is cut.

        Raises:
          ValueError: a prompt and `sampling.max_tokens` do not fit the model's context; the chat template refuses a
            chat or writes nothing; a stop string is empty.
        """
        texts = [self.tokenizer.render_chat(chat.messages) for chat in chats]
        thoughts = ["" if chat.is_open else thought_end(text) for chat, text in zip(chats, texts)]
        prompts, prompt_of_chat = self._prompts(texts, [sampling.max_tokens] * len(chats))
        end_tokens, replies = self._end_tokens(stop, any(thoughts)), []
        generations = self._replies(prompts, prompt_of_chat, sampling, end_tokens, f"{seed}/{role}")
        for chat, prompt, generation, thought in zip(chats, prompt_of_chat, generations, thoughts, strict=True):
            text = answer(self.tokenizer, generation.tokens, thought, chat.is_open)
            ended = generation.ended and text is not None
            reply = Reply(text or "", len(prompts[prompt]), len(generation.tokens), ended)
            replies.append(cut(reply if chat.is_open else answered(reply), stop))
        return replies

    def write(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampling: Sampling,
        role: str,
        seed: int = 0,
        stop: Sequence[str] = (),
    ) -> list[Written]:
        """As `complete`, from tokens to tokens: neither a prompt nor what is written after it passes through text.

        Raises:
          ValueError: see `complete`; a prompt without tokens.
        """
        end_tokens = self._end_tokens(stop)
        self._check_room(prompts, [sampling.max_tokens] * len(prompts))
        return self._replies(*batching.distinct(prompts), sampling, end_tokens, f"{seed}/{role}")

    def _replies(
        self, prompts, prompt_of_chat, sampling: Sampling, end_tokens: np.ndarray, draws: str
    ) -> list[Written]:
        """Generations after prompts[prompt_of_chat[i]]; `draws` names the randomness."""
        if not prompt_of_chat:
            return []
        # Greedy replies to one prompt are equal, so a prompt is one row; else each chat is a row with its own draws.
        greedy = sampling.temperature == 0
        rows = list(range(len(prompts))) if greedy else prompt_of_chat
        key = jax.random.key(zlib.crc32(draws.encode()))  # `key` itself would drop all but 32 bits
        draw = engine.Draw(sampling, end_tokens, key)
        generations = engine.write(self.network(), self.kv_session, prompts, rows, draw)
        malloc.trim()
        return [generations[prompt if greedy else i] for i, prompt in enumerate(prompt_of_chat)]

    def _score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """The log-probability, at temperature 1 and without an end token, of each continuation after its chat.

        A continuation is tokenised by itself and appended to the chat, as if the model had written these tokens.

        Raises:
          ValueError: a continuation has no tokens, or does not fit the model's context.
        """

        @functools.cache
        def encode(text: str) -> tuple[int, ...]:
            return tuple(self.tokenizer.encode(self.tokenizer.as_content(text), continues=True))

        tokens = [[encode(text) for text in texts] for texts in continuations]
        for i, (texts, ids) in enumerate(zip(continuations, tokens, strict=True)):
            if not all(ids):
                raise ValueError(
                    f"chat {i}: continuation {texts[ids.index(())]!r} has no tokens; it has no probability"
                )
        texts = [self.tokenizer.render_chat(chat.messages, thinks=False) for chat in chats]
        prompts, prompt_of_chat = self._prompts(texts, [max(map(len, ids), default=0) for ids in tokens])
        pairs, place = batching.distinct([(prompt_of_chat[i], c) for i, ids in enumerate(tokens) for c in ids])
        together = [(prompts[prompt], ids) for prompt, ids in pairs]
        log_probs = engine.score(self.network(), self.kv_session, together) if pairs else []
        malloc.trim()
        flat = iter(place)
        prompt_lengths = [len(prompts[prompt]) for prompt in prompt_of_chat]
        return [
            [Score(log_probs[next(flat)], len(c), prompt_tokens=0 if k else size) for k, c in enumerate(ids)]
            for size, ids in zip(prompt_lengths, tokens, strict=True)
        ]

    def network(self) -> Network:
        """The network and its variables as a call reads them: on a mesh gathered once, not for every token."""
        model, variables = self.model, self.variables
        if model.mesh is None:
            acting = self.kv_session.views(model, variables)
        else:
            acting = variables = _gathered(model, variables) if model.mesh.shape["fsdp"] > 1 else variables
        return Network(model, variables, acting, self.variables, self.rows, self.refill, self.fewest_rows)

    def _prompts(self, texts: Sequence[str], room) -> tuple[list[tuple[int, ...]], list[int]]:
        """The distinct prompts as token ids, and which of them each text is; each needs `room` for new tokens."""
        prompts = list(map(functools.cache(lambda text: tuple(self.tokenizer.encode(text))), texts))
        self._check_room(prompts, room)
        return batching.distinct(prompts)

    def _check_room(self, prompts, room) -> None:
        positions = self.model.config.max_positions
        for i, (prompt, new) in enumerate(zip(prompts, room, strict=True)):
            if not prompt:
                raise ValueError(f"chat {i}: the chat template wrote an empty prompt")
            if len(prompt) + new > positions:
                raise ValueError(
                    f"chat {i}: {len(prompt)} prompt tokens and {new} new ones take {len(prompt) + new} positions; the "
                    f"model has {positions}. Shorten the prompt or lower max_tokens"
                )

    def _end_tokens(self, stop: Sequence[str], thinks: bool = False) -> np.ndarray:
        """bool [V]: the end tokens and those that contain a stop string, but for replies with a thought of several
        lines. (A string that spans tokens ends no row.)"""
        check_stop(stop)
        end_tokens = np.zeros(self.model.config.vocab_size, bool)
        end_tokens[list(self.tokenizer.eos_ids)] = True
        if stop and not thinks:
            flat, offsets = self.tokenizer.token_bytes
            flat = flat.tobytes()
            for text in map(str.encode, stop):
                at = flat.find(text)
                while at >= 0:
                    token = np.searchsorted(offsets, at, side="right") - 1
                    end_tokens[token] |= at + len(text) <= offsets[token + 1]
                    at = flat.find(text, at + 1)
        return end_tokens
