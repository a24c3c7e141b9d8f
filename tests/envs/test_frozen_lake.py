import ast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map, is_valid

from nlrl_jax import envs
from nlrl_jax.envs import frozen_lake as lake

GYMNASIUM_ACTIONS = (3, 1, 0, 2)  # Gymnasium's ids (left 0, down 1, right 2, up 3) of ours (Up, Down, Left, Right)


def state_of(board: str, time: int = 0) -> lake.FrozenLakeState:
    """A state from a drawn board; P, X and * mark the player, X stands in a hole."""
    tiles = "".join(board.split())
    (player,) = (i for i, tile in enumerate(tiles) if tile in "PX*")
    holes = jnp.array([tile in "OX" for tile in tiles])
    return lake.FrozenLakeState(time=jnp.int32(time), position=jnp.int32(player), holes=holes)


@pytest.mark.parametrize("size", [4, 5])
def test_every_transition_equals_gymnasium(size):
    @jax.jit
    @jax.vmap
    def outcomes(holes, position, direction):
        state = lake.FrozenLakeState(time=jnp.int32(0), position=position, holes=holes)
        after, reward, terminated = lake.outcome(state, direction, size)
        return after.position, reward, terminated

    tiles = size * size
    position, action = (grid.ravel() for grid in np.mgrid[:tiles, :4])
    slips = np.asarray(jax.vmap(lake.slip_directions)(action))
    for seed in range(10):
        desc = generate_random_map(size, 0.8, seed)
        holes = np.broadcast_to(np.array([tile == "H" for tile in "".join(desc)]), (len(position), tiles))
        for slippery in (False, True):
            table = gymnasium.make("FrozenLake-v1", desc=desc, is_slippery=slippery).unwrapped.P
            directions = slips if slippery else action[:, None]
            ours = [outcomes(holes, position, direction) for direction in directions.T]
            ours = np.stack([np.stack(parts, -1) for parts in ours], 1)  # [states * actions, directions, 3]
            for i, (s, a) in enumerate(zip(position, action, strict=True)):
                expected = distribution(table[s][GYMNASIUM_ACTIONS[a]])
                got = distribution((1 / len(ours[i]), *entry) for entry in ours[i])
                assert got == pytest.approx(expected), (desc, s, a)


def distribution(entries) -> dict:
    """(probability, state, reward, terminated) entries -> {(state, reward, terminated): probability}."""
    total = {}
    for probability, *what in entries:
        what = tuple(float(value) for value in what)
        total[what] = total.get(what, 0.0) + float(probability)
    return total


def test_step_slips_in_thirds():
    # P in the middle of a 3x3 board: Up, Left and Right lead to three different tiles.
    env = lake.FrozenLake(3, slippery=True)
    state = state_of("___ _P_ __G")
    step = jax.jit(jax.vmap(lambda key: env.step_env(key, state, lake.UP, env.default_params)[1].position))
    counts = np.bincount(step(jax.random.split(jax.random.key(0), 9000)), minlength=9)
    assert set(np.flatnonzero(counts)) == {1, 3, 5}
    np.testing.assert_allclose(counts[[1, 3, 5]] / 9000, 1 / 3, atol=0.02)


@pytest.mark.parametrize(("size", "maps"), [(4, 4000), (6, 1000)])
def test_drawn_maps_are_solvable_and_as_holed_as_gymnasiums(size, maps):
    env = lake.FrozenLake(size)
    drawn = np.asarray(jax.jit(jax.vmap(env.draw_map))(jax.random.split(jax.random.key(0), maps)))
    peer = np.array([[list(row) for row in generate_random_map(size, 0.8, seed)] for seed in range(1000)]) == "H"
    assert not drawn[:, [0, -1]].any()
    text = np.where(drawn, "H", "F").reshape(maps, size, size)
    text[:, 0, 0], text[:, -1, -1] = "S", "G"
    assert all(is_valid(board, size) for board in text)
    assert len(np.unique(drawn, axis=0)) > maps / 4
    error = np.sqrt(0.2 * 0.8 * (1 / maps + 1 / 1000))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - peer.reshape(1000, -1).mean(0)), 4.5 * error)
    assert drawn.sum(1).max() <= lake.max_holes(size)


