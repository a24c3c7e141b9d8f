"""Transcripts of episodes as rows to learn from: each token is read once, and short transcripts share a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.policy_gradient import Loss
from nlrl_jax.backends.batching import bucket
from nlrl_jax.lm.acting import is_large
from nlrl_jax.lm.cache import KeyValues
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.score import is_mostly_head, token_log_probs
from nlrl_jax.lm.sharding import platform_of, whole_rows
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.rollouts.transcripts import TranscriptTurn

KEY_READS = 34  # multiplications in the time that loading a key and reading it for all its queries take
# Tokens that keep a large model busy; more of them in a micro-batch only take memory: 24 layers of Qwen2.5-0.5B take
# some 0.2 MB a token and layer for their gradient.
ENOUGH = {"cpu": 512}
ENOUGH_ELSEWHERE = 2048
SHORTEST = 256  # tokens of a small model's rows on a CPU, which several short transcripts share
FEW_TOKENS = 1024  # of a micro-batch of a small model on a CPU, whose activations so stay in the cache


class Transcript(NamedTuple):
    """Tokens that were read in one go, from the first on, and which of them the model wrote.

    at: places of those, each at least 1. weights, advantages, log_probs (when they were sampled): of each.
    """

    tokens: list[int]
    at: list[int]
    weights: list[float]
    advantages: list[float]
    log_probs: list[float]


class TranscriptRows(NamedTuple):
    """Micro-batches [N, M] of rows of L tokens, of which K are learned; `policy_gradient.LearnedRows`.

    tokens, positions, segments: int32 [N, M, L]; segments: which transcript of its row a token belongs to, from 1.
    at: int32 [N, M, K], places of the learned tokens. weights, advantages, sampled: float32 [N, M, K]; weights are 0
    where there is none, sampled are the log-probabilities that the tokens were drawn with, or None.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    at: jax.Array
    weights: jax.Array
    advantages: jax.Array
    sampled: jax.Array | None
    old_log_probs: jax.Array | None = None

    def score(self, policy: Any, variables: Any, prefix: KeyValues | None) -> jax.Array:
        """Log-probabilities of the learned tokens of one micro-batch, [M, K], as they are sampled (before top-k)."""

        def take(x, places):
            return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)

        hidden, _ = policy.model.apply(variables, self.tokens, self.positions, prefix=prefix, segments=self.segments)
        targets = take(self.tokens, self.at)
        learned = take(hidden, self.at - 1)
        # On a mesh rows are on several devices, which would have to agree on what to leave out.
        counts = self.weights > 0 if policy.model.mesh is None else None
        return token_log_probs(policy.model, variables, learned, targets, policy.temperature, counts=counts)

    def loss(self, objective: Loss, new: jax.Array, old: jax.Array, reference: jax.Array) -> Any:
        """The objective of one micro-batch, in which each token has the advantage of its own turn."""

        def column(x):
            return x.reshape(-1, 1)

        columns = column(new), column(old), column(reference)
        value, metrics = objective(*columns, self.advantages.reshape(-1), column(self.weights))
        if self.sampled is not None:
            metrics["sampler_gap"] = jnp.sum(self.weights * jnp.abs(new - self.sampled))
        return value, metrics


def transcripts_of(
    turns: Sequence[TranscriptTurn], advantages: Sequence[float], weight: float, begin: tuple[int, ...] = ()
) -> list[Transcript]:
    """The turns of an episode as they were read: one transcript, or several where a prompt does not continue the last.

    Args:
      advantages: of each turn. weight: of each token.
      begin: what every prompt begins with (`PlayedTranscript.begins`); the transcripts hold what follows.
    """
    transcripts: list[Transcript] = []
    for turn, advantage in zip(turns, advantages, strict=False):
        for prompt, reply in turn.replies:
            prompt = prompt[len(begin) :]
            last = transcripts[-1].tokens if transcripts else None
            # The prompt continues what has been read (`last` is the transcript's own list): only new tokens are added.
            if last and list(prompt[: len(last)]) == last:
                last += prompt[len(last) :]
            else:
                transcripts.append(Transcript(list(prompt), [], [], [], []))
            tokens, at, weights, credits, log_probs = transcripts[-1]
            n = len(reply.tokens)
            # Only what the model wrote is learned; observations are read.
            at += range(len(tokens), len(tokens) + n)
            tokens += reply.tokens
            weights += [weight] * n
            credits += [float(advantage)] * n
            log_probs += reply.log_probs
    return transcripts


