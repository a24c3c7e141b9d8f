"""The gradient of a token-level policy loss over replies, in micro-batches, through a shared prefix.

Three things happen here that change memory and time but not the result:
- the static prefix of the prompts is computed once; the gradient with respect to its keys and values
  is summed over the micro-batches and pulled back through it once, which is the exact gradient;
- replies are taken `size` at a time, those that count first, and micro-batches of others are skipped;
- the reference model is the same weights with the adapter left out.

Letters: T turns, J episodes, S prompt bucket, K reply tokens, N micro-batches of M replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.score import score
from nlrl_jax.lm.sharding import whole_rows
from nlrl_jax.losses import episode_token_weights
from nlrl_jax.rollouts.text_games import Turns
from nlrl_jax.text.policy import LanguageAgentPolicy

# (log_probs, old_log_probs, ref_log_probs, advantages, weights) -> (loss, metrics), all sums over replies
Loss = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


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


def log_probs_of(policy: LanguageAgentPolicy, variables: Any, rows: Replies) -> jax.Array:
    """Log-probabilities of the replies under `variables`, [N, M, K], one micro-batch at a time."""
    prefix = policy.prefix(variables)
    return jax.lax.map(lambda row: _score(policy, policy.model, variables, prefix, row), rows)


def loss_and_grad(
    policy: LanguageAgentPolicy,
    loss: Loss,
    params: Any,
    lora: Any,
    rows: Replies,
    reference: bool,
    remat: bool,
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """The summed loss over all replies, its metrics, and its gradient with respect to the adapter.

    Args:
      loss: see `Loss`.
      params: frozen base weights. lora: the adapter.
      reference: also score the replies without the adapter (else the reference is theta itself).
      remat: recompute blocks in the backward pass.
    """
    model = policy.model.clone(remat=remat)
    base = {"params": params}  # the adapter switched off is the reference
    ref_prefix = policy.prefix(base) if reference else None

    def prefix_of(lora):
        return compute_prefix(model, {**base, "lora": lora}, policy.template.prefix)

    def micro_loss(lora, prefix, row):
        new = _score(policy, model, {**base, "lora": lora}, prefix, row)
        old = jax.lax.stop_gradient(new) if row.old_log_probs is None else row.old_log_probs
        ref = _score(policy, model, base, ref_prefix, row) if reference else new
        return loss(new, old, ref, row.advantages, row.weights)

    prefix, pull_back = jax.vjp(prefix_of, lora)
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


def _score(policy, model, variables, prefix, row):
    # The distribution that tokens are sampled from, before any top-k or top-p cut.
    temperature = policy.sampling.temperature or 1.0
    return score(model, variables, row.prompts, row.prompt_lengths, row.replies, prefix, temperature)
