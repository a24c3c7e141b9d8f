"""Random tasks: BabyAI-Text's rooms of 8x8 cells with eight things in them; every task can be solved.

As in BabyAI every thing can be reached without moving another one. Descriptions may fit several things, then any of
them counts. No mission is fulfilled at the start.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.envs.babyai import rules
from nlrl_jax.envs.babyai.rules import BabyAIState
from nlrl_jax.envs.shell import varying_as
from nlrl_jax.text.host import in_blocks

_SIDE = rules.HEIGHT - 2
_ROOM_CELLS = _SIDE**2
_THINGS = rules.NUM_OBJECTS - 1


def mission_id(mission: str) -> int | None:
    """Returns the index of a mission; None for "all".

    Raises:
      ValueError: an unknown name.
    """
    if mission == "all":
        return None
    if mission not in rules.MISSIONS:
        raise ValueError(f"mission is {mission!r}; choose one of {', '.join(rules.MISSIONS)}, or all")
    return rules.MISSIONS.index(mission)


def draw(key: jax.Array, mission: str | jax.Array) -> BabyAIState:
    """Draws a random task by rejection: candidates until one is acceptable.

    Args:
      mission: one of `rules.MISSIONS`, its index as int [], or "all": each with probability 1/6.

    Raises:
      ValueError: an unknown mission.
    """
    number = mission_id(mission) if isinstance(mission, str) else mission
    key, key_mission = jax.random.split(key)
    number = jax.random.randint(key_mission, (), 0, len(rules.MISSIONS)) if number is None else jnp.int32(number)

    def again(carry):
        key, use = jax.random.split(carry[0])
        state = candidate(use, number)
        return key, *varying_as((key, number), (state, ~acceptable(state)))

    # The first candidate comes out of the loop as well: what draws it is traced and compiled once.
    shapes = jax.eval_shape(candidate, key, number)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    carry = key, *varying_as((key, number), (nothing, jnp.bool_(True)))
    return jax.lax.while_loop(lambda carry: carry[2], again, carry)[1]


@in_blocks
def draw_many(seed: jax.Array, mission: jax.Array, apart: jax.Array) -> BabyAIState:
    """Draws tasks of missions, int32 [N], from seeds, uint32 [N]; for all on the host one program.

    Args:
      apart: bool [N], whether missions with the same seed share no layout.
    """
    key = jax.random.key(seed)
    return draw(jnp.where(apart, jax.random.fold_in(key, mission), key), mission)


def candidate(key: jax.Array, mission: jax.Array) -> BabyAIState:
    """Draws a random task of a mission, int [], that may be unsolvable or already solved.

    In "open door" the agent and a key of the door's colour are in one room, the other things in either.
    """
    # One draw of non-negative int32 words for everything: 8 kinds and colours, 9 places, 6 single choices.
    words = (jax.random.bits(key, (_THINGS + rules.NUM_OBJECTS + 6,)) >> 1).astype(jnp.int32)
    for_things, for_places = words[:_THINGS], words[_THINGS:-6]
    side, for_a, for_b, for_door, for_colour, for_direction = words[-6:]
    opening = mission == rules.OPEN_DOOR
    kinds, colours = rules.KEY + for_things % 3, for_things // 3 % len(rules.COLOURS)
    first = np.arange(_THINGS) == 0
    colour = for_colour % len(rules.COLOURS)
    kinds = jnp.append(jnp.where(opening & first, rules.KEY, kinds), jnp.where(opening, rules.DOOR, 0))
    colours = jnp.append(jnp.where(opening & first, colour, colours), jnp.where(opening, colour, 0))

    # Places count the inner cells of both rooms, column by column: 0..35 in the agent's, 36..71 in the other. The first
    # is the agent's, the second the key's.
    places = jnp.stack(_distinct(for_places, jnp.where(opening, 2 * _ROOM_CELLS, _ROOM_CELLS)))
    mirrored = opening & (side % 2 == 1)  # the agent's room is the right one
    x = 1 + places % _ROOM_CELLS // _SIDE + jnp.where((places >= _ROOM_CELLS) ^ mirrored, rules.ROOM, 0)
    y = 1 + places % _SIDE
    xs = jnp.append(x[1:], jnp.where(opening, rules.ROOM, rules.NOWHERE))
    ys = jnp.append(y[1:], jnp.where(opening, 1 + for_door % _SIDE, rules.NOWHERE))

    slots = np.arange(rules.NUM_OBJECTS)
    a = jnp.where(opening, rules.DOOR_SLOT, for_a % _THINGS)

    def pick(array, slot):  # array[slot] without a gather
        return jnp.where(slots == slot, array, 0).sum()

    def of_targets(array):
        return jnp.stack([pick(array, a), jnp.where(two, pick(array, b), 0)]).astype(jnp.int32)

    differs = (kinds != pick(kinds, a)) | (colours != pick(colours, a))
    b = jnp.argmax(jnp.where(differs & (slots < _THINGS), 1 + (slots + for_b) % _THINGS, 0))
    two = (mission == rules.PUT_NEXT) | (jnp.asarray(rules.PARTS)[mission] == 2)
    as_int = functools.partial(jnp.asarray, dtype=jnp.int32)
    return BabyAIState(
        time=jnp.int32(0),
        x=as_int(x[0]),
        y=as_int(y[0]),
        direction=as_int(for_direction % 4),
        kinds=as_int(kinds),
        colours=as_int(colours),
        xs=as_int(xs),
        ys=as_int(ys),
        door=jnp.where(opening, rules.LOCKED, 0).astype(jnp.int32),
        carrying=jnp.int32(-1),
        noted=as_int(jnp.where(xs >= 0, ys * rules.WIDTH + xs, -1)),
        mission=as_int(mission),
        target_kinds=of_targets(kinds),
        target_colours=of_targets(colours),
        done=jnp.int32(0),
    )


def _distinct(words: jax.Array, cells: jax.Array) -> list[jax.Array]:
    """Draws K different cells from words, int32 [K]: the first two below `_ROOM_CELLS`, the others below `cells`.

    The k-th word chooses among the cells that are left: each taken cell at or below the choice moves it one up.
    """
    chosen, in_order = [], []
    for k in range(len(words)):
        cell = words[k] % ((_ROOM_CELLS if k < 2 else cells) - k)
        for smaller in in_order:
            cell = cell + (cell >= smaller)
        chosen.append(cell)
        for i, smaller in enumerate(in_order):
            in_order[i], cell = jnp.minimum(smaller, cell), jnp.maximum(smaller, cell)
        in_order.append(cell)
    return chosen


def acceptable(state: BabyAIState) -> jax.Array:
    """Whether the task is solvable and not yet solved, and its two descriptions, if it has two, differ: bool []."""
    first, second = rules.matches(state, 0), rules.matches(state, 1)
    fx, fy = rules.front(state)
    faced = (first & (state.xs == fx) & (state.ys == fy)).any()
    apart = jnp.abs(state.xs[:, None] - state.xs) + jnp.abs(state.ys[:, None] - state.ys)
    adjacent = (first[:, None] & second & (apart == 1)).any()
    same = (first & second).any()
    solved = ((state.mission == rules.GO_TO) & faced) | ((state.mission == rules.PUT_NEXT) & adjacent)
    return ~same & ~solved & reachable(state)


def reachable(state: BabyAIState) -> jax.Array:
    """Whether the agent could get next to every object without moving any; doors count as open: bool []."""
    # Rows of cells as integers, bit x for column x; a flood fill spreads them by shifts.
    y = np.arange(rules.HEIGHT)
    inner = (1 << rules.ROOM) - 2 | jnp.where(
        state.mission == rules.OPEN_DOOR, (1 << rules.WIDTH - 1) - (2 << rules.ROOM), 0
    )
    bits = jnp.where(state.ys == y[:, None], 1 << jnp.maximum(state.xs, 0), 0)  # [rows, 9], one bit per column
    is_door = state.kinds == rules.DOOR
    things, doors = jnp.where(is_door, 0, bits).sum(1), jnp.where(is_door, bits, 0).sum(1)
    free = (jnp.where((y == 0) | (y == rules.HEIGHT - 1), 0, inner) | doors) & ~things

    def spread(rows):
        upwards, downwards = jnp.append(rows[1:], 0), jnp.append(0, rows[:-1])
        return rows | rows << 1 | rows >> 1 | upwards | downwards

    def grow(carry):
        _, rows = carry
        grown = rows
        for _ in range(4):
            grown = spread(grown) & free
        return rows, grown

    start = jnp.where(y == state.y, 1 << state.x, 0)
    _, rows = jax.lax.while_loop(lambda carry: (carry[0] != carry[1]).any(), grow, (jnp.zeros_like(start), start))
    return ((things | doors) & ~spread(rows) == 0).all()
