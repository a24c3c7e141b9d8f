"""Views of a model's layers against the stacked arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import acting, products
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.generate import compute_prefix, generate
from nlrl_jax.lm.products import few_rows
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(40, 16, 24, 3, 4, 2, 8, 64, qk_norm=True, lora=LoraConfig(rank=2))
MODEL = Transformer(CONFIG)
SIZE = sum(leaf.nbytes for leaf in jax.tree.leaves(noisy_params(CONFIG, 0.5)))


@pytest.fixture(scope="module")
def variables():
    noise = lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape)
    return noisy_params(CONFIG, 0.5) | {"lora": jax.tree.map(noise, init_lora(MODEL, jax.random.key(1)))}


@pytest.fixture(params=["turned", "shared"])
def apart(request, variables, monkeypatch):
    monkeypatch.setattr(acting, "LARGE", 0)
    monkeypatch.setattr(acting, "memory_of_host", lambda: 3 * SIZE if request.param == "turned" else 3 * SIZE - 1)
    return acting.views(MODEL, variables)


def test_the_same_hidden_states_and_keys(variables, apart):
    assert len(apart["params"]["blocks"]) == len(apart["lora"]["blocks"]) == CONFIG.num_layers
    tokens = jnp.arange(14).reshape(2, 7)
    positions = jnp.broadcast_to(jnp.arange(7), (2, 7))
    want, got = (jax.jit(lambda v: MODEL.apply(v, tokens, positions, collect=True))(own) for own in (variables, apart))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)


@pytest.mark.parametrize("apart", ["turned"], indirect=True)
def test_the_same_replies_after_a_prefix(variables, apart):
    prompts, lengths = jnp.arange(1, 9).reshape(2, 4), jnp.array([4, 4])

    @jax.jit
    def reply(own):
        prefix = compute_prefix(MODEL, own, jnp.array([3, 1]))
        return generate(MODEL, own, prompts, lengths, jax.random.key(0), Sampling(6, 0.0), (9,), prefix)

    replies = [reply(own) for own in (variables, apart)]
    assert replies[0].tokens.tolist() == replies[1].tokens.tolist()
    np.testing.assert_allclose(replies[0].log_probs, replies[1].log_probs, atol=2e-5)


def test_what_the_layers_hold(variables, apart):
    stacked, own = (v["params"]["blocks"] for v in (variables, apart))
    for i, layer in enumerate(own):
        for name in ("gate", "down"):
            (form, kernel), *others = layer[name].items()
            assert form in ("turned", "kernel") and not others
            np.testing.assert_array_equal(kernel.T if form == "turned" else kernel, stacked[name]["kernel"][i])
    assert ("turned" in own[0]["up"]) == (acting.memory_of_host() == 3 * SIZE)


def test_without_room_weights_are_not_copied(monkeypatch):
    monkeypatch.setattr(acting, "LARGE", 0)
    monkeypatch.setattr(acting, "memory_of_host", lambda: 0)
    model = Transformer(dataclasses.replace(CONFIG, hidden_size=64, intermediate_size=64))
    variables = noisy_params(model.config, 1.0)
    stacked = variables["params"]["blocks"]["up"]["kernel"]
    own = [layer["up"]["kernel"] for layer in acting.views(model, variables)["params"]["blocks"]]
    start = stacked.unsafe_buffer_pointer()
    places = [layer.unsafe_buffer_pointer() - start for layer in own]
    assert places == [i * stacked.nbytes // 3 for i in range(3)]


@pytest.mark.parametrize("shape", [(24, 40), (3, 5, 40), (40,)])
def test_a_product_of_few_rows(shape):
    draw = lambda seed, shape: jax.random.normal(jax.random.key(seed), shape)
    x, kernel = draw(0, shape), draw(1, (40, 33))
    np.testing.assert_allclose(jax.jit(few_rows)(x, kernel.T), x @ kernel, atol=1e-5)


@pytest.mark.parametrize("tie", [True, False])
def test_the_head_of_few_rows(monkeypatch, tie):
    """The same logits, of few rows by a head that is turned round."""
    model = Transformer(dataclasses.replace(CONFIG, tie_embeddings=tie))
    own, few = noisy_params(model.config, 1.0), jax.random.normal(jax.random.key(0), (5, CONFIG.hidden_size))
    want = model.apply(own, few, method="unembed")
    monkeypatch.setattr(acting, "LARGE", 0)
    monkeypatch.setattr(acting, "memory_of_host", lambda: 10 * SIZE)
    monkeypatch.setattr(products, "WIDE", 0)
    views = acting.views(model, own)
    np.testing.assert_allclose(model.apply(views, few, method="unembed"), want, atol=1e-5)
    turned = lambda rows: "barrier" in str(jax.make_jaxpr(lambda h: model.apply(views, h, method="unembed"))(rows))
    assert turned(few) and not turned(jnp.tile(few, (13, 1)))


def test_a_control_group_limits_the_memory(tmp_path):
    limit, free = tmp_path / "memory.max", acting.memory_of_host(tmp_path / "none")
    limit.write_text("max\n")
    assert acting.memory_of_host(limit) == free > 5000
    limit.write_text("5000\n")
    assert acting.memory_of_host(limit) == 5000


def test_small_models_stay_as_they_are(variables):
    assert acting.views(MODEL, variables) is variables
