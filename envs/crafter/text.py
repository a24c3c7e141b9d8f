"""Crafter's observations as text: what is near and where, what the player faces, vitals and inventory.

Of each kind of thing the nearest is named, in steps north or south and west or east; of equally near ones the first in
reading order. It says what BALROG's text says (balrog/environments/crafter/env.py), with these departures:

  form          sentences on one line, with articles ("a tree 2 steps north"); BALROG has a list with a line for each
                thing, and a table and plants under the names of the package `crafter`
  nearest       by the sum of both distances, and things are listed nearest first; BALROG compares the first number of
                "2 steps north and 5 steps west" alone, and lists kinds in the order in which it scans the view
  ground        grass, sand and paths are named where the player faces them ("You face grass"), since saplings and
                placing depend on it; BALROG says that one faces nothing
  direction     "You face a tree", where BALROG adds "at your front". Neither names the direction
  status        vitals without "/9"; "You are asleep", where BALROG adds that no action is possible until energy is
                full. Nothing is said of death, which ends the episode
  view          9x7 cells, as in BALROG; in the dark too
  actions       BALROG's 17, in lower case; upper case is understood
  no action     a line that is none of them changes nothing, and takes no time: the observation begins "Nothing
                happens." (`nlrl_jax.text.host`). BALROG plays its default action, "Noop", in its place
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs import grid_text
from nlrl_jax.envs.crafter import engine
from nlrl_jax.envs.shell import on_any_mesh
from nlrl_jax.text.template import Choice, Literal, Number, Repeat, Template

_ARTICLES = {
    "out_of_bounds": "the edge of the world",
    "tree": "a tree",
    "path": "a path",
    "diamond": "a diamond",
    "crafting_table": "a table",
    "furnace": "a furnace",
    "plant": "a young plant",
    "ripe_plant": "a ripe plant",
    "zombies": "a zombie",
    "cows": "a cow",
    "skeletons": "a skeleton",
    "arrows": "an arrow",
}
NAMES = tuple(_ARTICLES.get(cell, cell) for cell in engine.CELLS)
_UNNAMED = ("invalid", "out_of_bounds", "grass", "wood", "path", "sand")
THINGS = tuple(i for i, cell in enumerate(engine.CELLS) if cell not in _UNNAMED)
THING_NAMES = tuple(NAMES[i] for i in THINGS)
ITEM_NAMES = tuple(item.replace("_", " ") for item in engine.ITEMS)
NOTHING_SEEN = "nothing but open ground"

_ROW, _COLUMN = np.divmod(np.arange(engine.ROWS * engine.COLUMNS), engine.COLUMNS)
_SOUTH, _EAST = _ROW - engine.ROWS // 2, _COLUMN - engine.COLUMNS // 2
_STEPS = abs(_SOUTH) + abs(_EAST)


def place(south: int, east: int) -> str:
    """Words for an offset, such as "2 steps north and 1 step east"."""
    parts = []
    for steps, direction in ((south, "south" if south > 0 else "north"), (east, "east" if east > 0 else "west")):
        if steps:
            parts.append(f"{abs(steps)} step{'s' * (abs(steps) > 1)} {direction}")
    return " and ".join(parts) or "here"


PLACES = tuple(place(south, east) for south, east in zip(_SOUTH.tolist(), _EAST.tolist()))


@on_any_mesh
def fields(world: engine.World) -> dict[str, jax.Array]:
    """Computes what the texts of a world read, all int32.

    Returns:
      num_things []; thing, place [15]: the nearest of each kind, nearest first; indices into `THING_NAMES`, `PLACES`.
      faced []: index into `NAMES`. asleep []: 0 or 1.
      health, food, drink, energy []. num_items []; amount, item [12], indices into `ITEM_NAMES`.
      view [63]: indices into `SYMBOLS`, row by row.
    """
    view = engine.view(world)
    # The nearest cell of each kind of thing, [15], as distance * 64 + cell: the minimum is the nearest and, of equally
    # near ones, the first in reading order. 2^20 stands for none.
    near = jnp.where(view == np.array(THINGS)[:, None], _STEPS * 64 + np.arange(len(view)), 2**20).min(1)
    # Sorted as (distance, kind, cell), packed in mixed radix.
    in_view, kinds = near < 2**20, np.arange(len(THINGS))
    packed = jnp.sort(jnp.where(in_view, (near // 64 * len(THINGS) + kinds) * 64 + near % 64, 2**20))
    amounts = engine.items(world)
    order = jnp.argsort(amounts == 0, stable=True)  # items in stock first, each group in the order of `ITEMS`
    result = {
        "num_things": in_view.sum(),
        "thing": packed // 64 % len(THINGS),
        "place": packed % 64,
        "faced": view[engine.faced(world)],
        "asleep": world.is_sleeping,
        "num_items": (amounts > 0).sum(),
        "amount": amounts[order],
        "item": order,
        "view": view.at[engine.HERE].set(len(NAMES) + world.player_direction - 1),
    }
    result |= dict(zip(engine.VITALS, engine.vitals(world), strict=True))
    return {name: value.astype(jnp.int32) for name, value in result.items()}


_VITALS = [part for name in engine.VITALS for part in (Literal(f", {name} "), Number(name, 0, engine.MAX_AMOUNT))]
_VITALS[0] = Literal("Health ")
_CARRIED = Repeat(
    "num_items",
    len(ITEM_NAMES),
    (Number("amount", 1, engine.MAX_AMOUNT), Literal(" "), Choice("item", ITEM_NAMES)),
    empty="nothing",
)
STATUS = Template(
    (Choice("asleep", ("", "You are asleep. ")), *_VITALS, Literal(". You carry "), _CARRIED, Literal("."))
)
OBSERVATION = (
    Template(
        (
            Literal("You see "),
            Repeat(
                "num_things",
                len(THINGS),
                (Choice("thing", THING_NAMES), Literal(" "), Choice("place", PLACES)),
                empty=NOTHING_SEEN,
            ),
            Literal(". You face "),
            Choice("faced", NAMES),
            Literal(". "),
        )
    )
    + STATUS
)

_LETTERS = "? X _ W S T w . C I D t f , L p P Z c K a".split()  # in the order of `engine.CELLS`
SYMBOLS = (*_LETTERS, "<", ">", "^", "v")
LEGEND = {
    symbol: name.split(" ", 1)[-1] if name.startswith(("a ", "an ", "the ")) else name
    for symbol, name in zip(SYMBOLS, (*NAMES, *4 * ("you",)), strict=True)
    if name not in ("invalid", "wood")
}


VIEW = grid_text.drawn([Choice("view", SYMBOLS, cell) for cell in range(len(PLACES))], engine.COLUMNS)
