"""Shortest plans over the true state, on the host: for demonstrations, for labels and for "steps above optimal".

A* search over whole states, so things in the way may be walked around, carried off or, if they are boxes, opened. The
heuristic counts the steps through rooms without things, never more than there are.

    plan(state)       # (2, 2, 1, 2): action ids that fulfil the mission; None where nothing can
    distance(state)   # 4

A state may be any that the game can reach. Plans for "go to", "pick up" and "open door" are shortest. In the other
missions the estimate takes the second target to stay where it is: a plan is shortest among those that do not move it,
and a shorter one that carries it about may be missed.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from typing import NamedTuple

import jax
import numpy as np

from nlrl_jax.envs.babyai import rules
from nlrl_jax.envs.babyai.rules import BabyAIState

AHEAD = (1, rules.WIDTH, -1, -rules.WIDTH)  # change of a cell, y * WIDTH + x, by direction
_CELLS = rules.WIDTH * rules.HEIGHT
_LIMIT = 50_000  # states looked at before a search is given up
_FAR = 10_000


class Task(NamedTuple):
    """What never changes: numbers of `BabyAIState` as Python integers; `floor` bool per cell, the door's included."""

    mission: int
    kinds: tuple[int, ...]
    colours: tuple[int, ...]
    targets: tuple[tuple[int, ...], tuple[int, ...]]  # the objects that fit each description
    keys: tuple[int, ...]  # those that fit the door
    floor: tuple[bool, ...]
    door_cell: int


class Node(NamedTuple):
    """What changes: pose = 4 * cell + direction, cells of the objects and as noted (-1 nowhere)."""

    pose: int
    cells: tuple[int, ...]
    door: int
    carrying: int
    noted: tuple[int, ...]
    done: int


def read(states: BabyAIState) -> list[tuple[Task, Node]]:
    """Converts states with leading axis [N] to Python integers."""
    host = jax.tree.map(np.asarray, jax.device_get(states))
    return [_read(jax.tree.map(lambda leaf, i=i: leaf[i].tolist(), host)) for i in range(len(host.x))]


def _read(s: BabyAIState) -> tuple[Task, Node]:
    """Reads one state, on the host, as a task and its first node; cells are numbered row by row."""
    cells = tuple(y * rules.WIDTH + x if x >= 0 else -1 for x, y in zip(s.xs, s.ys, strict=True))
    slots = range(rules.NUM_OBJECTS)
    targets = tuple(
        tuple(i for i in slots if (s.kinds[i], s.colours[i]) == (s.target_kinds[t], s.target_colours[t]) and s.kinds[i])
        for t in (0, 1)
    )
    has_door = s.kinds[rules.DOOR_SLOT] == rules.DOOR
    keys = tuple(i for i in slots if (s.kinds[i], s.colours[i]) == (rules.KEY, s.colours[-1])) if has_door else ()
    door_cell = cells[rules.DOOR_SLOT] if has_door else -1
    task = Task(s.mission, tuple(s.kinds), tuple(s.colours), targets, keys, _floor(door_cell), door_cell)
    pose = 4 * (s.y * rules.WIDTH + s.x) + s.direction
    return task, Node(pose, cells, s.door, s.carrying, tuple(s.noted), s.done)


@functools.cache
def _floor(door_cell: int) -> tuple[bool, ...]:
    opening = rules.OPEN_DOOR if door_cell >= 0 else -1
    y, x = np.divmod(np.arange(_CELLS), rules.WIDTH)
    return tuple((~np.asarray(rules.wall(x, y, opening)) | (np.arange(_CELLS) == door_cell)).tolist())


def finished(task: Task, node: Node) -> bool:
    """Whether the mission is fulfilled."""
    return node.done == rules.PARTS[task.mission]


