"""The decoder against logits of transformers on PyTorch, and its paths against each other."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from nlrl_jax.lm import products
from nlrl_jax.lm.cache import KeyValues, empty_cache
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_lora
from nlrl_jax.weights import gguf, huggingface, peft
from nlrl_jax.weights.layout import merged_kernel
from tests.lm.noise import noisy, noisy_params

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
FAMILIES = ("llama", "llama31", "qwen2", "qwen2_tied", "qwen3", "qwen3_moe", "mistral", "gemma", "gemma3", "qwen3_5")
SMALL = ModelConfig(40, 16, 24, 2, 4, 2, 6, 64, qkv_bias=True, qk_norm=True, lora=LoraConfig(3, 5.0))


def merge_lora(config, params, lora):
    """The weights with the adapter in them."""
    kernels, adapters = flatten_dict(params), flatten_dict(lora)
    for path in {path[:-1] for path in adapters}:
        a, b = adapters[(*path, "a")], adapters[(*path, "b")]
        kernels[(*path, "kernel")] = merged_kernel(config, kernels[(*path, "kernel")], a, b)
    return unflatten_dict(kernels)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, variables, tokens, mask, cache=None):
    """Logits of `tokens`, the last ones of the rows that `mask` covers, at positions that count real tokens."""
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)[:, mask.shape[1] - tokens.shape[1] :]
    valid = jnp.asarray(mask, bool)
    if cache is not None:
        valid = jnp.pad(valid, ((0, 0), (0, cache.kv.k.shape[2] - valid.shape[1])))
    hidden, out = model.apply(variables, tokens, positions, valid, cache)
    return model.apply(variables, hidden, method="unembed"), out


def one_token(model, variables, tokens, mask, cache):
    """Logits [B, V] of one more token a row; `mask` covers all the rows' slots, written or not."""
    slots = cache.kv.k.shape[2]
    valid = jnp.pad(jnp.asarray(mask, bool), ((0, 0), (0, slots - mask.shape[1])), constant_values=True)
    positions = cache.index - jnp.sum(mask == 0, axis=1, keepdims=True)
    hidden, cache = model.apply(variables, tokens, positions, valid, cache)
    return model.apply(variables, hidden[:, 0], method="unembed"), cache


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    config, params = huggingface.load(GOLDENS / request.param)
    return Transformer(config), {"params": params}, np.load(GOLDENS / request.param / "logits.npz")


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_equals_transformers(family, side):
    model, variables, golden = family
    mask = golden[f"{side}_mask"]
    logits, _ = logits_of(model, variables, golden[f"{side}_tokens"], mask)
    np.testing.assert_allclose(logits * mask[..., None], golden[f"{side}_logits"], atol=2e-5, rtol=0)


def test_one_token_at_a_time_equals_transformers_and_one_forward(family):
    model, variables, golden = family
    tokens, mask, more = golden["left_tokens"], golden["left_mask"], golden["decode_tokens"]
    steps = more.shape[1]
    cache = empty_cache(model.config, len(tokens), tokens.shape[1] + steps + 3)  # slots beyond the end stay unseen
    mask = np.pad(mask, ((0, 0), (0, steps)), constant_values=1)
    _, cache = logits_of(model, variables, tokens, mask[:, :-steps], cache)
    decode = jax.jit(lambda *args: one_token(model, variables, *args))
    decoded = []
    for i in range(steps):
        logits, cache = decode(more[:, i : i + 1], mask, cache)
        decoded.append(logits)
    assert int(cache.index) == tokens.shape[1] + steps
    decoded = np.stack(decoded, axis=1)
    np.testing.assert_allclose(decoded, golden["decode_logits"], atol=2e-5, rtol=0)
    whole, _ = logits_of(model, variables, np.concatenate([tokens, more], axis=1), mask)
    np.testing.assert_allclose(decoded, whole[:, -steps:], atol=2e-5, rtol=0)


def test_llama31_golden_reaches_beyond_the_original_window():
    config, _ = huggingface.load(GOLDENS / "llama31")
    assert config.rope_scaling.original_max_positions == 32
    assert np.load(GOLDENS / "llama31" / "logits.npz")["left_mask"].sum(1).max() > 2 * 32


def test_adapter_equals_peft():
    config, params = huggingface.load(GOLDENS / "qwen2")
    config, lora = peft.load(GOLDENS / "adapter", config)
    golden = np.load(GOLDENS / "qwen2" / "logits.npz")
    tokens, mask = golden["left_tokens"], golden["left_mask"]
    logits, _ = logits_of(Transformer(config), {"params": params, "lora": lora}, tokens, mask)
    want = np.load(GOLDENS / "adapter" / "logits.npz")["left_logits"]
    np.testing.assert_allclose(logits * mask[..., None], want, atol=5e-5, rtol=0)
    assert np.abs(want - golden["left_logits"]).max() > 1  # the adapter matters


@pytest.fixture(scope="module")
def small():
    model = Transformer(SMALL)
    return model, noisy_params(SMALL, 0.2, 1)["params"], init_lora(model, jax.random.key(2))


