"""Operations, exchanges and copies read from compiled programs, against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import hlo
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import make_mesh, shardings
from nlrl_jax.lm.transformer import Transformer, init_params, param_specs
from nlrl_jax.run import sizing


def program_of(function, *args):
    return hlo.Program(jax.jit(function).lower(*args).compile().as_text())


def test_products_count_as_often_as_their_loops_run():
    def function(x, w, n):
        x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=7)
        steps, x = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))
        return steps, x @ w[:, :3]

    program = program_of(function, jnp.ones((160, 80)), jnp.ones((80, 80)), 5)
    once = 2 * 160 * 80 * 80
    flop = program.flop(unknown=10)
    assert flop["loop[7]"] == 7 * once
    assert flop[hlo.UNKNOWN] == 10 * once
    assert flop[""] == 2 * 160 * 80 * 3
    assert sum(program.flop().values()) == 8 * once + 2 * 160 * 80 * 3


def test_exchanges_have_their_bytes_their_loop_and_their_line():
    config = ModelConfig(64, 32, 48, 3, 8, 8, 4, 64)
    mesh = make_mesh(1, 1, 8)
    model = Transformer(config, mesh=mesh)
    params = jax.eval_shape(lambda: init_params(Transformer(config), jax.random.key(0)))
    params = sizing.placed(params, shardings(params, param_specs(model)["params"], mesh))
    whole = NamedSharding(mesh, PartitionSpec())
    tokens = jax.ShapeDtypeStruct((2, 5), jnp.int32, sharding=whole)
    program = program_of(lambda p, t: model.apply({"params": p}, t, t)[0], params, tokens)
    reduced = [row for row in program.collectives() if row.kind == "all-reduce" and row.loops == "loop[3]"]
    assert {row.bytes for row in reduced} == {2 * 5 * 32 * 4.0}  # after attention and after the MLP: [2, 5, 32] floats
    assert sum(row.number for row in reduced) == 2
    assert all(row.runs / row.number == 3 for row in reduced)
    files = "lm/transformer.py", "lm/block.py", "lm/layers.py"
    assert all(any(file in row.line for file in files) for row in reduced), [row.line for row in reduced]


def test_an_array_in_another_layout_is_a_copy():
    x = jnp.ones((512, 1024))
    copies = program_of(lambda x: (x.T.reshape(-1)[None] * 1.0, x), x).copies()
    assert copies and copies[0].bytes == 512 * 1024 * 4
    assert not program_of(lambda x: jnp.tanh(x) + 1, x).copies()


def test_another_text_is_refused():
    with pytest.raises(ValueError, match="no HLO module.*'nothing'"):
        hlo.Program("nothing")


def test_bytes_of_a_program():
    compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((64, 64))).compile()
    found = sizing.bytes_of(compiled)
    assert found["arguments"] == found["outputs"] == 64 * 64 * 4
    assert found["all"] == found["arguments"] + found["temporaries"] + found["outputs"]
    assert np.isfinite(found["temporaries"])
