"""Supervised fine-tuning on replies, one function for every algorithm: prompts are masked, the end token is learned.

    examples = tokenize(tokenizer, [(Chat.of("2 + 2?"), "4")])
    variables, metrics = fit(model, variables, examples, SFTConfig(epochs=2))

A chat is rendered and tokenised once, and its reply apart from it, exactly as the two meet in generation: nothing is
added in front (no second BOS), and the end token is learned because it is part of the reply, whatever token pads. What
continues an open message has no end token.

A reply may also be given in pieces, each tokenised by itself and with a weight of its own in the loss. So one example
holds a whole transcript in which some parts are learned and others only read, and a policy gradient is the same loss
with returns as weights.

    pieces = [Piece("turn left\\nObservation:", 0), Piece(" You see a wall\\n"), Piece("Action:", 0), ...]
    examples = tokenize(tokenizer, [(Chat.of("Goal: ...", continued="Action:"), pieces)])
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
from jax.sharding import Mesh

from nlrl_jax import losses
from nlrl_jax.algorithms.sft_examples import Example, check_examples, tokenize
from nlrl_jax.config import check, option, seed_option
from nlrl_jax.lm import placement
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Learn
from nlrl_jax.updates import check_masters, masters

SCHEDULES = ("constant", "cosine")
TRAIN = ("lora", "params")


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning (SFT).

    Defaults: NLRL, tables 6 and 9.
    """

    learning_rate: float = option(1e-5, "peak learning rate of AdamW in SFT", above=0)
    schedule: str = option("constant", "learning rate after the warm-up; cosine falls to 0", choices=SCHEDULES)
    warmup: float = option(0.0, "share of the SFT steps in which the learning rate rises from 0", least=0, below=1)
    epochs: int = option(2, "SFT passes over the examples", least=1)
    batch_size: int = option(64, "rows per SFT step; a row is an example, or several if packed", least=1)
    max_length: int = option(1024, "maximum tokens per row; longer examples are left out and counted", least=1)
    packed: bool = option(False, "put several examples into one row; none attends to another")
    train: str = option("params", "weights that learn: lora (the base stays frozen) or params (all)", choices=TRAIN)
    weight_decay: float = option(0.0, "AdamW's weight decay", least=0)
    clip_norm: float = option(1.0, "maximum global norm of a gradient", above=0)
    b2: float = option(0.999, "AdamW's decay of the second moment", least=0, below=1)
    micro_batch: int = option(0, "rows differentiated at a time in SFT (less memory, same result); 0: all", least=0)
    remat: bool = option(False, "recompute blocks in SFT's backward pass: less memory, same result")
    seed: int = seed_option("of the order of the examples")

    def __post_init__(self):
        check(self)


class SFTBatch(NamedTuple):
    """Rows of tokens. B rows, L tokens.

    tokens: int32 [B, L].
    positions: int32 [B, L], from 0 in every example.
    segments: int32 [B, L], which example of its row a token belongs to, from 1; 0 is padding.
    weights: float32 [B, L], of the tokens to learn (1 on replies with their end tokens), 0 on others.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    weights: np.ndarray


def sft_loss(model: Transformer, variables: Any, batch: SFTBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean negative log-likelihood of the tokens, weighted by `batch.weights`; an example's first never counts."""
    tokens, segments = jnp.asarray(batch.tokens), jnp.asarray(batch.segments)
    hidden, _ = model.apply(variables, tokens[:, :-1], batch.positions[:, :-1], segments=segments[:, :-1])
    log_probs = token_log_probs(model, variables, hidden, tokens[:, 1:])
    # A token counts where the one before it is of the same example: the first of each has nothing to be predicted from.
    predicted = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return losses.sft(log_probs, batch.weights[:, 1:] * predicted)