def test_fresh_adapter_changes_nothing_and_merged_equals_unmerged(small):
    model, params, lora = small
    tokens, mask = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6), jnp.int32)
    base, _ = logits_of(model, {"params": params}, tokens, mask)
    fresh, _ = logits_of(model, {"params": params, "lora": lora}, tokens, mask)
    np.testing.assert_allclose(fresh, base, atol=2e-6, rtol=0)  # fused differently, so not to the bit
    lora = noisy(lora, 0.3)
    adapted, _ = logits_of(model, {"params": params, "lora": lora}, tokens, mask)
    merged, _ = logits_of(model, {"params": merge_lora(SMALL, params, lora)}, tokens, mask)
    assert np.abs(adapted - base).max() > 0.1
    np.testing.assert_allclose(merged, adapted, atol=2e-5)


def test_shared_prefix_equals_plain_computation_with_gradients(small):
    model, params, lora = small
    lora = noisy(lora, 0.3)
    rng = np.random.default_rng(0)
    prefix, rest = jnp.asarray(rng.integers(0, 40, 5)), jnp.asarray(rng.integers(0, 40, (3, 7)))
    valid = jnp.arange(7)[None] >= jnp.array([[0], [3], [6]])  # left-padded rows
    own = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    weights = jnp.asarray(rng.normal(size=(3, 7, 40))) * valid[..., None]

    def plain(variables):
        tokens = jnp.concatenate([jnp.tile(prefix, (3, 1)), rest], axis=1)
        positions = jnp.concatenate([jnp.tile(jnp.arange(5), (3, 1)), 5 + own], axis=1)
        seen = jnp.concatenate([jnp.ones((3, 5), bool), valid], axis=1)
        hidden, _ = model.apply(variables, tokens, positions, seen)
        return jnp.sum(model.apply(variables, hidden[:, 5:], method="unembed") * weights)

    def shared(variables):
        _, kv = model.apply(variables, prefix[None], jnp.arange(5)[None], collect=True)
        kv = KeyValues(kv.k[:, 0], kv.v[:, 0])
        hidden, _ = model.apply(variables, rest, 5 + own, valid, prefix=kv)
        return jnp.sum(model.apply(variables, hidden, method="unembed") * weights)

    variables = {"params": params, "lora": lora}
    want, want_grad = jax.jit(jax.value_and_grad(plain))(variables)
    got, got_grad = jax.jit(jax.value_and_grad(shared))(variables)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(want_grad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), got_grad, want_grad)


def test_padding_content_is_invisible_and_gradients_stay_finite(small):
    model, params, _ = small
    tokens = jnp.arange(12).reshape(2, 6)
    mask = jnp.array([[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]])

    def loss(params, tokens):
        return jnp.sum(logits_of(model, {"params": params}, tokens, mask)[0] * mask[..., None])

    value, grad = jax.jit(jax.value_and_grad(loss))(params, tokens)
    other, _ = jax.jit(jax.value_and_grad(loss))(params, jnp.where(mask == 1, tokens, 33))
    assert value == other
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grad))


def test_remat_gives_the_same_gradients(small):
    model, params, _ = small
    tokens, mask = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6), jnp.int32)

    def gradient(model):
        return jax.jit(jax.grad(lambda p: jnp.sum(logits_of(model, {"params": p}, tokens, mask)[0] ** 2)))(params)

    plain, remat = gradient(model), gradient(model.copy(remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), plain, remat)


def test_a_wide_mlp_keeps_less_for_its_gradient(small, monkeypatch):
    model, params, lora = small
    tokens, positions = jnp.arange(12).reshape(2, 6), jnp.broadcast_to(jnp.arange(6), (2, 6))

    def loss(lora):
        return jnp.sum(model.apply({"params": params, "lora": lora}, tokens, positions)[0] ** 2)

    def kept():
        """Numbers that the gradient keeps as wide as the MLP, over both layers, and the gradient."""
        wide = model.config.intermediate_size
        pullback = jax.eval_shape(lambda lora: jax.vjp(loss, lora)[1], lora)
        shapes = [leaf.shape for leaf in jax.tree.leaves(pullback)]
        return sum(shape == (2, 2, 6, wide) for shape in shapes), jax.jit(jax.grad(lambda lora: loss(lora)))(lora)

    narrow, want = kept()
    monkeypatch.setattr(products, "WIDE", 0)
    wide, got = kept()
    assert wide <= 3 < narrow
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.smollm2
def test_smollm2_from_gguf_equals_transformers():
    try:
        config, params = gguf.load(gguf.smollm2_path())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    golden = np.load(GOLDENS / "smollm2.npz")
    rows = [golden["prompt_0"], golden["prompt_1"]]
    length = max(map(len, rows))
    tokens = np.stack([np.pad(row, (length - len(row), 0)) for row in rows])
    mask = np.stack([np.arange(length) >= length - len(row) for row in rows]).astype(np.int32)
    logits, _ = logits_of(Transformer(config), {"params": params}, tokens, mask)
    for i in range(2):
        last = np.asarray(logits[i, -4:])
        # Logits reach 30 and rounding in float32 moves them by some 5e-4, in transformers too.
        np.testing.assert_allclose(last[:, golden["chosen_ids"]], golden[f"chosen_logits_{i}"], atol=1e-3)
        top = np.take_along_axis(last, golden[f"top_ids_{i}"], axis=1)
        np.testing.assert_allclose(top, golden[f"top_logits_{i}"], atol=1e-3)
        np.testing.assert_allclose(jax.nn.logsumexp(last, axis=-1), golden[f"logsumexp_{i}"], atol=1e-3)
        assert (last.argmax(-1) == golden[f"top_ids_{i}"][:, 0]).all()
