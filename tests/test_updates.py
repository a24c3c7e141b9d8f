"""An update whose result is not finite changes nothing, alone and in a stack of seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.refiners import lir
from nlrl_jax.config import make
from nlrl_jax.run.dqn import DQNTrainer, DQNTrainingConfig
from nlrl_jax.updates import keep_finite
from tests.algorithms.test_ppo import SMALL, Aim

KEY = jax.random.key(1)
ENV = Aim()


def same(new, old):
    jax.tree.map(np.testing.assert_array_equal, new, old)


@pytest.mark.parametrize("flagged", [False, True])
def test_what_was_finite_stays_finite(flagged):
    def update(state, by):
        new = {"x": state["x"] + by, "n": state["n"] + 1, "frozen": state["frozen"]}
        return new, {"loss": by} | ({"finite": jnp.isfinite(by)} if flagged else {})

    step = jax.jit(keep_finite(update), donate_argnums=0)
    state = lambda: {"x": jnp.array([1.0, -jnp.inf]), "n": jnp.int32(0), "frozen": jnp.ones(2)}
    after, metrics = step(state(), jnp.array([1.0, 1.0]))
    assert metrics["finite"] and after["n"] == 1
    after, metrics = step(state(), jnp.array([jnp.nan, 1.0]))
    assert not metrics["finite"]
    same(after, state())


@pytest.mark.parametrize("method", ["ppo", pytest.param("lir", marks=pytest.mark.slow)])
def test_one_bad_seed_stops_the_whole_stack_where_it_was(method):
    make = ppo if method == "ppo" else lir
    update = make.make_update(ENV, ENV.default_params, SMALL)

    def start(key):
        state = ppo.init_state(ENV, ENV.default_params, SMALL, key)
        aux = lir.init(key, ENV, ENV.default_params, SMALL, state) if method == "lir" else None
        return state.replace(aux=aux)

    states = jax.vmap(start)(jax.random.split(KEY, 2))
    # The second seed's weights are so large that its losses overflow.
    broken = states.replace(params=jax.tree.map(lambda x: x.at[1].multiply(1e30), states.params))
    step = jax.jit(keep_finite(jax.vmap(update)))
    after, metrics = step(broken, jax.random.split(KEY, 2))
    assert metrics["finite"].shape == () and not metrics["finite"]
    same(after, broken)
    after, metrics = step(states, jax.random.split(KEY, 2))
    assert metrics["finite"] and after.iteration.tolist() == [1, 1]


def test_a_dqn_keeps_its_last_good_state():
    config = make(
        DQNTrainingConfig,
        num_envs=2, buffer_size=8, batch_size=2, learning_starts=2, steps_per_iteration=2,
        learning_rate=1e38, eval_episodes=2,
    )  # fmt: skip
    trainer = DQNTrainer(config, envs.make("frozen_lake", "compact"))
    state = trainer.init()
    good = jax.tree.map(np.asarray, state)
    metrics = {"finite": 1.0}
    while metrics["finite"]:
        good = jax.tree.map(np.asarray, state)
        state, metrics = trainer.update(state, None)
        assert state.iteration < 20
    same(state, good)
