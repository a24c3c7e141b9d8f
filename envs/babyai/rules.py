"""The world of BabyAI as pure functions: minigrid's dynamics and view, BabyAI's missions and their checks.

Everything is computed from a short list of objects; no grid is stored. All missions share one world of 15 columns and
8 rows: two rooms side by side with a wall between them at x = 7. In missions of one room the right room is solid wall,
which looks like minigrid's outside of the grid. Numbers for kinds, colours, door states, directions and actions are
minigrid's. Coordinates: x to the right, y downwards. A cell is y * WIDTH + x.

      x 0             7             14       what the agent sees, 7x7 cells, 7 * column + row:
    y 0 # # # # # # # # # # # # # # #
        # . . . . . . # . . . . . . #         0  7 14 21 28 35 42     row 0, the farthest
        # . . k . . . # . . b . . . #         1  8 15 22 29 36 43
        # . . . . . . D . . . . . . #         .  .  .  .  .  .  .
        # . . . > . . # . . . . . . #         5 12 19 26 33 40 47
        # . . . . . . # . . . . . . #         6 13 20 27 34 41 48     27 = HERE, the agent, who looks up
        # . . . . . . # . . . . . . #
      7 # # # # # # # # # # # # # # #
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nlrl_jax.envs.shell import on_any_mesh
from nlrl_jax.gymnax_base import environment

WIDTH, HEIGHT, ROOM = 15, 8, 7  # the middle wall stands at x = ROOM
NUM_OBJECTS = 9  # eight things and a door; the door, if there is one, is the last
DOOR_SLOT = NUM_OBJECTS - 1
VIEW = 7
NOWHERE = -9  # x and y of an object that is carried or gone; no cell of any view has them

UNSEEN, EMPTY, WALL, DOOR, KEY, BALL, BOX = 0, 1, 2, 4, 5, 6, 7
OPEN, CLOSED, LOCKED = 0, 1, 2
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
GREY = COLOURS.index("grey")

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)

MISSIONS = ("go to", "pick up", "go to after pick up", "pick up then go to", "put next to", "open door")
GO_TO, PICK, GO_AFTER_PICK, PICK_THEN_GO, PUT_NEXT, OPEN_DOOR = range(6)
PARTS = np.array([1, 1, 2, 2, 1, 1], np.int32)  # number of instructions by mission


@struct.dataclass
class BabyAIState(environment.EnvState):
    """All int32; `time` counts steps.

    Attributes:
      x, y, direction: [], the agent; 0 right, 1 down, 2 left, 3 up.
      kinds, colours: [9], 0 for a slot without an object. They never change.
      xs, ys: [9], `NOWHERE` while an object is carried and once it is gone.
      door: [], state of the door in slot 8; 0 where there is none.
      carrying: [], index of the carried object or -1.
      noted: [9], cells `y * WIDTH + x` where the check of "go to" takes the objects to be; -1 for nowhere. As in
        BabyAI they are brought up to date by the action drop alone.
      mission: [], index into `MISSIONS`.
      target_kinds, target_colours: [2]. The first is what to go to, to pick up, to move or to open; the second what
        to go to after that, or what to put the first one next to; 0 where a mission has none.
      done: [], number of instructions done; all of them end the episode.
    """

    x: jax.Array
    y: jax.Array
    direction: jax.Array
    kinds: jax.Array
    colours: jax.Array
    xs: jax.Array
    ys: jax.Array
    door: jax.Array
    carrying: jax.Array
    noted: jax.Array
    mission: jax.Array
    target_kinds: jax.Array
    target_colours: jax.Array
    done: jax.Array


def offset(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the (x, y) change of a step forward, int32 [] each."""
    return (direction == 0) * 1 - (direction == 2) * 1, (direction == 1) * 1 - (direction == 3) * 1


def front(state: BabyAIState) -> tuple[jax.Array, jax.Array]:
    """Returns (x, y) of the cell in front of the agent, int32 [] each."""
    right, down = offset(state.direction)
    return state.x + right, state.y + down


def _upright(x: jax.Array, mission: jax.Array) -> jax.Array:
    """Whether whole columns are wall, but for the door, or lie outside: int32 [...] -> bool [...]."""
    return (x <= 0) | (x == ROOM) | (x >= WIDTH - 1) | ((x > ROOM) & (mission != OPEN_DOOR))


def _level(y: jax.Array) -> jax.Array:
    """Whether whole rows are wall or lie outside: int32 [...] -> bool [...]."""
    return (y <= 0) | (y >= HEIGHT - 1)


