"""The gradient of a token-level policy loss over replies, in micro-batches, through a shared prefix.

Three things happen here that change memory and time but not the result:
- the static prefix of the prompts is computed once; the gradient with respect to its keys and values
  is summed over the micro-batches and pulled back through it once, which is the exact gradient;
- replies are taken `size` at a time, those that count first, and micro-batches of others are skipped;
- the reference model is the same weights with the adapter left out.

Letters: T turns, J episodes, S prompt bucket, K reply tokens, N micro-batches of M replies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm.score import score
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.lm.transformer import KeyValues, Transformer
from nlrl_jax.losses import episode_token_weights
from nlrl_jax.rollouts.text_games import Turns
from nlrl_jax.text.policy import LanguageAgentPolicy

# (log_probs, old_log_probs, ref_log_probs, advantages, weights) -> (loss, metrics), all sums over replies
Loss = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


class Policy(Protocol):
    """A model with what its rows need to be scored; a frozen dataclass, such as `LanguageAgentPolicy`."""

    model: Transformer

    def prefix(self, variables: Any) -> KeyValues | None:
        """Keys and values of what all rows begin with."""


class Rows(Protocol):
    """Micro-batches [N, M, ...] to learn from: a pytree with methods for one micro-batch, such as `Replies`.

    weights [N, M, K]: 0 where a token does not count. old_log_probs [N, M, K], or None: those of this step.
    """

    weights: jax.Array
    old_log_probs: jax.Array | None

    def score(self, policy: Any, variables: Any, prefix: KeyValues | None) -> jax.Array: ...

    def loss(self, objective: Loss, new: jax.Array, old: jax.Array, reference: jax.Array) -> Any: ...


class Replies(NamedTuple):
    """Micro-batches of replies to learn from, leading axes [N, M].

    prompts [N, M, S] left-padded, prompt_lengths [N, M], replies [N, M, K], weights [N, M, K] (0 where a
    token does not count), advantages [N, M]; old_log_probs [N, M, K], or None: those of this step.
    """

    prompts: jax.Array
    prompt_lengths: jax.Array
    replies: jax.Array
    weights: jax.Array
    advantages: jax.Array
    old_log_probs: jax.Array | None = None

    def score(self, policy: LanguageAgentPolicy, variables: Any, prefix: KeyValues | None) -> jax.Array:
        """Log-probabilities of one micro-batch of replies, [M, K]."""
        # The distribution that tokens are sampled from, before any top-k or top-p cut.
        temperature = policy.sampling.temperature or 1.0
        return score(policy.model, variables, self.prompts, self.prompt_lengths, self.replies, prefix, temperature)

    def loss(self, objective: Loss, new: jax.Array, old: jax.Array, reference: jax.Array) -> Any:
        """The objective of one micro-batch, from the log-probabilities of its replies."""
        return objective(new, old, reference, self.advantages, self.weights)


def micro_batches(
    turns: Turns, advantages: jax.Array, size: int, mesh: Mesh | None = None, reference: bool = True
) -> Replies:
    """Lays the turns of J episodes [T, J, ...] out as micro-batches of `size` replies (0: all in one).

    Args:
      mesh: the size is rounded up to a multiple of the devices that share a batch.
      advantages: [J], A_j, which every reply of an episode gets; or [T, J], of each reply.
      reference: replies whose advantage is 0 count too, as a KL penalty moves them. Without one they have no gradient
        and are left out: in groups of equal returns nothing is computed.
    """
    T, J = turns.active.shape
    turn = turns.turn
    K = turn.replies.shape[-1]
    mask = (jnp.arange(K) < turn.reply_lengths[..., None]) & turns.active[..., None]  # [T, J, K]
    weights = jnp.swapaxes(episode_token_weights(jnp.swapaxes(mask, 0, 1)), 0, 1)
    advantages = jnp.broadcast_to(advantages, (T, J))
    counts = turns.active if reference else turns.active & (advantages != 0)
    weights = jnp.where(counts[..., None], weights, 0.0)
    rows = Replies(turn.prompts, turn.prompt_lengths, turn.replies, weights, advantages)

    counted_first = jnp.argsort(~counts.reshape(-1), stable=True)
    size = whole_rows(min(size or T * J, T * J), mesh)
    num = -(-T * J // size)

    def lay_out(x):
        x = x.reshape(T * J, *x.shape[2:])[counted_first]
        x = jnp.pad(x, ((0, num * size - T * J),) + ((0, 0),) * (x.ndim - 1))
        return x.reshape(num, size, *x.shape[1:])

    rows = jax.tree.map(lay_out, rows)
    # Padding rows and turns that were not played have no prompt token to predict from; they weigh nothing.
    return rows._replace(prompt_lengths=jnp.maximum(rows.prompt_lengths, 1))


def log_probs_of(policy: Policy, variables: Any, rows: Rows) -> jax.Array:
    """Log-probabilities of what is learned under `variables`, [N, M, K], one micro-batch at a time."""
    prefix = policy.prefix(variables)
    return jax.lax.map(lambda row: row.score(policy, variables, prefix), rows)


def loss_and_grad(
    policy: Policy,
    loss: Loss,
    params: Any,
    lora: Any,
    rows: Rows,
    reference: bool,
    remat: bool,
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """The summed loss over all rows, its metrics, and its gradient with respect to the adapter.

    Args:
      loss: see `Loss`.
      params: frozen base weights. lora: the adapter.
      reference: also score the rows without the adapter (else the reference is theta itself).
      remat: recompute blocks in the backward pass.
    """
    base = {"params": params}  # the adapter switched off is the reference
    ref_prefix = policy.prefix(base) if reference else None
    policy = dataclasses.replace(policy, model=policy.model.clone(remat=remat))

    def micro_loss(lora, prefix, row):
        new = row.score(policy, {**base, "lora": lora}, prefix)
        old = jax.lax.stop_gradient(new) if row.old_log_probs is None else row.old_log_probs
        ref = row.score(policy, base, ref_prefix) if reference else new
        return row.loss(loss, new, old, ref)

    prefix, pull_back = jax.vjp(lambda lora: policy.prefix({**base, "lora": lora}), lora)
    grad = jax.value_and_grad(micro_loss, argnums=(0, 1), has_aux=True)
    shapes = jax.eval_shape(grad, lora, prefix, jax.tree.map(lambda x: x[0], rows))
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def accumulate(total, row):
        add = lambda total: jax.tree.map(jnp.add, total, grad(lora, prefix, row))
        return jax.lax.cond(jnp.any(row.weights > 0), add, lambda total: total, total), None

    ((value, metrics), (grads, prefix_grads)), _ = jax.lax.scan(accumulate, nothing, rows)
    if prefix is not None:
        grads = jax.tree.map(jnp.add, grads, pull_back(prefix_grads)[0])
    return value, metrics, grads
