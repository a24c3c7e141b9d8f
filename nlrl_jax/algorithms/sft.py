"""Supervised fine-tuning on replies, one function for every algorithm: prompts are masked, the end token is learned.

    examples = tokenize(tokenizer, [(Chat.of("2 + 2?"), "4")])
    variables, metrics = fit(model, variables, examples, SFTConfig(epochs=2))

A chat is rendered and tokenised once, and its reply apart from it, exactly as the two meet in generation: nothing is
added in front (no second BOS), and the end token is learned because it is part of the reply, whatever token pads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nlrl_jax import losses
from nlrl_jax.lm.generate import left_pad
from nlrl_jax.lm.score import score, token_log_probs
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.text.compile import compile_template
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.template import Template
from nlrl_jax.types import Chat

SCHEDULES = ("constant", "cosine")
_ROUND = 32  # rows are a multiple of this long


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """How a model is fine-tuned. Defaults: NLRL, tables 6 and 9.

    Attributes:
      learning_rate: AdamW's, its peak.
      schedule: "constant", or "cosine" down to zero; either after the warm-up.
      warmup: share of the steps in which the rate rises from zero.
      epochs: passes over the examples.
      batch_size: rows a step. A row is an example, or as many as fit if packed.
      max_length: longest example in tokens; longer ones are left out and counted.
      packed: put several examples into one row of `max_length` tokens; none sees another.
      train: "lora" (the base stays frozen) or "params" (all weights).
      weight_decay, clip_norm, b2: AdamW's decay and second-moment decay; gradients are clipped to this global norm.
      seed: of the order of the examples.
    """

    learning_rate: float = 1e-5
    schedule: str = "constant"
    warmup: float = 0.0
    epochs: int = 2
    batch_size: int = 64
    max_length: int = 1024
    packed: bool = False
    train: str = "params"
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    b2: float = 0.999
    seed: int = 0

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; choose one of {', '.join(SCHEDULES)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is {self.warmup}; it is a share of the steps, at least 0 and below 1")
        for name in ("epochs", "batch_size", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        _check_collection(self.train)


class Batch(NamedTuple):
    """Rows of tokens. B rows, L tokens.

    tokens: int32 [B, L].
    positions: int32 [B, L], from 0 in every example.
    segments: int32 [B, L], which example of its row a token belongs to, from 1; 0 is padding.
    mask: float32 [B, L], 1 on the tokens to learn: replies with their end tokens.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    mask: np.ndarray


class Example(NamedTuple):
    """tokens: prompt, reply and end token. start: index of the reply's first token, at least 1."""

    tokens: list[int]
    start: int


