"""FrozenLake on a fresh random map in every episode (MS-GRPO, "Experimental setup" and appendix).

The map is part of the state. Its distribution is that of Gymnasium's `generate_random_map`: every tile
but the start (top left) and the goal (bottom right) is a hole with probability 0.2, given that a path
of safe tiles joins the two. Dynamics are those of Gymnasium's FrozenLake-v1; walls stop the player.

    P _ _ _      0  1  2  3      a cell is row * size + column
    _ O _ O      4  5  6  7      P player, who starts on cell 0
    _ _ _ O      8  9 10 11      O hole
    O _ _ G     12 13 14 15      G goal, the last cell

Up to size 4 a reset draws from a table of all maps (Walker's alias method: two random words, one
look-up, no loop); larger boards draw candidate maps until one is solvable. The table, and which maps are
held out, are in `frozen_lake_maps`.
"""

from __future__ import annotations

import dataclasses
import math
import numbers

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs import grid_text
from nlrl_jax.envs.frozen_lake_maps import CANDIDATES, MAPS, TABLE_SIZE, check_candidates, in_split, map_table, spread
from nlrl_jax.envs.grid_text import ACTIONS, DOWN, LEFT, RIGHT, UP
from nlrl_jax.envs.options import check_text_game, integer
from nlrl_jax.envs.shell import DiscreteGame, on_any_mesh
from nlrl_jax.gymnax_base import EnvParams, environment
from nlrl_jax.text.host import of_text_game
from nlrl_jax.text.template import Literal, Template
from nlrl_jax.types import HostGame, TextGame

SYMBOLS = ("_", "P", "O", "G", "X", "*")
LEGEND = {"P": "player", "G": "goal", "O": "hole", "_": "ice", "X": "player in a hole", "*": "player on the goal"}
_EMPTY, _PLAYER, _HOLE, _GOAL, _FALLEN, _ARRIVED = range(6)


@struct.dataclass
class FrozenLakeState(environment.EnvState):
    """The map of this episode and the player on it.

    Attributes:
      time: int32 [].
      position: int32 [], cell index.
      holes: bool [size * size].
    """

    position: jax.Array
    holes: jax.Array


