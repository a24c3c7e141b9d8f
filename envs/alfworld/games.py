"""Generated games: rooms furnished from ALFWorld's floor plans, with tasks of the six kinds, as PDDL problems.

The package ships 120 floor plans (which receptacles, which kinds of objects), tables of what may lie where and of what
can be cleaned, heated and cooled, and the domain; games are a download. A game here is a floor plan whose objects are
put at random where they may lie. ALFRED's own split of the floor plans (24 of 30 rooms of each sort for training)
keeps tasks that are played and games that are learned from apart: they share no room.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import pathlib
import random
from collections import Counter
from typing import NamedTuple

KINDS = ("put", "clean", "heat", "cool", "examine", "put two")
SPLITS = ("train", "unseen")
PACKAGES = (
    "pip install 'nlrl_jax[alfworld]', then pip install --no-deps alfworld==0.3.5 textworld==1.7.0 "
    "fast-downward-textworld==20.6.4"
)
_ROOMS = {"kitchen": 0, "living room": 200, "bedroom": 300, "bathroom": 400}  # + 1 .. 30 are the floor plans
_UNSEEN = range(1, 7)
# In every room that has the kind at all, though the plan names no place to stand before it: how many.
_UNPLACED = {
    "StoveBurner": 4, "CoffeeMachine": 1, "Toaster": 1, "GarbageCan": 1, "Toilet": 1, "ToiletPaperHanger": 1,
    "HandTowelHolder": 2, "TowelHolder": 1, "BathtubBasin": 1, "LaundryHamper": 1,
}  # fmt: skip
_MOST_ALIKE, _MOST_OBJECTS = 5, 24  # receptacles of one kind, objects of all kinds in a game
MACHINES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
ABLE = {"clean": "Cleanable", "heat": "Heatable", "cool": "Coolable"}
_LAMP, _UNDER_LAMP = "DeskLamp", ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
_GOALS = {
    "put": ("put a {o} in {r}", "put some {o} on {r}"),
    "clean": ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    "heat": ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
    "cool": ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
    "examine": ("look at {o} under the {r}", "examine the {o} with the {r}"),
    "put two": ("put two {o} in {r}", "find two {o} and put them in {r}"),
}
_STATES = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


@dataclasses.dataclass(frozen=True)
class Game:
    """A room and a task. Names are the engine's, e.g. "cabinet 2".

    Attributes:
      kind: one of `KINDS`. plan: number of the floor plan. goal: in words.
      target: kind of the object, e.g. "SoapBar". place: kind of the receptacle, or of the lamp.
      receptacles: name -> kind. inside: object's name -> receptacle's name. objects: name -> kind.
    """

    kind: str
    plan: int
    goal: str
    target: str
    place: str
    receptacles: dict[str, str] = dataclasses.field(hash=False)
    objects: dict[str, str] = dataclasses.field(hash=False)
    inside: dict[str, str] = dataclasses.field(hash=False)


class Tables(NamedTuple):
    """What ALFWorld's objects and receptacles can be used for.

    Attributes:
      holds: kind of receptacle -> kinds of objects.
      able: "Cleanable", ... -> kinds.
      openable: kinds of receptacles.
    """

    holds: dict[str, set[str]]
    able: dict[str, set[str]]
    openable: frozenset[str]


_PUT = "put {o} in/on {r}"  # in the grammar of 0.3.5; that of 0.4 has "move {o} to {r}"


@functools.cache
def engine_data() -> pathlib.Path:
    """Returns the folder with the engine's domain and grammar.

    Raises:
      ValueError: a package of the engine is missing, or has another grammar.
    """
    missing = [name for name in ("alfworld", "textworld", "fast_downward") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ALFWorld's engine is not installed ({', '.join(missing)}); {PACKAGES}")
    grammar = package() / "data" / "alfred.twl2"
    if not grammar.is_file() or _PUT not in grammar.read_text():
        raise ValueError(
            "this alfworld has another grammar than the papers, whose prompts say 'put X in/on Y' (0.4 says 'move X to "
            f"Y'); {PACKAGES}"
        )
    return grammar.parent


def package() -> pathlib.Path:
    """Locates the package alfworld without importing it, which would make a folder in the home directory."""
    return pathlib.Path(importlib.util.find_spec("alfworld").origin).parent


@functools.cache
def tables() -> Tables:
    """Reads which objects go where and what can be done to them from ALFWorld's own constants."""
    spec = importlib.util.spec_from_file_location("_alfworld_constants", package() / "gen" / "constants.py")
    constants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(constants)

    def unsliced(kinds) -> set[str]:
        return {kind for kind in kinds if not kind.endswith("Sliced")}

    movable = set(constants.MOVABLE_RECEPTACLES)
    return Tables(
        {place: unsliced(kinds) for place, kinds in constants.VAL_RECEPTACLE_OBJECTS.items() if place not in movable},
        {able: unsliced(kinds) for able, kinds in constants.VAL_ACTION_OBJECTS.items()},
        frozenset(constants.OPENABLE_CLASS_LIST) - movable,
    )


