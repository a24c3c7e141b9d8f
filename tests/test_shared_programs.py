"""Which functions are one program to `tests.programs`, and which are not."""

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax import envs
from tests import programs
from tests.tokenizers_from_wheels import small_tokenizer


def made_of(*parts, by=2.0):
    def function(x):
        return (x, by, parts)

    return function


def test_equal_functions_are_one_program_and_others_their_own():
    alike = [
        [programs.jit(made_of(*parts)) for _ in range(2)]
        for parts in ((1,), (np.arange(3),), (jax.random.key(1),), ({"a": (1, None)},), (made_of(3),))
    ]
    assert all(one is other for one, other in alike)
    assert len({id(one) for one, _ in alike}) == len(alike)
    plain = programs.jit(made_of())
    for other in (made_of(by=3.0), made_of(by=-2.0), made_of(np.zeros(2)), made_of(jnp.zeros(2)), made_of(0.0, -0.0)):
        assert programs.jit(other) is not plain
    assert programs.jit(made_of(np.zeros(2))) is not programs.jit(made_of(np.ones(2)))
    assert programs.jit(made_of(0.0)) is not programs.jit(made_of(-0.0))
    assert programs.jit(made_of(), donate_argnums=0) is not plain


def test_games_and_tokenizers_are_known_by_what_is_in_them():
    for make in (lambda: envs.make("frozen_lake", "compact"), small_tokenizer):
        assert programs.jit(made_of(make())) is programs.jit(made_of(make()))
    assert programs.content(envs.make("snake", size=5)) != programs.content(envs.make("snake", size=6))


def test_what_changes_is_equal_to_itself_alone():
    counted, also = [], []
    assert programs.jit(made_of(counted)) is not programs.jit(made_of(also))
    assert programs.jit(made_of(counted)) is programs.jit(made_of(counted))


def test_what_is_being_traced_is_not_remembered():
    inner = []

    @jax.jit
    def outer(x):
        inner.extend(programs.jit(made_of(x)) for _ in range(2))
        return x

    outer(1.0)
    assert inner[0] is not inner[1]
