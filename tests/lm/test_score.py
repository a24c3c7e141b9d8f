"""The scorer against a plain log-softmax, whole against chunked, shared prefix against pasted."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.generate import compute_prefix, left_pad
from nlrl_jax.lm.score import score, token_log_probs
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.lm.transformer import Transformer
from tests.jaxprs import equations
from tests.lm.noise import noisy_params, noisy_variables

B, S, N, V = 3, 5, 4, 40
MODEL = Transformer(ModelConfig(V, 16, 24, 1, 2, 1, 8, 64, lora=LoraConfig(2, 4.0)))
LENGTHS = (5, 1, 3)
PREFIX = jnp.array([7, 0, 9])


@pytest.fixture(scope="module")
def variables():
    return noisy_variables(MODEL.config, 0.3)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    prompts, replies = jnp.asarray(rng.integers(0, V, (B, S))), jnp.asarray(rng.integers(0, V, (B, N)))
    return left_pad(prompts, jnp.array(LENGTHS)), replies


def plain(variables, prompts, replies, temperature=1.0, prefix=()):
    """log softmax of all logits; prefix, prompt and reply of a row in one right-padded piece."""
    rows = []
    for prompt, length, reply in zip(prompts, LENGTHS, replies):
        row = jnp.concatenate([jnp.array(prefix, jnp.int32), prompt[S - length :], reply])
        rows.append(jnp.pad(row, (0, S - length)))
    tokens = jnp.stack(rows)
    hidden, _ = MODEL.apply(variables, tokens, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
    log_probs = jax.nn.log_softmax(MODEL.apply(variables, hidden, method="unembed") / temperature)
    before = len(prefix) + np.array(LENGTHS)[:, None] + np.arange(N) - 1
    return log_probs[jnp.arange(B)[:, None], before, replies]


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_equals_log_softmax_of_right_padded_rows(variables, batch, temperature):
    prompts, replies = batch
    both = lambda v: (
        score(MODEL, v, prompts, jnp.array(LENGTHS), replies, temperature=temperature),
        plain(v, prompts, replies, temperature),
    )
    got, want = jax.jit(both)(variables)
    assert got.shape == (B, N) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_shared_prefix_is_exact_in_value_and_gradient(variables, batch):
    prompts, replies = batch
    weights = jax.random.normal(jax.random.key(3), (B, N))

    def shared(variables):
        kv = compute_prefix(MODEL, variables, PREFIX)
        return jnp.sum(weights * score(MODEL, variables, prompts, jnp.array(LENGTHS), replies, kv))

    pasted = lambda v: jnp.sum(weights * plain(v, *batch, prefix=PREFIX))
    want, want_grad = jax.jit(jax.value_and_grad(pasted))(variables)
    got, got_grad = jax.jit(jax.value_and_grad(shared))(variables)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(want_grad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale), got_grad, want_grad)


@pytest.mark.parametrize("chunk", [1, 5, 6, 11])
@pytest.mark.parametrize("vocab_size", [V, 500], ids=["", "mostly head"])
def test_chunked_equals_whole_in_value_and_gradient(vocab_size, chunk):
    model = Transformer(dataclasses.replace(MODEL.config, vocab_size=vocab_size))
    params = noisy_params(model.config, 0.3)["params"]
    hidden, targets = jax.random.normal(jax.random.key(0), (B, N, 16)), jnp.arange(B * N).reshape(B, N)
    weights = jax.random.normal(jax.random.key(1), (B, N))

    def loss(chunk):
        def of(params, hidden, temperature):
            log_probs = token_log_probs(model, {"params": params}, hidden, targets, temperature, chunk)
            return jnp.sum(weights * log_probs), log_probs

        return jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2), has_aux=True))(params, hidden, 1.3)

    (_, want), want_grad = loss(B * N)
    (_, got), got_grad = loss(chunk)
    np.testing.assert_allclose(got, want, atol=5e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got_grad, want_grad)


@pytest.mark.parametrize("vocab_size, products", [(V, 3), (500, 2)], ids=["", "mostly head"])
def test_logits_are_computed_once_where_the_head_is_most_of_the_model(vocab_size, products):
    model = Transformer(dataclasses.replace(MODEL.config, vocab_size=vocab_size))
    params = noisy_params(model.config, 0.3)["params"]
    hidden, targets = jnp.zeros((B, N, 16)), jnp.zeros((B, N), jnp.int32)

    def loss(hidden):
        return jnp.sum(token_log_probs(model, {"params": params}, hidden, targets, chunk=B))

    compiled = jax.jit(jax.value_and_grad(loss)).lower(hidden).compile().as_text()
    assert len(re.findall(r" dot\(| custom-call\(.*matmul", compiled)) == products


def test_a_head_that_is_most_of_the_model_is_shared_by_devices():
    config = dataclasses.replace(MODEL.config, vocab_size=512)
    params = noisy_params(config, 0.3)["params"]
    hidden, targets = jax.random.normal(jax.random.key(0), (8, N, 16)), jnp.arange(8 * N).reshape(8, N)

    def gradients(mesh):
        def loss(params, hidden):
            log_probs = token_log_probs(Transformer(config, mesh=mesh), {"params": params}, hidden, targets, chunk=16)
            return jnp.sum(jnp.sin(log_probs))

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, hidden)

    shared, alone = gradients(make_mesh(2, 2, 2)), gradients(None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), shared, alone)


def shapes(jaxpr):
    """Shapes of all intermediate arrays."""
    return (v.aval.shape for equation in equations(jaxpr) for v in equation.outvars)


def test_no_array_of_all_logits_forward_or_backward(variables):
    hidden, targets = jnp.zeros((B, N, 16)), jnp.zeros((B, N), jnp.int32)

    def largest(chunk):
        """Most rows of logits that any one intermediate array holds."""
        f = lambda h: jnp.sum(token_log_probs(MODEL, variables, h, targets, 1.0, chunk))
        found = list(shapes(jax.make_jaxpr(jax.grad(f))(hidden).jaxpr))
        return max(int(np.prod(s)) // V for s in found if s and s[-1] == V and s != (16, V))

    assert largest(B * N) == B * N  # the walk sees them where they exist
    assert largest(2 * B) == 2 * B
    assert largest(1) == B  # a token of every row


def test_the_default_chunk_bounds_the_logits_held_at_once(monkeypatch, variables, batch):
    from nlrl_jax.lm import score as module

    prompts, replies = batch
    run = lambda: score(MODEL, variables, prompts, jnp.array(LENGTHS), replies)
    want = jax.jit(run)()
    monkeypatch.setitem(module.CHUNK_ELEMENTS, "cpu", 2 * B * V)
    run = functools.partial(run)  # traced anew
    found = [s for s in shapes(jax.make_jaxpr(run)().jaxpr) if s and s[-1] == V and s[0] != 16]
    assert found and max(int(np.prod(s)) for s in found) == 2 * B * V
    np.testing.assert_allclose(jax.jit(run)(), want, atol=1e-6)


def test_chunks_in_which_nothing_counts_are_left_out(monkeypatch):
    monkeypatch.setattr("nlrl_jax.lm.acting.LARGE", 0)
    params = noisy_params(MODEL.config, 0.3)["params"]
    hidden, targets = jax.random.normal(jax.random.key(0), (B, N, 16)), jnp.arange(B * N).reshape(B, N) % V
    counts = jnp.arange(N) < jnp.array([[2], [1], [2]])

    def loss(hidden, asked):
        log_probs = token_log_probs(MODEL, {"params": params}, hidden, targets, 1.3, chunk=2 * B, counts=asked)
        return jnp.sum(jnp.where(counts, log_probs, 0.0)), log_probs

    (want, every), want_grad = jax.value_and_grad(loss, has_aux=True)(hidden, None)
    (got, some), got_grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(hidden, counts)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(got_grad, want_grad, atol=1e-5)
    np.testing.assert_allclose(some[:, :2], every[:, :2], atol=1e-5)
    assert not some[:, 2:].any() and every[:, 2:].all()