@functools.cache
def floor_plan(number: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """Reads a room: (kind of receptacle -> how many, kinds of objects)."""
    layouts = package() / "gen" / "layouts"
    places = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    present = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    basin = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}  # these are what things are put into
    kinds = [basin.get(kind := place.split("|")[0], kind) for place in places]
    count = Counter(kind for kind in kinds if kind in tables().holds)
    count = {kind: min(n, _MOST_ALIKE) for kind, n in count.items()}
    count |= {kind: n for kind, n in _UNPLACED.items() if kind in present and kind not in count}
    return dict(sorted(count.items())), tuple(sorted(present))


def plans(split: str) -> tuple[int, ...]:
    """Returns the numbers of a split's floor plans."""
    return tuple(first + n for first in _ROOMS.values() for n in range(1, 31) if (n in _UNSEEN) == (split == "unseen"))


@functools.cache
def tasks(kind: str, split: str) -> tuple[tuple[int, str, str], ...]:
    """Lists all tasks of a kind: (floor plan, kind of object, kind of receptacle or lamp)."""
    placements, candidates = tables(), []
    for number in plans(split):
        places, present = floor_plan(number)
        lamp = _LAMP in present and any(place in places for place in _UNDER_LAMP)
        if (kind == "examine" and not lamp) or (kind in MACHINES and MACHINES[kind] not in places):
            continue
        for target in present:
            homes = [place for place in places if target in placements.holds[place]]
            if kind == "examine" and homes:
                candidates.append((number, target, _LAMP))
            if kind != "examine" and target in placements.able.get(ABLE.get(kind, ""), (target,)):
                goals = [place for place in homes if place != MACHINES.get(kind) and len(homes) > 1]
                candidates += [(number, target, place) for place in goals]
    return tuple(candidates)


def make(kind: str, seed: int, split: str = "unseen") -> Game:
    """Makes the game of a kind and seed; the same arguments give the same one."""
    rng = random.Random(f"alfworld {split} {kind} {seed}")
    number = rng.choice(sorted({plan for plan, _, _ in tasks(kind, split)}))
    _, target, place = rng.choice([task for task in tasks(kind, split) if task[0] == number])
    places, present = floor_plan(number)
    holds = tables().holds
    receptacles = {f"{name.lower()} {i}": name for name, n in places.items() for i in range(n, 0, -1)}

    def home(kind_of_object: str, but: str = "") -> str | None:
        rooms = [name for name, sort in receptacles.items() if kind_of_object in holds[sort] and sort != but]
        return rng.choice(rooms) if rooms else None

    # Copies of the target, then of other objects that have a place in the room, up to the limit.
    copies = {target: rng.randint(2, 3) if kind == "put two" else rng.randint(1, 2)}
    fillers = [name for name in present if name != target and any(name in holds[sort] for sort in places)]
    rng.shuffle(fillers)
    for filler in fillers:
        room = _MOST_OBJECTS - sum(copies.values())
        copies[filler] = min(rng.randint(1, 3), room)
    objects, inside = {}, {}
    for name in sorted(copies):
        for i in range(copies[name], 0, -1):
            objects[f"{name.lower()} {i}"] = name
            inside[f"{name.lower()} {i}"] = home(name, but=place if name == target else "")
    if kind == "examine":
        lamp = f"{_LAMP.lower()} 1"
        objects[lamp] = _LAMP
        inside[lamp] = rng.choice([name for name, sort in receptacles.items() if sort in _UNDER_LAMP])
    goal = rng.choice(_GOALS[kind]).format(o=target.lower(), r=place.lower())
    return Game(kind, number, goal, target, place, receptacles, objects, inside)


