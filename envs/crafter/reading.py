"""Crafter's text as numbers, for players by rule, and what they know about the game's rules."""

from __future__ import annotations

import dataclasses
import re

WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
FREE = ("grass", "sand", "path")
# What a pickaxe is needed for, and what tools take.
NEEDED = {"stone": "wood pickaxe", "coal": "wood pickaxe", "iron": "stone pickaxe", "diamond": "iron pickaxe"}
RECIPES = {
    "wood": {"wood": 1},
    "stone": {"wood": 1, "stone": 1},
    "iron": {"wood": 1, "stone": 1, "coal": 1, "iron": 1},
}
MATERIAL = {"place stone": "stone", "place table": "wood", "place furnace": "stone", "place plant": "sapling"}
_THING = re.compile(r"(?:an? )?([a-z ]+?) ((?:\d+ steps? \w+)(?: and \d+ steps? \w+)?)$")


@dataclasses.dataclass(frozen=True)
class View:
    """An observation as numbers.

    things: kind -> (steps south, steps east) of the nearest. faced: kind. numbers: vitals and items by name, 0 for what
    is not carried.
    """

    things: dict[str, tuple[int, int]]
    faced: str
    numbers: dict[str, int]
    asleep: bool

    def __getitem__(self, name: str) -> int:
        return self.numbers.get(name, 0)

    def steps(self, kind: str) -> int:
        """Steps to the nearest of a kind; 99 if none is seen."""
        return sum(map(abs, self.things[kind])) if kind in self.things else 99


def read(observation: str) -> View:
    """The observation, by its words; what cannot be read is not there."""
    seen = re.search(r"You see (.*?)\. You face", observation)
    faced = re.search(r"You face (?:an? |the )?([a-z ]+)\.", observation)
    things = {}
    for part in seen[1].split(", ") if seen else ():
        if found := _THING.match(part):
            south = east = 0
            for steps, way in re.findall(r"(\d+) steps? (\w+)", found[2]):
                down, right = WAYS.get(way, (0, 0))
                south, east = south + int(steps) * down, east + int(steps) * right
            things[found[1]] = south, east
    numbers = {name.lower(): int(n) for name, n in re.findall(r"(Health|food|drink|energy) (\d+)", observation)}
    carried = re.search(r"You carry (.*?)\.", observation)
    numbers |= {name: int(n) for n, name in re.findall(r"(\d+) ([a-z ]+)", carried[1] if carried else "")}
    return View(things, faced[1] if faced else "", numbers, "You are asleep" in observation)
