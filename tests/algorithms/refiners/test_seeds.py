"""Two seeds at once under `vmap` are two seeds, whatever refines the agent."""

import jax
import jax.numpy as jnp
import pytest

from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.refiners import lir, rice, rnd
from nlrl_jax.algorithms.refiners.lir import LIRConfig
from nlrl_jax.algorithms.refiners.rnd import RNDConfig
from tests.algorithms.refiners.toy_games import CELLS, GAMES, SMALL, assert_seeds_alike, seeds

RND, LIR = RNDConfig(num_minibatches=2), LIRConfig(coefficient=0.5, features=(8,))


def starts_of(env):
    """Three stored states of the corridor, in its cell 3."""
    keys = jax.random.split(jax.random.key(0), 3)
    _, state = jax.vmap(env.reset_env, (0, None))(keys, env.default_params)
    return jnp.tile(jax.nn.one_hot(3, CELLS), (3, 1)), state.replace(cell=jnp.full(3, 3))


METHODS = {  # game, what is compared after the update, a metric above 0
    "ppo": ("continuous", lambda state: state.params, "entropy"),
    "rnd": ("continuous", lambda state: (state.params, state.aux), "bonus"),
    "rice": ("discrete", lambda state: (state.params, state.obs, state.aux.rnd), "bonus"),
    "lir": ("continuous", lambda state: (state.params, state.aux.params), "reward_grad_norm"),
}


def carried(method, key, env, state):
    """What the state of a method holds besides the agent."""
    if method == "rnd":
        return rnd.init(key, (2,), RND)
    if method == "rice":
        return rice.init(key, *starts_of(env), RND)
    return lir.init(key, env, env.default_params, SMALL, state, LIR) if method == "lir" else None


def update_of(method, env):
    if method == "lir":
        return lir.make_update(env, env.default_params, SMALL, LIR)
    hooks = {"ppo": ppo.Hooks(), "rnd": rnd.hooks(RND), "rice": rice.hooks(0.5, RND)}[method]
    return ppo.make_update(env, env.default_params, SMALL, hooks)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_seeds_at_once_are_two_seeds(method):
    game, compared, metric = METHODS[method]
    env = GAMES[game]

    def init(key):
        state = ppo.init_state(env, env.default_params, SMALL, key)
        return state.replace(aux=carried(method, key, env, state))

    each, both = seeds(init)
    keys = jax.random.split(jax.random.key(9), 2)
    metrics = assert_seeds_alike(update_of(method, env), each, both, keys, compared)
    assert metrics["finite"].all() and (metrics[metric] > 0).all()
    assert set(both.learned()) == set(each[0].learned()) >= {"params", "obs_moments", "iteration"}
