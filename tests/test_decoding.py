"""Decoding moves no weight between devices for a token and reads no expert that no row chose, by compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import decoding, hlo
from nlrl_jax.lm import acting
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.placement import of_variables
from nlrl_jax.lm.sharding import make_mesh
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run.sizing import placed
from nlrl_jax.types import Sampling

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
EXPERTS = dict(num_experts=16, experts_per_token=2, expert_size=24, architecture="Qwen3MoeForCausalLM", qk_norm=True)


def problems(mesh, prepare, **fields):
    """Of a program that samples replies to four prompts with the weights that `prepare` makes of the model's."""
    config = ModelConfig(max_positions=64, **SIZES, **fields)
    model = Transformer(config, mesh=mesh)
    variables = {"params": jax.eval_shape(lambda: init_params(Transformer(config), jax.random.key(0)))}
    if mesh is not None:
        variables = placed(variables, of_variables(model, variables))

    def run(variables, prompts, lengths, key):
        return generate(model, prepare(model, variables), prompts, lengths, key, Sampling(max_tokens=5), (0,))

    prompts, lengths = jax.ShapeDtypeStruct((4, 6), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.int32)
    lowered = jax.jit(run).lower(variables, prompts, lengths, jax.eval_shape(lambda: jax.random.key(0)))
    return decoding.problems(hlo.Program(lowered.compile().as_text()), model, rows=4)


def prepared(model, variables):
    return acting.acting(model, variables, "auto")


def as_they_are(model, variables):
    return variables


@pytest.mark.parametrize("fields", [{}, EXPERTS], ids=["dense", "experts"])
def test_no_weight_is_moved_for_a_token(fields):
    mesh = make_mesh(1, 4, 2)
    moved = [line for line in problems(mesh, prepared, **fields) if "moves weights" in line]
    assert not moved
    assert [line for line in problems(mesh, as_they_are, **fields) if "moves weights" in line]  # it would be seen


def test_no_expert_is_read_that_no_row_chose(monkeypatch):
    monkeypatch.setattr(acting, "LARGE", 0)  # layers that a processor's cache holds stay stacked
    assert not problems(None, prepared, **EXPERTS)
    assert "reads experts" in problems(None, as_they_are, **EXPERTS)[0]  # a layer's are copied out of the stack
