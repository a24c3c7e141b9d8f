"""Compiled programs and the mappings that they take."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from nlrl_jax.lm import programs
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.programs import Programs
from nlrl_jax.lm.transformer import Transformer


def call(owner, function, n):
    with owner.once(n):
        return function(jnp.ones(n))


@pytest.fixture
def crowded(monkeypatch):
    """A jitted function whose programs take 10 of 100 mappings each, beside 20 others; and how many are taken."""
    function = jax.jit(lambda x: (2 * x).sum())
    held = lambda: 20 + 10 * function._cache_size()
    monkeypatch.setattr(programs, "limit", lambda: 100)
    monkeypatch.setattr(programs, "mappings", held)
    return function, held


def test_programs_are_forgotten_before_a_process_can_hold_no_more(crowded):
    function, held = crowded
    owner, taken = Programs(), []
    owner.own(function)
    for n in (*range(1, 12), 1, 11):
        assert call(owner, function, n) == 2 * n
        taken.append(held())
    assert taken == [30, 40, 50, 60, 30, 40, 50, 60, 70, 30, 40, 50, 50]  # half of what is left: at 50, then at 60


def test_a_program_that_is_known_forgets_nothing(crowded):
    function, _ = crowded
    owner = Programs()
    owner.own(function)
    for n in (1, 2, 3, 4, 1, 2, 3, 4):
        call(owner, function, n)
    assert function._cache_size() == 4


def test_where_others_hold_the_mappings_programs_are_not_forgotten_each_time(monkeypatch):
    function = jax.jit(lambda x: x.sum())
    monkeypatch.setattr(programs, "limit", lambda: 100)
    monkeypatch.setattr(programs, "mappings", lambda: 60)
    owner = Programs()
    owner.own(function)
    for n in range(1, 5):
        call(owner, function, n)
    assert function._cache_size() == 4 and owner.most == 80


def test_forgetting_gives_mappings_back():
    if not programs.mappings():
        pytest.skip("this system does not count mappings")
    function = jax.jit(lambda x: jnp.cumsum(jax.nn.softmax(x)) @ x)
    owner, before = Programs(), programs.mappings()
    owner.own(function)
    for n in range(3, 23):
        call(owner, function, n)
    full = programs.mappings()
    owner.forget()
    assert full - before > 40 and programs.mappings() - before < (full - before) / 2


def test_one_thread_compiles_a_new_program_and_the_others_wait():
    owner, inside, most = Programs(), [], []
    counted = threading.Lock()

    def one(_):
        with owner.once("program"):
            with counted:
                inside.append(None)
                most.append((len(inside), ("program",) in owner.known))
            threading.Event().wait(0.01)
            with counted:
                inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert [n for n, known in most if not known] and all(n == 1 for n, known in most if not known)


def test_small_models_on_a_cpu_are_compiled_at_a_lower_level(monkeypatch, mesh):
    small, large = (ModelConfig(64, width, width, 1, 2, 1, 8, 32) for width in (16, 1024))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")
    options = programs.compiler_options(Transformer(small))
    assert jax.jit(lambda x: 2 * x, compiler_options=options)(3) == 6 and options  # a name that XLA knows
    assert not programs.compiler_options(Transformer(large)) and not programs.compiler_options(
        Transformer(small, mesh=mesh)
    )
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert not programs.compiler_options(Transformer(small))


def test_a_function_of_a_model_is_compiled_with_its_options_and_can_be_forgotten():
    owner, twice = Programs(), programs.OfModel(lambda model, x: model.config.vocab_size * x)
    owner.own(twice)
    for width in (16, 1024):
        model = Transformer(ModelConfig(64, width, width, 1, 2, 1, 8, 32))
        assert twice(model, 3) == 192 == twice(model, 3)
    assert twice._cache_size() == 2
    owner.forget()
    assert twice._cache_size() == 0
