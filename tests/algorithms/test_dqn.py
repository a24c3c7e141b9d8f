"""DQN: the network against flax's own convolution, the loop by hand, and that it learns."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms import dqn
from nlrl_jax.algorithms.dqn import Conv3x3, DQNConfig, QNetwork, evaluate, init_state, make_train
from nlrl_jax.rollouts import text_games

GAME = envs.make("frozen_lake", prompt="compact", size=2, hole_probability=0.0)
CONFIG = DQNConfig(
    learning_rate=3e-3, epsilon_decay_steps=400.0, buffer_size=400, batch_size=32, target_every=20,
    learning_starts=100, num_envs=10, max_steps=6,
)  # fmt: skip


start = jax.jit(lambda key: init_state(GAME.env, GAME.params, CONFIG, key))


@pytest.fixture(scope="module")
def train():
    return jax.jit(make_train(GAME.env, GAME.params, CONFIG), static_argnums=1)


@pytest.fixture(scope="module")
def state():
    return start(jax.random.key(0))


def test_convolution_equals_flax():
    x = jax.random.normal(jax.random.key(0), (2, 5, 7, 3))
    ours = Conv3x3(4)
    params = ours.init(jax.random.key(1), x)
    dense = params["params"]["Dense_0"]
    kernel = dense["kernel"].reshape(3, 3, 3, 4)
    theirs = nn.Conv(4, (3, 3)).apply({"params": {"kernel": kernel, "bias": dense["bias"]}}, x)
    np.testing.assert_allclose(ours.apply(params, x), theirs, atol=1e-5)


def test_network_has_the_sizes_of_table_2():
    params = QNetwork(4).init(jax.random.key(0), jnp.zeros((1, 10, 10, 5)))["params"]
    kernels = [leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "kernel" in str(path)]
    assert sorted(kernels) == sorted([(45, 32), (288, 64), (576, 64), (6400, 512), (512, 4)])


def test_the_buffer_holds_what_was_played(train, state):
    after, metrics = train(state, 9)  # 90 transitions: no gradient step yet
    assert int(after.updates) == 0 and float(metrics["env_steps"]) == 90
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    buffer = jax.tree.map(np.asarray, after.buffer)
    # 2x2, no holes: cells 0 1 / 2 3, the goal is 3; actions Up, Down, Left, Right
    leads = {(0, 1): 2, (0, 3): 1, (1, 1): 3, (1, 2): 0, (2, 0): 0, (2, 3): 3}
    where = lambda obs: int(np.argmax(obs[..., 0].reshape(-1)))
    for i in range(90):
        cell, action = where(buffer.obs[i]), int(buffer.action[i])
        assert where(buffer.next_obs[i]) == leads.get((cell, action), cell)
        assert buffer.terminated[i] == (where(buffer.next_obs[i]) == 3) == bool(buffer.reward[i])
    assert not buffer.obs[90:].any()


def test_episodes_end_at_the_environments_limit(state):
    """One step, though the agent is given six."""
    params = GAME.params.replace(max_steps_in_episode=1)
    after, metrics = jax.jit(make_train(GAME.env, params, CONFIG), static_argnums=1)(state, 3)
    assert float(metrics["episode_steps"]) == 1 and (after.episode_steps == 0).all()
    states = text_games.reset(GAME, jax.random.key(1), 5)
    assert not evaluate(GAME.env, params, state.params, jax.random.key(2), states, 3).any()  # the goal is two steps off


def test_a_gradient_step_by_hand(state):
    """One update from a known buffer: r + gamma max Q_target, nothing after the end, Huber, Adam."""
    config = dataclasses.replace(CONFIG, learning_starts=10, target_every=1000)
    target = start(jax.random.key(9)).params
    state = state.replace(target=target)
    step = jax.jit(make_train(GAME.env, GAME.params, config), static_argnums=1)
    after, metrics = step(state, 1)
    assert int(after.updates) == 1
    key = jax.random.split(jax.random.fold_in(jax.random.key(state.seed), 0))[1]
    rows = jax.random.randint(key, (32,), 0, 10)
    batch = jax.tree.map(lambda ring: ring[rows], after.buffer)
    Q = lambda params, obs: QNetwork(4).apply({"params": params}, obs)

    def loss(params):
        goal = batch.reward + 0.9 * Q(target, batch.next_obs).max(1) * (1 - batch.terminated)
        error = Q(params, batch.obs)[jnp.arange(32), batch.action] - goal
        return jnp.mean(jnp.where(jnp.abs(error) <= 1, 0.5 * error**2, jnp.abs(error) - 0.5))

    def by_hand(params):
        value, grads = jax.value_and_grad(loss)(params)
        optimizer = optax.adam(3e-3)
        return value, optax.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0])

    value, expected = jax.jit(by_hand)(state.params)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), after.params, expected)


def test_epsilon_falls_and_the_target_is_copied(train, state):
    after, metrics = train(state, 29)  # the gradient steps of moves 10 to 29
    assert int(after.updates) == 20
    jax.tree.map(np.testing.assert_array_equal, after.params, after.target)
    assert float(metrics["epsilon"]) == pytest.approx(np.mean([1 - 0.9 * 10 * i / 400 for i in range(29)]), rel=1e-4)


@pytest.mark.slow
def test_learns_and_pieces_equal_the_whole(train, state):
    whole, _ = train(state, 120)
    half, _ = train(train(state, 60)[0], 60)
    jax.tree.map(np.testing.assert_array_equal, half.params, whole.params)
    states = text_games.reset(GAME, jax.random.key(1), 5)
    returns = evaluate(GAME.env, GAME.params, whole.params, jax.random.key(2), states, 3)
    np.testing.assert_array_equal(returns, np.ones(5))
    q = QNetwork(4).apply(
        {"params": whole.params}, GAME.env.observe(None, jax.tree.map(lambda x: x[0], states), None, None)[None]
    )
    assert float(q.max()) == pytest.approx(0.9, abs=0.15)  # two steps from the goal: gamma * 1


@pytest.mark.slow
def test_a_sweep_is_the_runs_apart(state):
    rates = jnp.array([1e-3, 3e-3])
    stacked = jax.tree.map(lambda x: jnp.repeat(x[None], 2, axis=0), state).replace(learning_rate=rates)
    train = make_train(GAME.env, GAME.params, CONFIG)
    together, _ = jax.jit(jax.vmap(lambda s: train(s, 15)))(stacked)
    for n in range(2):
        alone, _ = jax.jit(train, static_argnums=1)(state.replace(learning_rate=rates[n]), 15)
        row = jax.tree.map(lambda x, n=n: x[n], together)
        np.testing.assert_array_equal(row.buffer.action, alone.buffer.action)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), row.params, alone.params)


def test_observations_must_be_a_grid():
    class Line:
        num_actions = 2
        observation_space = staticmethod(lambda params: jnp.zeros(3))

    with pytest.raises(ValueError, match="a grid"):
        dqn.init_state(Line(), None, CONFIG, jax.random.key(0))
