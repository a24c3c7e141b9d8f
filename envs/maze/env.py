"""The two mazes of LMRL-Gym, "double T" and "medium" (NLRL, section 5.1 and appendix B.1).

Layouts, text and rewards are LMRL-Gym's: 0 on reaching the goal, -4 for an action that is none of the four words, -1
for every other step, also where a wall stops the player. An episode has at most 100 steps. It begins on a free cell,
drawn uniformly, that is not the goal. Positions in the text are (row, column), counted from 0 at the top left.

LMRL-Gym names no goal for the medium maze. Ours is (6, 6), the free cell in the lower right corner.

An action id outside 0 to 3 is a word that is no action: it earns -4, takes a step and moves nothing.

Besides the gymnax environment there are the bare rules, `step`, on a `Maze`: they take NumPy or JAX arrays of positions
of any shape, for look-aheads over many mazes at once.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs import grid_text
from nlrl_jax.envs.options import check_text_game
from nlrl_jax.envs.shell import DiscreteGame, on_any_mesh
from nlrl_jax.gymnax_base import EnvParams, environment
from nlrl_jax.text.template import Choice, Literal, Number, Template
from nlrl_jax.types import TextGame

ACTIONS = ("move up", "move down", "move left", "move right")
UP, DOWN, LEFT, RIGHT = range(4)
OFFSETS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # (row, column) of each action

# Walls are "#". A cell is row * columns + column, counted from the top left.
LAYOUTS = {
    "double_t": """
        #############
        #.....#.....#
        ###.#####.###
        ###.#####.###
        ###.#####.###
        ###.......###
        ######.######
        ######.######
        ######G######
        #############
    """,
    "medium": """
        ########
        #..#...#
        #..#.#.#
        ##....##
        ###.#..#
        #....#.#
        #..#..G#
        ########
    """,
}
OBSERVATIONS = ("full", "partial")
SYMBOLS = ("_", "#", "P", "G", "*")
LEGEND = {"P": "player", "G": "goal", "#": "wall", "_": "free", "*": "player on the goal"}
_FREE, _WALL, _PLAYER, _GOAL, _ARRIVED = range(5)

STEP_REWARD, UNKNOWN_REWARD = -1.0, -4.0
MAX_STEPS = 100  # LMRL-Gym's limit

# The order in which the text names walls.
_SIDES = (("to your right", RIGHT), ("to your left", LEFT), ("above you", UP), ("below you", DOWN))


@dataclasses.dataclass(frozen=True, eq=False)
class Maze:
    """A layout as tables. A cell is one integer, row-major; C = rows * columns.

    Attributes:
      walls: bool [C].
      goal: its cell.
      moves: int32 [C, 4], where each action leads from a free cell.
      wall_code: int32 [C], bit a is 1 where action a runs into a wall.
      starts: int32, the free cells but the goal, in reading order.
    """

    name: str
    rows: int
    columns: int
    walls: np.ndarray
    goal: int
    moves: np.ndarray
    wall_code: np.ndarray
    starts: np.ndarray


@functools.lru_cache
def maze(name: str) -> Maze:
    """Returns the maze "double_t" or "medium"."""
    grid = np.array([list(line) for line in LAYOUTS[name].split()])
    rows, columns = grid.shape
    walls, cells, goal = grid.ravel() == "#", np.arange(grid.size), int(np.flatnonzero(grid.ravel() == "G")[0])
    # The border is wall, so a free cell's neighbours exist; those of the border are clipped and never used.
    to = np.clip(cells[:, None] + OFFSETS @ (columns, 1), 0, grid.size - 1)
    blocked = walls[to] | walls[:, None]
    return Maze(
        name=name,
        rows=rows,
        columns=columns,
        walls=walls,
        goal=goal,
        moves=np.where(blocked, cells[:, None], to).astype(np.int32),
        wall_code=(blocked << np.arange(4)).sum(1).astype(np.int32),
        starts=np.flatnonzero(~walls & (cells != goal)).astype(np.int32),
    )


def step(maze: Maze, position: Any, action: Any, xp: Any = np) -> tuple[Any, Any, Any]:
    """Steps any number of players, with numpy or jax.numpy as `xp`.

    Args:
      position: int32 [...], free cells.
      action: int32 [...]; ids outside 0 to 3 are unknown actions.

    Returns:
      (position int32 [...], reward float32 [...], whether the player is on the goal bool [...]). A player on the goal
      stays there, with reward 0.
    """
    position, action = xp.asarray(position), xp.asarray(action)
    is_known, ended = (action >= 0) & (action < len(ACTIONS)), position == maze.goal
    to = xp.asarray(maze.moves)[position, xp.clip(action, 0, len(ACTIONS) - 1)]
    after = xp.where(is_known & ~ended, to, position)
    arrived = after == maze.goal
    reward = xp.where(arrived, 0.0, xp.where(is_known, STEP_REWARD, UNKNOWN_REWARD))
    return after, reward.astype(np.float32), arrived


@functools.cache
def distances(maze: Maze) -> np.ndarray:
    """Counts the fewest steps from each cell to the goal: int [C]; C where there is no way."""
    far = np.where(np.arange(len(maze.walls)) == maze.goal, 0, len(maze.walls))
    for _ in far:
        far = np.minimum(far, np.where(maze.walls, len(far), far[maze.moves].min(1) + 1))
    return far


class Walk(NamedTuple):
    """A player's past on the host: n + 1 positions, the last one the present, and the n actions between."""

    positions: tuple[int, ...]
    actions: tuple[int, ...] = ()


