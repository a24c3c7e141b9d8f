"""Decoding layer by layer from the host, against the loop that is one program."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import acting, stepwise
from nlrl_jax.lm import decode as steps
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, SLIDING, DeltaNetSizes
from nlrl_jax.lm.generate import compute_prefix
from nlrl_jax.lm.sampling import DrawSampling
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_variables

SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_layers=4, num_heads=4, num_kv_heads=2)
SIZES |= dict(head_dim=8, max_positions=64, qk_norm=True, lora=LoraConfig(rank=2))
CONFIGS = {
    "one kind": ModelConfig(**SIZES),
    "windows": ModelConfig(**SIZES, sliding_window=4, layer_types=(SLIDING,) * 3 + (FULL,), local_rope_theta=77.0),
    "linear": ModelConfig(**SIZES, layer_types=(LINEAR, FULL) * 2, delta_net=DeltaNetSizes(2, 4, 3, 5, 4)),
}  # fmt: skip
R, W, N, INDEX = 3, 16, 6, 8
KEY = jax.random.key(5)
decode = jax.jit(steps.decode, static_argnums=(0, 5))


@pytest.fixture(scope="module", params=CONFIGS)
def network(request):
    """(model, its variables as they are, and by layer)."""
    model = Transformer(CONFIGS[request.param])
    variables = noisy_variables(model.config, 0.5)
    own = acting.by_layer(model.config, jax.tree.map(jnp.asarray, variables), merge=False)
    return model, variables, own


def rows_of(model, seed=0):
    """Two rows that write, and a free one; their cache is full of noise."""
    rows = steps.empty_rows(model, R, W, N)
    rng = np.random.default_rng(seed)
    kv = jax.tree.map(lambda t: jnp.asarray(rng.normal(size=t.shape).astype(t.dtype)), rows.kv)
    start, limit = np.array([0, 5, 8], np.int32), np.array([N, N - 2, 0], np.int32)
    last, draw = np.array([3, 7, 0], np.int32), np.array([4, 1, 0], np.int32)
    rows = rows._replace(kv=kv, index=np.int32(INDEX), start=start, limit=limit, last=last, draw=draw)
    return jax.tree.map(jnp.asarray, rows)


def agree(got, want):
    assert isinstance(got, type(want)) and isinstance(got.kv, type(want.kv))
    for name, a, b in zip(want._fields, got, want):
        jax.tree.map(lambda x, y, name=name: np.testing.assert_allclose(x, y, atol=1e-4, err_msg=name), a, b)


@pytest.mark.parametrize("prefix_tokens", [0, 3])
def test_the_same_rows_as_one_program(network, prefix_tokens):
    model, _, own = network
    prefix = compute_prefix(model, own, np.arange(1, 1 + prefix_tokens))
    never = np.zeros(SIZES["vocab_size"], bool)
    arguments = np.int32(R), Sampling(1, 1.0), never, prefix, np.float32(0.7)
    want = decode(model, own, rows_of(model), KEY, *arguments)
    agree(stepwise.decode(model, own, rows_of(model), KEY, *arguments), want)
    assert want.lengths.tolist() == [N, N - 2, 0] and want.index == INDEX + N


def test_it_stops_when_enough_rows_are_free_and_goes_on(network):
    model, _, own = network
    arguments = Sampling(1, 0.0), np.zeros(SIZES["vocab_size"], bool)
    whole = stepwise.decode(model, own, rows_of(model), KEY, np.int32(R), *arguments)
    rows = stepwise.decode(model, own, rows_of(model), KEY, np.int32(2), *arguments)
    assert rows.index == INDEX + N - 2 and rows.lengths.tolist() == [N - 2, N - 2, 0]
    agree(stepwise.decode(model, own, rows, KEY, np.int32(R), *arguments), whole)
    # No slot is left, and nothing is written.
    full = whole._replace(index=jnp.int32(W), ended=jnp.zeros(R, bool), limit=jnp.full(R, N + 5))
    want = jax.tree.map(np.asarray, full)
    agree(stepwise.decode(model, own, full, KEY, np.int32(R), *arguments), want)


def test_rows_with_sampling_of_their_own(network):
    model, _, own = network
    temperature, top_k = np.array([0, 1, 1, 0.5, 2], np.float32), np.array([0, 0, 3, 2, 5], np.int32)
    draws = DrawSampling(temperature, top_k, np.ones(5, np.float32))
    arguments = np.int32(R), Sampling(1), np.arange(SIZES["vocab_size"]) > 30, None, None, draws
    agree(
        stepwise.decode(model, own, rows_of(model), KEY, *arguments),
        decode(model, own, rows_of(model), KEY, *arguments),
    )


def test_one_program_for_all_layers_of_a_kind(network):
    model, _, own = network
    model = Transformer(dataclasses.replace(model.config, max_positions=63))  # compiled by no other test
    before = stepwise._layer._cache_size(), stepwise._next_step._cache_size()
    for seed in range(2):
        stepwise.decode(
            model, own, rows_of(model, seed), KEY, np.int32(R), Sampling(1, 0.0), np.zeros(SIZES["vocab_size"], bool)
        )
    kinds = len(set(zip(model.config.kinds * 4, model.config.slides)))
    assert stepwise._layer._cache_size() - before[0] == kinds
    assert stepwise._next_step._cache_size() - before[1] == 1
