"""Attention to the slots of a cache that are in use is attention to all of them."""

import jax
import numpy as np
import pytest

from nlrl_jax.lm import attention


@pytest.fixture(scope="module")
def arrays():
    layers, B, S, K, R, D, P = 3, 2, 320, 2, 2, 8, 5
    keys = jax.random.split(jax.random.key(3), 5)
    q = jax.random.normal(keys[0], (B, 1, K * R, D))
    k, v = (jax.random.normal(key, (layers, K, B, S, D)) for key in keys[1:3])
    return q, k, v, tuple(jax.random.normal(key, (P, K, D)) for key in keys[3:])


@pytest.mark.parametrize("with_prefix", [False, True])
@pytest.mark.parametrize("first, last", [(0, 0), (0, 63), (0, 64), (200, 319), (300, 319), (37, 290), (0, 319)])
def test_the_slots_in_use_are_all_that_counts(arrays, first, last, with_prefix):
    q, k, v, prefix = arrays
    prefix = prefix if with_prefix else None
    slots, starts = np.arange(k.shape[3]), np.array([first, (first + last + 1) // 2])
    mask = ((slots >= starts[:, None]) & (slots <= last))[:, None]
    # What a row cannot see may be anything finite.
    k, v = (t.at[..., :first, :].set(1e4).at[..., last + 1 :, :].set(1e4) for t in (k, v))
    span = attention.Span(np.int32(1), np.int32(first), np.int32(last))
    of_layer = [t[1].transpose(1, 2, 0, 3) for t in (k, v)]
    np.testing.assert_allclose(
        jax.jit(attention.attend_span)(q, k, v, mask, span, prefix),
        attention.attend(q, *of_layer, mask, prefix),
        rtol=2e-5,
        atol=2e-6,
    )


def test_few_lengths_of_a_long_cache_are_compiled(arrays):
    q, k, v, _ = arrays
    k, v = (t[..., :1, :].repeat(1088, axis=3) for t in (k, v))
    mask, span = np.ones((2, 1, 1088), bool), attention.Span(*map(np.int32, (0, 0, 1087)))
    jaxpr = jax.make_jaxpr(attention.attend_span)(q, k, v, mask, span)
    (switch,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "cond"]
    assert len(switch.params["branches"]) <= attention.SPANS
    np.testing.assert_allclose(attention.attend_span(q, k, v, mask, span)[:, 0, 0], v[0, 0, :, 0], rtol=1e-4)
