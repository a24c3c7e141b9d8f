import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs.babyai import levels, rules
from nlrl_jax.envs.walkers import babyai_walk


@jax.jit
def walked(keys, skilled):
    """Whether walkers [N] go to their targets in 12 steps, and their actions int32 [N, 4, 3]."""

    def one(key):
        def turn(state, key):
            _, actions = babyai_walk(key, state, skilled)

            def move(state, action):
                after = rules.step(state, action)
                return jax.tree.map(lambda a, b: jnp.where(action < 0, a, b), state, after), None

            return jax.lax.scan(move, state, actions)[0], actions

        state, actions = jax.lax.scan(turn, levels.draw(key, "go to"), jax.random.split(key, 4))
        return rules.success(state), actions

    return jax.vmap(one)(keys)


def test_a_skilled_walker_finds_what_a_blind_one_bumps_into():
    keys = jax.random.split(jax.random.key(0), 300)
    found, actions = map(np.asarray, walked(keys, True))
    bumped, _ = walked(keys, False)
    assert found.mean() > 0.6 and bumped.mean() < 0.4
    assert (actions[~found] >= 0).all() and (actions[found] == -1).any()
