"""Group-relative advantages, AAW sampling and GAE, against hand-worked numbers and exact probabilities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.returns import aaw_sample, gae, group_advantage, returns_to_go


def test_hand_worked_advantages():
    # mean 1, variance (1 + 0 + 0 + 1) / 4 = 1/2
    got = group_advantage(jnp.array([0.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(got, [-(2**0.5), 0, 0, 2**0.5], rtol=1e-6)
    # dividing by G - 1 instead: variance 2/3
    got = group_advantage(jnp.array([0.0, 1.0, 1.0, 2.0]), ddof=1)
    np.testing.assert_allclose(got, [-(1.5**0.5), 0, 0, 1.5**0.5], rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -2.35, 1e6, 0.1 + 0.2])
def test_equal_returns_give_exactly_zero(value):
    returns = jnp.full((3, 10), value)
    nudged = returns.at[0, 0].set(jnp.nextafter(jnp.float32(value), jnp.float32(10)))
    assert not group_advantage(returns).any()
    assert not group_advantage(nudged).any()  # rounding is no difference
    grad = jax.grad(lambda r: group_advantage(r).sum())(returns)
    assert jnp.isfinite(grad).all()


def test_a_mask_equals_the_subset():
    returns = jax.random.normal(jax.random.key(0), (4, 6))
    mask = jnp.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0], [0] * 6], bool)
    for ddof in (0, 1):
        got = group_advantage(returns.at[0, 1].set(1e9), ddof, mask)
        np.testing.assert_allclose(got[0][mask[0]], group_advantage(returns[0][mask[0]], ddof), rtol=1e-5)
        np.testing.assert_allclose(got[1], group_advantage(returns[1], ddof), rtol=1e-5)
        assert not got[0][~mask[0]].any() and not got[2].any() and not got[3].any()  # one alone has no group
    grad = jax.grad(lambda r: group_advantage(r, 0, mask).sum())(returns)
    assert jnp.isfinite(grad).all()


def test_returns_to_go_by_hand():
    np.testing.assert_allclose(returns_to_go(jnp.array([[1.0, 0], [2, -1], [4, 0]])), [[7, -1], [6, -1], [4, 0]])


def test_aaw_takes_different_episodes_and_prefers_extremes():
    advantages = jnp.array([0.0, 3.0, 0.1, -3.0, 0.2, 0.0])
    picks = jax.vmap(lambda k: aaw_sample(k, advantages, 2, 0.1))(jax.random.split(jax.random.key(0), 50))
    assert all(set(row) == {1, 3} for row in picks.tolist())
    everything = aaw_sample(jax.random.key(1), advantages, 6, 0.1)
    assert sorted(everything.tolist()) == list(range(6))


def exact_inclusion(weights, num):
    """P(episode is drawn) in successive draws without replacement, by enumeration."""
    chances = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), num):
        left, p = weights.sum(), 1.0
        for i in order:
            p *= weights[i] / left
            left -= weights[i]
        chances[list(order)] += p
    return chances


@pytest.mark.parametrize("temperature", [0.5, 2.0, 1e6])
def test_aaw_has_the_papers_probabilities(temperature):
    advantages = np.array([-1.5, 0.2, 0.0, 1.1, -0.4])
    keys = jax.random.split(jax.random.key(2), 20_000)
    picks = jax.vmap(lambda k: aaw_sample(k, jnp.asarray(advantages), 2, temperature))(keys)
    got = np.bincount(np.asarray(picks).ravel(), minlength=5) / len(keys)
    want = exact_inclusion(np.exp(np.abs(advantages) / temperature), 2)
    np.testing.assert_allclose(got, want, atol=0.015)
    if temperature == 1e6:
        np.testing.assert_allclose(want, 2 / 5, atol=1e-5)  # uniform at infinite temperature


def test_gae_by_hand():
    # gamma 1/2, lambda 1/2. First column: three steps, terminated. Second: truncated after two steps in a state worth
    # 4, then the first step of another episode, which goes on to a state worth 2.
    rewards = jnp.array([[1.0, 1.0], [0.0, 2.0], [4.0, 0.0]])
    discounts = jnp.array([[0.5, 0.5], [0.5, 0.5], [0.0, 0.5]])
    values = jnp.array([[2.0, 0.0], [4.0, 2.0], [1.0, 1.0]])
    next_values = jnp.array([[4.0, 2.0], [1.0, 4.0], [jnp.nan, 2.0]])
    ends = jnp.array([[False, False], [False, True], [True, False]])
    # deltas: 1 + 2 - 2 = 1, 0 + 1/2 - 4 = -7/2, 4 - 1 = 3 | 1 + 1 - 0 = 2, 2 + 2 - 2 = 2, 0 + 1 - 1 = 0
    # A: 3; -7/2 + 3/4 = -11/4; 1 - 11/16 = 5/16 | 0; 2 (cut); 2 + 2/4 = 5/2
    want = jnp.array([[5 / 16, 5 / 2], [-11 / 4, 2.0], [3.0, 0.0]])
    advantages, targets = gae(rewards, discounts, values, next_values, 0.5, ends)
    np.testing.assert_allclose(advantages, want, rtol=1e-6)
    np.testing.assert_allclose(targets, want + values, rtol=1e-6)
    # without `ends` the second column's cut is not seen: A_1 = 2 + 0/4
    np.testing.assert_allclose(gae(rewards, discounts, values, next_values, 0.5)[0], want, rtol=1e-6)
    later = next_values.at[2, 1].set(6.0)  # now the step after the cut has A = 2
    np.testing.assert_allclose(gae(rewards, discounts, values, later, 0.5, ends)[0][:2, 1], [5 / 2, 2.0])
    np.testing.assert_allclose(gae(rewards, discounts, values, later, 0.5)[0][:2, 1], [2 + 2.5 / 4, 2.5])


def test_gae_at_its_limits_is_the_return_and_the_one_step_error():
    keys = jax.random.split(jax.random.key(0), 3)
    T, B, gamma = 7, 3, 0.9
    rewards, values = jax.random.normal(keys[0], (T, B)), jax.random.normal(keys[1], (T + 1, B))
    discounts = jnp.full((T, B), gamma)
    full, targets = gae(rewards, discounts, values[:-1], values[1:], 1.0)
    powers = gamma ** np.arange(T + 1)
    for t in range(T):
        to_go = (powers[: T - t, None] * rewards[t:]).sum(0) + powers[T - t] * values[-1]
        np.testing.assert_allclose(targets[t], to_go, rtol=1e-5)
        np.testing.assert_allclose(full[t], to_go - values[t], rtol=1e-4, atol=1e-6)
    one_step, _ = gae(rewards, discounts, values[:-1], values[1:], 0.0)
    np.testing.assert_allclose(one_step, rewards + gamma * values[1:] - values[:-1], rtol=1e-5, atol=1e-6)
    grad = jax.grad(lambda v: sum(x.sum() for x in gae(rewards, discounts, v[:-1], v[1:], 0.5)))(values)
    assert not grad.any()


def test_advantages_sum_to_zero_and_ignore_shift_and_scale():
    returns = jax.random.normal(jax.random.key(0), (7, 12))
    got = group_advantage(returns)
    np.testing.assert_allclose(got.sum(-1), 0, atol=1e-5)
    np.testing.assert_allclose(got.std(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(group_advantage(3 * returns + 5), got, atol=1e-4)
