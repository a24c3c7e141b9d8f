"""Worlds made by hand and worlds after random play; one batch size, so that one program steps them all."""

import functools

import jax
import numpy as np

from nlrl_jax import envs
from nlrl_jax.envs.crafter import engine

BATCH = 32
MIDDLE = 32
BLOCK = {name: i for i, name in enumerate(engine.BLOCKS)}
BLOCK["table"] = BLOCK["crafting_table"]


@functools.cache
def game(prompt="paper"):
    return envs.make("crafter", prompt)


@functools.cache
def _programs():
    """Those that `nlrl_jax.text.host` compiles for `BATCH` states, so that they are compiled once."""
    env, params = game().env, game().params
    reset = jax.jit(jax.vmap(lambda seed, kind: env.reset_env(jax.random.key(seed), params)[1]))
    step = jax.jit(jax.vmap(lambda key, state, action: env.step_env(key, state, action, params)[1:4]))
    return reset, step


@functools.cache
def fresh():
    """`BATCH` new worlds, on the host."""
    return jax.device_get(_programs()[0](np.arange(BATCH, dtype=np.uint32), np.zeros(BATCH, np.int32)))


def step(states, actions, seed=0):
    """(states, rewards, ended) of `BATCH` states, leaves [BATCH, ...]; `actions` may be one for all."""
    keys = jax.random.split(jax.random.key(seed), BATCH)
    return jax.device_get(_programs()[1](keys, states, np.broadcast_to(np.asarray(actions, np.int32), (BATCH,))))


def stack(states):
    """Up to `BATCH` states as one batch, the last one repeated."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states, *[states[-1]] * (BATCH - len(states)))


def row(states, i):
    return jax.tree.map(lambda leaf: leaf[i], states)


def state_of(ground="sand", facing="up", blocks=(), items=None, mobs=(), **changes):
    """The player in the middle of a world of one kind of ground.

    Args:
      blocks: {(south, east): name} around the player.
      items: {name: number}.
      mobs: (kind, south, east) each.
      **changes: of the engine's state.
    """
    world = row(fresh(), 0).world
    cells = np.full_like(world.map, BLOCK[ground])
    for (south, east), name in dict(blocks).items():
        cells[MIDDLE + south, MIDDLE + east] = BLOCK[name]
    changes = {"map": cells, "player_direction": np.int32(getattr(engine, facing.upper())), **changes}
    mob_map = np.zeros_like(world.mob_map)
    number = dict.fromkeys(engine.CREATURES, 0)
    for kind, south, east in mobs:
        old, at = changes.get(kind, getattr(world, kind)), number[kind]
        position, mask, health = old.position.copy(), old.mask.copy(), old.health.copy()
        position[at], mask[at] = (MIDDLE + south, MIDDLE + east), True
        health[at] = 5 if kind == "zombies" else 3
        changes[kind], number[kind] = old.replace(position=position, mask=mask, health=health), at + 1
        if kind != "arrows":
            mob_map[MIDDLE + south, MIDDLE + east] = True
    inventory = world.inventory.replace(**{name: np.int32(n) for name, n in (items or {}).items()})
    typed = {k: np.asarray(v, np.asarray(getattr(world, k)).dtype) if np.ndim(v) == 0 and not hasattr(v, "mask") else v
             for k, v in changes.items()}  # fmt: skip
    return row(fresh(), 0).replace(world=world.replace(mob_map=mob_map, inventory=inventory, **typed))


@functools.cache
def played(moves=80):
    """States after random actions: leaves [rows, ...], every 8th move of all worlds."""
    states, kept = fresh(), []
    odds = np.array([1, 12, 12, 12, 12, 30, 1, *10 * [2]], float)
    rng = np.random.default_rng(3)
    for t in range(moves):
        if t % 8 == 0:
            kept.append(states)
        states = step(states, rng.choice(17, BATCH, p=odds / odds.sum()), seed=t)[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