def random_walks(maze: Maze, position: Any, action: Any, steps: int, rng: np.random.Generator) -> list[Walk]:
    """Takes one forced step each, then `steps` random ones; a walk ends at the goal.

    Args:
      position, action: int [B].

    Returns:
      B walks of at most `steps` + 1 actions.
    """
    position, action = np.asarray(position), np.asarray(action)
    actions = np.concatenate([action[:, None], rng.integers(len(ACTIONS), size=(len(action), steps))], axis=1)
    positions = [position]
    for column in actions.T:
        positions.append(step(maze, positions[-1], column)[0])
    positions = np.stack(positions, axis=1)
    # The number of positions up to the first one on the goal.
    lengths = np.where((positions == maze.goal).any(1), (positions == maze.goal).argmax(1) + 1, steps + 2)
    rows = zip(positions.tolist(), actions.tolist(), lengths.tolist(), strict=True)
    return [Walk(tuple(cells[:n]), tuple(moves[: n - 1])) for cells, moves, n in rows]


@struct.dataclass
class MazeState(environment.EnvState):
    """The player in the maze.

    Attributes:
      time: int32 [].
      position: int32 [], cell index.
    """

    position: jax.Array


class MazeEnv(DiscreteGame):
    """gymnax environment; observations are float32 [rows, columns, 3]: player, walls, goal.

    Args:
      layout: "double_t" or "medium".
      observation: "full", or "partial": the array shows the four neighbours' walls alone, float32 [4].

    Raises:
      ValueError: an unknown observation.
    """

    def __init__(self, layout: str = "double_t", observation: str = "full"):
        if observation not in OBSERVATIONS:
            raise ValueError(f"observation is {observation!r}; choose one of {', '.join(OBSERVATIONS)}")
        self.maze, self.observation = maze(layout), observation
        shape = (4,) if observation == "partial" else (self.maze.rows, self.maze.columns, 3)
        super().__init__(ACTIONS, shape, EnvParams(MAX_STEPS))

    def start(self, key, params):
        """Draws a free cell that is not the goal."""
        return MazeState(time=jnp.int32(0), position=jax.random.choice(key, jnp.asarray(self.maze.starts)))

    def advance(self, key, state, action, params):
        """See `step`."""
        position, reward, terminated = step(self.maze, state.position, action, jnp)
        return state.replace(position=position, time=state.time + 1), reward, terminated, {}

    def is_terminated(self, state: MazeState, params: EnvParams) -> jax.Array:
        """Whether the player is on the goal: bool []."""
        return self.success(state)

    def success(self, state: MazeState) -> jax.Array:
        """Whether the player stands on the goal: bool []."""
        return state.position == self.maze.goal

    def observe(self, key, state, action, params) -> jax.Array:
        """Full: float32 [rows, columns, 3], player, walls, goal. Partial: float32 [4], walls up, down, left, right."""
        if self.observation == "partial":
            return (jnp.asarray(self.maze.wall_code)[state.position] >> np.arange(4) & 1).astype(jnp.float32)
        cells = np.arange(len(self.maze.walls))
        planes = jnp.stack([cells == state.position, self.maze.walls, cells == self.maze.goal], axis=-1)
        return planes.reshape(self.shape).astype(jnp.float32)


