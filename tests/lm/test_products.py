"""Values and gradients are those that JAX computes from the plain products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import products


def logits(hidden, table):
    return products.logits(hidden, table, jax.lax.stop_gradient(table.astype(hidden.dtype)))


PLAIN = {
    "low_rank": (products.low_rank, lambda x, a, b: (x @ a) @ b, ((2, 5, 8), (8, 3), (3, 6))),
    "logits": (logits, lambda hidden, table: hidden @ table, ((2, 5, 8), (8, 11))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_values_and_gradients_equal_jaxs_own(name):
    ours, plain, shapes = PLAIN[name]
    args = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    loss = lambda product: lambda *args: jnp.sum(jnp.sin(product(*args)))
    every = tuple(range(len(args)))
    want = jax.value_and_grad(loss(plain), argnums=every)(*args)
    got = jax.value_and_grad(loss(ours), argnums=every)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def test_gradients_of_logits_have_the_weights_type():
    args = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((8, 11), jnp.bfloat16)
    assert logits(*args).dtype == jnp.float32
    traced = str(jax.make_jaxpr(jax.grad(lambda *args: logits(*args).sum(), argnums=(0, 1)))(*args))
    assert "f32[8,11]" not in traced  # no copy of the table


def test_gradients_of_chunks_add_up_in_the_tables_type():
    """A large product and 64 that a bfloat16 sum would drop."""
    hidden = jnp.full((65, 1, 1), 1.0, jnp.bfloat16).at[0].set(512.0)
    table = jnp.ones((1, 1))
    ready = table.astype(jnp.bfloat16)

    def total(table):
        each = lambda _, h: (None, products.logits(h, table, jax.lax.stop_gradient(ready)).sum())
        return jax.lax.scan(each, None, hidden)[1].sum()

    assert jax.grad(total)(table) == 512 + 64
