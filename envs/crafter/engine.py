"""Craftax-Classic's rules, which run on the device: worlds, steps, and what the player sees.

The player sees 9x7 of the world's 64x64 cells and stands in their middle, cell HERE = 31 of the view:

     0  1  2  3  4  5  6  7  8      north
     9 10 11 12 13 14 15 16 17
    18 19 20 21 22 23 24 25 26
    27 28 29 30 31 32 33 34 35      31 = HERE; facing east is 32
    36 37 38 39 40 41 42 43 44
    45 46 47 48 49 50 51 52 53
    54 55 56 57 58 59 60 61 62      south

Only the engine's rules are imported, no textures and no window. Craftax-Classic differs from the Python package
`crafter` (1.8.3), which BALROG plays:

  furnace           1 stone, where crafter takes 4
  iron tools        1 wood, 1 stone, 1 coal and 1 iron; crafter asks for no stone
  swords            two of one kind hit twice as hard; in crafter as one
  placing           a table or a furnace also on lava; crafter takes lava for stones alone
  plants            ripe after 600 steps (crafter: 300), and nothing eats them
  waking            a zombie's blow wakes a sleeper and unlocks "wake up", an arrow wakes without; hunger does not.
                    In crafter any lost health wakes, and only full energy unlocks
  creatures         at most 3 zombies, 3 cows and 2 skeletons, none at the beginning: they come within 13 steps of the
                    player and vanish beyond. Crafter fills its chunks of 12x12 cells when it makes the world
  worlds            from another noise, so a seed gives another world; at least one diamond

Equal are the 17 actions, the 22 achievements, what is collected with which tool, tables and tools of wood and stone,
damage by swords, and the rates at which food, drink, energy and health change.
"""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_classic.constants import Achievement, Action, BlockType
from craftax.craftax_classic.envs.craftax_state import EnvParams, StaticEnvParams
from craftax.craftax_classic.game_logic import craftax_step
from craftax.craftax_classic.world_gen import generate_world

World = Any  # the engine's state: a pytree of arrays

ROWS, COLUMNS = 7, 9  # what is seen, the player in the middle
HERE = ROWS * COLUMNS // 2
VITALS = ("health", "food", "drink", "energy")
ITEMS = (
    "sapling", "wood", "stone", "coal", "iron", "diamond",
    "wood_pickaxe", "stone_pickaxe", "iron_pickaxe", "wood_sword", "stone_sword", "iron_sword",
)  # fmt: skip


def _names(kinds: type[enum.Enum]) -> tuple[str, ...]:
    return tuple(kind.name.lower() for kind in sorted(kinds, key=lambda kind: kind.value))


ACHIEVEMENTS = _names(Achievement)
LEFT, RIGHT, UP, DOWN = (Action[name].value for name in ("LEFT", "RIGHT", "UP", "DOWN"))
MAX_AMOUNT = 9  # of a vital or an item

# What a cell shows: a kind of ground, or a creature on it.
CREATURES = ("zombies", "cows", "skeletons", "arrows")
BLOCKS = _names(BlockType)
CELLS = (*BLOCKS, *CREATURES)
_OUTSIDE = BLOCKS.index("out_of_bounds")
_OFFSETS = np.array([[0, 0], [0, -1], [0, 1], [-1, 0], [1, 0]], np.int32)  # (row, column) by direction
_PARAMS, _STATIC = EnvParams(), StaticEnvParams()


def reset(key: jax.Array) -> World:
    """Generates a new world; the player stands in the middle of 64x64 cells and looks north.

    On CPUs the rows of a batch after the 8th get other noise than alone (XLA of jax 0.10.2), so another world.
    """
    return _plain(generate_world(key, _PARAMS, _STATIC))


def step(key: jax.Array, world: World, action: jax.Array) -> World:
    """Applies an action, int32 [] in 0..16, in the engine's order."""
    after, _ = craftax_step(key, world, jnp.asarray(action, jnp.int32), _PARAMS, _STATIC)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), _plain(after), world)


def _plain(world: World) -> World:
    """Gives the arrays strong types, as loops ask for, and drops the engine's unused key."""
    world = jax.tree.map(jnp.asarray, world.replace(state_rng=None))
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), world)


def dead(world: World) -> jax.Array:
    """Whether no health is left: bool []; lava takes it all."""
    return world.player_health <= 0


def unlocked(world: World) -> jax.Array:
    """Counts the achievements so far: int32 []."""
    return world.achievements.sum(dtype=jnp.int32)


def view(world: World) -> jax.Array:
    """Cuts out the cells around the player, north above: int32 [63], row by row, indices into `CELLS`."""
    margin = np.array([ROWS // 2, COLUMNS // 2])
    padded = jnp.pad(world.map, [(m, m) for m in margin], constant_values=_OUTSIDE)
    cells = jax.lax.dynamic_slice(padded, world.player_position, (ROWS, COLUMNS)).astype(jnp.int32)
    rows, columns = np.arange(ROWS)[:, None], np.arange(COLUMNS)
    for number, kind in reversed(list(enumerate(CREATURES))):  # arrows lie below creatures
        mobs = getattr(world, kind)
        row, column = (mobs.position - world.player_position + margin).T[:, :, None, None]
        at = ((rows == row) & (columns == column) & mobs.mask[:, None, None]).any(0)
        cells = jnp.where(at, len(BLOCKS) + number, cells)
    return cells.reshape(-1)


def faced(world: World) -> jax.Array:
    """Returns the view's cell that the player faces: int32 []."""
    row, column = jnp.asarray(_OFFSETS)[world.player_direction]
    return HERE + row * COLUMNS + column


def vitals(world: World) -> jax.Array:
    """Returns the vitals, int32 [4], in the order of `VITALS`."""
    return jnp.stack([getattr(world, f"player_{name}") for name in VITALS]).astype(jnp.int32)


def items(world: World) -> jax.Array:
    """Counts each of `ITEMS` in the inventory: int32 [12]."""
    return jnp.stack([getattr(world.inventory, name) for name in ITEMS]).astype(jnp.int32)