def test_solvable_equals_gymnasiums_check():
    rng = np.random.default_rng(0)
    holes = rng.random((1000, 36)) < 0.4
    holes[:, [0, -1]] = False
    text = np.where(holes, "H", "F").reshape(-1, 6, 6)
    text[:, -1, -1] = "G"
    expected = [is_valid(board, 6) for board in text]
    np.testing.assert_array_equal(jax.jit(lake.solvable, static_argnums=1)(holes, 6), expected)
    assert 0 < sum(expected) < 1000


def test_observations_are_planes_of_the_state():
    env, state = envs.make("frozen_lake").env, state_of(DRAWN)
    obs = np.asarray(env.observe(None, state, None, env.default_params)).reshape(16, 3)
    assert obs[:, 0].nonzero()[0].tolist() == [5] and obs[:, 2].nonzero()[0].tolist() == [15]
    np.testing.assert_array_equal(obs[:, 1], state.holes)


PAPER_TEXT = """\
The board has 4x4 cells. A cell is written as (X, Y), where X is the column and Y is the row; \
(0, 0) is the bottom left corner and (3, 3) the top right one. \
Up adds 1 to Y, Down subtracts 1 from Y, Right adds 1 to X, Left subtracts 1 from X.
Player position: (1, 2)
Holes: (2, 3), (0, 2), (3, 1)
Goal: (3, 0)
Symbols used in the state:
- P: player
- O: hole
- G: goal
- _: empty ice
State:
_ _ O _
O P _ _
_ _ _ O
_ _ _ G"""

DRAWN = """\
_ _ O _
O P _ _
_ _ _ O
_ _ _ G"""


def test_paper_text():
    game = envs.make("frozen_lake")
    assert game.observation.render(game.fields(state_of(DRAWN))) == PAPER_TEXT
    bare = game.observation.render(game.fields(state_of("P___ ____ ____ ___G")))
    assert "Player position: (0, 3)\nHoles: none\nGoal: (3, 0)\n" in bare
    assert "slippery" not in game.rules and "slippery" in envs.make("frozen_lake_slippery").rules


@pytest.mark.parametrize(
    ("board", "success"),
    [
        (DRAWN, False),
        # fallen: the player stands in a hole
        ("_ _ O _\n_ _ _ X\n_ _ _ O\n_ _ _ G", False),
        # arrived
        ("_ _ O _\nO _ _ _\n_ _ _ O\n_ _ _ *", True),
    ],
)
def test_compact_text_is_the_board(board, success):
    game = envs.make("frozen_lake", prompt="compact")
    assert "\n" not in game.rules
    state = state_of(board)
    assert game.observation.render(game.fields(state)) == board
    assert game.board.render(game.fields(state)) == board
    assert bool(game.success(state)) == success


def test_every_reachable_state_renders():
    for size, count in ((4, 300), (7, 20)):
        game = envs.make("frozen_lake_slippery", size=size)
        drawn = jax.vmap(game.env.draw_map)(jax.random.split(jax.random.key(3), count))
        position = jax.random.randint(jax.random.key(4), (count,), 0, size * size)
        states = lake.FrozenLakeState(time=jnp.zeros(count, jnp.int32), position=position, holes=drawn)
        fields = jax.tree.map(np.asarray, jax.jit(jax.vmap(game.fields))(states))
        for i in range(count):
            text = game.observation.render({name: value[i] for name, value in fields.items()})
            grid = text.split("State:\n")[1]
            np.testing.assert_array_equal(state_of(grid).holes, drawn[i])
            listed = text.split("Holes: ")[1].split("\n")[0]
            cells = (
                [ast.literal_eval(pair) for pair in listed.replace("), (", ");(").split(";")]
                if listed != "none"
                else []
            )
            assert [(size - 1 - y) * size + x for x, y in cells] == list(np.flatnonzero(drawn[i]))


@pytest.mark.parametrize("options", [{"size": 8, "hole_probability": 0.5}, {"hole_probability": 0.97}, {"size": 2}])
def test_boards_with_few_maps_are_not(options):
    env = lake.FrozenLake(**options)
    assert lake.solvable(env.draw_map(jax.random.key(0)), env.size)
