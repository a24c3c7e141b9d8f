"""Functional losses: arrays in, (loss, metrics) out. Imports no model.

Letters: B sequences, K reply tokens, J episodes, T turns. A shape that differs from a docstring's is a ValueError.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from nlrl_jax.arrays import expect, present, single_or_wider

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(log_probs: jax.Array, ref_log_probs: jax.Array, estimator: str = "k3") -> jax.Array:
    """A per-token estimate of KL(p_theta || p_ref) from tokens drawn from p_theta, same shape.

    With d = log p_ref - log p_theta: k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1 (Schulman, "Approximating KL
    divergence"; GRPO uses k3). The paper leaves the choice open.
    """
    expect("...", log_probs=log_probs, ref_log_probs=ref_log_probs)
    d = ref_log_probs - log_probs
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return 0.5 * d * d
    if estimator == "k3":
        return jnp.exp(d) - d - 1.0
    raise ValueError(f"KL estimator {estimator!r} is not known; choose one of {', '.join(KL_ESTIMATORS)}")


def episode_token_weights(mask: jax.Array) -> jax.Array:
    """1 / (J |y_j|) on each counted token: equation 1's two averages as one weight a token.

    Args:
      mask: [J, T, K], 1 where a token was generated. |y_j| counts an episode's tokens over all turns.

    Returns: float32 [J, T, K]; an episode without tokens weighs nothing.
    """
    expect("J T K", mask=mask)
    mask = mask.astype(bool).astype(jnp.float32)
    tokens = jnp.sum(mask, axis=(1, 2), keepdims=True)
    return mask / (jnp.maximum(tokens, 1.0) * mask.shape[0])


def ms_grpo(
    log_probs: jax.Array,
    old_log_probs: jax.Array,
    ref_log_probs: jax.Array,
    advantages: jax.Array,
    weights: jax.Array,
    *,
    clip_low: float = 0.1,
    clip_high: float = 0.1,
    beta: float = 0.1,
    kl_estimator: str = "k3",
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The negative MS-GRPO objective (equations 1-3) of B sequences, as a sum.

    Because the averages of equation 1 are in `weights`, the losses of micro-batches add up to the
    loss of the whole batch.

    Args:
      log_probs, old_log_probs, ref_log_probs: [B, K] of each generated token under theta, theta_old
        and the reference. Only the first carries gradients.
      advantages: [B], A_j of the episode that a sequence belongs to.
      weights: [B, K], from `episode_token_weights`; 0 where a token does not count.

    Returns: (scalar, {"kl", "clip_fraction"}: weighted sums over the tokens, so they add up too).
    """
    per_token = {"log_probs": log_probs, "old_log_probs": old_log_probs, "ref_log_probs": ref_log_probs}
    expect("B", expect("B K", **per_token, weights=weights), advantages=advantages)
    counted = weights > 0
    # Replace what does not count before exp(): 0 * inf would poison the gradient.
    log_probs = jnp.where(counted, log_probs, 0.0)
    old_log_probs = jax.lax.stop_gradient(jnp.where(counted, old_log_probs, 0.0))
    ref_log_probs = jax.lax.stop_gradient(jnp.where(counted, ref_log_probs, 0.0))

    ratio = jnp.exp(log_probs - old_log_probs)  # w_{j,t,k}
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    A = advantages[:, None]
    surrogate = jnp.minimum(ratio * A, clipped * A)
    kl = kl_estimate(log_probs, ref_log_probs, kl_estimator)
    objective = jnp.sum(weights * (surrogate - beta * kl))
    was_clipped = (clipped * A < ratio * A).astype(weights.dtype)
    return -objective, {"kl": jnp.sum(weights * kl), "clip_fraction": jnp.sum(weights * was_clipped)}


def sft(log_probs: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Weighted negative log-likelihood of the tokens that count, over their number.

    Args:
      log_probs: [B, K] of the target tokens.
      weights: [B, K], 1 on reply tokens (the end token included), 0 on prompt and padding; or other numbers, such as
        the returns of a policy gradient. A token counts if its weight is not 0.

    Returns: (scalar, {"perplexity" of the tokens that count, "tokens": how many}).
    """
    expect("B K", log_probs=log_probs, weights=weights)
    log_probs = single_or_wider(log_probs)
    weights = weights.astype(log_probs.dtype)
    counted = weights != 0
    tokens = jnp.sum(counted.astype(log_probs.dtype))
    log_probs = jnp.where(counted, log_probs, 0.0)

    def mean_loss(log_probs):
        return -jnp.sum(log_probs) / jnp.maximum(tokens, 1.0)

    return mean_loss(log_probs * weights), {"perplexity": jnp.exp(mean_loss(log_probs)), "tokens": tokens}


def ppo(
    log_probs: jax.Array,
    old_log_probs: jax.Array,
    advantages: jax.Array,
    values: jax.Array,
    targets: jax.Array,
    entropy: jax.Array,
    weights: jax.Array,
    *,
    clip: float = 0.2,
    value_coef: float = 0.5,
    entropy_coef: float = 0.01,
    old_values: jax.Array | None = None,
    value_clip: float = math.inf,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Clipped surrogate, squared error of the value and entropy (PPO, Schulman et al. 2017, equation 9), as a sum.

    The averages are in `weights` (1 / N each for a plain mean), so the losses of micro-batches add up to that of the
    whole batch. All arrays have one shape; `log_probs`, `values` and `entropy` carry gradients.

    Args:
      log_probs, old_log_probs: of the actions taken, under theta and theta_old (summed over an action's dimensions).
      advantages: A.
      values, targets: V_theta and what it should be.
      entropy: of the policy at each step.
      weights: 0 where a step does not count; whatever stands there is not read.
      old_values: V under theta_old; only a finite `value_clip` needs them.
      value_clip: the squared error is at least that of a value which has moved by so much at most (as in OpenAI's
        baselines); inf: the plain squared error.

    Returns: (scalar, {"policy_loss", "value_loss", "entropy", "clip_fraction", "approx_kl"}: weighted sums;
      value_loss is the squared error before its coefficient, approx_kl estimates KL(theta_old || theta) by k3).

    Raises:
      ValueError: a finite `value_clip` without `old_values`.
    """
    if math.isfinite(value_clip) and old_values is None:
        raise ValueError(f"value_clip is {value_clip}, which needs old_values")
    per_step = {"log_probs": log_probs, "old_log_probs": old_log_probs, "advantages": advantages, "values": values}
    expect("...", **per_step, targets=targets, entropy=entropy, weights=weights, **present(old_values=old_values))
    counted = weights > 0
    # Replace what does not count before exp(): 0 * inf would poison the gradient.
    log_probs, values, entropy = (jnp.where(counted, x, 0.0) for x in (log_probs, values, entropy))
    old_log_probs, A, targets = (
        jax.lax.stop_gradient(jnp.where(counted, x, 0.0)) for x in (old_log_probs, advantages, targets)
    )
    log_ratio = log_probs - old_log_probs
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)

    def mean(values):
        return jnp.sum(weights * values)

    policy_loss = -mean(jnp.minimum(ratio * A, clipped * A))
    errors = (values - targets) ** 2
    if math.isfinite(value_clip):
        old_values = jax.lax.stop_gradient(jnp.where(counted, old_values, 0.0))
        near = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
        errors = jnp.maximum(errors, (near - targets) ** 2)
    value_loss = mean(errors)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": mean(entropy),
        "clip_fraction": mean((jnp.abs(ratio - 1.0) > clip).astype(weights.dtype)),
        "approx_kl": mean(ratio - 1.0 - log_ratio),
    }
    return policy_loss + value_coef * value_loss - entropy_coef * metrics["entropy"], metrics
