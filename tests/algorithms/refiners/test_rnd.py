"""Random network distillation: the bonus by hand, what it forgets and what it does not, several seeds at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.algorithms.ppo import Transitions
from nlrl_jax.algorithms.refiners import rnd
from nlrl_jax.algorithms.refiners.rnd import RNDConfig

CONFIG = RNDConfig(num_minibatches=2)


start = jax.jit(rnd.init, static_argnums=(1, 2))
reward = jax.jit(rnd.reward, static_argnums=2)


def transitions(obs, next_obs):
    """Steps of which only the observations matter."""
    zeros = jnp.zeros(obs.shape[:2])
    none = zeros.astype(bool)
    return Transitions(obs, zeros, zeros, next_obs, none, none, none, {}, zeros, zeros)


def around(key, centre, T=16, B=4):
    """Observations [T, B, 3] near a point."""
    return jnp.asarray(centre) + 0.3 * jax.random.normal(key, (T, B, 3))


def test_networks_have_the_published_widths():
    state = start(jax.random.key(0), (7,))
    kernels = lambda params: sorted(x.shape for x in jax.tree.leaves(params) if x.ndim == 2)
    assert kernels(state.target) == [(7, 128), (128, 64)]
    assert kernels(state.predictor) == [(7, 128), (128, 64), (128, 128)]


def test_the_bonus_is_the_scaled_squared_error_by_hand():
    state = start(jax.random.key(0), (3,), CONFIG)
    obs, next_obs = around(jax.random.key(1), [5.0, 0, 2]), around(jax.random.key(2), [5.0, 0, 2])
    bonus, after, metrics = reward(state, transitions(obs, next_obs), CONFIG)

    rows = np.asarray(next_obs).reshape(-1, 3)
    x = np.clip((rows - rows.mean(0)) / rows.std(0), -5, 5)

    def forward(params, x):
        layers = [params["params"][name] for name in sorted(params["params"])]
        for n, layer in enumerate(layers):
            x = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
            x = np.maximum(x, 0) if n + 1 < len(layers) else x
        return x

    error = np.mean((forward(state.predictor, x) - forward(state.target, x)) ** 2, axis=-1)
    expected = 0.01 * error / np.sqrt(np.mean(error**2))
    np.testing.assert_allclose(bonus.reshape(-1), expected, rtol=1e-3)
    np.testing.assert_allclose(metrics["novelty"], error.mean(), rtol=1e-3)
    assert float(metrics["rewarded"]) == 1
    jax.tree.map(np.testing.assert_array_equal, after.target, state.target)
    assert int(after.opt_state[0].count) == 2


def test_novelty_falls_on_what_was_seen_and_stays_on_what_was_not():
    noise = jax.random.normal(jax.random.key(1), (2, 16, 4, 4))
    seen = jnp.zeros((16, 4, 8)).at[..., :4].set(noise[0])  # never left half of the dimensions
    unseen = jnp.zeros((16, 4, 8)).at[..., 4:].set(noise[1])
    state = start(jax.random.key(0), (8,), CONFIG)
    learn = lambda state: reward(state, transitions(seen, seen), CONFIG)
    first, state, _ = learn(state)
    mean = lambda x: float(jnp.mean(rnd.novelty(state, x.reshape(-1, 8), CONFIG)))
    before = mean(seen), mean(unseen)
    for _ in range(50):
        last, state, _ = learn(state)
    after = mean(seen), mean(unseen)
    assert after[0] < 0.1 * before[0]
    assert after[1] > 0.5 * before[1]
    # Measured against the past, what is known earns next to nothing.
    assert float(jnp.mean(last)) < 0.2 * float(jnp.mean(first)) < 0.2 * 0.01


def test_only_steps_taken_in_critical_states_are_paid_for():
    state = start(jax.random.key(0), (3,), CONFIG)
    steps = transitions(around(jax.random.key(1), [0.0, 0, 0]), around(jax.random.key(2), [0.0, 0, 0]))
    everywhere, after, _ = reward(state, steps, CONFIG)
    hooks = rnd.hooks(CONFIG, critical=lambda obs: obs[:, 0] > 0)
    gated, after_gated, metrics = jax.jit(hooks.bonus)(state, steps, None)
    critical = np.asarray(steps.obs[..., 0] > 0)
    assert 0 < critical.mean() < 1
    np.testing.assert_array_equal(gated, np.where(critical, everywhere, 0))
    np.testing.assert_allclose(metrics["rewarded"], critical.mean())
    jax.tree.map(np.testing.assert_array_equal, after_gated, after)  # what is learned is the same


def test_frames_are_observations_too():
    state = start(jax.random.key(0), (4, 4, 2), CONFIG)
    frames = jax.random.uniform(jax.random.key(1), (6, 2, 4, 4, 2))
    bonus, after, _ = reward(state, transitions(frames, frames), CONFIG)
    assert bonus.shape == (6, 2) and (bonus > 0).all()
    np.testing.assert_allclose(after.obs_moments.mean, frames.mean((0, 1)), atol=1e-6)


def test_a_batch_that_does_not_divide_is_refused():
    state = start(jax.random.key(0), (3,))
    steps = transitions(jnp.zeros((3, 3, 3)), jnp.zeros((3, 3, 3)))
    with pytest.raises(ValueError, match="3 steps x 3 environments do not divide into 4"):
        rnd.reward(state, steps)