def fields(maze: Maze, position: Any, xp: Any = np) -> dict[str, Any]:
    """Computes the fields of a position's text, all int32: row, column, walls []; cells [C], indices into `SYMBOLS`."""
    cells = np.arange(len(maze.walls))
    ground = np.where(maze.walls, _WALL, np.where(cells == maze.goal, _GOAL, _FREE))
    player = np.where(cells == maze.goal, _ARRIVED, _PLAYER)
    position = xp.asarray(position)
    return {
        "row": (position // maze.columns).astype(np.int32),
        "column": (position % maze.columns).astype(np.int32),
        "walls": xp.asarray(maze.wall_code)[position],
        "cells": xp.where(cells == position, player, ground).astype(np.int32),
    }


def wall_sentence(code: int) -> str:
    """Writes LMRL-Gym's sentence on the walls around a cell; bit a of `code` is the wall that action a runs into."""
    sides = [side for side, action in _SIDES if code >> action & 1]
    if not sides:
        return "There are no walls near you."
    return f"There is a wall {sides[0]}." if len(sides) == 1 else f"There are walls {', '.join(sides)}."


def observation_template(maze: Maze, observation: str = "full") -> Template:
    """Returns the text of a position; "partial" leaves the goal and the position out."""
    sentences = tuple(wall_sentence(code) for code in range(16))
    if observation == "partial":
        return Template((Choice("walls", sentences),))
    row, column = divmod(maze.goal, maze.columns)
    return Template(
        (
            Literal(f"The goal is at position {row}, {column}. Your current position is at position "),
            Number("row", 0, maze.rows - 1),
            Literal(", "),
            Number("column", 0, maze.columns - 1),
            Literal("."),
            Choice("walls", tuple(f" {sentence}" for sentence in sentences)),
        )
    )


def board_template(maze: Maze) -> Template:
    """Draws the maze as a person would."""
    return grid_text.drawn([Choice("cells", SYMBOLS, cell) for cell in range(len(maze.walls))], maze.columns)


_RULES = (
    "You are walking through a maze and want to reach the goal in as few steps as possible.\n"
    "Rules:\n"
    "- A move takes you one cell up, down, left or right. If a wall is in the way, you stay put and waste the step.\n"
    "- Positions are given as row, column: moving down adds 1 to the row, moving right adds 1 to the column.\n"
    "Available actions: move up, move down, move left, move right. "
    'Reply with 1 to 3 actions, separated by " || ".'
)
_COMPACT = "Walk to the goal. Walls stop you."


def text_game(
    layout: str = "double_t", observation: str = "full", prompt: str = "paper", max_steps: int = MAX_STEPS
) -> TextGame:
    """Makes a maze as a text game.

    Args:
      layout: "double_t" or "medium".
      observation: "full" (goal, position, walls) or "partial" (walls alone).
      prompt: "paper" is LMRL-Gym's sentences after our rules; "compact", for very small models, has short rules and
        shows the board (partial: the wall sentence, which hides the board).
      max_steps: steps until truncation.

    Raises:
      ValueError: an argument outside its range.
    """
    check_text_game(prompt, max_steps)
    env = MazeEnv(layout, observation)
    board = board_template(env.maze)
    has_board = prompt == "compact" and observation == "full"
    return TextGame(
        name=f"maze_{layout}",
        env=env,
        params=env.default_params.replace(max_steps_in_episode=max_steps),
        rules=_COMPACT if prompt == "compact" else _RULES,
        actions=ACTIONS,
        observation=board if has_board else observation_template(env.maze, observation),
        fields=on_any_mesh(lambda state: fields(env.maze, state.position, jnp)),
        board=board,
        success=env.success,
        legend=LEGEND,
        optimal=lambda state: int(distances(env.maze)[state.position]),
        unknown_action=len(ACTIONS),
    )