def move(position: jax.Array, direction: jax.Array, size: int) -> jax.Array:
    """Moves one cell in `direction`; the border stops the player. Cell indices, int32 [] -> int32 []."""
    rows, columns = grid_text.offset(direction)
    row = jnp.clip(position // size + rows, 0, size - 1)
    column = jnp.clip(position % size + columns, 0, size - 1)
    return row * size + column


def slip_directions(action: jax.Array) -> jax.Array:
    """Returns the three equally likely directions on slippery ice: int32 [3], the intended one first."""
    directions = np.array([(UP, LEFT, RIGHT), (DOWN, LEFT, RIGHT), (LEFT, UP, DOWN), (RIGHT, UP, DOWN)], np.int32)
    # Chosen by comparison: a lookup by an action that lies on an Explicit mesh would have no sharding.
    return jnp.sum(jnp.where(np.arange(4)[:, None] == action, directions, 0), axis=0, dtype=jnp.int32)


def outcome(state: FrozenLakeState, direction: jax.Array, size: int) -> tuple[FrozenLakeState, jax.Array, jax.Array]:
    """Slides one cell in `direction`: (next state, reward float32 [], terminated bool []).

    Holes and the goal are absorbing, with reward 0.
    """
    goal = size * size - 1
    ended = state.holes[state.position] | (state.position == goal)
    position = jnp.where(ended, state.position, move(state.position, direction, size))
    arrived = position == goal
    reward = (arrived & ~ended).astype(jnp.float32)
    return state.replace(position=position, time=state.time + 1), reward, arrived | state.holes[position]


def solvable(holes: jax.Array, size: int) -> jax.Array:
    """Whether safe tiles join the top left and the bottom right: bool [..., N] -> bool [...]."""
    free = ~holes.reshape(*holes.shape[:-1], size, size)
    start = free & (np.arange(size * size) == 0).reshape(size, size)

    def grow(carry):
        _, reached = carry
        return reached, spread(jnp, reached, free)

    before_and_after = jnp.zeros_like(start), start
    _, reached = jax.lax.while_loop(lambda carry: (carry[0] != carry[1]).any(), grow, before_and_after)
    return reached[..., -1, -1]


class FrozenLake(DiscreteGame):
    """gymnax environment; observations are float32 [size, size, 3]: player, holes, goal.

    Args:
      size: side of the board, 2 or more.
      slippery: the player goes where intended with probability 1/3 and to either side with 1/3 each.
      hole_probability: of each tile, before unsolvable maps are thrown away; in [0, 1).
      maps: "all", "train" or "held_out".

    Raises:
      ValueError: an argument outside its range, or no map to draw.
    """

    def __init__(self, size: int = 4, slippery: bool = False, hole_probability: float = 0.2, maps: str = "all"):
        integer("size", size, 2)
        if not isinstance(hole_probability, numbers.Real) or not 0 <= hole_probability < 1:
            raise ValueError(f"hole_probability is {hole_probability!r}; it must be a number of at least 0 and below 1")
        if maps not in MAPS:
            raise ValueError(f"maps is {maps!r}; choose one of {', '.join(MAPS)}")
        (map_table if size <= TABLE_SIZE else check_candidates)(size, hole_probability, maps)
        super().__init__(ACTIONS, (size, size, 3), EnvParams(100))  # Gymnasium's limit for 4x4
        self.size, self.slippery, self.hole_probability, self.maps = size, slippery, hole_probability, maps

    def start(self, key: jax.Array, params: EnvParams) -> FrozenLakeState:
        """Draws a new solvable map with the player at the start."""
        return FrozenLakeState(time=jnp.int32(0), position=jnp.int32(0), holes=self.draw_map(key))

    def draw_map(self, key: jax.Array) -> jax.Array:
        """Draws the holes of a random solvable map: bool [size * size]."""
        tiles = self.size * self.size
        if self.size <= TABLE_SIZE:
            table = jnp.asarray(map_table(self.size, self.hole_probability, self.maps))
            words = jax.random.bits(key, (2,), jnp.uint32)  # one chooses the row, one between the row and its alias
            row = words[0] % len(table)
            code = jnp.where(words[1] < table[row, 0], row, table[row, 1])
            bits = code >> np.arange(tiles - 2, dtype=np.uint32) & 1
            return jnp.pad(bits.astype(bool), 1)

        def draw(carry):
            key, use = jax.random.split(carry[0])
            holes = jax.random.bernoulli(use, self.hole_probability, (CANDIDATES, tiles - 2))
            holes = jnp.pad(holes, [(0, 0), (1, 1)])
            ok = solvable(holes, self.size) & in_split(jnp, holes, self.maps)
            return key, holes[jnp.argmax(ok)], ok.any()

        return jax.lax.while_loop(lambda carry: ~carry[2], draw, draw((key,)))[1]

    def advance(self, key, state, action, params):
        """Slides the player; the reward is 1 on reaching the goal, else 0."""
        direction = jnp.asarray(action, jnp.int32)
        if self.slippery:
            direction = slip_directions(direction)[jax.random.bits(key) % 3]
        return *outcome(state, direction, self.size), {}

    def is_terminated(self, state: FrozenLakeState, params: EnvParams) -> jax.Array:
        """Whether the player is in a hole or on the goal: bool []."""
        return state.holes[state.position] | self.success(state)

    def success(self, state: FrozenLakeState) -> jax.Array:
        """Whether the player stands on the goal: bool []."""
        return state.position == self.size * self.size - 1

    def observe(self, key, state, action, params) -> jax.Array:
        """Returns float32 [size, size, 3], planes of player, holes and goal."""
        tiles = np.arange(self.size * self.size)
        planes = jnp.stack([tiles == state.position, state.holes, tiles == tiles[-1]], axis=-1)
        return planes.reshape(self.size, self.size, 3).astype(jnp.float32)


def optimal(state: FrozenLakeState) -> int | None:
    """Counts the fewest steps to the goal, with luck on slippery ice; None where holes cut it off.

    The state is on the host.
    """
    free = ~np.asarray(state.holes)
    size = math.isqrt(len(free))
    reached, grown = np.zeros_like(free), free & (np.arange(len(free)) == state.position)
    steps = 0
    while not grown[-1] and (reached != grown).any():
        reached, steps = grown, steps + 1
        grown = spread(np, grown.reshape(size, size), free.reshape(size, size)).ravel()
    return steps if grown[-1] else None


def max_holes(size: int) -> int:
    """Bounds the holes of a solvable map: the shortest path keeps 2 * size - 1 tiles free."""
    return (size - 1) ** 2


@on_any_mesh
def fields(state: FrozenLakeState) -> dict[str, jax.Array]:
    """Computes what the text of a state reads, all int32.

    Returns:
      player_x, player_y []; num_holes []; hole_x, hole_y [(size - 1) ** 2], in reading order;
      cells [size * size], indices into `SYMBOLS`.
    """
    tiles = state.holes.shape[-1]
    size = math.isqrt(tiles)
    player_x, player_y = grid_text.xy(state.position, size)
    hole_x, hole_y = grid_text.xy(grid_text.first_cells(state.holes, max_holes(size)), size)
    is_goal = np.arange(tiles) == tiles - 1
    ground = jnp.where(state.holes, _HOLE, jnp.where(is_goal, _GOAL, _EMPTY))
    player = jnp.where(state.holes, _FALLEN, jnp.where(is_goal, _ARRIVED, _PLAYER))
    return {
        "player_x": player_x,
        "player_y": player_y,
        "num_holes": state.holes.sum(dtype=jnp.int32),
        "hole_x": hole_x,
        "hole_y": hole_y,
        "cells": jnp.where(np.arange(tiles) == state.position, player, ground).astype(jnp.int32),
    }


def observation_template(size: int) -> Template:
    """Returns the dynamic text of the paper prompt."""
    legend = (("P", "player"), ("O", "hole"), ("G", "goal"), ("_", "empty ice"))
    return Template(
        (
            Literal(f"{grid_text.conventions(size)}\nPlayer position: "),
            *grid_text.point("player", size),
            Literal("\nHoles: "),
            grid_text.points("hole", max_holes(size), size, empty="none"),
            Literal(f"\nGoal: ({size - 1}, 0)\n{grid_text.legend(legend)}"),
        )
    ) + grid_text.grid(SYMBOLS, size)


def _rules(slippery: bool, prompt: str) -> str:
    if prompt == "compact":
        return "Walk P to G, never onto O. Ice is slippery." if slippery else "Walk P to G, never onto O."
    slip = "- The ice is slippery: you may slide sideways instead, even into a hole.\n" if slippery else ""
    return (
        "You are walking across a frozen lake and want to reach the goal.\n"
        "Rules:\n"
        "- If you step into a hole, you fall into the water and the game is over.\n"
        f"{slip}"
        f"{grid_text.ACTION_RULE}"
    )


def text_game(
    slippery: bool = False,
    size: int = 4,
    prompt: str = "paper",
    max_steps: int = 100,
    hole_probability: float = 0.2,
    maps: str = "all",
) -> TextGame:
    """Makes FrozenLake as a text game (MS-GRPO, appendix, FrozenLake-NotSlippery and -Slippery).

    The wording is ours; fields, symbols, lists and layout are the paper's. The compact prompt shows the
    grid alone. `X` marks a player in a hole and `*` one on the goal; no acting player sees either.

    Args:
      slippery, size, hole_probability, maps: as in `FrozenLake`.
      prompt: "paper" or "compact".
      max_steps: steps until truncation; the paper trains with 10, evaluates with 20.

    Raises:
      ValueError: an argument outside its range.
    """
    check_text_game(prompt, max_steps)
    env = FrozenLake(size, slippery, hole_probability, maps)
    board = grid_text.grid(SYMBOLS, size)
    return TextGame(
        name="frozen_lake_slippery" if slippery else "frozen_lake",
        env=env,
        params=env.default_params.replace(max_steps_in_episode=max_steps),
        rules=_rules(slippery, prompt),
        actions=ACTIONS,
        observation=board if prompt == "compact" else observation_template(size),
        fields=fields,
        board=board,
        success=env.success,
        legend=LEGEND,
        optimal=optimal,
    )


def host_game(
    slippery: bool = False, size: int = 4, max_steps: int = 100, hole_probability: float = 0.2, maps: str = "all"
) -> HostGame:
    """Makes FrozenLake for transcripts: the rules say once what the map's characters mean, each observation is a map.

    Arguments and errors are those of `text_game`, whose paper prompt says it in every state, with coordinates.
    """
    game = text_game(slippery, size, "compact", max_steps, hole_probability, maps)
    slip = " The ice is slippery: you may slide sideways instead." if slippery else ""
    rules = (
        "Walk from P to G across a frozen lake.\n"
        f"Each observation is a map of {size} rows: P is you, G the goal, O a hole and _ ice. "
        f"If you step into a hole, you fall into the water and the game is over.{slip}\n"
        f"Actions: {', '.join(ACTIONS)}."
    )
    return of_text_game(dataclasses.replace(game, rules=rules))
