"""Matrix products whose gradients JAX would take by a longer way; values and gradients are the same up to rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _transposed(left: jax.Array, right: jax.Array) -> jax.Array:
    """left.T @ right over all rows: [..., I], [..., O] -> [I, O]."""
    rows = tuple(range(left.ndim - 1))
    return jax.lax.dot_general(left, right, ((rows, rows), ((), ())))


@jax.custom_vjp
def low_rank(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """x @ a @ b: [..., I], [I, R], [R, O] -> [..., O].

    Its gradient is JAX's own but for the order of b's product: `h.T @ g`, where JAX transposes `g.T @ h` and XLA's CPU
    backend writes the cotangent, as wide as the MLP, once more for that.
    """
    return (x @ a) @ b


def _low_rank_fwd(x, a, b):
    h = x @ a
    return h @ b, (x, a, b, h)


def _low_rank_bwd(residuals, g):
    x, a, b, h = residuals
    dh = g @ b.T
    return dh @ a.T, _transposed(x, dh), _transposed(h, g)


low_rank.defvjp(_low_rank_fwd, _low_rank_bwd)


@jax.custom_vjp
def logits(hidden: jax.Array, table: jax.Array, ready: jax.Array) -> jax.Array:
    """hidden [..., H] @ table [H, V], summed in float32.

    What is multiplied is `ready`, the table in hidden's type; the gradient is the table's and in its type. So a loop
    over chunks of rows makes (and a mesh gathers) `ready` once, and adds up in float32 what the chunks give a float32
    table. The gradient's products are of hidden's type: JAX's own would copy the table to float32 for each.
    """
    return jnp.matmul(hidden, ready, preferred_element_type=jnp.float32)


def _logits_bwd(residuals, g):
    hidden, table, ready = residuals
    g = g.astype(hidden.dtype)
    return g @ ready.T, _transposed(hidden, g).astype(table.dtype), jnp.zeros_like(ready)


logits.defvjp(lambda *args: (logits(*args), args), _logits_bwd)
