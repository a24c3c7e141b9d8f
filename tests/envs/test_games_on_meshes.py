"""Every game that runs on the device plays inside `shard_map` and with its batch on an Explicit or Auto mesh.

Resets and steps under `vmap`, in a scan that carries the states: bit for bit what they are without a mesh.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nlrl_jax import envs

BATCH, STEPS = 4, 2
GAMES = {
    "frozen_lake_slippery": lambda: envs.make("frozen_lake_slippery"),
    "frozen_lake, without a table of maps": lambda: envs.make("frozen_lake", size=5),
    "snake": lambda: envs.make("snake", size=5),
    "maze_medium": lambda: envs.make("maze_medium"),
    "tic_tac_toe_minimax": lambda: envs.make("tic_tac_toe_minimax"),
    "breakthrough_first_move": lambda: envs.make("breakthrough_first_move", side="white"),
    "babyai": lambda: envs.make("babyai", mission="all"),
    "crafter": lambda: envs.make("crafter"),
    "pong": lambda: envs.make_control("pong"),
    "hopper": lambda: envs.make_control("hopper", physics="c"),
    "ant": lambda: envs.make_control("ant", version="v5", physics="c"),
}
SLOW = "crafter", "ant"
every_game = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in GAMES]
)
ROWS = PartitionSpec("x")


def mesh_of(kind):
    return jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])


def play_of(game):
    """(reset keys, states, step keys, which, each [B]) -> all that some steps give, from new states or those given."""
    env, params = game.env, game.params

    def play(key, given, key_steps, is_new):
        obs, new = env.reset_env(key, params)
        first = jax.tree.map(lambda a, b: jnp.where(is_new, a, b), new, given)

        def step(state, key):
            action = env.action_space(params).sample(key)
            obs, state, reward, terminated, info = env.step_env(key, state, action, params)
            return state, (obs, reward, terminated, info)

        last, steps = jax.lax.scan(step, first, jax.random.split(key_steps, STEPS))
        read = {name: getattr(game, name)(last) for name in ("fields", "success") if getattr(game, name, None)}
        return obs, new, last, steps, read, env.is_terminated(last, params)

    return jax.jit(jax.vmap(play))


@functools.cache
def plain(name):
    """(the function, its arguments on the host, what it gives without a mesh)."""
    game = GAMES[name]()
    play, keys = play_of(game), jax.random.split(jax.random.key(0), (3, BATCH))
    shapes = jax.eval_shape(jax.vmap(game.env.reset_env, (0, None)), keys[2], game.params)[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    given = play(keys[2], nothing, keys[1], np.ones(BATCH, bool))[1]  # the program that plays also makes new states
    arguments = (keys[0], jax.device_get(given), keys[1], np.arange(BATCH) % 2 == 0)
    return play, arguments, play(*arguments)


@pytest.mark.parametrize("way", [pytest.param("Auto", marks=pytest.mark.slow), "Explicit", "shard_map"])
@every_game
def test_a_game_plays_the_same_on_a_mesh(name, way):
    play, arguments, expected = plain(name)
    mesh = mesh_of(AxisType.Auto if way == "Auto" else AxisType.Explicit)
    if way == "shard_map":
        play = jax.jit(jax.shard_map(play, mesh=mesh, in_specs=ROWS, out_specs=ROWS))
    result = play(*jax.device_put(arguments, NamedSharding(mesh, ROWS)))
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_mjx_is_traced_inside_shard_map():
    """Its loops are not typed for meshes, so types go unchecked. It takes long to compile, so nothing is computed."""
    game = envs.make_control("hopper", physics="mjx")
    play, mesh = play_of(game), mesh_of(AxisType.Auto)
    keys = jax.random.split(jax.random.key(0), (3, BATCH))
    _, given = jax.eval_shape(jax.vmap(lambda key: game.env.reset_env(key, game.params)), keys[2])
    arguments = (keys[0], given, keys[1], np.ones(BATCH, bool))
    on_mesh = jax.shard_map(play, mesh=mesh, in_specs=ROWS, out_specs=ROWS, check_vma=False)
    assert jax.tree.map(jnp.shape, jax.eval_shape(on_mesh, *arguments)) == jax.tree.map(
        jnp.shape, jax.eval_shape(play, *arguments)
    )
