"""Attention in blocks against attention at once: values, gradients, and what is never built."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax.algorithms.sft import SFTBatch, sft_loss
from nlrl_jax.lm import attention, blockwise, sharding, transformer
from nlrl_jax.lm.blockwise import Blocks, Sight, blocks_for
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, SLIDING
from nlrl_jax.lm.generate import compute_prefix, generate
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from tests.lm.noise import noisy_variables

B, L, K, D, P = 2, 37, 2, 8, 21
CONFIG = ModelConfig(64, 32, 40, 2, 4, 2, 8, 64, qkv_bias=True, qk_norm=True, lora=LoraConfig(4, 8.0))
VALID = jnp.arange(L) >= jnp.array([[5], [17]])
SEGMENTS = jnp.repeat(jnp.array([[1, 2, 3], [1, 2, 0]]), jnp.array([11, 20, 6]), axis=1, total_repeat_length=L)
SEES = jnp.arange(L) <= jnp.arange(L)[:, None] + jnp.array([0, 3])[:, None, None]
WINDOWED = dataclasses.replace(
    CONFIG, sliding_window=5, layer_types=(SLIDING, FULL), local_rope_theta=99.0, norm_offset=True, sandwich_norms=True
)
PLACES = jnp.maximum(jnp.arange(L) - jnp.array([[5], [17]]), 0)  # positions of the tokens that `VALID` marks
CASES = {  # sight, query heads per key/value head, prefix tokens, slots
    "causal": (Sight(0), 1, 0, L),
    "grouped queries": (Sight(0), 3, 0, L),
    "left padding": (Sight(0, VALID), 2, 0, L),
    "left padding after a prefix": (Sight(0, VALID), 2, P, L),
    "several sequences in a row": (Sight(0, None, SEGMENTS), 2, 0, L),
    "as told": (Sight(0, None, None, SEES), 2, P, L),
    "free slots at the end": (Sight(0, jnp.pad(VALID, ((0, 0), (0, 9)), constant_values=True)), 2, P, L + 9),
    "tokens before": (Sight(4, jnp.pad(VALID, ((0, 0), (4, 0)))), 2, P, L + 4),
    "a window": (Sight(0, VALID, window=7), 2, 0, L),
    "a window over tokens before": (Sight(4, window=7), 2, 0, L + 4),
    "a window in several sequences": (Sight(0, None, SEGMENTS, None, 7, PLACES, PLACES), 2, 0, L),
    "a window as told": (Sight(0, None, None, SEES, 7, PLACES, PLACES), 1, 0, L),
    "a window over a prefix": (Sight(0, VALID, None, None, 9, PLACES, PLACES), 2, P, L),
    "a window past a prefix": (Sight(0, window=40), 2, P, L),
}


def inputs(R, P, S, dtype):
    rng = np.random.default_rng(0)
    shapes = [(B, L, K * R, D), (B, S, K, D), (B, S, K, D)]
    q, k, v, *prefix = (jnp.asarray(rng.normal(size=s), dtype) for s in [*shapes, (P, K, D), (P, K, D)])
    return q, k, v, tuple(prefix) if P else None


@functools.cache
def computed(case, dtype, blocks=None):
    """(value, gradients of q, k, v and prefix) in blocks, or at once without them, as float32."""
    sight, R, P, S = CASES[case]
    args = inputs(R, P, S, dtype)
    mask = jnp.broadcast_to(sight.mask(0, L, 0, S), (B, L, S))
    of_prefix = prefix_mask = None
    if P and sight.window is not None:
        positions = P + (jnp.arange(L)[None] if sight.query_positions is None else sight.query_positions)
        of_prefix = Sight(None, window=sight.window, query_positions=positions)
        prefix_mask = jnp.broadcast_to(of_prefix.mask(0, L, 0, P), (B, L, P))
        assert 0 < prefix_mask.mean() < 1
    read = jnp.any(mask, axis=-1)[:, :, None, None]  # nobody reads what a query that sees nothing gets

    def attend(q, k, v, prefix):
        if blocks is None:
            return attention.attend(q, k, v, mask, prefix, prefix_mask, scale=0.4)
        return blockwise.attend(q, k, v, sight, blocks, prefix, of_prefix, scale=0.4)

    def loss(*args):
        out = jnp.where(read, attend(*args).astype(jnp.float32), 0)
        return jnp.sum(jnp.sin(out)), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*args)
    return [np.asarray(x, np.float32) for x in (out, *jax.tree.leaves(gradients))]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_equal_attention_at_once(case):
    first = CASES[case][0].first
    one_block = [Blocks(L, 64, first)] * (case in ("left padding after a prefix", "a window over tokens before"))
    for blocks in (Blocks(8, 16, first), Blocks(16, 8, None), *one_block):
        want, got = computed(case, jnp.float32), computed(case, jnp.float32, blocks)
        assert len(got) == len(want) in (4, 6)
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


@pytest.mark.parametrize("case", ["grouped queries", "left padding after a prefix", "several sequences in a row"])
def test_bfloat16_is_no_further_from_float32(case):
    true = computed(case, jnp.float32)
    want, got = computed(case, jnp.bfloat16), computed(case, jnp.bfloat16, Blocks(8, 16, 0))
    for exact, a, b in zip(true, got, want):
        assert np.abs(a - exact).mean() < 1.5 * np.abs(b - exact).mean()


def test_a_query_that_sees_nothing_is_finite():
    q, k, v, _ = inputs(2, 0, L, jnp.float32)
    loss = lambda *args: jnp.sum(blockwise.attend(*args, Sight(0, VALID), Blocks(8, 8, 0)) ** 2)
    assert all(jnp.isfinite(x).all() for x in jax.grad(loss, argnums=(0, 1, 2))(q, k, v))


def test_pairs_hidden_from_every_row_are_left_out():
    q, k, v, _ = inputs(1, 0, L, jnp.float32)
    steps = lambda first: re.findall(
        r"length=(\d+)",
        str(jax.make_jaxpr(lambda *args: blockwise.attend(*args, Sight(0), Blocks(8, 8, first)))(q, k, v)),
    )
    assert steps(0) == ["15"] and steps(None) == ["25"]  # 5 blocks of 8, and half of their pairs with the diagonal


def test_pairs_beyond_the_window_are_left_out():
    i, j = np.indices((5, 5)).reshape(2, -1)
    near = lambda **places: np.asarray(Sight(0, window=9, **places).near(Blocks(8, 8, 0), i, j)).reshape(5, 5)
    np.testing.assert_array_equal(near(), np.arange(5) >= np.arange(5)[:, None] - 1)
    # The second row stands eight positions further on: what either row sees counts.
    places = jnp.arange(40) + jnp.array([[0], [8]])
    np.testing.assert_array_equal(near(query_positions=places), near())
    np.testing.assert_array_equal(near(query_positions=places[1:]), np.arange(5) >= np.arange(5)[:, None])
    q, k, v, _ = inputs(1, 0, L, jnp.float32)
    nothing = blockwise.attend(q, k, v, Sight(0, window=9, query_positions=jnp.full((1, L), 99)), Blocks(8, 8, 0))
    assert jnp.isfinite(nothing).all()


def test_no_array_has_all_scores():
    q, k, v, prefix = inputs(2, P, L, jnp.float32)
    loss = lambda *args: jnp.sum(blockwise.attend(*args[:3], Sight(0, VALID), Blocks(8, 8, 0), args[3]))
    traced = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, prefix))
    scores = re.findall(r"f32\[2,2,2,([\d,]+)\]", traced)  # [K, B, R, queries, keys]
    assert scores and max(math.prod(map(int, dims.split(","))) for dims in scores) == 64


def test_length_alone_decides_and_rows_the_size_of_a_block(monkeypatch):
    monkeypatch.setattr(blockwise, "LONG", {"cpu": 512})
    monkeypatch.setattr(blockwise, "SCORES", {"cpu": 2**20})
    assert blocks_for(None, 10**6, 8, 511, 512, 0) is None
    assert blocks_for(None, 1, 8, 1, 10**6, 0) is None  # decoding
    assert blocks_for(None, 1, 4, 512, 512, 0) == Blocks(512, 512, 0)
    assert blocks_for(None, 4, 4, 8, 2**17, jnp.int32(3)) == Blocks(8, 256, 3)
    assert blocks_for(None, 10**6, 4, 512, 512, 0) == Blocks(64, 64, 0)
    assert jax.jit(lambda first: blocks_for(None, 4, 4, 512, 512, first).first or -1)(5) == -1  # not known yet
    if jax.device_count() == 8:
        mesh = sharding.make_mesh(2, 2, 2)
        assert blocks_for(mesh, 8, 8, 4096, 4096, 0) == blocks_for(None, 2, 4, 4096, 4096, 0) == Blocks(256, 256, 0)


@pytest.fixture(scope="module", params=[CONFIG, WINDOWED], ids=["full", "windows"])
def config(request):
    return request.param


# One of the layers with windows is full.
slow_without_windows = pytest.mark.parametrize(
    "config", [pytest.param(CONFIG, marks=pytest.mark.slow), WINDOWED], ids=["full", "windows"], indirect=True
)


@pytest.fixture(scope="module")
def variables(config):
    return noisy_variables(config, 0.15)


@pytest.fixture
def in_blocks(monkeypatch):
    """run -> what it returns where every length is above that from which attention is in blocks."""

    def above(run):
        monkeypatch.setattr(blockwise, "LONG", {"cpu": 4})
        monkeypatch.setattr(blockwise, "SHORTEST", 8)
        monkeypatch.setattr(blockwise, "LONGEST", 8)
        return run()

    return above


def close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.abs(b).max())), got, want)


def prompts_and_replies():
    rng = np.random.default_rng(0)
    prompts, replies = jnp.asarray(rng.integers(0, 64, (8, 13))), jnp.asarray(rng.integers(0, 64, (8, 12)))
    return prompts, jnp.asarray(rng.integers(1, 14, 8)), replies


def learn(model, variables, prompts, lengths, replies):
    """Loss and the adapter's gradients of replies after a prefix, which gradients flow through."""

    def loss(lora):
        both = {**variables, "lora": lora}
        return -jnp.mean(score(model, both, prompts, lengths, replies, compute_prefix(model, both, jnp.arange(9))))

    return jax.value_and_grad(loss)(variables["lora"])