def rows_at_a_time(rows: int, length: int, micro_batch: int, model: Transformer) -> int:
    """Rows of a micro-batch, see `pack`."""
    size = max(1, bucket(rows, 1) // 8)
    if has_one_shape(model):
        return micro_batch or max(1, FEW_TOKENS // length)
    if model.mesh is None and is_large(model.config):
        size = min(size, max(1, enough() // length))
    return whole_rows(min(micro_batch, rows) or size, model.mesh)


def has_one_shape(model: Transformer) -> bool:
    """Whether the shapes of micro-batches depend on the length of rows alone: a small model on a CPU, where a program
    takes as long to compile as several updates."""
    return model.mesh is None and platform_of(None) == "cpu" and not is_large(model.config)


def enough() -> int:
    """Tokens of a micro-batch of a large model, where there is no mesh."""
    return ENOUGH.get(platform_of(None), ENOUGH_ELSEWHERE)


def _is_slow_to_compile(model: Transformer) -> bool:
    """Whether compiling an update takes as long as several of its rows: a large model on a CPU."""
    return is_large(model.config) and model.mesh is None and platform_of(None) == "cpu"


def work_of(config: ModelConfig, rows: int, length: int) -> float:
    """Multiplications for rows of `length` tokens each, and what takes as long: the reading of keys and values."""
    table = config.vocab_size * config.hidden_size
    blocks = config.num_params - table * (1 if config.tie_embeddings else 2)
    keys = rows * length * (length * config.num_heads + KEY_READS * config.num_kv_heads)
    return rows * length * blocks + 2 * keys * config.head_dim * config.num_layers


def fill(
    transcripts: Sequence[Transcript], room: int, micro_batch: int, model: Transformer
) -> tuple[int, list[list[Transcript]]]:
    """The length of the rows, and the transcripts of each.

    A small model has a power of two, as compiling costs more than padding; on a CPU `SHORTEST` at least. A large one
    has on an accelerator the cheapest of some lengths, from the longest transcript's to twice as much or `enough`; on a
    CPU, where compiling takes as long as several rows, a multiple of `enough`, or a power of two where all are shorter
    together.
    """
    longest, total = (f(len(transcript.tokens) for transcript in transcripts) for f in (max, sum))
    power = bucket(longest, SHORTEST if has_one_shape(model) else 64)
    if not is_large(model.config):
        length = min(power, room)
        return length, first_fit(transcripts, length)
    if _is_slow_to_compile(model):
        length = min(-(-longest // enough()) * enough(), bucket(total, 64), room)
        return length, first_fit(transcripts, length)

    def cost(layout: tuple[int, list[list[Transcript]]]) -> float:
        length, rows = layout
        size = rows_at_a_time(len(rows), length, micro_batch, model)
        # Rows of the last micro-batch are computed even where they are empty.
        computed = -(-len(rows) // size) * size
        return work_of(model.config, computed, length)

    # Candidates for the length, a sixteenth of a power of two apart, so that different batches share programs.
    step = max(power // 16, 16)
    shortest = -(-longest // step) * step
    lengths = {min(n, room) for n in range(shortest, max(shortest, min(2 * power, enough())) + 1, step)}
    return min(((length, first_fit(transcripts, length)) for length in sorted(lengths)), key=cost)


def first_fit(transcripts: Sequence[Transcript], length: int) -> list[list[Transcript]]:
    """Rows of at most `length` tokens: the longest transcript first, each in the first row with room for it."""
    rows: list[list[Transcript]] = []
    free: list[int] = []
    for transcript in sorted(transcripts, key=lambda transcript: -len(transcript.tokens)):
        place = next((r for r, space in enumerate(free) if space >= len(transcript.tokens)), None)
        if place is None:
            place = len(rows)
            rows.append([])
            free.append(length)
        rows[place].append(transcript)
        free[place] -= len(transcript.tokens)
    return rows


def pack(
    transcripts: Sequence[Transcript], room: int, first: int, micro_batch: int, model: Transformer
) -> TranscriptRows:
    """Transcripts as micro-batches of few different shapes; several share a row, the longest are placed first.

    Args:
      room: tokens of a row at most. first: position of a transcript's first token.
      micro_batch: rows of a micro-batch; 0: an eighth of all, of a large model without a mesh at most `enough` tokens,
        of a small one on a CPU `FEW_TOKENS`. Rounded up to equally many on a mesh's devices.
      model: that reads them; the rows of a large one are filled better, in more different shapes.
    """
    length, rows = fill(transcripts, room, micro_batch, model)
    size = rows_at_a_time(len(rows), length, micro_batch, model)
    # Few programs are compiled: numbers of learned tokens are powers of two, those of micro-batches of 8, or of 64
    # where a micro-batch is a row, as empty ones are skipped. On a CPU there are still fewer: a large model's chunks of
    # tokens that are not learned are skipped too, and the head's share of a small model's work is small.
    is_slow, one_shape = _is_slow_to_compile(model), has_one_shape(model)
    num = 64 if is_slow and size == 1 else 8 if one_shape else 1
    while num * size < len(rows):
        num *= 64 if size == 1 else 8
    most = max(sum(len(transcript.at) for transcript in row) for row in rows)
    fewest = max(16, length // 4) if one_shape and not is_mostly_head(model.config) else 16
    learned = min(bucket(most, enough()), length) if is_slow else bucket(most, fewest)

    def ints(last):
        return np.zeros((num * size, last), np.int32)

    def floats():
        return np.zeros((num * size, learned), np.float32)

    out = TranscriptRows(ints(length), ints(length), ints(length), ints(learned) + 1, floats(), floats(), floats())
    for r, row in enumerate(rows):
        start, k = 0, 0
        for segment, transcript in enumerate(row, 1):
            here, learned_at = np.s_[r, start : start + len(transcript.tokens)], np.s_[r, k : k + len(transcript.at)]
            out.tokens[here], out.positions[here] = transcript.tokens, first + np.arange(len(transcript.tokens))
            out.segments[here] = segment
            out.at[learned_at] = start + np.array(transcript.at)
            out.weights[learned_at], out.advantages[learned_at], out.sampled[learned_at] = (
                transcript.weights,
                transcript.advantages,
                transcript.log_probs,
            )
            start, k = start + len(transcript.tokens), k + len(transcript.at)
    return jax.tree.map(lambda x: x.reshape(num, size, -1), out)
