"""The engine beside the Python package `crafter`: one player in the same situations."""

import sys
import types

import numpy as np
import pytest

from nlrl_jax.envs.crafter import engine
from tests.envs.crafter_worlds import BATCH, BLOCK, row, stack, state_of, step


@pytest.fixture(scope="module")
def crafter():
    sys.modules.setdefault("opensimplex", types.ModuleType("opensimplex"))  # only its world generator needs it
    import crafter

    return crafter


FACINGS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
GROUND = ("grass", "sand", "path", "water", "stone", "tree", "lava", "coal", "iron", "diamond", "table", "furnace")
TOOLS = engine.ITEMS[6:]
IRON = [one.value for one in engine.Action if "IRON" in one.name]


def player(crafter, facing, blocks, items, ground="sand"):
    """The player of `state_of` in crafter's world; x is east and y south."""
    world = crafter.engine.World((9, 9), crafter.constants.materials, (12, 12))
    world.reset(seed=0)
    for x in range(9):
        for y in range(9):
            world[x, y] = blocks.get((y - 4, x - 4), ground)
    one = crafter.objects.Player(world, (4, 4))
    world.add(one)
    one.facing = FACINGS[facing]
    one.inventory.update(items)
    return one


def their_action(crafter, action):
    return crafter.constants.actions[action]


def outcome(world, blocks_around):
    cells = world.map[31:34, 31:34]
    names = {number: name for name, number in BLOCK.items() if name != "crafting_table"}
    return {
        "items": {name: int(getattr(world.inventory, name)) for name in engine.ITEMS},
        "vitals": [int(getattr(world, f"player_{name}")) for name in engine.VITALS],
        "cells": [names[int(cell)] for cell in cells.ravel()],
        "place": (world.player_position - 32).tolist(),
        "achievements": {name for name, have in zip(engine.ACHIEVEMENTS, world.achievements) if have},
    }


def their_outcome(one):
    objects = lambda x, y: "plant" if type(one.world[x, y][1]).__name__ == "Plant" else one.world[x, y][0]
    return {
        "items": {name: one.inventory[name] for name in engine.ITEMS},
        "vitals": [one.inventory[name] for name in engine.VITALS],
        "cells": [objects(x, y) for y in range(3, 6) for x in range(3, 6)],
        "place": [one.pos[1] - 4, one.pos[0] - 4],
        "achievements": {name for name, count in one.achievements.items() if count},
    }


def test_the_actions_and_the_achievements(crafter):
    names = dict(LEFT="move_left", RIGHT="move_right", UP="move_up", DOWN="move_down")
    ours = [one.name for one in sorted(engine.Action, key=lambda one: one.value)]
    assert [names.get(name, name.lower()) for name in ours] == crafter.constants.actions
    assert sorted(engine.ACHIEVEMENTS) == sorted(crafter.constants.achievements)


def test_the_same_action_in_the_same_situation(crafter):
    rng = np.random.default_rng(0)
    situations = []
    for target in GROUND:
        for action in range(17):
            for _ in range(2 + 4 * (action in IRON)):
                facing = rng.choice(list(FACINGS))
                south, east = FACINGS[facing][::-1]
                blocks = {(south, east): target, (-south or 1, -east or 1): rng.choice(["table", "sand"])}
                blocks[-south or -1, -east or -1] = rng.choice(["furnace", "sand"])
                items = {name: int(rng.choice([0, 1, 2, 5])) for name in engine.ITEMS}
                items |= {name: int(items[name] > 0) for name in TOOLS}
                situations.append((facing, blocks, items, action))
    differ, same = set(), 0
    for first in range(0, len(situations), BATCH):
        part = situations[first : first + BATCH]
        batch = stack([state_of(facing=facing, blocks=blocks, items=items) for facing, blocks, items, _ in part])
        actions = np.resize([action for *_, action in part], BATCH)
        after = step(batch, actions)[0].world
        for i, (facing, blocks, items, action) in enumerate(part):
            one = player(crafter, facing, blocks, items)
            one.action = their_action(crafter, action)
            one.update()
            if outcome(row(after, i), blocks) == their_outcome(one):
                same += 1
            else:
                target = next(iter(blocks.values()))
                differ.add((one.action, target if one.action in ("do", "place_table", "place_furnace") else ""))
    furnaces = {("place_furnace", ground) for ground in ("grass", "sand", "path", "lava")}
    iron = {("make_iron_pickaxe", ""), ("make_iron_sword", "")}
    assert differ - {("do", "grass")} == {("place_table", "lava"), *furnaces, *iron}  # a sapling in grass is luck
    assert same > 0.8 * len(situations)


@pytest.mark.parametrize(
    "items, stone, differs",
    [
        ({"stone": 4}, 3, True),  # crafter: 0
        ({"stone": 1}, 0, True),  # crafter: no furnace
        ({"stone": 0}, 0, False),
    ],
)
def test_a_furnace_takes_one_stone_not_four(crafter, items, stone, differs):
    action = crafter.constants.actions.index("place_furnace")
    after = row(step(stack([state_of(items=items)]), action)[0], 0).world
    one = player(crafter, "up", {}, items)
    one.action = "place_furnace"
    one.update()
    assert after.inventory.stone == stone and (outcome(after, {}) != their_outcome(one)) == differs


def test_a_sapling_in_grass_is_as_rare(crafter):
    state = stack([state_of(blocks={(-1, 0): "grass"})])
    found = sum(step(state, engine.Action.DO.value, seed)[0].world.inventory.sapling.sum() for seed in range(40))
    assert crafter.constants.collect["grass"]["probability"] == 0.1
    assert abs(found / (40 * BATCH) - 0.1) < 0.04  # four standard errors


@pytest.mark.parametrize("damage, swords", [(1, {}), (2, {"wood_sword": 1}), (3, {"stone_sword": 1, "wood_sword": 1})])
def test_swords_hit_as_hard(crafter, damage, swords):
    state = stack([state_of(items=swords, mobs=[("zombies", -1, 0)])])
    after = row(step(state, engine.Action.DO.value)[0], 0).world
    one = player(crafter, "up", {}, swords)
    zombie = crafter.objects.Zombie(one.world, (4, 3), one)
    one.world.add(zombie)
    one.action = "do"
    one.update()
    assert after.zombies.health[0] == zombie.health == 5 - damage


def test_food_drink_energy_and_health_change_at_the_same_rates(crafter):
    vitals = {"energy": 9, "food": 1}, {"energy": 3, "food": 9}
    actions = np.resize([0, engine.Action.SLEEP.value], BATCH)  # one stays awake, one sleeps
    batch = stack([state_of(**{f"player_{name}": n for name, n in one.items()}) for one in vitals])
    ones = [player(crafter, "up", {}, one) for one in vitals]
    for t in range(120):
        batch = step(batch, actions)[0]
        for i, one in enumerate(ones):
            one.action = their_action(crafter, actions[i])
            one.update()
            ours = [int(getattr(batch.world, f"player_{name}")[i]) for name in engine.VITALS]
            assert ours == [one.inventory[name] for name in engine.VITALS], (i, t)
    assert batch.world.player_health[0] < 8 and batch.world.player_energy[1] > 5
