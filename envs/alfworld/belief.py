"""What somebody knows who has read an episode so far: read from its text alone, one step after the other.

Walkers choose their actions from it, critics judge with it, and the scripted model imagines with it. Besides the text
it uses what everybody knows of households: which kinds of things lie in which kinds of places, and which places can be
closed (the package's tables).
"""

from __future__ import annotations

import copy
import functools
import random
import re
from typing import NamedTuple

from envs.alfworld.games import MACHINES, tables
from envs.alfworld.world import NOTHING
from nlrl_jax.roles.dialogues import THINK, History

_GOALS = (  # the first that matches
    ("put two", r"(?:put|find) two (?P<o>\w+) (?:and put them )?(?:in|on) (?P<r>\w+)"),
    ("clean", r"put a clean (?P<o>\w+) (?:in|on) (?P<r>\w+)|clean some (?P<p>\w+) and put it (?:in|on) (?P<s>\w+)"),
    ("heat", r"put a hot (?P<o>\w+) (?:in|on) (?P<r>\w+)|heat some (?P<p>\w+) and put it (?:in|on) (?P<s>\w+)"),
    ("cool", r"put a cool (?P<o>\w+) (?:in|on) (?P<r>\w+)|cool some (?P<p>\w+) and put it (?:in|on) (?P<s>\w+)"),
    ("examine", r"(?:look at|examine) (?:the )?(?P<o>\w+) (?:under|with) the (?P<r>\w+)"),
    ("put", r"put (?:a|some) (?P<o>\w+) (?:in|on) (?P<r>\w+)"),
)
_THING = re.compile(r"\ban? ([a-z]+ \d+)")


class Goal(NamedTuple):
    """kind: of the task, "" where the words are not known. target: kind of thing. place: kind of place, or the lamp."""

    kind: str
    target: str
    place: str


class Next(NamedTuple):
    """What has to be done next.

    verb: "find", "take", "treat", "put", "use", "put away" or "" once all is done. thing: its name, or its kind for
    "find". place: where, "" if that is not known. commands: all that leads there, [] for "find".
    """

    verb: str
    thing: str
    place: str = ""
    commands: tuple[str, ...] = ()


def read_goal(text: str) -> Goal:
    for kind, pattern in _GOALS:
        if match := re.search(pattern, text.lower()):
            words = [word for word in match.groups() if word]
            return Goal(kind, *words)
    return Goal("", "", "")


def plain(action: str) -> str:
    """A command as the engine wants it: in lower case, without blanks and a full stop around it."""
    return " ".join(action.lower().split()).rstrip(" .")


def kind_of(name: str) -> str:
    return name.split()[0]


@functools.cache
def _known() -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """(kind of place -> kinds of things that lie there, kinds of places that can be closed), in lower case."""
    lower = lambda kinds: frozenset(kind.lower() for kind in kinds)
    return {place.lower(): lower(kinds) for place, kinds in tables().holds.items()}, lower(tables().openable)


def may_hold(place: str, kind: str) -> bool:
    """Whether a kind of thing is to be expected in or on a place; a lamp stands on anything flat."""
    if kind.endswith("lamp"):
        return kind_of(place) in ("desk", "sidetable", "dresser", "shelf", "coffeetable", "diningtable")
    return kind in _known()[0].get(kind_of(place), ())