def step(task: Task, node: Node, action: int) -> Node:
    """Applies an action on the host, as `rules.step` does on the device."""
    pose, cells, door, carrying, noted, done = node
    ahead = (pose >> 2) + AHEAD[pose & 3]
    there = cells.index(ahead) if ahead in cells else -1
    picked = dropped = -1
    opened = False
    if action == rules.TURN_LEFT:
        pose = pose - 1 if pose & 3 else pose + 3
    elif action == rules.TURN_RIGHT:
        pose = pose + 1 if pose & 3 != 3 else pose - 3
    elif action == rules.FORWARD:
        if task.floor[ahead] and (there < 0 or (ahead == task.door_cell and door == rules.OPEN)):
            pose += 4 * AHEAD[pose & 3]
    elif action == rules.PICK_UP:
        if there >= 0 and carrying < 0 and ahead != task.door_cell:
            carrying = picked = there
            cells = _with(cells, there, -1)
    elif action == rules.DROP:
        if there < 0 and carrying >= 0 and task.floor[ahead]:
            cells, dropped, carrying = _with(cells, carrying, ahead), carrying, -1
        noted = cells
    elif there >= 0:
        if ahead == task.door_cell:
            if door != rules.LOCKED or carrying in task.keys:
                door = rules.CLOSED if door == rules.OPEN else rules.OPEN
            opened = door == rules.OPEN
        elif task.kinds[there] == rules.BOX:
            cells = _with(cells, there, -1)
    first, second = task.targets
    faced = (pose >> 2) + AHEAD[pose & 3]
    if not done:
        match task.mission:
            case rules.GO_TO:
                done = int(any(noted[i] == faced for i in first))
            case rules.PUT_NEXT:
                done = int(dropped in first and any(_adjacent(faced, cells[i]) for i in second))
            case rules.OPEN_DOOR:
                done = int(opened)
            case _:
                done = int(picked in first)
    if done == 1 and task.mission in (rules.GO_AFTER_PICK, rules.PICK_THEN_GO):
        done += any(noted[i] == faced for i in second)
    return Node(pose, cells, door, carrying, noted, done)


def _with(cells: tuple[int, ...], i: int, cell: int) -> tuple[int, ...]:
    return (*cells[:i], cell, *cells[i + 1 :])


def _adjacent(a: int, b: int) -> bool:
    return b >= 0 and a - b in AHEAD  # the border keeps rows from meeting


@functools.cache
def _walks(door_cell: int) -> tuple[list[list[int]], list[list[int]]]:
    """Counts steps in rooms without things, the door open: (from a pose until a cell is faced [4 * cells][cells], the
    fewest from any pose facing one cell to one facing another [cells][cells]).
    """
    floor = _floor(door_cell)
    poses = [4 * cell + d for cell in range(_CELLS) if floor[cell] for d in range(4)]
    facing = [[_FAR] * _CELLS for _ in range(4 * _CELLS)]
    before = [[_FAR] * _CELLS for _ in range(_CELLS)]
    for target in range(_CELLS):
        if not floor[target]:
            continue
        starts = [pose for pose in poses if (pose >> 2) + AHEAD[pose & 3] == target]
        steps, queue = dict.fromkeys(starts, 0), deque(starts)
        while queue:
            pose = queue.popleft()
            behind = pose - 4 * AHEAD[pose & 3]
            for earlier in (pose ^ (pose & 3) | (pose + 1 & 3), pose ^ (pose & 3) | (pose + 3 & 3), behind):
                if earlier not in steps and floor[earlier >> 2]:
                    steps[earlier] = steps[pose] + 1
                    queue.append(earlier)
        for pose, number in steps.items():
            facing[pose][target] = number
            faced = (pose >> 2) + AHEAD[pose & 3]
            before[faced][target] = min(before[faced][target], number)
    return facing, before