@pytest.fixture(scope="module")
def stacked(variables):
    """The variables of two seeds."""
    return jax.tree.map(lambda x: np.stack([x, 1.1 * x]), variables)


def of_seed(stacked, seed):
    return jax.tree.map(lambda x: x[seed], stacked)


@pytest.fixture(scope="module")
def learned_at_once(config, stacked):
    """What `learn` gives below that length on one device, of each seed."""
    learn_one = jax.jit(functools.partial(learn, Transformer(config)))
    return [learn_one(of_seed(stacked, seed), *prompts_and_replies()) for seed in range(2)]


@pytest.mark.parametrize("remat", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_policy_learns_the_same(config, variables, learned_at_once, in_blocks, remat):
    model = Transformer(config, remat=remat)
    got = in_blocks(lambda: jax.jit(functools.partial(learn, model))(variables, *prompts_and_replies()))
    close(got, learned_at_once[0])


@slow_without_windows
def test_seeds_learn_the_same(config, stacked, learned_at_once, in_blocks):
    learn_one = lambda v: learn(Transformer(config), v, *prompts_and_replies())
    got = in_blocks(lambda: jax.jit(jax.vmap(learn_one))(stacked))
    for seed, want in enumerate(learned_at_once):
        close(of_seed(got, seed), want)


@slow_without_windows
def test_eight_devices_learn_the_same(mesh, config, variables, learned_at_once, in_blocks):
    model = Transformer(config, mesh=mesh, remat=True)
    placed = sharding.shard(variables, transformer.param_specs(model), mesh)
    rows = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(("data", "fsdp")))) for x in prompts_and_replies()]
    close(in_blocks(lambda: jax.jit(functools.partial(learn, model))(placed, *rows)), learned_at_once[0])


