"""Decoders whose layers see a window, or keep a state: every path against whole texts that are read one a call."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm import blockwise, kv_rows, packing
from nlrl_jax.lm.acting import by_layer
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, SLIDING, DeltaNetSizes
from nlrl_jax.lm.generate import compute_prefix, generate, left_pad
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.text.word_trie import word_trie
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_params, noisy_variables

WINDOW = 4
SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_layers=3, num_heads=4, num_kv_heads=2)
SIZES |= dict(head_dim=6, max_positions=64, sliding_window=WINDOW, lora=LoraConfig(2, 4.0))
GEMMA3 = dict(activation="gelu_tanh", norm_offset=True, sandwich_norms=True, scale_embeddings=True, qk_norm=True)
GEMMA3 |= dict(query_pre_attn_scalar=9.0, local_rope_theta=77.0, tie_embeddings=True)
CONFIGS = {
    "mistral": ModelConfig(**SIZES, layer_types=(SLIDING,) * 3),
    "gemma3": ModelConfig(**SIZES, layer_types=(SLIDING, FULL, SLIDING), **GEMMA3),
    "experts": ModelConfig(
        **SIZES, layer_types=(SLIDING, SLIDING, FULL), num_experts=5, experts_per_token=2, expert_size=8
    ),
    "linear": ModelConfig(
        **SIZES | dict(num_layers=4, sliding_window=None), layer_types=(LINEAR, FULL) * 2, norm_offset=True,
        gated_attention=True, partial_rotary_factor=0.34, qk_norm=True, delta_net=DeltaNetSizes(2, 4, 3, 5, 4),
        norm_eps=1e-2,
    ),
}  # fmt: skip
PREFIXES = {"no prefix": 0, "a prefix inside the window": 2, "a prefix beyond the window": 7}
PADDED = [(0, False), (2, False), (7, True)]  # tokens of the prefix, layers one by one
LENGTHS = np.array([7, 1, 4, 3, 6], np.int32)
S, N = 7, 9  # slots of prompts, tokens of replies


prefix_of = jax.jit(compute_prefix, static_argnums=0)


@pytest.fixture(scope="module", params=["mistral", "gemma3", "linear", pytest.param("experts", marks=pytest.mark.slow)])
def config(request):
    return CONFIGS[request.param]


def for_each_config(names, cases, gemma3=(), linear=()):
    """Every config with every case, of which some are slow: windows beside full layers repeat what windows alone show,
    and without windows one prefix, shorter than the convolution, is enough.

    Args:
      gemma3, linear: cases that are not slow.
    """
    quick = {"mistral": cases, "gemma3": gemma3, "linear": linear, "experts": ()}
    rows = []
    for name, few in quick.items():
        for case in cases:
            values = case if isinstance(case, tuple) else (case,)
            rows.append(pytest.param(name, *values, marks=[] if case in few else pytest.mark.slow))
    return pytest.mark.parametrize(f"config, {names}", rows, indirect=["config"])


def noise_of(config):
    """Linear layers norm what may be near zero, so that rounding grows with the weights: noise of 0.4 makes of 1e-7 of
    the weights 1e-4 of the logits."""
    return 0.2 if config.num_linear_layers else 0.4


@pytest.fixture(scope="module")
def variables(config):
    return noisy_params(config, noise_of(config))


@pytest.fixture(scope="module")
def alone(config, variables):
    """text -> log-probabilities [len(text), V] of the tokens after each of its own."""
    model = Transformer(config)

    @jax.jit
    def read(tokens):
        hidden, _ = model.apply(variables, tokens[None], jnp.arange(len(tokens))[None])
        return jax.nn.log_softmax(model.apply(variables, hidden[0], method="unembed"))

    def padded(text):
        return read(jnp.pad(jnp.asarray(text, jnp.int32), (0, 32 - len(text))))[: len(text)]

    return padded


def random_texts():
    rng = np.random.default_rng(3)
    return rng.integers(0, 40, 7), rng.integers(0, 40, (5, S)), rng.integers(0, 40, (5, N))


def prompts_of(rows):
    """Left-padded [5, S]: the last `LENGTHS` tokens of each row."""
    return jnp.where(jnp.arange(S) >= S - LENGTHS[:, None], rows, 0)


def reply_log_probs(alone, before, reply):
    """log p of each token of a reply after the tokens `before`."""
    log_probs = alone([*before, *reply])[len(before) - 1 : -1]
    return log_probs[np.arange(len(reply)), np.asarray(reply)]


def test_windows_hide_what_they_should(config, variables):
    """Through three layers a token depends on the nine before it, and on all before it where one layer is full."""
    if config.window is None:
        pytest.skip("no windows")
    tokens = jnp.asarray(random_texts()[0])[None].repeat(2, 0)
    tokens = jnp.tile(tokens, (1, 3)).at[1, 0].set(39)
    hidden, _ = Transformer(config).apply(variables, tokens, jnp.arange(21)[None])
    differs = np.abs(hidden[0] - hidden[1]).max(-1) > 1e-6
    assert differs[:10].all() and differs[10:].all() == (FULL in config.layer_types)
    assert differs[10:].any() == (FULL in config.layer_types)


@for_each_config("P, unstacked", PADDED, gemma3=PADDED, linear=PADDED[1:])
def test_replies_after_padded_prompts(config, variables, alone, P, unstacked):
    model, (prefix, rows, _) = Transformer(config), random_texts()
    prompts, weights = prompts_of(rows), by_layer(config, variables, False) if unstacked else variables
    sampling = Sampling(max_tokens=N, temperature=0.0)

    @jax.jit
    def run(weights):
        shared = compute_prefix(model, weights, prefix[:P])
        return generate(model, weights, prompts, jnp.asarray(LENGTHS), jax.random.key(0), sampling, (99,), shared)

    said = run(weights)
    for row, length, reply, log_probs in zip(rows, LENGTHS, np.asarray(said.tokens), said.log_probs):
        before = [*prefix[:P], *row[S - length :]]
        best = np.asarray(alone([*before, *reply]))[len(before) - 1 : -1].argmax(-1)
        np.testing.assert_array_equal(reply, best)
        np.testing.assert_allclose(log_probs, reply_log_probs(alone, before, reply), atol=2e-5)


@for_each_config(
    "P, in_blocks",
    [(0, False), (2, False), (7, False), (0, True), (7, True)],
    gemma3=[(2, False), (7, False), (7, True)],
    linear=[(2, False), (7, True)],
)
def test_scores_padded_and_packed(config, variables, alone, P, in_blocks, monkeypatch):
    if in_blocks:
        monkeypatch.setattr(blockwise, "LONG", {"cpu": 4})
        monkeypatch.setattr(blockwise, "SHORTEST", 4)
        monkeypatch.setattr(blockwise, "LONGEST", 4)
    model, (prefix, rows, replies) = Transformer(config), random_texts()
    prompts, replies = prompts_of(rows), jnp.asarray(replies)

    @jax.jit
    def run(variables):
        shared = compute_prefix(model, variables, prefix[:P])
        padded = score(model, variables, prompts, jnp.asarray(LENGTHS), replies, shared)
        place = packing.plan(jnp.asarray(LENGTHS), jnp.full(5, N), S, N, num=3, fold=2)
        packed_rows = packing.rows(place, prompts, replies)
        packed = packing.score(model, variables, packed_rows, place.of_replies(replies), shared)
        return padded, packed, place.of_replies(padded), place.reply >= 0

    padded, packed, same, there = run(variables)
    for row, length, reply, log_probs in zip(rows, LENGTHS, np.asarray(replies), padded):
        want = reply_log_probs(alone, [*prefix[:P], *row[S - length :]], reply)
        np.testing.assert_allclose(log_probs, want, atol=2e-5)
    np.testing.assert_allclose(np.where(there, packed, 0), np.where(there, same, 0), atol=2e-5)
    assert there.sum() == 5 * N


@for_each_config("P", list(PREFIXES.values()), gemma3=[0, 7], linear=[2])
def test_chunks_in_a_cache_and_two_continuations_of_one_text(config, variables, alone, P):
    """A text of ten tokens, read in chunks of four and six, and continued by two pairs of tokens."""
    model, (prefix, rows, replies) = Transformer(config), random_texts()
    text, forks = np.resize(rows, 10), replies[:2, :2]
    shared, start = prefix_of(model, variables, prefix[:P]), np.array([0, 0], np.int32)
    kv = kv_rows.load(kv_rows.empty_pool(model, 1, shared), np.full((2, 12), -1))
    tokens = np.concatenate([np.tile(text, (2, 1)), forks], axis=1)
    states, read = [], jax.jit(kv_rows.read, static_argnums=0)
    for first, last in ((0, 4), (4, 10), (10, 11), (11, 12)):
        hidden, kv = read(model, variables, kv, tokens[:, first:last], np.int32(first), start, shared)
        states.append(hidden)
    logits = model.apply(variables, jnp.concatenate(states, axis=1), method="unembed")
    for row, got in zip(tokens, jax.nn.log_softmax(logits)):
        np.testing.assert_allclose(got, alone([*prefix[:P], *row])[P:], atol=2e-5)


@pytest.mark.parametrize("P", PREFIXES.values(), ids=PREFIXES)
def test_words_of_a_trie(config, variables, alone, P):
    """Words stand side by side after the prompt: their places in the row are not their positions."""
    if config.num_linear_layers:
        pytest.skip("a state goes from token to token: such words are read one by one")
    model, (prefix, rows, _) = Transformer(config), random_texts()
    trie, text = word_trie([[3, 7, 1, 2, 6, 5], [3, 8], [5], [4, 4, 9, 1, 1]]), np.resize(rows, 5)
    M, L = len(trie.tokens), len(text) + len(trie.tokens)
    sees = np.tril(np.ones((L, L), bool))
    sees[5:, 5:] = trie.sees
    positions = P + np.concatenate([np.arange(5), 4 + trie.depth])

    @jax.jit
    def read(variables):
        shared = compute_prefix(model, variables, prefix[:P])
        row = jnp.asarray(np.concatenate([text, trie.tokens]))[None]
        hidden, _ = model.apply(variables, row, positions[None], prefix=shared, sees=jnp.asarray(sees)[None])
        return jax.nn.log_softmax(model.apply(variables, hidden[0, 4:], method="unembed"))

    log_probs = read(variables)
    assert M == len(log_probs) - 1
    got = trie.path @ np.asarray(log_probs[trie.parent, trie.predicted])
    for word, total in zip([[3, 7, 1, 2, 6, 5], [3, 8], [5], [4, 4, 9, 1, 1]], got):
        np.testing.assert_allclose(total, reply_log_probs(alone, [*prefix[:P], *text], word).sum(), atol=5e-5)


@for_each_config("P", [2, 7], gemma3=[7], linear=[2])
def test_gradients_through_a_shared_prefix(config, P):
    model, (prefix, rows, replies) = Transformer(config, remat=True), random_texts()
    variables, replies = noisy_variables(config, noise_of(config) - 0.1), jnp.asarray(replies)
    pasted = jnp.concatenate([jnp.tile(prefix[:P], (5, 1)), jnp.asarray(rows)], axis=1)
    lengths = jnp.full(5, S)

    def of_shared(lora):
        both = {**variables, "lora": lora}
        return score(model, both, rows, lengths, replies, compute_prefix(model, both, prefix[:P])).sum()

    def of_pasted(lora):
        return score(model, {**variables, "lora": lora}, pasted, lengths + P, replies).sum()

    got, want = (jax.jit(jax.grad(of))(variables["lora"]) for of in (of_shared, of_pasted))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * largest), got, want)


def test_bfloat16_stays_near_float32(config, variables):
    tokens = jnp.asarray(np.resize(random_texts()[1], (2, 20)))
    half = dataclasses.replace(config, dtype="bfloat16", param_dtype="bfloat16")
    halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    same = jax.tree.map(lambda x: x.astype(jnp.float32), halved)

    @functools.partial(jax.jit, static_argnums=0)
    def logits_of(model, weights):
        hidden, _ = model.apply(weights, tokens, jnp.arange(20)[None])
        assert hidden.dtype == model.config.dtype
        return model.apply(weights, hidden, method="unembed")

    logits = [logits_of(Transformer(c), weights) for c, weights in ((half, halved), (config, same))]
    assert np.abs(logits[0] - logits[1]).mean() < 0.03 * np.abs(logits[1]).mean() + 0.02


def test_a_window_over_all_positions_changes_no_program(config, variables):
    if config.window is None:
        pytest.skip("no windows")
    wide = dataclasses.replace(config, sliding_window=64)
    without = (
        dataclasses.replace(config, sliding_window=None, layer_types=()) if config.local_rope_theta is None else wide
    )

    def program(c):
        tokens = left_pad(jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]))
        return jax.jit(lambda v: Transformer(c).apply(v, tokens, jnp.arange(5)[None])[0]).lower(variables).as_text()

    assert program(wide) == program(without) != program(config)