def make_sft_step(
    loss_of: Callable[[Any, Any], tuple[jax.Array, dict[str, jax.Array]]],
    optimizer: optax.GradientTransformation,
    train: str = "lora",
    micro_batch: int = 0,
    mesh: Mesh | None = None,
    short_weights: bool = False,
) -> Callable[..., tuple[Any, Any, dict[str, jax.Array]]]:
    """A pure step `(variables, opt_state, batch) -> (variables, opt_state, metrics)`; jit it.

    A step whose loss or gradient is not finite changes nothing; its metric "finite" is 0.

    Args:
      loss_of: (variables, batch) -> (loss, metrics). A batch may be whatever it takes.
      optimizer: initialised with `variables[train]`.
      train: the collection that learns: "lora" (the base stays frozen) or "params" (all weights).
      micro_batch: rows of a batch whose gradient is computed at a time, so `loss_of` must be a mean over tokens, with
        the metrics of `losses.sft`, and the arrays of a batch [B, ...] are filled up with zeros. 0: the batch as it is.
      mesh: micro-batches are rounded up to equally many rows on each of the devices that share them.
      short_weights: allow weights below float32 to learn, though small steps round to nothing: to measure memory.

    Raises:
      ValueError: another `train`; from the step, weights below float32 (see `updates.masters`).
    """
    if train not in TRAIN:
        raise ValueError(f"train is {train!r}; choose one of {', '.join(TRAIN)}")

    def step(variables, opt_state, batch):
        if not short_weights:
            check_masters(variables[train])
        grad_of = jax.value_and_grad(lambda p, rows: loss_of({**variables, train: p}, rows), has_aux=True)
        (loss, aux), grads = (
            _accumulate(grad_of, variables[train], batch, whole_rows(micro_batch, mesh))
            if micro_batch
            else grad_of(variables[train], batch)
        )
        updates, new_state = optimizer.update(grads, opt_state, variables[train])
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

        def keep(new, old):
            return jnp.where(finite, new, old)

        learned = jax.tree.map(keep, optax.apply_updates(variables[train], updates), variables[train])
        opt_state = jax.tree.map(keep, new_state, opt_state)
        return {**variables, train: learned}, opt_state, {"loss": loss, **aux, "grad_norm": grad_norm, "finite": finite}

    return step


def _accumulate(grad_of, learned: Any, batch: Any, size: int) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Any]:
    """((mean loss, metrics), gradient) of all rows of a batch, `size` at a time."""
    rows = len(jax.tree.leaves(batch)[0])
    num = -(-rows // size)

    def lay_out(x):
        x = jnp.asarray(x)
        return jnp.pad(x, ((0, num * size - rows),) + ((0, 0),) * (x.ndim - 1)).reshape(num, size, *x.shape[1:])

    def add(total, part):
        (loss, metrics), grads = grad_of(learned, part)
        # Means over tokens, so parts are weighted by their tokens; a perplexity is averaged as its logarithm.
        tokens = metrics["tokens"]
        sums = jax.tree.map(lambda x: tokens * x, (loss, jnp.log(metrics["perplexity"]), grads))
        return jax.tree.map(jnp.add, total, (*sums, tokens)), None

    parts = jax.tree.map(lay_out, batch)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), learned)
    (loss, log_loss, grads, tokens), _ = jax.lax.scan(add, (jnp.zeros(()), jnp.zeros(()), zeros, jnp.zeros(())), parts)
    loss, log_loss, grads = jax.tree.map(lambda x: x / jnp.maximum(tokens, 1.0), (loss, log_loss, grads))
    return (loss, {"perplexity": jnp.exp(log_loss), "tokens": tokens}), grads


