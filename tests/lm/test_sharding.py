"""Eight devices compute what one computes. tests/conftest.py splits the CPU into eight."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax.lm import acting, placement, sharding, transformer
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, SLIDING, DeltaNetSizes
from nlrl_jax.lm.generate import compute_prefix, generate
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from nlrl_jax.weights import huggingface, peft
from tests.lm.noise import noisy_variables

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
CONFIG = ModelConfig(64, 32, 40, 2, 4, 2, 8, 64, qkv_bias=True, qk_norm=True, lora=LoraConfig(4, 8.0))


GEMMA3 = dataclasses.replace(
    CONFIG, sliding_window=3, layer_types=(SLIDING, FULL), local_rope_theta=99.0, norm_offset=True, sandwich_norms=True,
    qkv_bias=False, activation="gelu_tanh", scale_embeddings=True, query_pre_attn_scalar=5.0, tie_embeddings=True,
)  # fmt: skip


LINEAR_LAYERS = dataclasses.replace(
    CONFIG, layer_types=(LINEAR, FULL), delta_net=DeltaNetSizes(2, 4, 8, 6),
    qkv_bias=False, norm_offset=True, gated_attention=True, partial_rotary_factor=0.5, norm_eps=1e-2,
)  # fmt: skip


@pytest.fixture(scope="module")
def variables():
    return noisy_variables(CONFIG, 0.15)  # no normalisation divides by next to nothing and magnifies rounding


@pytest.mark.parametrize("config", [CONFIG, GEMMA3, LINEAR_LAYERS], ids=["qwen", "gemma3", "qwen3_5"])
def test_logits_loss_and_adapter_gradients_equal_one_device(mesh, config):
    model, variables = Transformer(config), noisy_variables(config, 0.15)
    rng = np.random.default_rng(0)
    prompts, replies = jnp.asarray(rng.integers(0, 64, (8, 6))), jnp.asarray(rng.integers(0, 64, (8, 5)))
    lengths, prefix = jnp.asarray(rng.integers(1, 7, 8)), jnp.array([3, 1, 4])

    def run(model, variables, prompts, lengths, replies, prefix):
        shared = compute_prefix(model, variables, prefix)
        hidden, _ = model.apply(variables, prompts, jnp.broadcast_to(jnp.arange(6), (8, 6)))
        logits = model.apply(variables, hidden, method="unembed")

        def loss(lora):
            return -jnp.mean(score(model, {**variables, "lora": lora}, prompts, lengths, replies, shared))

        return logits, *jax.value_and_grad(loss)(variables["lora"])

    one = jax.jit(run, static_argnums=0)(model, variables, prompts, lengths, replies, prefix)
    placed = sharding.shard(variables, transformer.param_specs(model), mesh)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    batch = [jax.device_put(x, rows) for x in (prompts, lengths, replies)]
    many = jax.jit(run, static_argnums=0)(model.copy(mesh=mesh), placed, *batch, prefix)
    assert len(many[0].sharding.device_set) == 8
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.abs(b).max())), many, one)


def test_parameters_are_split_as_declared(mesh, variables):
    placed = sharding.shard(variables, transformer.param_specs(Transformer(CONFIG)), mesh)
    gate = placed["params"]["blocks"]["gate"]["kernel"]
    assert gate.shape == (2, 32, 40)
    assert gate.addressable_shards[0].data.shape == (2, 16, 20)
    assert placed["params"]["embedding"].addressable_shards[0].data.shape == (32, 16)


def test_sizes_that_do_not_divide_stay_whole(mesh):
    specs = {"x": PartitionSpec("tensor", ("data", "fsdp"))}
    placed = sharding.shard({"x": jnp.zeros((3, 8))}, specs, mesh)
    assert placed["x"].sharding.spec == PartitionSpec(None, ("data", "fsdp"))


def test_a_mesh_that_would_cut_heads_is_refused(mesh):
    sharding.check_heads(4, 2, mesh)
    eight = sharding.make_mesh(1, 1, 8)
    sharding.check_heads(16, 8, eight)
    with pytest.raises(ValueError, match="tensor=8.*16 query and 2 key/value heads.*may be 2"):
        sharding.check_heads(16, 2, eight)
    with pytest.raises(ValueError, match="tensor=8"):  # before a weight is read
        huggingface.load(GOLDENS / "qwen2", mesh=eight)


def test_one_row_of_many_devices_stays_whole_and_uneven_rows_are_padded(mesh):
    assert sharding.whole_rows(5, mesh) == 8 and sharding.whole_rows(8, mesh) == 8 and sharding.whole_rows(5, None) == 5
    lay = lambda x: jax.jit(lambda x: sharding.constrain(x, mesh, ("batch", None)))(x).sharding.spec
    assert lay(jnp.ones((1, 3))) in (PartitionSpec(), PartitionSpec(None, None))
    assert lay(jnp.ones((8, 3)))[0] == ("data", "fsdp")


def test_rollouts_hold_the_weights_of_an_fsdp_group_whole(mesh, variables):
    model = Transformer(CONFIG, mesh=mesh)
    placed = sharding.shard(variables, transformer.param_specs(model), mesh)
    held = jax.jit(lambda v: placement.gathered(model, v))(placed)
    assert held["params"]["blocks"]["gate"]["kernel"].addressable_shards[0].data.shape == (2, 32, 20)  # tensor stays
    assert held["params"]["embedding"].addressable_shards[0].data.shape == (32, 32)
    jax.tree.map(np.testing.assert_array_equal, held, variables)
    assert placement.gathered(Transformer(CONFIG), variables) is variables


def test_a_checkpoint_loads_straight_onto_the_mesh(mesh):
    config, params = huggingface.load(GOLDENS / "qwen2")
    _, placed = huggingface.load(GOLDENS / "qwen2", mesh=mesh)
    assert placed["blocks"]["gate"]["kernel"].addressable_shards[0].data.shape == (2, 16, 20)
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    _, lora = peft.load(GOLDENS / "adapter", config)
    _, placed = peft.load(GOLDENS / "adapter", config, mesh=mesh)
    assert placed["blocks"]["gate"]["b"].addressable_shards[0].data.shape == (2, 3, 20)
    jax.tree.map(np.testing.assert_array_equal, placed, lora)


def test_mesh_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match=f"data=3 x fsdp=1 x tensor=1 needs 3 devices; there are {jax.device_count()}"):
        sharding.make_mesh(data=3)


@pytest.mark.parametrize(
    ("config", "alone"),
    [(CONFIG, True), pytest.param(LINEAR_LAYERS, False, marks=pytest.mark.slow), (LINEAR_LAYERS, True)],
)
def test_replies_are_those_of_one_device(mesh, config, alone):
    """Caches and states lie with their rows, stacked or by layer; weights are gathered for the rollout."""
    variables, rng = noisy_variables(config, 0.15), np.random.default_rng(0)
    prompts, lengths = jnp.asarray(rng.integers(0, 64, (8, 6))), jnp.asarray(rng.integers(1, 7, 8))
    sampling, replies = Sampling(max_tokens=5, temperature=0.0), []

    @functools.partial(jax.jit, static_argnums=0)
    def run(model, variables):
        weights = acting.by_layer(config, variables, False) if alone else acting.acting(model, variables)
        prefix = compute_prefix(model, weights, jnp.array([3, 1, 4]))
        return generate(model, weights, prompts, lengths, jax.random.key(0), sampling, (99,), prefix)

    for model in (Transformer(config), Transformer(config, mesh=mesh)):
        placed = variables
        if model.mesh is not None:
            placed = sharding.shard(variables, transformer.param_specs(model), mesh)
        replies.append(run(model, placed))
    np.testing.assert_array_equal(replies[0].tokens, replies[1].tokens)
    np.testing.assert_allclose(replies[0].log_probs, replies[1].log_probs, atol=2e-5)