def _id(name: str) -> str:
    """Turns a name into an id.

    The engine numbers the ids of a kind from the last to the first, and lists objects by them.
    """
    kind, number = name.split()
    return f"{kind}_bar_{99 - int(number)}"


def problem(game: Game) -> str:
    """Writes the game as a PDDL problem of ALFWorld's domain. Names are ids with `_bar_`, as in its own files."""
    placements = tables()
    here = {name: f"loc_bar_{i}" for i, name in enumerate(game.receptacles, 1)}
    kinds, places = sorted(set(game.objects.values())), sorted(set(game.receptacles.values()))
    things = {
        "agent": ["agent1"],
        "location": ["loc_bar_0", *here.values()],
        "receptacle": map(_id, game.receptacles),
        "object": map(_id, game.objects),
        "rtype": [f"{place}Type" for place in places],
        "otype": [f"{kind}Type" for kind in kinds],
    }
    facts = ["= (total-cost) 0", "atLocation agent1 loc_bar_0"]
    for name, kind in game.receptacles.items():
        facts += [f"receptacleAtLocation {_id(name)} {here[name]}", f"receptacleType {_id(name)} {kind}Type"]
        facts += [f"openable {_id(name)}"] if kind in placements.openable else []
    for name, kind in game.objects.items():
        place = game.inside[name]
        facts += [f"objectType {_id(name)} {kind}Type", f"inReceptacle {_id(name)} {_id(place)}"]
        facts += [f"objectAtLocation {_id(name)} {here[place]}"]
        facts += [
            f"{able.lower()} {_id(name)}" for able, able_kinds in sorted(placements.able.items()) if kind in able_kinds
        ]
        facts += [f"pickupable {_id(name)}"] if kind != _LAMP else []
    for place in places:
        facts += [f"canContain {place}Type {kind}Type" for kind in kinds if kind in placements.holds[place]]
    return "\n".join(
        [
            "(define (problem room) (:domain alfred)",
            "(:objects",
            *(f"  {' '.join(names)} - {sort}" for sort, names in things.items()),
            ")",
            "(:init",
            *(f"  ({fact})" for fact in facts),
            ")",
            f"(:goal {_goal(game)})",
            "(:metric minimize (total-cost)))",
        ]
    )


def _goal(game: Game) -> str:
    """Writes a game's goal in PDDL."""

    def placed(thing: str, *facts: str) -> str:
        return " ".join([f"(objectType {thing} {game.target}Type)", f"(inReceptacle {thing} ?r)", *facts])

    if game.kind == "examine":
        lamp = f"(objectType ?t {_LAMP}Type) (isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l)"
        return (
            f"(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and {lamp} (atLocation ?a ?l)))"
            f" (exists (?o - object ?a - agent) (and (objectType ?o {game.target}Type) (holds ?a ?o))))"
        )
    place = f"(receptacleType ?r {game.place}Type)"
    if game.kind == "put two":
        both = f"{placed('?o')} {placed('?p')} (not (= ?o ?p))"
        return f"(exists (?r - receptacle ?o - object ?p - object) (and {place} {both}))"
    state = (f"({_STATES[game.kind]} ?o)",) if game.kind in _STATES else ()
    return f"(exists (?r - receptacle ?o - object) (and {place} {placed('?o', *state)}))"