def wall(x: jax.Array, y: jax.Array, mission: jax.Array) -> jax.Array:
    """Whether cells are wall, or lie outside: int32 [...] -> bool [...]; the door's cell counts as wall."""
    return _upright(x, mission) | _level(y)


def matches(state: BabyAIState, target: int) -> jax.Array:
    """Which objects fit the description of target 0 or 1: bool [9]."""
    same = (state.kinds == state.target_kinds[target]) & (state.colours == state.target_colours[target])
    return same & (state.kinds > 0)


@on_any_mesh
def success(state: BabyAIState) -> jax.Array:
    """Whether the mission is fulfilled: bool []."""
    return state.done == jnp.asarray(PARTS)[state.mission]


def step(state: BabyAIState, action: jax.Array) -> BabyAIState:
    """Applies an action, int32 []. A fulfilled mission stays fulfilled; the world goes on."""
    slots = np.arange(NUM_OBJECTS)
    # 1. What stands in the cell in front.
    fx, fy = front(state)
    here = (state.xs == fx) & (state.ys == fy)  # at most one
    occupied = here.any()
    is_door = here[DOOR_SLOT]
    free = ~occupied & ~wall(fx, fy, state.mission)
    is_carried = slots == state.carrying

    # 2. Which of the six actions has an effect; at most one has.
    turn = (action == TURN_RIGHT) * 1 - (action == TURN_LEFT) * 1
    go = (action == FORWARD) & (free | (is_door & (state.door == OPEN)))
    pick = (action == PICK_UP) & occupied & ~is_door & (state.carrying < 0)
    drop = (action == DROP) & free & (state.carrying >= 0)
    use = (action == TOGGLE) & occupied
    key = (is_carried & (state.kinds == KEY) & (state.colours == state.colours[DOOR_SLOT])).any()
    toggled = jnp.where(state.door == LOCKED, jnp.where(key, OPEN, LOCKED), jnp.where(state.door == OPEN, CLOSED, OPEN))
    removed = here & (pick | (use & (state.kinds == BOX)))  # an opened box holds nothing and is gone

    # 3. The new world, 4. and whether an instruction is done in it.
    xs = jnp.where(removed, NOWHERE, jnp.where(is_carried & drop, fx, state.xs))
    ys = jnp.where(removed, NOWHERE, jnp.where(is_carried & drop, fy, state.ys))
    picked = jnp.sum(here * slots, dtype=jnp.int32)
    after = state.replace(
        time=state.time + 1,
        x=jnp.where(go, fx, state.x),
        y=jnp.where(go, fy, state.y),
        direction=(state.direction + turn) & 3,
        xs=xs,
        ys=ys,
        door=jnp.where(use & is_door, toggled, state.door),
        carrying=jnp.where(pick, picked, jnp.where(drop, -1, state.carrying)),
        noted=jnp.where(action == DROP, jnp.where(xs >= 0, ys * WIDTH + xs, -1), state.noted),
    )
    return after.replace(done=_verify(state, action, after, here & pick, is_carried & drop))


def _verify(
    before: BabyAIState, action: jax.Array, after: BabyAIState, picked: jax.Array, dropped: jax.Array
) -> jax.Array:
    """Counts the instructions done after an action; `picked` and `dropped` are bool [9]."""
    first, second = matches(after, 0), matches(after, 1)
    fx, fy = front(after)
    faced = after.noted == fy * WIDTH + fx
    apart = jnp.abs(after.xs - fx) + jnp.abs(after.ys - fy)
    opened = (action == TOGGLE) & (after.xs == fx) & (after.ys == fy) & (after.door == OPEN) & (after.kinds == DOOR)
    mission = before.mission
    by_mission = jnp.where(
        mission == GO_TO,
        (faced & first).any(),
        jnp.where(
            mission == PUT_NEXT,
            (dropped & first).any() & ((apart == 1) & second).any(),
            jnp.where(mission == OPEN_DOOR, (opened & first).any(), (picked & first).any()),
        ),
    )
    done = jnp.where((before.done == 0) & by_mission, 1, before.done)
    two = jnp.asarray(PARTS)[mission] == 2
    return jnp.where(two & (done == 1) & (faced & second).any(), 2, done)