def estimate(task: Task, node: Node) -> int:
    """The heuristic: a lower bound on the steps left while no second target is moved; `_FAR` where there is no way.

    Steps until the nearest object to fetch is faced, one to pick it up, and from there on to the nearest destination.
    """
    facing, before = _walks(task.door_cell)
    facing = facing[node.pose]
    first, second = task.targets
    cells, carrying = node.cells, node.carrying
    if task.mission == rules.GO_TO or node.done:
        of = second if node.done else first
        return 1 if carrying in of else min([facing[node.noted[i]] for i in of if node.noted[i] >= 0], default=_FAR)
    if task.mission == rules.OPEN_DOOR:
        destinations, fetch = [task.door_cell], task.keys
        if node.door != rules.LOCKED:
            return facing[task.door_cell] + (2 if node.door == rules.OPEN else 1)
    elif task.mission == rules.PUT_NEXT:
        around = [cells[i] + side for i in second if cells[i] >= 0 for side in AHEAD]
        destinations, fetch = [cell for cell in around if task.floor[cell]], first
    else:
        destinations, fetch = [node.noted[i] for i in second if node.noted[i] >= 0], first
    if task.mission == rules.PICK or carrying in second:
        destinations = None  # nothing follows, or it may be put anywhere
    last = int(task.mission in (rules.PUT_NEXT, rules.OPEN_DOOR))  # the drop, or the toggle
    if carrying in fetch and last:
        return min([facing[end] for end in destinations], default=_FAR) + last

    def steps_after_fetching(cell: int) -> int:
        if destinations is None:
            return 0
        return min([before[cell][end] for end in destinations], default=_FAR) + last

    fewest = min([facing[cells[i]] + 1 + steps_after_fetching(cells[i]) for i in fetch if cells[i] >= 0], default=_FAR)
    return fewest + (carrying >= 0)


def search(task: Task, node: Node) -> list[int] | None:
    """Searches for action ids from a node to success; None where none was found in `_LIMIT` states."""
    if finished(task, node):
        return []
    start = estimate(task, node)
    if start >= _FAR:
        return None
    come_from = {node: (0, None, -1)}  # node -> (steps so far, the node before it, the action between)
    queue, pushed = [(start, 0, 0, node)], 0
    while queue and len(come_from) < _LIMIT:
        _, steps, _, node = heapq.heappop(queue)  # of equal estimates the deepest first, so steps are stored negated
        steps = -steps
        if steps > come_from[node][0]:
            continue  # a shorter way here was found after this entry was pushed
        if finished(task, node):
            actions = []
            while come_from[node][1] is not None:
                _, node, action = come_from[node]
                actions.append(action)
            return actions[::-1]
        for action in _useful(task, node):
            after = step(task, node, action)
            best = come_from.get(after)
            if best is not None and best[0] <= steps + 1:
                continue
            remaining = 0 if finished(task, after) else estimate(task, after)
            if remaining >= _FAR:
                continue
            come_from[after] = (steps + 1, node, action)
            pushed += 1
            heapq.heappush(queue, (steps + 1 + remaining, -steps - 1, pushed, after))
    return None


def _useful(task: Task, node: Node) -> tuple[int, ...]:
    """Lists the actions that change something."""
    ahead = (node.pose >> 2) + AHEAD[node.pose & 3]
    turns = (rules.TURN_LEFT, rules.TURN_RIGHT)
    if ahead in node.cells:
        if ahead == task.door_cell:
            return (*turns, rules.TOGGLE, rules.FORWARD) if node.door == rules.OPEN else (*turns, rules.TOGGLE)
        actions = turns if node.carrying >= 0 else (*turns, rules.PICK_UP)
        return (*actions, rules.TOGGLE) if task.kinds[node.cells.index(ahead)] == rules.BOX else actions
    if not task.floor[ahead]:
        return turns
    return (*turns, rules.FORWARD, rules.DROP) if node.carrying >= 0 else (*turns, rules.FORWARD)


@functools.lru_cache(1 << 17)
def _plan(task: Task, node: Node) -> tuple[int, ...] | None:
    actions = search(task, node)
    return None if actions is None else tuple(actions)


def plan(state: BabyAIState) -> tuple[int, ...] | None:
    """Finds a shortest sequence of action ids that fulfils the mission of one state; () where it is fulfilled.

    None where nothing fulfils it, as once every target is gone. Plans are remembered.
    """
    return _plan(*read(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state))[0])


def plans(states: BabyAIState) -> list[list[int] | None]:
    """Searches for a plan for each of the states, leading axis [N]; see `search`."""
    return [search(task, node) for task, node in read(states)]


def distance(state: BabyAIState) -> int | None:
    """Counts the steps that `plan` takes; None where there is no plan."""
    actions = plan(state)
    return None if actions is None else len(actions)
