"""A player by rule that reads Crafter's text and nothing else: what a careful reader of the rules would do.

It looks after food, drink and sleep, defends itself, and works through the tools: wood, table, wooden tools, stone,
stone tools, coal, iron, furnace, iron tools, diamond. It knows no map: what it does not see it looks for, straight on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from envs.crafter.reading import FREE, MATERIAL, NEEDED, RECIPES, WAYS, View, read
from nlrl_jax.roles.dialogues import GOOD, VERDICT, History, Step
from nlrl_jax.types import HostGame

_BACK = {"north": "south", "south": "north", "west": "east", "east": "west"}
_TUNNEL = 3  # cells; one goes back by one and closes the tunnel
SAPLING = "looking for a sapling in the grass"
LOOKING = "looking around"  # the reason where there is no other
_FIRST_TABLE, _LATER_TABLE = 5, 4  # wood to begin with


class Walker:
    """Chooses an action for each observation of one episode.

    Attributes:
      last, reason: the action it has just chosen, and why. told: why it chose the one before.
    """

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        self.reason = self.told = ""
        self.heading = self.rng.choice(list(WAYS))
        self.detour: list[str] = []
        self.last = ""
        self.facing = "north"
        self.before: View | None = None
        self.done: set[str] = set()
        self.tries = 0
        self.bumps = 0
        self.depth = -1  # of the tunnel to sleep in; -1: none

    def act(self, observation: str) -> str:
        """The next action."""
        view = read(observation)
        self._look_back(view)
        self.told = self.reason
        self.took(self._choose(view))
        self.before = view
        return self.last

    def took(self, action: str) -> None:
        """Takes note of the action that was carried out, its own or another."""
        self.last = action
        if action.startswith("move "):
            self.facing = action.removeprefix("move ")

    def _look_back(self, view: View) -> None:
        """What the last action did."""
        bumped = self.last.startswith("move ") and view.faced not in FREE and not self._dig(view)
        self.bumps = self.bumps + 1 if bumped else 0
        if self.bumps >= 4 and not self.detour:  # to and fro in a corner
            self.bumps, self.detour = 0, [self.rng.choice(list(WAYS))] * 3
        if self.last.startswith("place ") and view[MATERIAL[self.last]] < self.before[MATERIAL[self.last]]:
            self.done.add(self.last)

    def _choose(self, view: View) -> str:
        if view.asleep:
            return self._say("noop", "sleeping")
        for choice in (self._fight, self._live, self._craft, self._gather):
            if action := choice(view):
                return action
        return self._explore(view)

    def _say(self, action: str, reason: str) -> str:
        self.reason = reason
        return action

    def _fight(self, view: View) -> str:
        for foe in ("zombie", "skeleton"):
            if view.steps(foe) == 1 or (foe == "skeleton" and view.steps(foe) <= 4 and view["health"] >= 6):
                return self._to(view, foe, f"fighting the {foe}")
        return ""

    def _live(self, view: View) -> str:
        """Food, drink and sleep, before they run out."""
        thirsty = 5 if view.steps("water") < 99 else 3
        if view["drink"] <= thirsty or (view["drink"] < 9 and view.steps("water") == 1):
            if "water" in view.things:
                return self._to(view, "water", "getting something to drink")
            if view["drink"] <= 3:
                return self._explore(view, "looking for water")
        if "ripe plant" in view.things and view["food"] < 8:
            return self._to(view, "ripe plant", "getting something to eat")
        if view["food"] <= 6 and "cow" in view.things:
            return self._to(view, "cow", "getting something to eat")
        if view["food"] <= 3:
            return self._explore(view, "looking for a cow")
        return self._rest(view)

    def _rest(self, view: View) -> str:
        """Sleep in a tunnel that is closed behind, where there is stone to dig; else only when there is no choice."""
        if view["energy"] > 3 and self.depth < 0 or view["energy"] == 9:
            self.depth = -1
            return ""
        tired = "digging in to sleep safely"
        if self.depth < 0 and view["wood pickaxe"] and view["stone"] and "stone" in view.things:
            if view.faced != "stone":
                return self._to(view, "stone", tired)
            self.depth = 0
        if 0 <= self.depth < _TUNNEL:
            if view.faced in FREE:
                self.depth += 1
                return self._say(f"move {self.facing}", tired)
            if self._dig(view):
                return self._say("do", tired)
            self.depth = _TUNNEL + 1
        if self.depth == _TUNNEL:
            self.depth += 1
            return self._say(f"move {_BACK[self.facing]}", tired)
        if self.depth > _TUNNEL and view.faced in FREE and view["stone"]:
            return self._say("place stone", tired)
        if self.depth > _TUNNEL or view["energy"] <= 1:
            return self._say("sleep", "going to sleep")
        return ""

    def _craft(self, view: View) -> str:
        near = view.steps("table") == 1 or max(map(abs, view.things.get("table", (9, 9)))) == 1
        hot = near and max(map(abs, view.things.get("furnace", (9, 9)))) == 1
        if view["sapling"] and view.faced == "grass":
            return self._say("place plant", "planting the sapling")
        for tool in ("pickaxe", "sword"):
            for material, needs in RECIPES.items():
                name = f"{material} {tool}"
                if view[name] or any(view[item] < n for item, n in needs.items()):
                    continue
                if hot if material == "iron" else near:
                    return self._say(f"make {name}", f"making {'an' if name[0] == 'i' else 'a'} {name}")
        if view["stone"] and "place stone" not in self.done and view["stone pickaxe"] and view.faced in FREE:
            return self._say("place stone", "placing a stone")
        wanted = self._wanted(view)
        if view.faced in FREE and not near and wanted:
            enough = _FIRST_TABLE if wanted == "wood" else _LATER_TABLE
            if view["wood"] >= enough and (wanted == "wood" or view["stone"] >= (4 if wanted == "iron" else 2)):
                return self._say("place table", "building a table")
        if near and not hot and wanted == "iron" and view["iron"] and view["coal"] and view["stone"] > 1:
            if view.faced in FREE:
                return self._say("place furnace", "building a furnace")
            return self._step_aside(view)
        if "place furnace" not in self.done and view["stone"] >= 6 and near and view.faced in FREE:
            return self._say("place furnace", "building a furnace")
        return ""

    def _wanted(self, view: View) -> str:
        """The material of the next tool; "" where both iron tools are made."""
        for material in RECIPES:
            if not (view[f"{material} pickaxe"] and view[f"{material} sword"]):
                return material
        return ""

    def _gather(self, view: View) -> str:
        """The next thing to fetch."""
        wanted = self._wanted(view)
        if "place plant" not in self.done and not view["sapling"] and view.faced == "grass" and self.tries < 8:
            self.tries += 1
            return self._say("do", SAPLING)
        order = []
        if view["iron pickaxe"]:
            order.append("diamond")
        if view["stone pickaxe"] and view["iron"] < 2 and wanted:
            order.append("iron")
        if view["wood pickaxe"] and view["coal"] < 2:
            order.append("coal")
        if view["wood"] < (_FIRST_TABLE if wanted == "wood" else 8):
            order.append("tree")
        if view["wood pickaxe"] and view["stone"] < 9:
            order.append("stone")
        seen = [kind for kind in order if kind in view.things]
        if seen:
            return self._to(view, seen[0], f"getting {dict(tree='wood', diamond='a diamond').get(seen[0], seen[0])}")
        if "cow" in view.things and view["food"] < 9 and view.steps("cow") <= 3:
            return self._to(view, "cow", "getting something to eat")
        return ""

    def _explore(self, view: View, reason: str = LOOKING) -> str:
        if self.rng.random() < 0.03:
            self.heading = self.rng.choice(list(WAYS))
        return self._move(view, self.heading, reason)

    def _to(self, view: View, kind: str, reason: str) -> str:
        """Towards the nearest of a kind, and "do" where it is faced."""
        if view.faced == kind:
            return self._say("do", reason)
        south, east = view.things[kind]
        ways = [("south" if south > 0 else "north", abs(south)), ("east" if east > 0 else "west", abs(east))]
        ways = [way for way, steps in sorted(ways, key=lambda pair: -pair[1]) if steps]
        if self.detour:
            return self._move(view, self.detour[-1], reason)
        blocked = self.facing == ways[0] and view.faced not in FREE
        if blocked and len(ways) > 1 and not self._dig(view):
            return self._move(view, ways[1], reason)
        return self._move(view, ways[0], reason)

    def _dig(self, view: View) -> bool:
        """Whether what is faced can be taken out of the way."""
        needed = NEEDED.get(view.faced)
        return view.faced in ("tree", "cow", "zombie", "skeleton") or bool(needed and view[needed])

    def _move(self, view: View, way: str, reason: str) -> str:
        """A step this way, through what can be dug and around what cannot; never into lava."""
        if view.steps("lava") == 1:
            south, east = view.things["lava"]
            away = next(name for name, (down, right) in WAYS.items() if (down, right) == (-south, -east))
            if WAYS[way] == (south, east):
                self.heading, self.detour = away, []
                if view["stone"] and view.faced == "lava":
                    return self._say("place stone", "keeping away from lava")
                way = self.rng.choice([name for name in WAYS if WAYS[name] != (south, east)])
                return self._say(f"move {way}", "keeping away from lava")
        if self.facing == way and view.faced not in FREE:
            if self._dig(view):
                return self._say("do", f"clearing the {view.faced} out of the way")
            if view.faced == "water" and view["stone"] > 2:
                return self._say("place stone", "bridging the water")
            sides = ("west", "east") if way in ("north", "south") else ("north", "south")
            self.detour = [self.rng.choice(sides)] * self.rng.randint(2, 4)
            self.heading = self.detour[-1]
        if self.detour:
            way = self.detour.pop()
        return self._say(f"move {way}", reason)

    def _step_aside(self, view: View) -> str:
        return self._say(f"move {self.rng.choice(list(WAYS))}", "making room for a furnace")


class Walked(NamedTuple):
    """Episodes of the walker: histories, last states, scores."""

    histories: list[History]
    states: list[Any]
    scores: list[float]


def walk(game: HostGame, seeds: Sequence[int], steps: int, label: str = "") -> Walked:
    """One episode of the walker per seed, up to so many steps, with notes of this kind.

    Args:
      label: "" for none, or one of `roles.dialogues.NOTES`.
    """
    starts = game.reset([("", seed) for seed in seeds])
    histories = [History(start.goal, start.observation) for start in starts]
    states, walkers = [start.state for start in starts], [Walker(seed) for seed in seeds]
    shown = [start.observation for start in starts]
    scores, running = [0.0] * len(seeds), list(range(len(seeds)))
    for t in range(steps + 1):
        actions = [walkers[i].act(shown[i]) for i in running]
        for i in running:
            histories[i] = histories[i].noted(_note(label, walkers[i], scores[i]))
        if t == steps or not running:
            break
        outcomes = game.step([states[i] for i in running], actions)
        for i, action, outcome in zip(running, actions, outcomes, strict=True):
            histories[i] = histories[i].then(Step(action, outcome.observation))
            states[i], shown[i], scores[i] = outcome.state, outcome.observation, scores[i] + outcome.reward
        running = [i for i, outcome in zip(running, outcomes, strict=True) if not outcome.done]
    return Walked(histories, states, scores)


def _note(label: str, walker: Walker, score: float) -> str:
    """What stands behind an observation, before the walker's next action."""
    if label == "Critic" and walker.told:
        return f"I am {walker.told}. {VERDICT} {GOOD}."
    if label == "Thought":
        return f'I am {walker.reason}, so my next action is "{walker.last}".'
    if label == "Reward":
        return "0"
    if label == "Value":
        return f"The value is {score * 22:.0f}/22."
    return ""
