"""The temperature that rises while returns stagnate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms.exploration import adapt, init_stagnation


def temperatures(returns, base=1.0, limit=1.5):
    state, seen = init_stagnation(base), []
    for value in returns:
        state = jax.jit(adapt, static_argnums=(2, 3))(state, jnp.float32(value), base, limit)
        seen.append(float(state.temperature))
    return np.array(seen)


def test_rises_to_the_limit_while_nothing_changes():
    got = temperatures(np.full(40, -2.0))
    assert (np.diff(got[:15]) > 0).all() and got[-1] == pytest.approx(1.5)


def test_falls_back_to_the_base_when_returns_rise():
    got = temperatures(np.concatenate([np.zeros(10), np.arange(40) * 0.3]))
    assert got[9] > 1.15 and got[-1] == pytest.approx(1.0) and got.min() >= 1.0


def test_the_averages_by_hand():
    state = init_stagnation(1.0)
    for value in (1.0, 2.0, 3.0):
        state = adapt(state, jnp.float32(value), 1.0, 2.0)
    assert float(state.fast) == pytest.approx(0.8 * (0.8 * 1 + 0.2 * 2) + 0.2 * 3)
    assert float(state.slow) == pytest.approx(0.95 * (0.95 * 1 + 0.05 * 2) + 0.05 * 3)
    assert int(state.seen) == 3