def sft_loss(model: Transformer, variables: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean negative log-likelihood of the tokens that `batch.mask` marks; the first of an example never counts."""
    tokens, segments = jnp.asarray(batch.tokens), jnp.asarray(batch.segments)
    hidden, _ = model.apply(variables, tokens[:, :-1], batch.positions[:, :-1], segments=segments[:, :-1])
    log_probs = token_log_probs(model, variables, hidden, tokens[:, 1:])
    predicted = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return losses.sft(log_probs, batch.mask[:, 1:] * predicted)


def make_sft_step(
    loss_of: Callable[[Any, Any], tuple[jax.Array, dict[str, jax.Array]]],
    optimizer: optax.GradientTransformation,
    train: str = "lora",
) -> Callable[..., tuple[Any, Any, dict[str, jax.Array]]]:
    """A pure step `(variables, opt_state, batch) -> (variables, opt_state, metrics)`; jit it.

    A step whose loss or gradient is not finite changes nothing; its metric "finite" is 0.

    Args:
      loss_of: (variables, batch) -> (loss, metrics). A batch may be whatever it takes, a key that draws one included.
      optimizer: initialised with `variables[train]`.
      train: the collection that learns: "lora" (the base stays frozen) or "params" (all weights).

    Raises:
      ValueError: another `train`.
    """
    _check_collection(train)

    def step(variables, opt_state, batch):
        (loss, aux), grads = jax.value_and_grad(lambda p: loss_of({**variables, train: p}, batch), has_aux=True)(
            variables[train]
        )
        updates, new_state = optimizer.update(grads, opt_state, variables[train])
        grad_norm = optax.global_norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        keep = lambda new, old: jnp.where(finite, new, old)
        learned = jax.tree.map(keep, optax.apply_updates(variables[train], updates), variables[train])
        opt_state = jax.tree.map(keep, new_state, opt_state)
        return {**variables, train: learned}, opt_state, {"loss": loss, **aux, "grad_norm": grad_norm, "finite": finite}

    return step


def tokenize(tokenizer: Tokenizer, pairs: Sequence[tuple[Chat, str]]) -> list[Example]:
    """Chats with the replies they should get, as tokens."""
    end = tokenizer.eos_ids[0]
    prompts: dict[str, list[int]] = {}
    examples = []
    for chat, reply in pairs:
        text = tokenizer.render_chat(chat.messages)
        if text not in prompts:
            prompts[text] = tokenizer.encode(text)
        examples.append(Example([*prompts[text], *tokenizer.encode(reply), end], len(prompts[text])))
    return examples


def make_batches(examples: Sequence[Example], config: SFTConfig, order: np.ndarray) -> list[Batch]:
    """The examples that `order` [N] names, in that order, as batches of `config.batch_size` rows.

    All batches have one shape; the last one is filled up with empty rows.
    """
    longest = max(len(examples[i].tokens) for i in order)
    length = config.max_length if config.packed else min(-(-longest // _ROUND) * _ROUND, config.max_length)
    rows: list[list[Example]] = []
    room: list[int] = []
    open_rows = range(0)
    for i in order:
        example = examples[i]
        size = len(example.tokens)
        place = next((r for r in open_rows if room[r] >= size), None) if config.packed else None
        if place is None:
            rows.append([])
            room.append(length)
            place = len(rows) - 1
            open_rows = range(max(0, len(rows) - 8), len(rows))  # first fit among the last few keeps the order random
        rows[place].append(example)
        room[place] -= size
    return [
        _assemble(rows[i : i + config.batch_size], config.batch_size, length)
        for i in range(0, len(rows), config.batch_size)
    ]


def _assemble(rows: list[list[Example]], batch_size: int, length: int) -> Batch:
    shape = (batch_size, length)
    tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, np.float32)
    for r, row in enumerate(rows):
        first = 0
        for n, example in enumerate(row):
            last = first + len(example.tokens)
            tokens[r, first:last] = example.tokens
            positions[r, first:last] = np.arange(last - first)
            segments[r, first:last] = n + 1
            mask[r, first + example.start : last] = 1
            first = last
    return Batch(tokens, positions, segments, mask)


def fit(
    model: Transformer,
    variables: Any,
    examples: Sequence[Example],
    config: SFTConfig,
    report: Callable[[int, int, dict[str, jax.Array]], None] | None = None,
) -> tuple[Any, dict[str, float]]:
    """Fine-tunes on examples, with a fresh optimizer. The same arguments give the same bits.

    Args:
      report: called with (steps done, steps in all, the step's metrics) after each step.

    Returns:
      (variables with what was learned in them; {"loss": the last epoch's mean, "first_loss": the first
      epoch's, "steps", "examples", "too_long": examples left out, "tokens": learned from, an epoch}).

    Raises:
      ValueError: no example is short enough; a non-finite loss.
    """
    kept = [n for n, example in enumerate(examples) if len(example.tokens) <= config.max_length]
    if not kept:
        raise ValueError(f"none of {len(examples)} examples has at most max_length = {config.max_length} tokens")
    generator = np.random.default_rng(config.seed)
    plan = [make_batches(examples, config, generator.permutation(kept)) for _ in range(config.epochs)]
    total = sum(map(len, plan))
    rate = _schedule(config, total)
    optimizer, step = _compiled(model, config.train, config.weight_decay, config.clip_norm, config.b2)
    opt_state = optimizer.init(variables[config.train])
    done, seen = 0, []
    for batches in plan:
        found = []
        for batch in batches:
            opt_state.hyperparams["learning_rate"] = jnp.asarray(rate(done), jnp.float32)
            variables, opt_state, metrics = step(variables, opt_state, batch)
            found.append(metrics)
            done += 1
            if report:
                report(done, total, metrics)
        found = jax.device_get(found)
        if not all(metrics["finite"] for metrics in found):
            raise ValueError(f"SFT met a non-finite loss at learning rate {config.learning_rate}; lower it")
        tokens = [metrics["tokens"] for metrics in found]
        seen.append(float(np.average([metrics["loss"] for metrics in found], weights=tokens)))
    return variables, {
        "loss": seen[-1],
        "first_loss": seen[0],
        "steps": total,
        "examples": len(kept),
        "too_long": len(examples) - len(kept),
        "tokens": float(np.sum(tokens)),
    }


@functools.lru_cache(maxsize=16)
def _compiled(model: Transformer, train: str, weight_decay: float, clip_norm: float, b2: float):
    """(optimizer, jitted step), one for all fits of a model: the learning rate is an input."""

    @optax.inject_hyperparams
    def make(learning_rate):
        adamw = optax.adamw(learning_rate, b2=b2, weight_decay=weight_decay)
        return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)

    optimizer = make(learning_rate=0.0)
    return optimizer, jax.jit(make_sft_step(functools.partial(sft_loss, model), optimizer, train))


def _schedule(config: SFTConfig, steps: int) -> Callable[[int], float]:
    """Step -> learning rate."""
    warm = int(np.ceil(config.warmup * steps))

    def rate(step: int) -> float:
        if step < warm:
            return config.learning_rate * (step + 1) / warm
        if config.schedule == "constant":
            return config.learning_rate
        return config.learning_rate * 0.5 * (1 + np.cos(np.pi * (step - warm) / max(steps - warm, 1)))

    return rate


def _check_collection(train: str) -> None:
    if train not in ("lora", "params"):
        raise ValueError(f"train is {train!r}; choose 'lora' or 'params'")


# Demonstrations of a batch: key -> (fields, each [B, ...]; actions int32 [B, A], -1 behind the last one).
Demonstrate = Callable[[jax.Array], tuple[dict[str, jax.Array], jax.Array]]


def demonstration_loss(policy: LanguageAgentPolicy, reply: Template, demonstrate: Demonstrate):
    """SFT on new demonstrations: a pure (variables, key) -> (loss, metrics); prompts masked, the end learned."""
    assemble = compile_reply(reply, policy.tokenizer)

    def loss_of(variables, key):
        fields, actions = demonstrate(key)
        prompts, lengths = jax.vmap(policy.template)(fields)
        replies, reply_lengths = jax.vmap(assemble)(fields, actions)
        log_probs = score(
            policy.model, variables, left_pad(prompts, lengths), lengths, replies, policy.prefix(variables)
        )
        return losses.sft(log_probs, jnp.arange(replies.shape[1]) < reply_lengths[:, None])

    return loss_of


def compile_reply(reply: Template, tokenizer: Tokenizer):
    """(fields, actions int32 [A]) -> (tokens int32 [K], length with the end token), for one state under jit."""
    compiled = compile_template(reply, tokenizer)
    first, end = len(compiled.prefix), tokenizer.eos_ids[0]

    def assemble(fields, actions):
        shown = {"shown": jnp.maximum(actions, 0), "num_shown": jnp.sum(actions >= 0, dtype=jnp.int32)}
        tokens, length = compiled({**fields, **shown})
        tokens = jnp.concatenate([jnp.asarray(compiled.prefix), tokens, jnp.zeros(1, tokens.dtype)])
        length = first + length
        return tokens.at[length].set(end), length + 1

    return assemble
