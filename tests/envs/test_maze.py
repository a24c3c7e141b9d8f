"""The mazes against their layouts: what a person would read off the drawing, by breadth-first search."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.maze import env as mazes
from tests.text.observations import compiled_texts
from tests.tokenizers_from_wheels import small_tokenizer

NAMES = ("double_t", "medium")


def grid_of(name):
    return mazes.LAYOUTS[name].split()


def neighbour(name, row, column, action):
    down, right = {"move up": (-1, 0), "move down": (1, 0), "move left": (0, -1), "move right": (0, 1)}[action]
    there = row + down, column + right
    return (row, column) if grid_of(name)[there[0]][there[1]] == "#" else there


def distances(name):
    """Shortest steps to the goal of every free cell, {(row, column): steps}, searched in the drawing."""
    (goal,) = ((r, c) for r, line in enumerate(grid_of(name)) for c, tile in enumerate(line) if tile == "G")
    found, queue = {goal: 0}, collections.deque([goal])
    while queue:
        cell = queue.popleft()
        for action in mazes.ACTIONS:  # moves can be taken back, so this searches from the goal
            there = neighbour(name, *cell, action)
            if there not in found:
                found[there] = found[cell] + 1
                queue.append(there)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_layout_equals_the_drawing_and_every_cell_reaches_the_goal(name):
    m, drawing = mazes.maze(name), grid_of(name)
    assert (m.rows, m.columns) == (len(drawing), len(drawing[0]))
    np.testing.assert_array_equal(m.walls.reshape(m.rows, m.columns), [[c == "#" for c in row] for row in drawing])
    assert drawing[m.goal // m.columns][m.goal % m.columns] == "G"
    free = {(r, c) for r, row in enumerate(drawing) for c, tile in enumerate(row) if tile != "#"}
    assert set(distances(name)) == free and len(free) == len(m.starts) + 1 == 26
    assert {divmod(int(cell), m.columns) for cell in m.starts} == free - {divmod(m.goal, m.columns)}


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_and_action_equals_the_drawing(name):
    m, goal = mazes.maze(name), divmod(mazes.maze(name).goal, mazes.maze(name).columns)
    for row, column in distances(name):
        if (row, column) == goal:
            continue
        for a, word in enumerate(mazes.ACTIONS):
            there = neighbour(name, row, column, word)
            expected = there[0] * m.columns + there[1], 0.0 if there == goal else -1.0, there == goal
            assert tuple(x.item() for x in mazes.step(m, row * m.columns + column, a)) == expected


def test_numpy_and_jax_take_the_same_steps_and_unknown_actions_cost_four():
    m = mazes.maze("double_t")
    cells = np.flatnonzero(~m.walls)
    position, action = (grid.ravel() for grid in np.meshgrid(cells, [-1, 0, 1, 2, 3, 4], indexing="ij"))
    host = mazes.step(m, position, action)
    device = jax.jit(lambda p, a: mazes.step(m, p, a, jnp))(position, action)
    for ours, theirs in zip(host, device, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype or ours.dtype.kind == "i"
    after, reward, arrived = host
    unknown = ((action < 0) | (action > 3)) & (position != m.goal)
    assert (reward[unknown] == -4).all() and (after[unknown] == position[unknown]).all() and not arrived[unknown].any()
    assert (reward[position == m.goal] == 0).all() and (after[position == m.goal] == m.goal).all()


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_all_free_cells_but_the_goal(name):
    game = envs.make(f"maze_{name}")
    _, states = jax.vmap(game.env.reset_env, (0, None))(jax.random.split(jax.random.key(0), 5000), game.params)
    count = np.bincount(states.position, minlength=len(mazes.maze(name).walls))
    starts = mazes.maze(name).starts
    assert set(np.flatnonzero(count)) == set(starts.tolist())
    np.testing.assert_allclose(count[starts] / 5000, 1 / 25, atol=0.012)


def test_text_of_the_benchmark():
    game, m = envs.make("maze_double_t"), mazes.maze("double_t")

    def text(row, column, **options):
        game = envs.make("maze_double_t", **options)
        state = mazes.MazeState(time=jnp.int32(3), position=jnp.int32(row * m.columns + column))
        return game.observation.render(game.fields(state))

    prefix = "The goal is at position 8, 6. Your current position is at position "
    assert text(1, 1) == prefix + "1, 1. There are walls to your left, above you, below you."
    assert text(1, 11) == prefix + "1, 11. There are walls to your right, above you, below you."
    assert text(5, 6) == prefix + "5, 6. There is a wall above you."
    assert text(6, 6, observation="partial") == "There are walls to your right, to your left."
    assert text(5, 9, observation="partial", prompt="compact") == text(5, 9, observation="partial")
    assert mazes.wall_sentence(0) == "There are no walls near you."
    assert game.actions == ("move up", "move down", "move left", "move right")
    assert game.params.max_steps_in_episode == 100
    board = text(8, 6, prompt="compact")
    assert board.replace(" ", "").replace("_", ".").replace("*", "G").splitlines() == grid_of("double_t")
    assert "*" in board and text(1, 1, prompt="compact").splitlines()[1] == "# P _ _ _ _ # _ _ _ _ _ #"


@pytest.mark.parametrize("prompt", ["paper", "compact"])
@pytest.mark.parametrize("observation", ["full", "partial"])
@pytest.mark.parametrize("name", NAMES)
def test_device_text_equals_host_text_on_every_cell(name, observation, prompt):
    game, m = envs.make(f"maze_{name}", observation=observation, prompt=prompt), mazes.maze(name)
    cells = jnp.asarray(np.flatnonzero(~m.walls))
    states = mazes.MazeState(time=jnp.zeros_like(cells), position=cells)
    texts = compiled_texts(game.observation, small_tokenizer(), jax.vmap(game.fields)(states))
    assert texts == [game.observation.render(mazes.fields(m, cell)) for cell in np.asarray(cells)]
    # Whoever sees only walls cannot tell all cells apart.
    assert (len(set(texts)) == len(texts)) == (observation == "full")


@pytest.mark.parametrize("observation", ["full", "partial"])
def test_observations_are_the_drawing_or_the_walls_nearby(observation):
    game = envs.make("maze_medium", observation=observation)
    obs, state = game.env.reset(jax.random.key(0), game.params)
    m, (row, column) = mazes.maze("medium"), divmod(int(state.position), 8)
    if observation == "full":
        np.testing.assert_array_equal(obs[..., 1], [[c == "#" for c in line] for line in grid_of("medium")])
        assert obs[row, column, 0] == 1 and obs[..., 0].sum() == 1 and obs[6, 6, 2] == 1
    else:
        blocked = [neighbour("medium", row, column, word) == (row, column) for word in mazes.ACTIONS]
        np.testing.assert_array_equal(obs, blocked)
    assert int(m.moves[state.position].max()) < 64
