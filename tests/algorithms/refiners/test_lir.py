"""LIR: the chain rule against differences, PPO as its limit, and what the learned reward comes to say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import networks, returns
from nlrl_jax.algorithms import ppo
from nlrl_jax.algorithms.refiners import lir
from nlrl_jax.algorithms.refiners.lir import LIRConfig
from tests.algorithms.refiners.toy_games import CELLS, DOOR, GAMES, SMALL

LIR = LIRConfig(coefficient=0.5, features=(8,))


def start(game, key, config=SMALL, lir_config=LIR):
    env = GAMES[game]
    state = ppo.init_state(env, env.default_params, config, key)
    return state.replace(aux=lir.init(key, env, env.default_params, config, state, lir_config))


def test_what_rewards_add_is_the_difference_of_two_gae():
    rng = np.random.default_rng(0)
    rewards, extra, values, next_values = (jnp.asarray(rng.normal(size=(7, 3)), jnp.float32) for _ in range(4))
    ends = jnp.asarray(rng.random((7, 3)) < 0.3)
    terminated = ends & jnp.asarray(rng.random((7, 3)) < 0.5)
    discounts = jnp.where(terminated, 0.0, 0.9)
    gae = lambda r: returns.gae(r, discounts, values, next_values, 0.8, ends)[0]
    np.testing.assert_allclose(lir.traced(extra, 0.9, 0.8, ends), gae(rewards + extra) - gae(rewards), atol=1e-5)


def test_the_reward_network_sees_normalised_observations_and_one_hot_actions():
    env = GAMES["discrete"]
    agent = ppo.agent_of(env, env.default_params, SMALL)
    moments = ppo.RunningMoments.of((CELLS,)).update(jnp.eye(CELLS))
    x = lir.reward_input(agent, moments, jnp.eye(CELLS)[:2], jnp.array([3, 0]))
    np.testing.assert_allclose(x[:, :CELLS], (np.eye(CELLS)[:2] - 0.2) / 0.4, rtol=1e-4)
    np.testing.assert_array_equal(x[:, CELLS:], [[0, 0, 0, 1], [1, 0, 0, 0]])
    params = lir.reward_network(LIRConfig()).init(jax.random.key(0), x)["params"]
    kernels = sorted(leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
    assert kernels == [(9, 64), (64, 1), (64, 64)]
    assert (np.abs(lir.intrinsic_reward(params, 100 * x, LIRConfig())) <= 1).all()


@pytest.mark.parametrize("game", ["continuous", pytest.param("discrete", marks=pytest.mark.slow)])
def test_the_meta_gradient_equals_differences_through_one_adam_step(game):
    """Central differences in float64; the step is written out, its second moment kept from the unshifted point."""
    with jax.enable_x64(True):
        env, rng = GAMES[game], np.random.default_rng(1)
        config = dataclasses.replace(SMALL, features=(4,), learning_rate=0.03, max_grad_norm=0.2, anneal=10)
        agent = ppo.agent_of(env, env.default_params, config)
        N, D = 12, env.observation_space(env.default_params).shape[0]
        obs = jnp.asarray(rng.normal(size=(N, D)))
        action = jnp.asarray(rng.integers(0, 4, N) if game == "discrete" else rng.normal(size=(N, 2)))
        moments = ppo.RunningMoments.of((D,))
        double = lambda tree: jax.tree.map(lambda x: x.astype(float) if x.dtype == jnp.float32 else x, tree)
        params = double(jax.jit(agent.init)(jax.random.key(0), obs))
        params = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape), params)
        # An optimizer that has a past, and a policy that is no longer the one that played.
        opt_state = double(ppo.optimizer(config).init(params))
        learn = jax.jit(lambda past, opt_state: ppo.optimizer(config).update(past, opt_state, params)[1])
        for _ in range(2):
            opt_state = learn(jax.tree.map(lambda x: 0.1 * rng.normal(size=x.shape), params), opt_state)
        log_probs = jax.jit(lambda: lir.networks.log_prob(*agent.policy(params, moments, obs), action))()
        batch = {
            "obs": obs,
            "action": action,
            "old_log_probs": log_probs + 0.05 * rng.normal(size=N),
            **{k: jnp.asarray(rng.normal(size=N)) for k in ("base", "base_targets", "extrinsic", "extrinsic_targets")},
        }
        mix = jnp.asarray(rng.normal(size=(N, 3)))
        added = lambda eta: jnp.tanh(mix @ eta)
        eta, critic = jnp.asarray(rng.normal(size=3)), params["critic"]
        meta = lambda eta: lir.meta_loss(
            agent, config, {"reward": eta, "critic": critic}, params, opt_state, moments, batch, added
        )
        (loss, ((after, _), _)), grad = jax.jit(jax.value_and_grad(meta, has_aux=True))(eta)

        def gradient(eta):
            def loss(p):
                mixed = {
                    **batch,
                    "advantages": batch["base"] + added(eta),
                    "targets": batch["base_targets"] + added(eta),
                }
                return ppo.surrogate(agent, config, p, moments, mixed)[0]

            grads = jax.grad(loss)(params)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda g: g * 0.2 / norm, grads), norm

        of_values = lambda: jnp.mean((agent.value(params, moments, obs) - batch["extrinsic_targets"]) ** 2)
        (here, norm), value_loss = jax.jit(lambda eta: (gradient(eta), of_values()))(eta)
        assert norm > 0.2  # so that the clipping is in the chain
        mu, nu = jax.device_get((opt_state[1][0].mu, opt_state[1][0].nu))
        nu = jax.tree.map(lambda v, g: (0.999 * v + 0.001 * g**2) / (1 - 0.999**3), nu, jax.device_get(here))
        rate = 0.03 * (1 - 2 / (10 * 2 * 2))  # the third of 40 steps

        @jax.jit
        def stepped(eta):
            first = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g) / (1 - 0.9**3), mu, gradient(eta)[0])
            new = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-5), params, first, nu)
            return new, lir.networks.log_prob(*agent.policy(new, moments, obs), action)

        def objective(eta):
            ratio = np.exp(np.asarray(stepped(eta)[1]) - np.asarray(batch["old_log_probs"]))
            A = np.asarray(batch["extrinsic"])
            A = (A - A.mean()) / A.std()
            return -np.minimum(ratio * A, np.clip(ratio, 0.8, 1.2) * A).mean()

        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9), after, stepped(eta)[0])
        np.testing.assert_allclose(loss, objective(eta) + 0.5 * value_loss, rtol=1e-6)
        h = 1e-5
        differences = [(objective(eta + h * e) - objective(eta - h * e)) / (2 * h) for e in np.eye(3)]
        assert np.abs(differences).min() > 1e-6
        np.testing.assert_allclose(grad, differences, rtol=1e-4)


@pytest.mark.parametrize("game", ["discrete", pytest.param("continuous", marks=pytest.mark.slow)])
def test_without_intrinsic_reward_it_is_ppo(game):
    env = GAMES[game]
    config = dataclasses.replace(SMALL, normalize_reward=True, anneal=20, learning_rate=1e-2)
    state = jax.jit(lambda key: start(game, key, config))(jax.random.key(0))
    ours = jax.jit(lir.make_update(env, env.default_params, config, dataclasses.replace(LIR, coefficient=0.0)))
    theirs = jax.jit(ppo.make_update(env, env.default_params, config))
    ours_state, theirs_state = state, state
    for n in range(3):
        ours_state, metrics = ours(ours_state, jax.random.key(n))
        theirs_state, expected = theirs(theirs_state, jax.random.key(n))
    for name in expected:
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    keep = lambda s: {k: v for k, v in s.learned().items() if k != "aux"}
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), keep(ours_state), keep(theirs_state))
    # Nothing is learned of a reward that does nothing; the critic of r_ex learns all the same.
    jax.tree.map(np.testing.assert_array_equal, ours_state.aux.params["reward"], state.aux.params["reward"])
    moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), ours_state.aux.params["critic"], state.params["critic"])
    assert all(float(x) > 0 for x in jax.tree.leaves(moved))


def test_equal_advantages_give_finite_gradients():
    env = GAMES["discrete"]
    agent = ppo.agent_of(env, env.default_params, SMALL)
    obs = jnp.eye(CELLS)
    params = jax.jit(agent.init)(jax.random.key(0), obs)
    zeros = jnp.zeros(CELLS)
    batch = dict.fromkeys(("base", "base_targets", "extrinsic", "extrinsic_targets"), zeros)
    batch |= {"obs": obs, "action": zeros.astype(int), "old_log_probs": zeros - 1.4}
    lir_params = {"reward": jnp.zeros(()), "critic": params["critic"]}
    opt_state = ppo.optimizer(SMALL).init(params)
    loss = lambda p: lir.meta_loss(
        agent, SMALL, p, params, opt_state, networks.RunningMoments.of((CELLS,)), batch, lambda eta: eta + zeros
    )
    grads = jax.jit(jax.grad(loss, has_aux=True))(lir_params)[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_the_learned_reward_pays_for_the_door():
    """The environment pays two steps after the door; eta comes to pay at it, and most for the action that opens it."""
    env = GAMES["discrete"]
    config = dataclasses.replace(SMALL, num_envs=16, num_steps=20, learning_rate=1e-3, entropy_coef=0.05)
    lir_config = dataclasses.replace(LIR, coefficient=0.1, learning_rate=1e-2)
    state = jax.jit(lambda key: start("discrete", key, config, lir_config))(jax.random.key(3))
    agent = ppo.agent_of(env, env.default_params, config)
    update = lir.make_update(env, env.default_params, config, lir_config)
    train = jax.jit(lambda state, keys: jax.lax.scan(update, state, keys))

    def paid(state):
        at_door = jnp.tile(jax.nn.one_hot(DOOR, CELLS), (4, 1))
        x = lir.reward_input(agent, state.obs_moments, at_door, jnp.arange(4))
        return np.asarray(lir.intrinsic_reward(state.aux.params["reward"], x, lir_config))

    lead = lambda r: r[1] - np.delete(r, 1).max()
    before = lead(paid(state))
    state, metrics = train(state, jax.random.split(jax.random.key(4), 60))
    after = lead(paid(state))
    assert after > 0 and after > before + 0.5, (before, after)
    assert metrics["finite"].all() and float(metrics["env_return"][-1]) > 0.8


def test_clipping_of_values_is_refused():
    env = GAMES["discrete"]
    with pytest.raises(ValueError, match="LIR does not clip values"):
        lir.make_update(env, env.default_params, dataclasses.replace(SMALL, value_clip=0.2), LIR)
