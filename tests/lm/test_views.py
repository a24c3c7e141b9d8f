"""Views of a model's layers against the stacked arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import acting
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.generate import compute_prefix, generate
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params

CONFIG = ModelConfig(40, 16, 24, 3, 4, 2, 8, 64, qk_norm=True, lora=LoraConfig(rank=2))
MODEL = Transformer(CONFIG)


@pytest.fixture(scope="module")
def variables():
    noise = lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape)
    return noisy_params(CONFIG, 1.0) | {"lora": jax.tree.map(noise, init_lora(MODEL, jax.random.key(1)))}


@pytest.fixture
def apart(variables, monkeypatch):
    monkeypatch.setattr(acting, "LARGE", 0)
    return acting.views(MODEL, variables)


def test_the_same_hidden_states_and_keys(variables, apart):
    assert len(apart["params"]["blocks"]) == len(apart["lora"]["blocks"]) == CONFIG.num_layers
    tokens = jnp.arange(14).reshape(2, 7)
    positions = jnp.broadcast_to(jnp.arange(7), (2, 7))
    want = MODEL.apply(variables, tokens, positions, collect=True)
    got = MODEL.apply(apart, tokens, positions, collect=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)


def test_the_same_replies_after_a_prefix(variables, apart):
    prompts, lengths = jnp.arange(1, 9).reshape(2, 4), jnp.array([4, 4])
    replies = [
        generate(
            MODEL, own, prompts, lengths, jax.random.key(0), Sampling(6, 0.0), (9,), compute_prefix(MODEL, own, (3, 1))
        )
        for own in (variables, apart)
    ]
    assert replies[0].tokens.tolist() == replies[1].tokens.tolist()
    np.testing.assert_allclose(replies[0].log_probs, replies[1].log_probs, atol=2e-5)


def test_weights_are_not_copied(monkeypatch):
    monkeypatch.setattr(acting, "LARGE", 0)
    model = Transformer(dataclasses.replace(CONFIG, hidden_size=64, intermediate_size=64))
    variables = noisy_params(model.config, 1.0)
    stacked = variables["params"]["blocks"]["up"]["kernel"]
    own = [layer["up"]["kernel"] for layer in acting.views(model, variables)["params"]["blocks"]]
    start = stacked.unsafe_buffer_pointer()
    places = [layer.unsafe_buffer_pointer() - start for layer in own]
    assert places == [i * stacked.nbytes // 3 for i in range(3)]


def test_small_models_stay_as_they_are(variables):
    assert acting.views(MODEL, variables) is variables
