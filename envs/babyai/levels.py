"""Random tasks: BabyAI-Text's rooms of 8x8 cells with eight things in them; every task can be solved.

As in BabyAI every thing can be reached without moving another one. Descriptions may fit several things, then any of
them counts. No mission is fulfilled at the start.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs.babyai import rules
from envs.babyai.rules import EnvState

_CELLS = np.array([(x, y) for x in range(1, rules.WIDTH - 1) if x != rules.ROOM for y in range(1, rules.HEIGHT - 1)])
_IN_LEFT = _CELLS[:, 0] < rules.ROOM
_THINGS = rules.NUM_OBJECTS - 1


def mission_id(mission: str) -> int | None:
    """The index of a mission; None for "all".

    Raises:
      ValueError: an unknown name.
    """
    if mission == "all":
        return None
    if mission not in rules.MISSIONS:
        raise ValueError(f"mission is {mission!r}; choose one of {', '.join(rules.MISSIONS)}, or all")
    return rules.MISSIONS.index(mission)


def draw(key: jax.Array, mission: str | jax.Array) -> EnvState:
    """A random task.

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
        return key, candidate(use, number)

    def rejected(carry):
        return ~acceptable(carry[1])

    key, use = jax.random.split(key)
    return jax.lax.while_loop(rejected, again, (key, candidate(use, number)))[1]


def candidate(key: jax.Array, mission: jax.Array) -> EnvState:
    """A random task that may be unsolvable or already solved.

    In "open door" the agent and a key of the door's colour are in one room, the other things in either.
    """
    keys = jax.random.split(key, 4)
    opening = mission == rules.OPEN_DOOR
    numbers = jax.random.randint(keys[0], (8,), 0, 2**30)
    right_room = opening & (numbers[0] % 2 == 1)
    room = jnp.where(right_room, ~_IN_LEFT, _IN_LEFT)
    chance = jax.random.uniform(keys[1], (len(_CELLS),), minval=0.1)
    agent, first = jax.lax.top_k(chance * room, 2)[1]
    chance = chance * (room | opening) * (np.arange(len(_CELLS)) != agent) * (np.arange(len(_CELLS)) != first)
    places = jnp.asarray(_CELLS)[jnp.concatenate([first[None], jax.lax.top_k(chance, _THINGS - 1)[1]])]
    door_colour = numbers[1] % len(rules.COLOURS)
    door_y = 1 + numbers[2] % (rules.HEIGHT - 2)
    kinds = jax.random.randint(keys[2], (_THINGS,), rules.KEY, rules.BOX + 1)
    colours = jax.random.randint(keys[3], (_THINGS,), 0, len(rules.COLOURS))
    is_key = opening & (np.arange(_THINGS) == 0)
    kinds = jnp.append(jnp.where(is_key, rules.KEY, kinds), jnp.where(opening, rules.DOOR, 0))
    colours = jnp.append(jnp.where(is_key, door_colour, colours), jnp.where(opening, door_colour, 0))
    xs = jnp.append(places[:, 0], jnp.where(opening, rules.ROOM, rules.NOWHERE))
    ys = jnp.append(places[:, 1], jnp.where(opening, door_y, rules.NOWHERE))

    a = jnp.where(opening, rules.DOOR_SLOT, numbers[3] % _THINGS)
    other = (kinds != kinds[a]) | (colours != colours[a])
    other = other & (np.arange(rules.NUM_OBJECTS) < _THINGS)
    b = jnp.argmax(other * (1 + (np.arange(rules.NUM_OBJECTS) + numbers[4]) % _THINGS))
    two = (mission == rules.PUT_NEXT) | (jnp.asarray(rules.PARTS)[mission] == 2)
    of_targets = lambda values: jnp.stack([values[a], jnp.where(two, values[b], 0)]).astype(jnp.int32)
    as_int = lambda value: jnp.asarray(value, jnp.int32)
    return EnvState(
        time=jnp.int32(0),
        x=as_int(jnp.asarray(_CELLS)[agent, 0]),
        y=as_int(jnp.asarray(_CELLS)[agent, 1]),
        direction=as_int(numbers[5] % 4),
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


def acceptable(state: EnvState) -> jax.Array:
    """Whether the task is solvable and not yet solved, and its two descriptions, if it has two, differ: bool []."""
    first, second = rules.matches(state, 0), rules.matches(state, 1)
    fx, fy = rules.front(state)
    faced = (first & (state.xs == fx) & (state.ys == fy)).any()
    apart = jnp.abs(state.xs[:, None] - state.xs) + jnp.abs(state.ys[:, None] - state.ys)
    adjacent = (first[:, None] & second & (apart == 1)).any()
    same = (first & second).any()
    solved = ((state.mission == rules.GO_TO) & faced) | ((state.mission == rules.PUT_NEXT) & adjacent)
    return ~same & ~solved & reachable(state)


def reachable(state: EnvState) -> jax.Array:
    """Whether the agent could get next to every object without moving any; doors count as open: bool []."""
    x, y = np.arange(rules.WIDTH), np.arange(rules.HEIGHT)
    bits = lambda cells: (cells << x).sum(-1, dtype=jnp.int32)  # a row as one number
    cells = (state.xs[:, None, None] == x) & (state.ys[:, None, None] == y[:, None])  # [9, rows, columns]
    is_door = (state.kinds == rules.DOOR)[:, None, None]
    things, doors = bits((cells & ~is_door).any(0)), bits((cells & is_door).any(0))
    free = (bits(~rules.wall(x, y[:, None], state.mission)) | doors) & ~things

    def spread(rows):
        upwards, downwards = jnp.append(rows[1:], 0), jnp.append(0, rows[:-1])
        return rows | rows << 1 | rows >> 1 | upwards | downwards

    def grow(carry):
        rows, _ = carry
        grown = spread(rows) & free
        return grown, (grown != rows).any()

    start = bits((x == state.x) & (y[:, None] == state.y))
    rows, _ = jax.lax.while_loop(lambda carry: carry[1], grow, (start, jnp.array(True)))
    return ((things | doors) & ~spread(rows) == 0).all()
