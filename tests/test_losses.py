"""The losses against numbers worked by hand, and by equivalence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax import losses


def random_batch(key, B=5, K=7):
    keys = jax.random.split(key, 5)
    new, old, ref = (-jax.random.exponential(k, (B, K)) for k in keys[:3])
    advantages = jax.random.normal(keys[3], (B,))
    mask = jnp.arange(K) < jax.random.randint(keys[4], (B, 1), 1, K + 1)
    return new, old, ref, advantages, mask


def clipped_loss(ratios, A, **clip):
    """Of one episode of one turn with two tokens: weights 1/2 each, beta 0."""
    new, zeros = jnp.log(ratios), jnp.zeros((1, 2))
    weights = losses.episode_token_weights(jnp.ones((1, 1, 2)))[:, 0]
    return losses.ms_grpo(new, zeros, new, jnp.array([A]), weights, beta=0.0, **clip)[0]


def test_hand_worked_objective():
    ratios = jnp.array([[1.2, 0.8]])  # epsilon = 0.1
    # A = 2: min(2.4, 2.2) + min(1.6, 1.8) = 3.8; A = -2: min(-2.4, -2.2) + min(-1.6, -1.8) = -4.2; halved
    np.testing.assert_allclose(clipped_loss(ratios, 2.0), -1.9, rtol=1e-6)
    np.testing.assert_allclose(clipped_loss(ratios, -2.0), 2.1, rtol=1e-6)


def test_hand_worked_clipping_on_either_side():
    """epsilon_low = 0.1 and epsilon_up = 0.3: each bound is its own, and has no gradient beyond it."""
    ratios = jnp.array([[0.7, 1.5]])
    loss = lambda ratios, A: clipped_loss(ratios, A, clip_low=0.1, clip_high=0.3)
    # A = 1: min(0.7, 0.9) + min(1.5, 1.3) = 2.0; A = -1: min(-0.7, -0.9) + min(-1.5, -1.3) = -2.4; halved
    np.testing.assert_allclose(loss(ratios, 1.0), -1.0, rtol=1e-6)
    np.testing.assert_allclose(loss(ratios, -1.0), 1.2, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loss)(ratios, 1.0), [[-0.5, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loss)(ratios, -1.0), [[0.0, 0.5]], rtol=1e-6)


def test_hand_worked_kl():
    d = jnp.log(jnp.array(0.5 / 0.8))
    zero = jnp.zeros(())
    np.testing.assert_allclose(losses.kl_estimate(zero, d, "k1"), 0.4700036, rtol=1e-6)
    np.testing.assert_allclose(losses.kl_estimate(zero, d, "k2"), 0.1104517, rtol=1e-5)
    np.testing.assert_allclose(losses.kl_estimate(zero, d, "k3"), 0.625 + 0.4700036 - 1, rtol=1e-5)
    with pytest.raises(ValueError, match="'k4'"):
        losses.kl_estimate(zero, d, "k4")


def test_kl_estimators_agree_in_expectation():
    logits_p, logits_q = jnp.array([0.3, -0.2, 1.0, 0.0]), jnp.array([0.0, 0.1, 0.8, 0.3])
    p, log_p, log_q = jax.nn.softmax(logits_p), jax.nn.log_softmax(logits_p), jax.nn.log_softmax(logits_q)
    exact = jnp.sum(p * (log_p - log_q))
    np.testing.assert_allclose(jnp.sum(p * losses.kl_estimate(log_p, log_q, "k1")), exact, rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(p * losses.kl_estimate(log_p, log_q, "k3")), exact, rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(p * losses.kl_estimate(log_p, log_q, "k2")), exact, rtol=0.1)


def test_weights_are_equation_1s_averages():
    mask = jnp.zeros((2, 2, 3)).at[0, 0, :2].set(1).at[0, 1, :1].set(1).at[1, 0, :1].set(1)
    weights = losses.episode_token_weights(mask)
    np.testing.assert_allclose(weights[0], mask[0] / 6)  # 1 / (J = 2 * |y_0| = 3)
    np.testing.assert_allclose(weights[1], mask[1] / 2)
    assert not losses.episode_token_weights(jnp.zeros((2, 2, 3))).any()


def test_micro_batches_add_up():
    new, old, ref, advantages, mask = random_batch(jax.random.key(1), B=6)
    weights = losses.episode_token_weights(mask.reshape(3, 2, 7)).reshape(6, 7)
    whole, aux = losses.ms_grpo(new, old, ref, advantages, weights)
    parts = [losses.ms_grpo(*(x[i : i + 2] for x in (new, old, ref, advantages, weights))) for i in (0, 2, 4)]
    np.testing.assert_allclose(whole, sum(p[0] for p in parts), rtol=1e-5)
    np.testing.assert_allclose(aux["kl"], sum(p[1]["kl"] for p in parts), rtol=1e-5)


def test_masked_tokens_have_exactly_zero_gradient_whatever_they_hold():
    new, old, ref, advantages, mask = random_batch(jax.random.key(2))
    weights = losses.episode_token_weights(mask[:, None])[:, 0]
    hostile = jnp.where(mask, ref, jnp.inf)
    grad = jax.grad(lambda x: losses.ms_grpo(x, jnp.where(mask, old, -jnp.inf), hostile, advantages, weights)[0])(new)
    assert jnp.isfinite(grad).all()
    assert not jnp.where(mask, 0.0, grad).any()
    assert jnp.where(mask, grad, 1.0).all()


def test_first_step_is_the_policy_gradient():
    new, _, ref, advantages, mask = random_batch(jax.random.key(4))
    weights = losses.episode_token_weights(mask[:, None])[:, 0]
    grad = jax.grad(lambda x: losses.ms_grpo(x, new, ref, advantages, weights, beta=0.0)[0])(new)
    np.testing.assert_allclose(grad, -weights * advantages[:, None], rtol=1e-6)


def test_sft_is_optax_cross_entropy_on_the_masked_tokens():
    logits = jax.random.normal(jax.random.key(5), (4, 6, 11))
    targets = jax.random.randint(jax.random.key(6), (4, 6), 0, 11)
    mask = jnp.arange(6) >= jnp.array([[2], [0], [5], [6]])  # the last row counts nothing
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    loss, aux = losses.sft(log_probs, mask)
    want = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(loss, want[mask].mean(), rtol=1e-6)
    assert aux["tokens"] == mask.sum()
    assert losses.sft(log_probs, jnp.zeros_like(mask))[0] == 0
    # Other weights: the mean is over the tokens whose weight is not 0, and the perplexity is theirs.
    returns = mask * jnp.array([1.0, -0.5, 2.0, 0.0])[:, None]
    weighted, aux = losses.sft(log_probs, returns)
    counted = mask.at[3].set(False)
    np.testing.assert_allclose(weighted, (want * returns).sum() / counted.sum(), rtol=1e-5)
    np.testing.assert_allclose(aux["perplexity"], np.exp(want[counted].mean()), rtol=1e-5)
    assert aux["tokens"] == counted.sum()


def test_hand_worked_ppo():
    # Ratios 1.5, 0.5 and 1, clipped to [0.8, 1.2]; A = 2, 2, -1: min(3, 2.4) + min(1, 1.6) + (-1) = 2.4, over 4 steps
    # of which one does not count. Squared errors 1, 4, 0; entropies 0.5 each.
    old = jnp.log(jnp.array([0.4, 0.8, 0.5, 1e-9]))
    new = jnp.log(jnp.array([0.6, 0.4, 0.5, 1.0]))
    A, values, targets = jnp.array([2.0, 2, -1, 99]), jnp.array([0.0, 1, 2, 7]), jnp.array([1.0, -1, 2, 0])
    weights = jnp.array([1.0, 1, 1, 0]) / 4
    loss, metrics = losses.ppo(new, old, A, values, targets, jnp.full(4, 0.5), weights)
    np.testing.assert_allclose(metrics["policy_loss"], -2.4 / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], 5 / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], 1.5 / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["clip_fraction"], 2 / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["approx_kl"], (0.5 - np.log(1.5) - 0.5 - np.log(0.5)) / 4, rtol=1e-5)
    np.testing.assert_allclose(loss, -0.6 + 0.5 * 1.25 - 0.01 * 0.375, rtol=1e-5)


def test_ppo_gradient_is_the_policy_gradient_where_the_ratio_is_one_and_none_where_it_is_clipped():
    A, zeros = jnp.array([2.0, -3.0, 2.0, -3.0]), jnp.zeros(4)
    weights = jnp.array([0.1, 0.2, 0.3, 0.4])
    old = jnp.array([-1.0, -1.0, -1.5, -0.5])  # the last two have moved by a factor e ** 0.5, the way A wants
    loss = lambda x: losses.ppo(x, old, A, zeros, zeros, zeros, weights)[0]
    np.testing.assert_allclose(jax.grad(loss)(jnp.full(4, -1.0)), [-0.2, 0.6, 0, 0], rtol=1e-6)
    hostile = lambda x: losses.ppo(x, old, A, zeros, zeros, zeros, weights.at[1].set(0))[0]
    grad = jax.grad(hostile)(jnp.array([-1.0, jnp.inf, -1.0, -1.0]))
    np.testing.assert_allclose(grad, [-0.2, 0, 0, 0], rtol=1e-6)


def test_ppo_of_micro_batches_adds_up():
    rows = [jax.random.normal(key, (6, 3)) for key in jax.random.split(jax.random.key(7), 6)]
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(8), (18,))).reshape(6, 3)
    whole, metrics = losses.ppo(*rows, weights)
    parts = [losses.ppo(*(x[i : i + 2] for x in (*rows, weights))) for i in (0, 2, 4)]
    np.testing.assert_allclose(whole, sum(loss for loss, _ in parts), rtol=1e-5)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], sum(m[name] for _, m in parts), rtol=1e-4)


def test_hand_worked_value_clipping():
    # Old value 1, clip 0.2. A value of 2 counts as 1.2: errors 0.25 and 0.09 of target 1.5, 4 and 7.84 of target 4; one
    # of 1.1 counts as itself. The last step does not count.
    values, targets = jnp.array([2.0, 2.0, 1.1, 9.0]), jnp.array([1.5, 4.0, 1.5, 0.0])
    zeros, weights = jnp.zeros(4), jnp.array([1.0, 1, 1, 0]) / 4
    old = jnp.array([1.0, 1.0, 1.0, jnp.nan])

    def value_loss(values, value_clip, **options):
        options |= {"value_clip": value_clip}
        return losses.ppo(zeros, zeros, zeros, values, targets, zeros, weights, **options)[1]["value_loss"]

    np.testing.assert_allclose(value_loss(values, 0.2, old_values=old), (0.25 + 7.84 + 0.16) / 4, rtol=1e-6)
    np.testing.assert_allclose(value_loss(values, np.inf, old_values=old), (0.25 + 4 + 0.16) / 4, rtol=1e-6)
    grad = jax.grad(value_loss)(values, 0.2, old_values=old)
    np.testing.assert_allclose(grad, [0.25, 0, -0.2, 0], rtol=1e-5)  # none where it has moved far enough
    with pytest.raises(ValueError, match="needs old_values"):
        value_loss(values, 0.2)