def make_batches(
    examples: Sequence[Example], config: SFTConfig, order: np.ndarray, multiple: int = 32
) -> list[SFTBatch]:
    """The examples that `order` [N] names, in that order, as batches of `config.batch_size` rows.

    All batches have one shape; the last one is filled up with empty rows.

    Args:
      multiple: of which rows that are not packed are long, as far as `config.max_length` allows.
    """
    longest = max(len(examples[i].tokens) for i in order)
    length = config.max_length if config.packed else min(-(-longest // multiple) * multiple, config.max_length)
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


def _assemble(rows: list[list[Example]], batch_size: int, length: int) -> SFTBatch:
    shape = (batch_size, length)
    tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
    weights = np.zeros(shape, np.float32)
    for r, row in enumerate(rows):
        first = 0
        for n, example in enumerate(row):
            last = first + len(example.tokens)
            tokens[r, first:last] = example.tokens
            positions[r, first:last] = np.arange(last - first)
            segments[r, first:last] = n + 1
            weights[r, first + example.start : last] = example.weights or 1
            first = last
    return SFTBatch(tokens, positions, segments, weights)


def fit(
    model: Transformer,
    variables: Any,
    examples: Sequence[Example],
    config: SFTConfig,
    report: Callable[[int, int, dict[str, jax.Array]], None] | None = None,
) -> tuple[Any, dict[str, float]]:
    """Fine-tunes on examples, with a fresh optimizer. The same arguments give the same bits.

    Weights that learn are float32 from here on, also those given as bfloat16 (`updates.masters`): a model computes in
    `config.dtype` whatever its weights are.

    Args:
      report: called with (steps done, steps in all, the step's metrics) after each step.

    Returns:
      (variables with what was learned in them; {"loss": the last epoch's mean, "first_loss": the first
      epoch's, "steps", "examples", "too_long": examples left out, "tokens": learned from, an epoch}).

    Raises:
      ValueError: no example, or none that is short enough; one that is malformed; no token is to be learned; variables
        without what trains; a non-finite loss.
    """
    if not examples:
        raise ValueError("there is no example to learn from")
    short = [n for n, example in enumerate(examples) if len(example.tokens) <= config.max_length]
    if not short:
        raise ValueError(f"all of {len(examples)} examples are longer than max_length = {config.max_length} tokens")
    check_examples(model.config.vocab_size, short, examples)
    if config.train not in variables:
        raise ValueError(f"train is {config.train!r}, but the variables have only {', '.join(variables) or 'nothing'}")
    # All batches are planned ahead, since the schedule of the learning rate needs their number.
    generator = np.random.default_rng(config.seed)
    plan = [make_batches(examples, config, generator.permutation(short)) for _ in range(config.epochs)]
    total = sum(map(len, plan))
    network, memory = model.clone(remat=config.remat), config.micro_batch
    optimizer, step = _compiled(network, config.train, config.weight_decay, config.clip_norm, config.b2, memory)
    learned = jax.tree.map(jnp.copy, masters(variables[config.train]))  # a step gives away what it is given
    opt_state = placement.start(optimizer, learned, model.mesh)
    frozen = {name: tree for name, tree in variables.items() if name != config.train}
    done, epoch_losses = 0, []
    for batches in plan:
        steps = []
        for batch in batches:
            # An input of the compiled step: one program for all rates and schedules.
            opt_state.hyperparams["learning_rate"] = jnp.asarray(rate_at(config, done, total), jnp.float32)
            learned, opt_state, metrics = step(frozen, learned, opt_state, batch)
            steps.append(metrics)
            done += 1
            if report:
                report(done, total, metrics)
        # Fetched once an epoch, so that the host does not wait for each step.
        steps = jax.device_get(steps)
        if not all(metrics["finite"] for metrics in steps):
            raise ValueError(f"SFT met a non-finite loss at learning rate {config.learning_rate}; lower it")
        tokens = [metrics["tokens"] for metrics in steps]
        if not sum(tokens):
            raise ValueError(f"no token of {len(short)} examples is to be learned: all weights are 0")
        epoch_losses.append(float(np.average([metrics["loss"] for metrics in steps], weights=tokens)))
    return {**variables, config.train: learned}, {
        "loss": epoch_losses[-1],
        "first_loss": epoch_losses[0],
        "steps": total,
        "examples": len(short),
        "too_long": len(examples) - len(short),
        "tokens": float(np.sum(tokens)),
    }


def learner(config: SFTConfig) -> Learn:
    """A function that fine-tunes a local model, behind whatever wrappers, on chats and replies.

    Where there is no example, or none fits a row, the model stays as it is and the metrics say so.
    """

    def learn(model, pairs):
        local = model.facts.local
        examples = tokenize(local.tokenizer, pairs)
        if all(len(example.tokens) > config.max_length for example in examples):
            return model, {"examples": 0, "too_long": len(examples)}
        variables, metrics = fit(local.model, local.variables, examples, config)
        return model.rewrap(lambda _: local.with_variables(variables)), metrics

    return learn


@functools.lru_cache(maxsize=16)
def _compiled(model: Transformer, train: str, weight_decay: float, clip_norm: float, b2: float, micro_batch: int):
    """(optimizer, jitted step), one for all fits of a model: the learning rate is an input."""

    @optax.inject_hyperparams
    def make(learning_rate):
        adamw = optax.adamw(learning_rate, b2=b2, weight_decay=weight_decay)
        return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)

    optimizer = make(learning_rate=0.0)
    step = make_sft_step(functools.partial(sft_loss, model), optimizer, train, micro_batch, model.mesh)

    def in_place(frozen, learned, opt_state, batch):
        variables, new_state, metrics = step({**frozen, train: learned}, opt_state, batch)
        return placement.stay(model, optimizer, train, variables[train], new_state, metrics)

    return optimizer, jax.jit(in_place, donate_argnums=(1, 2))


def rate_at(config: SFTConfig, step: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, of `steps`."""
    warm = int(np.ceil(config.warmup * steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    if config.schedule == "constant":
        return config.learning_rate
    # Cosine from the full rate after the warm-up to 0.
    return config.learning_rate * 0.5 * (1 + np.cos(np.pi * (step - warm) / max(steps - warm, 1)))
