import jax
import jax.numpy as jnp
import numpy as np

from envs.babyai import levels, rules
from envs.walkers import babyai_walk


def test_a_skilled_walker_finds_what_a_blind_one_bumps_into():
    @jax.jit
    def play(key, skilled):
        states = jax.vmap(lambda key: levels.draw(key, "go to"))(jax.random.split(key, 300))

        def turn(states, key):
            keys = jax.random.split(key, 300)
            _, actions = jax.vmap(lambda key, state: babyai_walk(key, state, skilled))(keys, states)
            for i in range(3):
                moved = jax.vmap(rules.step)(states, jnp.maximum(actions[:, i], 0))
                keep = actions[:, i] < 0
                states = jax.tree.map(
                    lambda a, b: jnp.where(keep.reshape(-1, *[1] * (a.ndim - 1)), a, b), states, moved
                )
            return states, actions

        states, actions = jax.lax.scan(turn, states, jax.random.split(key, 4))
        return jax.vmap(rules.success)(states), actions

    found, actions = play(jax.random.key(0), True)
    bumped, _ = play(jax.random.key(0), False)
    assert found.mean() > 0.6 and bumped.mean() < 0.4
    ended = np.asarray(actions) == -1
    assert ended[:, ~found].sum() == 0 and ended[-1, found].any()
