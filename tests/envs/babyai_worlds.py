"""BabyAI's states on random walks through tasks of all missions."""

import functools

import jax
import jax.numpy as jnp

from nlrl_jax.envs.babyai import levels, rules


def pick(tree, *index):
    """Index every leaf of a tree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@functools.cache
def random_walks(games, moves, seed, odds):
    """Walk at random: states [moves + 1, games] and actions [moves, games], on the host.

    Args:
      odds: of the six actions; more of `rules.FORWARD` gets further, more of `rules.DROP` keeps the hands freer.
    """

    @jax.jit
    def play(key):
        states = jax.vmap(lambda key: levels.draw(key, "all"))(jax.random.split(key, games))

        def move(states, key):
            action = jax.random.categorical(key, jnp.log(jnp.array(odds, float)), shape=(games,))
            return jax.vmap(rules.step)(states, action), (states, action)

        last, (before, actions) = jax.lax.scan(move, states, jax.random.split(key, moves))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), before, last), actions

    return jax.device_get(play(jax.random.key(seed)))