# The view's cells are numbered as drawn above.
HERE = VIEW * (VIEW // 2) + VIEW - 1
_COLUMN, _ROW = np.divmod(np.arange(VIEW**2), VIEW)
_ALL = (1 << VIEW) - 1
_UPPER = 4  # the first rows of the view, whose 4 * 7 bits fit one int32; the other three rows share a second one


def view_index(state: BabyAIState) -> jax.Array:
    """Locates the objects in the view: cells, int32 [9], or -1 outside it."""
    right, down = offset(state.direction)
    x, y = state.xs - state.x, state.ys - state.y
    forward, sideward = right * x + down * y, right * y - down * x
    inside = (forward >= 0) & (forward < VIEW) & (jnp.abs(sideward) <= VIEW // 2)
    return jnp.where(inside, (sideward + VIEW // 2) * VIEW + VIEW - 1 - forward, -1)


def codes(state: BabyAIState) -> jax.Array:
    """Packs the view: int32 [49], kind + 8 * colour + 64 * door state; 0 is unseen.

    Walls run along whole rows and columns, and only they and the door can block sight: bit masks tell what is visible.
    """
    # 1. Rows of clear cells as bits, one bit a column: no wall, no closed door.
    at = view_index(state)
    wall_columns, wall_rows = _walls(state)
    door_row, door_bit = at[DOOR_SLOT] % VIEW, 1 << at[DOOR_SLOT] // VIEW
    clear = []
    for row in range(VIEW):
        bits = jnp.where(wall_rows >> row & 1, 0, _ALL & ~wall_columns)
        door = jnp.where((at[DOOR_SLOT] >= 0) & (door_row == row), door_bit, 0)
        clear.append(jnp.where(state.door == OPEN, bits | door, bits & ~door))
    # 2. Which cells light reaches, packed into two integers so that every cell looks up its bit by one shift.
    visible = _visible(clear)
    upper = sum(bits << VIEW * row for row, bits in enumerate(visible[:_UPPER]))
    lower = sum(bits << VIEW * row for row, bits in enumerate(visible[_UPPER:]))
    is_visible = jnp.where(_ROW < _UPPER, upper, lower) >> (VIEW * (_ROW % _UPPER) + _COLUMN) & 1

    # 3. What stands in each cell, in the packed form; the agent's own cell shows what it carries.
    slots, cells = np.arange(NUM_OBJECTS), np.arange(VIEW**2)
    things = state.kinds + 8 * state.colours + 64 * state.door * (slots == DOOR_SLOT)
    code = jnp.where((wall_columns >> _COLUMN | wall_rows >> _ROW) & 1, WALL + 8 * GREY, EMPTY)
    for i in range(NUM_OBJECTS):
        code = jnp.where(cells == at[i], things[i], code)
    carried = jnp.where(slots == state.carrying, things, 0).sum()
    code = jnp.where(cells == HERE, jnp.where(carried > 0, carried, EMPTY), code)
    return jnp.where(is_visible, code, 0)


def _walls(state: BabyAIState) -> tuple[jax.Array, jax.Array]:
    """Finds the view's columns and rows that are wall or lie outside, as bits: int32 [], int32 []."""
    right, down = offset(state.direction)
    sideward, forward = np.arange(VIEW) - VIEW // 2, VIEW - 1 - np.arange(VIEW)
    along_x = right != 0
    columns = jnp.where(along_x, _level(state.y + right * sideward), _upright(state.x - down * sideward, state.mission))
    rows = jnp.where(along_x, _upright(state.x + right * forward, state.mission), _level(state.y + down * forward))
    return (columns << np.arange(VIEW)).sum(), (rows << np.arange(VIEW)).sum()


def _visible(clear: list[jax.Array]) -> list[jax.Array]:
    """Spreads light as minigrid's `process_vis` does: clear cells -> visible cells.

    Both are bit masks, one int32 [] per row of the view, one bit per column.
    """
    rows = [None] * VIEW
    mask = jnp.int32(1 << VIEW // 2)
    for j in reversed(range(VIEW)):  # from the agent's row to the farthest
        through = clear[j]
        for shift in (1, 2, 4):  # light spreads to the right through clear cells, in doubling steps
            mask, through = mask | (mask & through) << shift, through & through >> shift
        mask = mask & _ALL
        rightward = mask & clear[j] & _ALL >> 1
        through = clear[j]
        for shift in (1, 2, 4):
            mask, through = mask | (mask & through) >> shift, through & through << shift
        leftward = mask & clear[j] & _ALL - 1
        rows[j] = mask
        # Into the next row light goes straight and diagonally, from clear cells only.
        mask = (rightward | rightward << 1 | leftward | leftward >> 1) & _ALL
    return rows


def view(state: BabyAIState) -> jax.Array:
    """Renders the view as minigrid's image: uint8 [7, 7, 3], kind, colour and door state by column and row."""
    # One expression: three expressions stacked make the compiler compute all that is above three times and more.
    parts = codes(state)[:, None] >> np.array([0, 3, 6]) & np.array([7, 7, 3])
    return parts.astype(jnp.uint8).reshape(VIEW, VIEW, 3)
