"""Weights prepared for rollouts against the weights that they were made of."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import acting as prepared
from nlrl_jax.lm import decode as steps
from nlrl_jax.lm.acting import acting, by_layer
from nlrl_jax.lm.cache import HeadKeyValues
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.generate import compute_prefix, generate, left_pad, prefill
from nlrl_jax.lm.kv_rows import FreshRows, admit
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy, noisy_params

CONFIG = ModelConfig(40, 16, 24, 3, 4, 2, 8, 64, qkv_bias=True, lora=LoraConfig(2, 6.0))
MODEL = Transformer(CONFIG)
KEY = jax.random.key(3)
SAMPLING = Sampling(max_tokens=6, temperature=1.0)
LENGTHS = jnp.array([5, 1, 4])
run = jax.jit(generate, static_argnums=(0, 5, 6))
prefix_of = jax.jit(compute_prefix, static_argnums=0)
PREFIX = jnp.array([7, 3, 9])


@pytest.fixture(scope="module")
def variables():
    return {**noisy_params(CONFIG, 0.5), "lora": noisy(init_lora(MODEL, KEY), 0.5)}


@pytest.fixture(scope="module")
def prompts():
    tokens = jax.random.randint(KEY, (3, 5), 0, 40)
    return left_pad(jnp.where(jnp.arange(5) < LENGTHS[:, None], tokens, 0), LENGTHS)


@pytest.fixture(scope="module")
def prefix(variables):
    return prefix_of(MODEL, variables, PREFIX)


@pytest.fixture(scope="module")
def said(variables, prompts, prefix):
    found = run(MODEL, variables, prompts, LENGTHS, KEY, SAMPLING, (99,), prefix)
    without = run(MODEL, {"params": variables["params"]}, prompts, LENGTHS, KEY, SAMPLING, (99,), prefix)
    assert (found.tokens != without.tokens).any()  # the adapter takes part
    return found


@pytest.mark.parametrize("merge, join", [(False, False), (True, False), (False, True), (True, True)])
def test_layers_on_their_own_say_the_same(variables, prompts, said, merge, join):
    alone = by_layer(CONFIG, variables, merge, join)
    assert ("qkv" in alone["params"]["blocks"][0]["attention"]) == join
    assert ("lora" in alone) != merge and len(alone["params"]["blocks"]) == 3
    found = run(MODEL, alone, prompts, LENGTHS, KEY, SAMPLING, (99,), prefix_of(MODEL, alone, PREFIX))
    np.testing.assert_array_equal(found.tokens, said.tokens)
    np.testing.assert_allclose(found.log_probs, said.log_probs, atol=1e-4)


def test_an_adapter_of_some_modules_is_not_joined(variables, prompts):
    blocks = {name: tree for name, tree in variables["lora"]["blocks"].items() if name != "up"}
    some = {**variables, "lora": {"blocks": blocks}}
    want, found = (
        run(MODEL, v, prompts, LENGTHS, KEY, SAMPLING, (99,)) for v in (some, by_layer(CONFIG, some, False, True))
    )
    np.testing.assert_array_equal(found.tokens, want.tokens)
    np.testing.assert_allclose(found.log_probs, want.log_probs, atol=1e-4)


def test_rows_that_go_on_keep_their_slots(variables, prompts):
    """Resumable decoding in two pieces: keys and values go into the loop by layer and come back stacked."""

    @functools.partial(jax.jit, static_argnums=1)
    def write(variables, pieces):
        kv, _ = prefill(MODEL, variables, prompts, LENGTHS)
        kv = HeadKeyValues(*(jnp.moveaxis(t, 3, 1) for t in kv[:2]))  # heads in front
        rows = steps.empty_rows(MODEL, 3, 12, 6)
        new = FreshRows(jnp.arange(3), LENGTHS, prompts[:, -1], jnp.arange(3))
        rows = admit(rows, kv, new, jnp.int32(6), jnp.int32(4))
        for limit in pieces:
            short = rows._replace(limit=jnp.full(3, limit))
            rows = steps.decode(MODEL, variables, short, KEY, jnp.int32(3), SAMPLING, jnp.zeros(40, bool))
        return rows

    want, alone = write(variables, (6,)), by_layer(CONFIG, variables, True, join=True)
    for pieces in ((6,), (2, 6)):
        found = write(alone, pieces)
        np.testing.assert_array_equal(found.tokens, want.tokens)
        np.testing.assert_allclose(found.kv.k[:, :, :, 5:9], want.kv.k[:, :, :, 5:9], atol=1e-4)


@pytest.mark.parametrize("weights", prepared.WEIGHTS)
def test_on_a_cpu_weights_stay_stacked(variables, prompts, prefix, said, weights):
    ready = jax.jit(lambda variables: acting(MODEL, variables, weights))(variables)
    assert isinstance(ready["params"]["blocks"], dict) and ("lora" in ready) == (weights != "merged")
    found = run(MODEL, ready, prompts, LENGTHS, KEY, SAMPLING, (99,), prefix)
    np.testing.assert_array_equal(found.tokens, said.tokens)


@pytest.mark.parametrize("weights", prepared.WEIGHTS)
def test_on_a_cpu_large_layers_are_taken_apart_where_that_is_asked_for(variables, monkeypatch, weights):
    monkeypatch.setattr(prepared, "LARGE", 0)
    ready, apart = acting(MODEL, variables, weights), weights in ("apart", "merged")
    blocks = ready["params"]["blocks"]
    assert isinstance(blocks, tuple) == apart and ("turned" in (blocks[0] if apart else blocks)["down"]) == apart
    tokens = jnp.arange(6).reshape(2, 3)
    found, want = (MODEL.apply(v, tokens, jnp.broadcast_to(jnp.arange(3), (2, 3)))[0] for v in (ready, variables))
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_an_adapter_in_the_type_of_the_model_is_what_a_layer_would_make_of_it(variables, prompts):
    model = Transformer(dataclasses.replace(CONFIG, dtype="bfloat16"))
    ready = acting(model, variables)
    assert {x.dtype for x in jax.tree.leaves(ready["lora"])} == {jnp.dtype("bfloat16")}
    want, found = (run(model, v, prompts, LENGTHS, KEY, SAMPLING, (99,)) for v in (variables, ready))
    np.testing.assert_array_equal(found.log_probs, want.log_probs)


def test_a_gpu_takes_its_weights_apart_where_there_is_room(variables, monkeypatch):
    size = sum(x.nbytes for x in jax.tree.leaves(variables["params"]))
    monkeypatch.setattr(prepared, "platform_of", lambda mesh: "gpu")
    for memory, apart in ((None, False), (2.9 * size, False), (3.1 * size, True)):
        monkeypatch.setattr(prepared, "memory_of", lambda mesh, memory=memory: memory)
        assert isinstance(acting(MODEL, variables, "auto")["params"]["blocks"], tuple) == apart
        assert isinstance(acting(MODEL, variables)["params"]["blocks"], dict)
        assert isinstance(acting(MODEL, variables, "apart")["params"]["blocks"], tuple)