def test_packed_rows_fine_tune_the_same(config, variables, in_blocks):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 64, (3, 40))
    segments = np.sort(rng.integers(1, 5, (3, 40)), axis=1)
    starts = np.maximum.accumulate(np.where(np.diff(segments, axis=1, prepend=0) > 0, np.arange(40), 0), axis=1)
    batch = SFTBatch(tokens, np.arange(40) - starts, segments, np.ones((3, 40), np.float32))
    run = lambda: jax.jit(jax.value_and_grad(lambda v: sft_loss(Transformer(config), v, batch)[0]))(variables)
    want = run()
    close(in_blocks(run), want)


@slow_without_windows
def test_replies_are_the_same(config, variables, in_blocks):
    model = Transformer(config)
    prompts, lengths, _ = prompts_and_replies()
    prompts = jnp.where(jnp.arange(13) >= 13 - lengths[:, None], prompts, 0)

    def run():
        sampling = Sampling(max_tokens=6, temperature=0.0)
        return jax.jit(
            lambda v: generate(
                model, v, prompts, lengths, jax.random.key(0), sampling, (1,), compute_prefix(model, v, jnp.arange(9))
            )
        )(variables)

    want = run()
    got = in_blocks(run)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.log_probs, want.log_probs, atol=2e-5)
