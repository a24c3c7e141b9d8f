"""Matrix products that JAX or XLA would take by a longer way; values and gradients are the same up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nlrl_jax.lm.sharding import platform_of

FEW = 64  # rows
WIDE = 1_000_000  # numbers of a matrix from which on `few_rows` pays


def _transposed(rows_I: jax.Array, rows_O: jax.Array) -> jax.Array:
    """rows_I.T @ rows_O, summed over all rows: [..., I], [..., O] -> [I, O]."""
    rows = tuple(range(rows_I.ndim - 1))
    return jax.lax.dot_general(rows_I, rows_O, ((rows, rows), ((), ())), out_sharding=_of_weights(rows_I, rows_O))


def _of_weights(rows_I: jax.Array, rows_O: jax.Array) -> NamedSharding | None:
    """Where [I, O] lies that is summed over rows on an Explicit mesh, which JAX asks for; None on others."""
    sharding = jax.typeof(rows_I).sharding
    if not sharding.mesh.explicit_axes:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[-1], jax.typeof(rows_O).sharding.spec[-1]))


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


def on_cpu(mesh: Mesh | None) -> bool:
    """Whether `few_rows` may pay: one CPU device computes."""
    return mesh is None and platform_of(mesh) == "cpu"


def few_rows(x: jax.Array, turned: jax.Array) -> jax.Array:
    """x @ turned.T, summed in float32: [..., I], [O, I] -> [..., O], by XLA:CPU's faster way for few rows.

    It takes a tall matrix times a few columns up to three times as fast as a few rows times a wide matrix (2 to 48 rows
    of kernels that the processor's cache does not hold; the same at one row and from 64 on). Without the barrier it
    would turn the product round again.
    """
    rows = x.reshape(-1, x.shape[-1])
    # [O, I] times [rows, I] -> [O, rows]: the tall matrix first.
    columns = jax.lax.dot_general(turned, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return jax.lax.optimization_barrier(columns).T.reshape(*x.shape[:-1], -1)


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


@jax.custom_vjp
def log_probs(
    hidden: jax.Array,
    table: jax.Array,
    ready: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    any_counts: jax.Array | None = None,
) -> jax.Array:
    """log softmax(hidden [..., H] @ table [H, V] / temperature) at targets [...], float32 [...].

    The gradient of a row's log-probability is known but for the factor that comes back to it: the forward pass of a
    gradient leaves it, [..., H], in place of computing the logits again. `table` and `ready` are those of `logits`.
    any_counts: bool []; where it is False, nothing is computed: 0, with no gradient.
    """

    def compute():
        scaled = logits(hidden, table, ready) / temperature
        return _at(scaled, targets) - jax.nn.logsumexp(scaled, axis=-1)

    return _unless_nothing_counts(compute, any_counts)


def _unless_nothing_counts(compute: Callable[[], Any], any_counts: jax.Array | None) -> Any:
    """What `compute` returns, or zeros like it."""
    if any_counts is None:
        return compute()
    shapes = jax.eval_shape(compute)
    return jax.lax.cond(any_counts, compute, lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))


def _at(logits_V: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits_V, targets[..., None], axis=-1)[..., 0]


def _slopes(scaled: jax.Array, normalizers: jax.Array, targets: jax.Array, temperature: jax.Array) -> jax.Array:
    """d log_probs / d logits, [..., V]: (1 at the target - probability) / temperature."""
    is_target = jnp.arange(scaled.shape[-1]) == targets[..., None]
    return (is_target - jnp.exp(scaled - normalizers[..., None])) / temperature


def _log_probs_fwd(hidden, table, ready, targets, temperature, any_counts=None):
    def compute():
        scaled = logits(hidden, table, ready) / temperature
        normalizers = jax.nn.logsumexp(scaled, axis=-1)
        slopes_V = _slopes(scaled, normalizers, targets, temperature)
        slopes_H = jnp.matmul(slopes_V.astype(hidden.dtype), ready.T, preferred_element_type=jnp.float32)
        return _at(scaled, targets) - normalizers, normalizers, slopes_H

    # The branch stands inside of the rule: differentiated itself, it would hand on the table as a residual of its own.
    value, normalizers, slopes_H = _unless_nothing_counts(compute, any_counts)
    return value, (hidden, table, ready, targets, temperature, normalizers, slopes_H)


def _log_probs_bwd(residuals, g):
    hidden, table, ready, targets, temperature, normalizers, slopes_H = residuals
    dhidden = (g[..., None] * slopes_H).astype(hidden.dtype)
    # The compiler leaves out what follows where the table does not learn.
    scaled = logits(hidden, table, ready) / temperature
    dlogits = (g[..., None] * _slopes(scaled, normalizers, targets, temperature)).astype(hidden.dtype)
    dtable = _transposed(hidden, dlogits).astype(table.dtype)
    dtemperature = -jnp.sum(g * jnp.sum(hidden.astype(jnp.float32) * slopes_H, axis=-1)) / temperature
    return dhidden, dtable, jnp.zeros_like(ready), None, dtemperature.astype(temperature.dtype), None


log_probs.defvjp(_log_probs_fwd, _log_probs_bwd)
