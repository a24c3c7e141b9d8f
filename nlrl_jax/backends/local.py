"""The language model in this process.

Every distinct prompt is read once, and what all prompts of a call begin with is read once for the whole call. Rows
that have finished are refilled while the others continue, so a long reply does not hold up the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nlrl_jax.backends import batching, kept_rows, kv_generation
from nlrl_jax.backends.kept_rows import KeptRows
from nlrl_jax.backends.kv_cache import KVCache
from nlrl_jax.backends.kv_generation import Draw, Network
from nlrl_jax.lm import acting, malloc
from nlrl_jax.lm import decode as steps
from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.placement import gathered
from nlrl_jax.lm.sharding import whole
from nlrl_jax.lm.thoughts import answer, thought_end
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import KeyValues, Transformer
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

# Programs are kept by shapes, model and options, never by parameters: every LocalModel of one config shares them.
_prefix = jax.jit(compute_prefix, static_argnums=0)
_prefill = jax.jit(steps.prefill, static_argnums=0)
_admit = jax.jit(steps.admit, static_argnums=6, donate_argnums=0)
_decode = jax.jit(steps.decode, static_argnums=(0, 5), donate_argnums=2)
_empty = jax.jit(steps.empty_rows, static_argnums=(0, 1, 2, 3))
_score = jax.jit(steps.score_continuations, static_argnums=0)
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
      share_prefix: whether to read once what all prompts of a call begin with.
      cache_mb: memory for the keys and values of texts that later calls may go on with, 10^6 bytes; 0 keeps none. It
        pays where texts grow (a tenth to a third of the time: benchmarks/local_backend.py --lac); for short prompts
        that are answered once, refilled rows are up to three times as fast (the same with --cache_mb 300).
      keep_mb: memory for the rows of a call, 10^6 bytes, for a next call whose prompts go on with their texts
        (`kept_rows`): for episodes in lockstep, in place of `cache_mb`. Few programs are compiled for it.
      row_steps: what decoding has computed since the model was made.
      cache: `kv_cache.KVCache`, or None. It grows and forgets from call to call, and yet the model is a value:
        what it holds follows from the weights and the texts alone, so it decides how long a call takes and not what it
        returns. It belongs to these weights: a model made by `with_variables` or `dataclasses.replace` has its own.
    """

    model: Transformer
    variables: Any = dataclasses.field(repr=False)
    tokenizer: Tokenizer
    rows: int = 64
    refill: float = 0.25
    share_prefix: bool = True
    cache_mb: float = 0.0
    keep_mb: float = 0.0
    cache: KVCache | None = dataclasses.field(default=None, init=False, repr=False)
    kept: KeptRows | None = dataclasses.field(default=None, init=False, repr=False)
    row_steps: batching.RowSteps = dataclasses.field(default_factory=batching.RowSteps, init=False, repr=False)

    def __post_init__(self):
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}; it must be at least 1")
        if not 0 < self.refill <= 1:
            raise ValueError(f"refill is {self.refill}; it must be above 0 and at most 1 (no refill)")
        self.tokenizer.check_fits(self.model.config.vocab_size)
        for name, size in (("cache_mb", self.cache_mb), ("keep_mb", self.keep_mb)):
            if not size >= 0:
                raise ValueError(f"{name} is {size}; it must be at least 0 (no cache)")
        if self.keep_mb and (self.cache_mb or self.model.mesh is not None):
            raise ValueError("keep_mb is for models without cache_mb, on one device")
        if self.keep_mb:
            object.__setattr__(self, "kept", KeptRows(self.model.config, self.keep_mb))
        if self.cache_mb:
            object.__setattr__(self, "cache", KVCache(self.model.config, self.cache_mb))

    def with_variables(self, variables: Any) -> LocalModel:
        """The same model with other weights. Nothing is compiled again."""
        return dataclasses.replace(self, variables=variables)

    @property
    def facts(self) -> Facts:
        """See `types.Facts`."""
        return Facts(True, True, self.tokenizer, self.model.config.max_positions, local=self)

    @property
    def memories(self) -> tuple[KVCache, ...]:
        return () if self.cache is None else (self.cache,)

    def session(self, number: int = 1) -> LocalModel:
        """The same model with an empty cache of its own, where it has one."""
        return self if self.cache is None else dataclasses.replace(self, cache_mb=self.cache_mb / number)

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
        prompts, which = self._prompts(texts, [sampling.max_tokens] * len(chats))
        ends, replies = self._ends(stop, any(thoughts)), []
        written = self._replies(prompts, which, sampling, ends, f"{seed}/{role}")
        for chat, prompt, one, thought in zip(chats, which, written, thoughts, strict=True):
            text = answer(self.tokenizer, one.tokens, thought)
            reply = Reply(text or "", len(prompts[prompt]), len(one.tokens), one.ended and text is not None)
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
        ends = self._ends(stop)
        self._check_room(prompts, [sampling.max_tokens] * len(prompts))
        return self._replies(*batching.distinct(prompts), sampling, ends, f"{seed}/{role}")

    def _replies(self, prompts, which, sampling: Sampling, ends: np.ndarray, draws: str) -> list[Written]:
        """What is written after prompts[which[i]]; `draws` names the randomness."""
        if not which:
            return []
        # Greedy replies to one prompt are equal, so a prompt is one row; else each chat is a row with its own draws.
        greedy = sampling.temperature == 0
        rows = list(range(len(prompts))) if greedy else which
        key = jax.random.key(zlib.crc32(draws.encode()))  # `key` itself would drop all but 32 bits
        draw = Draw(sampling, ends, key)
        written, net = {}, self._net()
        if self.cache is not None:
            written = kv_generation.write(self._network(net), prompts, rows, self.rows, draw)
        elif self.kept is not None:
            network = kept_rows.Network(*net, self.kept, self._acting(net[1]), self.row_steps)
            written = kept_rows.write(network, prompts, dict(enumerate(rows)), self.rows, draw)
        left = [i for i in range(len(rows)) if i not in written]
        if left:
            written |= self._write(net, prompts, {i: rows[i] for i in left}, draw)
        malloc.trim()
        return [written[prompt if greedy else i] for i, prompt in enumerate(which)]

    def _score(self, chats: Sequence[Chat], continuations: Sequence[Sequence[str]], role: str) -> list[list[Score]]:
        """The log-probability, at temperature 1 and without an end token, of each continuation after its chat.

        A continuation is tokenised by itself and appended to the chat, as if the model had written these tokens.

        Raises:
          ValueError: a continuation has no tokens, or does not fit the model's context.
        """
        encode = functools.cache(lambda text: tuple(self.tokenizer.encode(self.tokenizer.as_content(text))))
        tokens = [[encode(text) for text in texts] for texts in continuations]
        for i, (texts, ids) in enumerate(zip(continuations, tokens, strict=True)):
            if not all(ids):
                raise ValueError(
                    f"chat {i}: continuation {texts[ids.index(())]!r} has no tokens; it has no probability"
                )
        texts = [self.tokenizer.render_chat(chat.messages, thinks=False) for chat in chats]
        prompts, which = self._prompts(texts, [max(map(len, ids), default=0) for ids in tokens])
        pairs, place = batching.distinct([(which[i], c) for i, ids in enumerate(tokens) for c in ids])
        known, net = {}, self._net()
        if self.cache is not None:
            rows = [(prompts[prompt], ids) for prompt, ids in pairs]
            known = kv_generation.log_probs(self._network(net), rows, self.rows)
        left = [n for n in range(len(pairs)) if n not in known]
        log_probs = known | dict(zip(left, self._log_probs(net, prompts, [pairs[n] for n in left]))) if left else known
        malloc.trim()
        flat = iter(place)
        read = [len(prompts[prompt]) for prompt in which]
        return [
            [Score(log_probs[next(flat)], len(c), prompt_tokens=0 if k else size) for k, c in enumerate(ids)]
            for size, ids in zip(read, tokens, strict=True)
        ]

    def _net(self) -> tuple[Transformer, Any]:
        """The network and its variables as a call reads them: on a mesh gathered once, not for every token."""
        mesh = self.model.mesh
        gather = mesh is not None and mesh.shape["fsdp"] > 1
        return self.model, _gathered(self.model, self.variables) if gather else self.variables

    def _network(self, net: tuple[Transformer, Any]) -> Network:
        return Network(*net, self.cache, self._acting(net[1]), self.row_steps)

    @functools.cached_property
    def _views(self) -> Any:
        return acting.views(self.model, self.variables)

    def _acting(self, variables: Any) -> Any:
        """The variables of `_net` as they write replies."""
        return variables if self.model.mesh is not None else self._views

    def _prompts(self, texts: Sequence[str], room) -> tuple[list[tuple[int, ...]], list[int]]:
        """The distinct prompts as token ids, and which of them each text is; each needs `room` for new tokens."""
        prompts = list(map(functools.cache(lambda text: tuple(self.tokenizer.encode(text))), texts))
        self._check_room(prompts, room)
        return batching.distinct(prompts)

    def _check_room(self, prompts, room) -> None:
        most = self.model.config.max_positions
        for i, (prompt, new) in enumerate(zip(prompts, room, strict=True)):
            if not prompt:
                raise ValueError(f"chat {i}: the chat template wrote an empty prompt")
            if len(prompt) + new > most:
                raise ValueError(
                    f"chat {i}: {len(prompt)} prompt tokens and {new} new ones take {len(prompt) + new} positions; the "
                    f"model has {most}. Shorten the prompt or lower max_tokens"
                )

    def _ends(self, stop: Sequence[str], thinks: bool = False) -> np.ndarray:
        """bool [V]: the end tokens and those that contain a stop string, but for replies with a thought of several
        lines. (A string that spans tokens ends no row.)"""
        check_stop(stop)
        ends = np.zeros(self.model.config.vocab_size, bool)
        ends[list(self.tokenizer.eos_ids)] = True
        if stop and not thinks:
            flat, offsets = self.tokenizer.token_bytes
            flat = flat.tobytes()
            for text in map(str.encode, stop):
                at = flat.find(text)
                while at >= 0:
                    token = np.searchsorted(offsets, at, side="right") - 1
                    ends[token] |= at + len(text) <= offsets[token + 1]
                    at = flat.find(text, at + 1)
        return ends

    def _split(
        self, net: tuple[Transformer, Any], prompts: list[tuple[int, ...]]
    ) -> tuple[KeyValues | None, list[tuple[int, ...]]]:
        """The shared prefix, and the rest of each prompt."""
        P = batching.shared_prefix(prompts) if self.share_prefix else 0
        if not P:
            return None, prompts
        prefix = _prefix(*net, np.array(prompts[0][:P], np.int32))
        return prefix, [prompt[P:] for prompt in prompts]

    def _read(
        self, net: tuple[Transformer, Any], prompts: list[tuple[int, ...]], size: int, S: int, prefix: KeyValues | None
    ) -> steps.Prefilled:
        """Prefills prompts as a block of `size`, padded to S tokens."""
        return _prefill(*net, *batching.left_padded(prompts, size, S), prefix)

    def _write(self, net, prompts, rows: dict[int, int], draw: Draw) -> dict[int, Written]:
        """Replies to prompts[rows[i]] by i."""
        prefix, prompts = self._split(net, prompts)
        rows_of = [[] for _ in prompts]
        for i, prompt in rows.items():
            rows_of[prompt].append(i)
        written = {}
        for batch in batching.plan([len(p) for p in prompts], [len(r) for r in rows_of], self.rows):
            queue = deque((n, i) for n, prompt in enumerate(batch.prompts) for i in rows_of[prompt])
            written |= self._write_batch(net, [prompts[p] for p in batch.prompts], batch.bucket, queue, prefix, draw)
        return written

    def _write_batch(self, net, prompts, S, queue, prefix, draw: Draw) -> dict:
        """The replies of a batch by draw number; `queue` holds (prompt, draw number)."""
        sampling, written = draw.sampling, {}
        R, M = batching.rows_for(len(queue), self.rows), batching.rows_for(len(prompts), self.rows)
        N, limit = batching.bucket(sampling.max_tokens), np.int32(sampling.max_tokens)
        state, index = None, 0
        occupant = np.full(R, -1)  # draw number of the chat in each row
        used = np.zeros(R, np.int32)  # cache slots in use by each row
        block, first = None, -M  # the newest block of prompts, and the number of its first
        while queue or (occupant >= 0).any():
            free = deque(np.flatnonzero(occupant < 0))
            # The cache moves down only when it must; then the row that needs most slots has room to its end.
            index = max(S - 1, used[occupant >= 0].max(initial=0) if index == S + N else index)
            while True:
                if queue and free and queue[0][0] >= first + M:
                    first = queue[0][0]
                    block = self._read(net, prompts[first : first + M], M, S, prefix)
                if state is None:
                    # Where the block is: a program is compiled once more for arguments that are bound to no device.
                    state = _empty(self.model, R, S + N, N)
                    if self.model.mesh is None:
                        state = jax.device_put(state, block.last.sharding)
                source, number = np.full(R, -1, np.int32), np.zeros(R, np.int32)
                while queue and free and queue[0][0] < first + M:
                    row = free.popleft()
                    source[row], number[row] = queue[0][0] - first, queue[0][1]
                    occupant[row] = queue.popleft()[1]
                state = _admit(state, block, source, number, limit, np.int32(index), self.model.mesh)
                if not (queue and free):
                    break
            stop_at = np.int32(max(1, round(self.refill * R)) if queue else R)
            state = _decode(self.model, self._acting(net[1]), state, draw.key, stop_at, *draw.how(prefix))
            begun = int(index)
            # One transfer: everything the host decides on.
            used, runs = state.index - state.start, steps.running(state)
            small = state.tokens, state.lengths, state.ended, runs, used, state.index, state.log_probs
            tokens, lengths, ended, runs, used, index, probs = jax.device_get(whole(small))
            self.row_steps.computed += R * (int(index) - begun)
            for row in np.flatnonzero((occupant >= 0) & ~runs):
                own = (tuple(x[row, : lengths[row]].tolist()) for x in (tokens, probs))
                written[int(occupant[row])] = Written(*own, bool(ended[row]))
                self.row_steps.written += int(lengths[row])
                occupant[row] = -1
        return written

    def _log_probs(self, net, prompts, pairs) -> list[float]:
        """log p of each pair (prompt number, continuation tokens)."""
        prefix, prompts = self._split(net, prompts)
        pairs_of = [[] for _ in prompts]
        for n, (prompt, _) in enumerate(pairs):
            pairs_of[prompt].append(n)
        out = [0.0] * len(pairs)
        for batch in batching.plan([len(p) for p in prompts], [len(n) for n in pairs_of], self.rows):
            M = batching.rows_for(len(batch.prompts), self.rows)
            for first in range(0, len(batch.prompts), M):
                chosen = batch.prompts[first : first + M]
                block = self._read(net, [prompts[p] for p in chosen], M, batch.bucket, prefix)
                todo = [(source, n) for source, prompt in enumerate(chosen) for n in pairs_of[prompt]]
                for start in range(0, len(todo), self.rows):
                    chunk = todo[start : start + self.rows]
                    self._score_chunk(net, chunk, block, [pairs[n][1] for _, n in chunk], prefix, out)
        return out

    def _score_chunk(self, net, chunk, block, continuations, prefix, out) -> None:
        R = batching.rows_for(len(chunk), self.rows)
        C = batching.bucket(max(map(len, continuations)), 1)
        source, tokens = np.zeros(R, np.int32), np.zeros((R, C), np.int32)
        for row, ((prompt, _), ids) in enumerate(zip(chunk, continuations, strict=True)):
            source[row], tokens[row, : len(ids)] = prompt, ids
        log_probs = whole(_score(*net, block, source, tokens, prefix))
        log_probs = np.asarray(log_probs, np.float64)
        for row, ((_, n), ids) in enumerate(zip(chunk, continuations, strict=True)):
            out[n] = float(log_probs[row, : len(ids)].sum())