class Belief:
    """Attributes:
    goal: see `Goal`. places: those of the room, as they are listed. at: the place where the agent is, or "".
    held: what it carries, or "". seen: thing -> place where it was last. looked: places whose content is known.
    closed: places seen closed, and not opened since. made: thing -> what it has become. lit: lamps that are on.
    """

    def __init__(self, goal: str, observation: str):
        self.goal = read_goal(goal)
        self.places = _THING.findall(observation)
        self.at = self.held = ""
        self.seen: dict[str, str] = {}
        self.looked: set[str] = set()
        self.closed: set[str] = set()
        self.made: dict[str, str] = {}
        self.lit: set[str] = set()

    @classmethod
    def of(cls, history: History) -> Belief:
        belief = cls(history.goal, history.observation)
        for action, observation, _ in history.steps:
            belief.update(action, observation)
        return belief

    def after(self, action: str, observation: str) -> Belief:
        """The belief one step later."""
        belief = copy.copy(self)
        for name in ("seen", "looked", "closed", "made", "lit"):
            setattr(belief, name, copy.copy(getattr(self, name)))
        belief.update(action, observation)
        return belief

    def update(self, action: str, observation: str) -> None:
        """Takes in a step."""
        action = plain(action)
        if action.startswith(THINK) or observation.startswith(NOTHING):
            return
        if action.startswith("go to "):
            self.at = action.removeprefix("go to ").strip()
        if match := re.search(r"The (\w+ \d+) is closed|You close the (\w+ \d+)", observation):
            self.closed.add(match[1] or match[2])
        if match := re.search(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see (.*)", observation):
            place = match[1] or match[2]
            self.closed.discard(place)
            self.looked.add(place)
            self.seen = {thing: where for thing, where in self.seen.items() if where != place}
            self.seen |= {thing: place for thing in _THING.findall(match[3])}
        if match := re.match(r"You pick up the (\w+ \d+) from", observation):
            self.held = match[1]
            self.seen.pop(match[1], None)
        if match := re.match(r"You put the (\w+ \d+) in/on the (\w+ \d+)", observation):
            self.held, self.seen[match[1]] = "", match[2]
        if match := re.match(r"You (clean|heat|cool) the (\w+ \d+) using", observation):
            self.made[match[2]] = match[1]
        if match := re.match(r"You turn on the (\w+ \d+)", observation):
            self.lit.add(match[1])

    def ready(self, thing: str) -> bool:
        """Whether a thing is clean, hot or cool where the task asks for that."""
        return self.goal.kind not in MACHINES or self.made.get(thing) == self.goal.kind

    def targets(self) -> list[str]:
        """The things of the goal's kind that have been seen or are carried, those in their place left out."""
        known = [*self.seen, *([self.held] if self.held else [])]
        return [name for name in known if kind_of(name) == self.goal.target and not self.placed(name)]

    def placed(self, thing: str) -> bool:
        place = self.seen.get(thing, "")
        return self.goal.kind != "examine" and place and kind_of(place) == self.goal.place and self.ready(thing)

    def in_place(self) -> list[str]:
        """Targets that are where the goal wants them."""
        return [name for name in self.seen if kind_of(name) == self.goal.target and self.placed(name)]

    def home(self) -> str:
        """The place of the goal's kind to use: the one that already holds a target, else one known to be open."""
        used = [self.seen[name] for name in self.in_place()]
        own = [place for place in self.places if kind_of(place) == self.goal.place]
        own.sort(key=lambda place: (place != self.at, self._shut(place), place not in self.looked))
        return (used or own or [""])[0]

    def _shut(self, place: str) -> bool:
        return place in self.closed or (kind_of(place) in _known()[1] and place not in self.looked)

    def _to(self, place: str, reach: bool = True) -> list[str]:
        """The commands that lead to a place, and into it."""
        opening = [f"open {place}"] if reach and self._shut(place) else []
        return [*([f"go to {place}"] if self.at != place else []), *opening]

    def next(self) -> Next:
        """What has to be done next, as far as it is known."""
        goal = self.goal
        if goal.kind == "examine":
            return self._next_examine()
        if goal.kind and len(self.in_place()) >= (2 if goal.kind == "put two" else 1):
            return Next("", "")
        if self.held and kind_of(self.held) == goal.target:
            if not self.ready(self.held):
                machine = next((p for p in self.places if kind_of(p) == MACHINES[goal.kind].lower()), "")
                commands = (*self._to(machine, reach=False), f"{goal.kind} {self.held} with {machine}")
                return Next("treat", self.held, machine, commands)
            place = self.home()
            return Next("put", self.held, place, (*self._to(place), f"put {self.held} in/on {place}"))
        return self._fetch()

    def _next_examine(self) -> Next:
        if not self.held or kind_of(self.held) != self.goal.target:
            return self._fetch()
        lamps = [name for name in self.seen if kind_of(name) == self.goal.place]
        if not lamps:
            return Next("find", self.goal.place)
        place = self.seen[lamps[0]]
        if lamps[0] in self.lit and self.at == place:
            return Next("", "")
        return Next("use", lamps[0], place, (*self._to(place, reach=False), f"use {lamps[0]}"))

    def _fetch(self) -> Next:
        targets = self.targets()
        if not targets:
            return Next("find", self.goal.target)
        if self.held:
            return self._away()
        thing = min(targets, key=lambda name: len(self._to(self.seen[name])))
        place = self.seen[thing]
        return Next("take", thing, place, (*self._to(place), f"take {thing} from {place}"))

    def _away(self) -> Next:
        """Something else is carried: where to put it."""
        fits = [place for place in self.places if may_hold(place, kind_of(self.held))]
        place = min(fits, key=lambda one: len(self._to(one)), default=self.at)
        return Next("put away", self.held, place, (*self._to(place), f"put {self.held} in/on {place}"))

    def unlooked(self, kind: str, taste: str = "") -> list[str]:
        """Places where a kind of thing may still be found, the likely ones first; places that are equally likely in an
        order that depends on `taste`, or else as the room lists them."""
        rest = [place for place in self.places if place not in self.looked]
        order = lambda place: random.Random(f"{taste} {place}").random() if taste else 0.0
        return sorted(rest, key=lambda place: (not may_hold(place, kind), order(place)))

    def way_into(self, place: str) -> str:
        """The command that comes next on the way to see what is in a place."""
        return f"go to {place}" if self.at != place else f"open {place}"
