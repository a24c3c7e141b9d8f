"""Every trainer of weights, on eight devices and in micro-batches: it learns what it learns on one device, all at once.

tests/conftest.py splits the CPU into eight. MS-GRPO's own is in test_ms_grpo.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms import language_ppo as ppo
from nlrl_jax.algorithms import sft
from nlrl_jax.algorithms.demonstrations import demonstration_loss, demonstrations
from nlrl_jax.algorithms.sft import Example, SFTConfig
from nlrl_jax.envs.walkers import demonstrate, reply_template
from nlrl_jax.lm import placement
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run import adapter_training
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.text.word_policy import MovePolicy
from nlrl_jax.types import Sampling
from tests.algorithms.ms_grpo_by_hand import jit
from tests.tokenizers_from_wheels import small_tokenizer

TOKENIZER = small_tokenizer()
SIZE = 8 * -(-TOKENIZER.vocab_size // 8)
MODEL = Transformer(ModelConfig(SIZE, 16, 24, 2, 2, 2, 8, 1024, lora=LoraConfig(4, 8.0)))
EXAMPLES = [Example([*range(1, n), 0], n // 2) for n in range(4, 24)]


@pytest.fixture(scope="module")
def variables():
    params = jax.tree.map(lambda x: x * (3.0 if x.ndim > 1 else 1.0), init_params(MODEL, jax.random.key(0)))
    return {"params": params, "lora": placement.fresh_lora(MODEL, jax.random.key(1))}


def on(mesh, variables):
    """The model and its variables on a mesh."""
    model = MODEL.clone(mesh=mesh)
    return model, jax.device_put(variables, placement.of_variables(model, variables))


def assert_close(found, expected, tolerance):
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        other = functools.reduce(lambda tree, key: tree[key.key], path, found)
        np.testing.assert_allclose(other, leaf, rtol=0, atol=tolerance, err_msg=jax.tree_util.keystr(path))


def assert_lies(tree, places):
    def one(path, leaf, where):
        assert leaf.sharding.is_equivalent_to(where, leaf.ndim), jax.tree_util.keystr(path)

    jax.tree_util.tree_map_with_path(one, tree, places)


@pytest.mark.parametrize(
    "train, micro_batch, remat, packed",
    [
        pytest.param("params", 0, False, False, marks=pytest.mark.slow),
        pytest.param("params", 3, True, True, marks=pytest.mark.slow),
        ("lora", 4, True, False),
    ],
)
def test_fine_tuning_on_a_mesh_and_in_parts(mesh, variables, train, micro_batch, remat, packed):
    config = SFTConfig(1e-3, epochs=2, batch_size=8, max_length=32, train=train, packed=packed)
    one, metrics = sft.fit(MODEL, variables, EXAMPLES, config)
    in_parts = dataclasses.replace(config, micro_batch=micro_batch, remat=remat)
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, one[train], variables[train]))
    assert moved > 1e-2
    for model, given in ((MODEL, variables), on(mesh, variables)):
        many, other = sft.fit(model, given, EXAMPLES, in_parts)
        assert other == pytest.approx(metrics, rel=1e-5)
        assert_close(many[train], one[train], 2e-5)  # a fiftieth of one step
    assert_lies(many[train], placement.of_variables(model, {train: many[train]})[train])


@pytest.mark.parametrize("micro_batch", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_warm_start(mesh, variables, micro_batch):
    """A step on demonstrations, as `launch.warm_start` takes it."""
    game, optimizer = envs.make("frozen_lake", prompt="compact"), optax.sgd(1.0)

    def updated(model, params, micro_batch=0):
        policy = LanguageAgentPolicy.for_game(game, model, TOKENIZER, Sampling(8, 0.0), "compact")
        show = demonstrations(
            policy, reply_template(game, "compact"), lambda key: demonstrate(game, key, 8, 0.5, False)
        )
        update = adapter_training.make_update(model, demonstration_loss(policy), optimizer, micro_batch, show)
        state = adapter_training.start(model, params, optimizer, seed=0)
        return jit(update)(state, jax.random.key(2))

    state, metrics = updated(MODEL, variables["params"])
    model, placed = on(mesh, variables)
    other, other_metrics = updated(model, placed["params"], micro_batch)
    assert metrics["grad_norm"] > 1e-4 and int(other.iteration) == 1
    assert {k: float(v) for k, v in other_metrics.items()} == pytest.approx(
        {k: float(v) for k, v in metrics.items()}, rel=1e-4
    )
    fresh = adapter_training.start(MODEL, variables["params"], optimizer, seed=0).lora
    moved = max(float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(state.lora), jax.tree.leaves(fresh)))
    assert_close(other.lora, state.lora, 1e-3 * moved)


@pytest.mark.slow
@pytest.mark.parametrize("train", ["params", "lora"])
def test_language_ppo(mesh, variables, train):
    game, config = envs.make("tic_tac_toe", prompt="compact"), ppo.LanguagePPOConfig(16, 3, batch_size=16, train=train)

    def updated(model, variables):
        state = ppo.init_state(model, variables["params"], config, jax.random.key(1))
        policy = MovePolicy.for_game(game, model, TOKENIZER)
        return state, *jit(ppo.make_update(policy, game, config))(state, jax.random.key(5))

    _, state, metrics = updated(MODEL, variables)
    model, placed = on(mesh, variables)
    before, other, other_metrics = updated(model, placed)
    for name in ("loss", "grad_norm", "moves", "env_return", "value_loss"):
        np.testing.assert_allclose(other_metrics[name], metrics[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert metrics["moves"] > 20 and metrics["grad_norm"] > 0
    assert_lies(before, ppo.layout(model, before, config))
    assert_lies(other, ppo.layout(model, before, config))  # so that the next update is the same program
