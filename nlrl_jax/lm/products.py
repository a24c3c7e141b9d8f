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
def logits(hidden: jax.Array, table: jax.Array) -> jax.Array:
    """hidden [..., H] @ table [H, V], summed in float32.

    The gradient's products are of the inputs' type: JAX's own would copy the table to float32 for each.
    """
    return jnp.matmul(hidden, table, preferred_element_type=jnp.float32)


def _logits_bwd(residuals, g):
    hidden, table = residuals
    g = g.astype(hidden.dtype)
    return g @ table.T, _transposed(hidden, g)


logits.defvjp(lambda hidden, table: (logits(hidden, table), (hidden, table)), _logits_bwd)
