"""A player who knows Crafter's whole map: the expert move in every state.

It fights what is next to it, drinks, eats and sleeps (in a closed tunnel) in time, and else works for the first
achievement that is missing, on the cheapest way through what can be walked, dug or bridged.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from nlrl_jax.envs.crafter.engine import ACHIEVEMENTS, BLOCKS, World

_ID = {name: i for i, name in enumerate(BLOCKS)}
_GROUND = ("grass", "sand", "path")
_WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
_FACING = {1: "west", 2: "east", 3: "north", 4: "south"}  # by the engine's direction
_PICKAXE = {"stone": "wood", "coal": "wood", "iron": "stone", "diamond": "iron"}  # material of the one that is needed
_INGREDIENTS = {  # of a pickaxe or a sword
    "wood": {"wood": 1},
    "stone": {"wood": 1, "stone": 1},
    "iron": {"wood": 1, "stone": 1, "coal": 1, "iron": 1},
}
_STEP, _DIG, _BRIDGE = 1, 2, 3  # actions that a cell on the way costs
_POCKET = 3  # cells: a closed room up to this size is safe to sleep in
_SEARCH = 4000  # situations that are looked at for such a room
Cell = tuple[int, int]


class _View:
    """A state as a planner reads it. Cells are (row, column)."""

    def __init__(self, world: World):
        self.map = np.asarray(world.map)
        self.at: Cell = tuple(int(x) for x in world.player_position)
        self.way = _FACING[int(world.player_direction)]
        self.faced = _add(self.at, self.way)
        self.done = set(itertools.compress(ACHIEVEMENTS, np.asarray(world.achievements)))
        self.inventory = {name: int(n) for name, n in vars(world.inventory).items()}
        self.vitals = {name: int(getattr(world, f"player_{name}")) for name in ("health", "food", "drink", "energy")}
        self.creatures: dict[Cell, str] = {}
        for kind in ("zombies", "cows", "skeletons"):
            mobs = getattr(world, kind)
            for (row, column), alive in zip(np.asarray(mobs.position), np.asarray(mobs.mask), strict=True):
                if alive:
                    self.creatures[int(row), int(column)] = kind

    def block(self, cell: Cell) -> str:
        inside = 0 <= cell[0] < self.map.shape[0] and 0 <= cell[1] < self.map.shape[1]
        return BLOCKS[self.map[cell]] if inside else "out_of_bounds"

    def free(self, cell: Cell) -> bool:
        return self.block(cell) in _GROUND and cell not in self.creatures

    def diggable(self, cell: Cell) -> bool:
        block = self.block(cell)
        if cell in self.creatures:
            return False
        return block == "tree" or bool(block in _PICKAXE and self.inventory[f"{_PICKAXE[block]}_pickaxe"])

    def near(self, block: str) -> bool:
        row, column = self.at
        return any(self.block((row + i, column + j)) == block for i in (-1, 0, 1) for j in (-1, 0, 1))

    def cost(self, cell: Cell) -> int:
        """Counts the actions that it takes to enter a cell; 0: it cannot be entered."""
        if self.free(cell):
            return _STEP
        if self.block(cell) == "tree":
            return 0  # grows in forests that one walks around
        if self.diggable(cell):
            return _DIG
        if self.block(cell) == "water" and cell not in self.creatures and self.inventory["stone"] > 2:
            return _BRIDGE
        return _STEP * 3 if cell in self.creatures and self.block(cell) in _GROUND else 0


def _add(cell: Cell, way: str) -> Cell:
    return cell[0] + _WAYS[way][0], cell[1] + _WAYS[way][1]


def act(world: World) -> str:
    """Returns the next action."""
    if bool(world.is_sleeping):
        return "noop"
    view = _View(world)
    return next(action for action in _choices(view) if action)


def _choices(view: _View) -> Iterator[str]:
    """Yields actions in the order of their urgency; the first that is not empty counts."""
    for way in _WAYS:
        if view.creatures.get(_add(view.at, way)) in ("zombies", "skeletons"):
            yield _on(view, way)
    vitals = view.vitals
    beside_water = any(view.block(_add(view.at, way)) == "water" for way in _WAYS)
    if vitals["drink"] <= 4 or (vitals["drink"] <= 8 and beside_water):
        yield _find(view, "water")
    if vitals["food"] <= 5:
        yield _find(view, "ripe_plant", "cows")
    enclosed = _pocket(view, view.at, {}) is not None
    if vitals["energy"] <= 3 or (enclosed and vitals["energy"] <= 8) or _only_sleep_is_left(view):
        if vitals["energy"] <= 8:
            yield "sleep" if enclosed else _shelter(view)
        if vitals["energy"] <= 0:
            yield "sleep"
    yield from _work(view)
    yield _reach(view, view.diggable)
    yield "noop"


def _only_sleep_is_left(view: _View) -> bool:
    return "wake_up" not in view.done and view.vitals["energy"] < 7 and view.inventory["stone"] > 2


def _work(view: _View) -> Iterator[str]:
    """Yields actions that lead to the next achievement."""
    inventory, done = view.inventory, view.done
    grass = view.block(view.faced) == "grass" and view.faced not in view.creatures
    if inventory["sapling"] and "place_plant" not in done:
        yield "place plant" if grass else _reach(view, lambda cell: view.block(cell) == "grass", standing=True)
    if "place_plant" not in done and grass:
        yield "do"
    if "eat_plant" not in done:
        yield _find(view, "ripe_plant")
    for material in ("wood", "stone", "iron"):
        yield from _tools(view, material)
    if "place_stone" not in done and inventory["stone"] and view.free(view.faced):
        yield "place stone"
    if "collect_diamond" not in done and inventory["iron_pickaxe"]:
        yield _find(view, "diamond")
    for name, creature in (("eat_cow", "cows"), ("defeat_zombie", "zombies"), ("defeat_skeleton", "skeletons")):
        if name not in done:
            yield _find(view, creature)
    if "collect_drink" not in done:
        yield _find(view, "water")
    if "place_plant" not in done:
        yield _find(view, "grass", standing=True)
    if "defeat_skeleton" not in done:  # skeletons come where it is dark
        yield _reach(view, lambda cell: view.block(cell) == "path" and _far(view, cell), standing=True)
    if inventory["stone"] < 5 and inventory["wood_pickaxe"]:
        yield _find(view, "stone")
    if "eat_cow" not in done or "defeat_zombie" not in done or view.vitals["food"] < 7:
        yield _reach(view, lambda cell: view.block(cell) == "grass" and _far(view, cell), standing=True)
    if "eat_plant" not in done:
        yield _find(view, "plant", keep_off=True)


def _far(view: _View, cell: Cell) -> bool:
    return abs(cell[0] - view.at[0]) + abs(cell[1] - view.at[1]) >= 8


def _tools(view: _View, material: str) -> Iterator[str]:
    """Yields actions that lead to the pickaxe and the sword of a material."""
    inventory = view.inventory
    missing = [tool for tool in ("pickaxe", "sword") if not inventory[f"{material}_{tool}"]]
    if not missing:
        return
    table, furnace = view.near("crafting_table"), view.near("furnace")
    ingredients = _INGREDIENTS[material]
    short = {item: n * len(missing) - inventory[item] for item, n in ingredients.items()}
    if table and (material != "iron" or furnace) and all(inventory[item] >= n for item, n in ingredients.items()):
        yield f"make {material} {missing[0]}"
    bench = _distance(view, "crafting_table")
    new_table = bench > 25
    if not table and new_table:
        short["wood"] = short.get("wood", 0) + 2
    if material == "iron" and not furnace:
        short["stone"] = short.get("stone", 0) + 1
    blocks = {"wood": "tree", "stone": "stone", "coal": "coal", "iron": "iron"}
    for item in ("wood", "stone", "coal", "iron"):
        if short.get(item, 0) > 0:
            yield _find(view, blocks[item])
    if not table:
        if not new_table:
            yield _find(view, "crafting_table", adjacent=True)
        yield "place table" if view.free(view.faced) else _reach(view, view.free, standing=True)
    if material == "iron" and not furnace:
        yield "place furnace" if view.free(view.faced) else _turn(view)


def _distance(view: _View, block: str) -> int:
    cells = np.argwhere(view.map == _ID[block])
    return int(np.abs(cells - np.array(view.at)).sum(1).min()) if len(cells) else 10**6


def _turn(view: _View) -> str:
    """Turns towards a free cell, else strikes the cell ahead."""
    free = [way for way in _WAYS if view.free(_add(view.at, way))]
    return f"move {free[0]}" if free else "do"


def _on(view: _View, way: str) -> str:
    """Works on the cell on a side that is not free: turns to it, then "do"."""
    return "do" if view.way == way else f"move {way}"


def _find(view: _View, *kinds: str, **options: bool) -> str:
    """Returns the first action on a cheapest way to the nearest block or creature of these kinds; "" without any. See
    `_reach` for the options.
    """
    cells = [cell for cell, kind in view.creatures.items() if kind in kinds]
    cells += map(tuple, np.argwhere(np.isin(view.map, [_ID[kind] for kind in kinds if kind in _ID])).tolist())
    return _reach(view, set(cells).__contains__, **options) if cells else ""


def _reach(
    view: _View,
    is_target: Callable[[Cell], bool],
    standing: bool = False,
    adjacent: bool = False,
    keep_off: bool = False,
) -> str:
    """Returns the first action on a cheapest way to the nearest target; "" where none can be reached.

    Args:
      standing: goes into the cell. adjacent: next to it, corners too; both without working on it.
      keep_off: goes to it and waits there.
    """
    if adjacent and any(is_target((view.at[0] + i, view.at[1] + j)) for i in (-1, 0, 1) for j in (-1, 0, 1)):
        return ""
    # Dijkstra's search; an entry is (actions spent, cell, direction of the first step).
    queue: list[tuple[int, Cell, str]] = [(0, view.at, "")]
    closed: set[Cell] = set()
    while queue:
        spent, cell, first = heapq.heappop(queue)
        if cell in closed:
            continue
        closed.add(cell)
        if cell != view.at and is_target(cell):
            if spent and not first:
                continue
            at_hand = cell == _add(view.at, first)
            if keep_off and at_hand:
                return "noop"
            return _on(view, first) if at_hand and not standing else _enter(view, first)
        if cell != view.at and not view.cost(cell):
            continue  # nothing leads through
        for way in _WAYS:
            after = _add(cell, way)
            cost = view.cost(after) or (1 if is_target(after) and not standing else 0)
            if cost and after not in closed:
                heapq.heappush(queue, (spent + cost, after, first or way))
    return ""


def _enter(view: _View, way: str) -> str:
    """Returns the next action on the way into a neighbouring cell."""
    cell = _add(view.at, way)
    if view.free(cell) or view.way != way:
        return f"move {way}"
    return "place stone" if view.block(cell) == "water" else "do"


Changes = dict[Cell, bool]  # cell -> whether it is free now


def _pocket(view: _View, at: Cell, changes: Changes) -> set[Cell] | None:
    """Finds the closed room around a cell; None where it is open or large."""
    room, edge = {at}, [at]
    while edge:
        cell = edge.pop()
        for way in _WAYS:
            after = _add(cell, way)
            if after not in room and (changes[after] if after in changes else _open(view, after)):
                room.add(after)
                edge.append(after)
        if len(room) > _POCKET:
            return None
    return room


def _open(view: _View, cell: Cell) -> bool:
    return view.block(cell) in (*_GROUND, "lava")


def _is_free(view: _View, changes: Changes, cell: Cell) -> bool:
    return changes.get(cell, view.free(cell))


def _shelter(view: _View) -> str:
    """Returns the first action of a shortest sequence of moves, digging and stones that ends in a closed room; ""
    without.
    """
    if not view.inventory["wood_pickaxe"]:
        return ""
    # Breadth first over (actions spent, a number that breaks ties, cell, direction faced, changed cells, first action).
    queue: list[tuple[int, int, Cell, str, tuple, str]] = [(0, 0, view.at, view.way, (), "")]
    visited, number = set(), 0
    while queue and number < _SEARCH:
        spent, _, at, facing, changed, first = heapq.heappop(queue)
        if (at, facing, changed) in visited:
            continue
        visited.add((at, facing, changed))
        changes = dict(changed)
        if first and _pocket(view, at, changes) is not None:
            return first
        stones = view.inventory["stone"] + sum(1 if free else -1 for _, free in changed)
        free = functools.partial(_is_free, view, changes)
        moves = [(f"move {way}", _add(at, way) if free(_add(at, way)) else at, way, changed) for way in _WAYS]
        ahead = _add(at, facing)
        if free(ahead) and stones > 0:
            moves.append(("place stone", at, facing, tuple(sorted({**changes, ahead: False}.items()))))
        elif not free(ahead) and (view.block(ahead) == "stone" or ahead in changes) and view.diggable(ahead):
            moves.append(("do", at, facing, tuple(sorted({**changes, ahead: True}.items()))))
        for action, cell, way, after in moves:
            if view.block(cell) != "lava" and len(after) <= 3:
                number += 1
                heapq.heappush(queue, (spent + 1, number, cell, way, after, first or action))
    return _find(view, "stone")
