"""Generated games in plain Python: what commands do, what the agent sees, in the engine's words, and shortest plans.

The simulator and the transcripts use this, 10,000 steps a second; games are played in the engine. Tests compare both
word by word.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

from nlrl_jax.envs.alfworld.games import ABLE, MACHINES, Game, tables

NOTHING = "Nothing happens."
_CARVERS = ("Knife", "ButterKnife")


def _order(name: str) -> tuple[str, int]:
    kind, number = name.split()
    return kind, -int(number)


def listed(names) -> str:
    """Lists things as the engine does: "a mug 2, a mug 1, and a pen 1"; "nothing" without any."""
    names = [f"a {name}" for name in sorted(names, key=_order)]
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


class World:
    """The state of a generated game.

    Attributes:
      at: the receptacle where the agent is, "" in the middle of the room. held: what it carries, or "".
      inside: object's name -> receptacle's name; what is carried is missing. opened: receptacles.
      made: object's name -> what it has become ("clean", "heat", "cool", "slice"). lit: lamps that have been used.
    """

    def __init__(self, game: Game):
        self.game, self.at, self.held = game, "", ""
        self.inside = dict(game.inside)
        self.opened: set[str] = set()
        self.treatments: dict[str, set[str]] = {name: set() for name in game.objects}
        self.lit: set[str] = set()

    def copy(self) -> World:
        """Copies the world; the copy can be stepped without changing this one."""
        clone = copy.copy(self)
        clone.inside, clone.opened, clone.lit = dict(self.inside), set(self.opened), set(self.lit)
        clone.treatments = {name: set(treatments) for name, treatments in self.treatments.items()}
        return clone

    def intro(self) -> str:
        """Describes the room: the first observation."""
        return f"You are in the middle of a room. Looking quickly around you, you see {listed(self.game.receptacles)}."

    def closed(self, place: str) -> bool:
        return self.game.receptacles[place] in tables().openable and place not in self.opened

    def contents(self, place: str) -> list[str]:
        return [name for name, receptacle in self.inside.items() if receptacle == place]

    def visible(self) -> list[str]:
        """Lists the objects that can be seen where the agent is."""
        return self.contents(self.at) if self.at and not self.closed(self.at) else []

    def view(self, place: str) -> str:
        if self.closed(place):
            return f"The {place} is closed."
        inside = listed(self.contents(place))
        if place in self.opened:
            return f"The {place} is open. In it, you see {inside}."
        return f"On the {place}, you see {inside}."

    def fits(self, thing: str, place: str) -> bool:
        return self.game.objects[thing] in tables().holds[self.game.receptacles[place]]

    def able(self, thing: str, able: str) -> bool:
        return self.game.objects[thing] in tables().able[able]

    def won(self) -> bool:
        """Returns whether the goal is reached."""
        game = self.game
        targets = [name for name, kind in game.objects.items() if kind == game.target]
        if game.kind == "examine":
            lamp_here = any(self.inside.get(lamp) == self.at for lamp in self.lit)
            return bool(self.at) and lamp_here and self.held in targets
        placed = [self.inside[name] for name in targets if name in self.inside and self.ready(name)]
        placed = [place for place in placed if game.receptacles[place] == game.place]
        needed = 2 if game.kind == "put two" else 1
        return any(placed.count(place) >= needed for place in placed)

    def ready(self, thing: str) -> bool:
        """Whether it is clean, hot or cool where the task asks for that."""
        return self.game.kind not in MACHINES or self.game.kind in self.treatments[thing]

    def step(self, command: str) -> str:
        """Carries out a command and returns the observation."""
        words = command.split()
        verb = words[0] if words else ""
        if command.startswith("go to "):
            return self._go(" ".join(words[2:]))
        if command == "inventory":
            return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."
        if command == "look":
            here = f"You are facing the {self.at}. Next to it, you see nothing."
            return here if self.at else self.intro().split("you see")[0] + "you see nothing."
        if verb in ("open", "close"):
            return self._open(verb, " ".join(words[1:]))
        if verb == "examine":
            return self._examine(" ".join(words[1:]))
        if verb == "use":
            return self._use(" ".join(words[1:]))
        if len(words) == 6 and (verb, words[3]) in (("take", "from"), ("put", "in/on")) and self.at:
            return self._move(verb, " ".join(words[1:3]), " ".join(words[4:]))
        if len(words) == 6 and verb in (*MACHINES, "slice") and words[3] == "with":
            return self._treat(verb, " ".join(words[1:3]), " ".join(words[4:]))
        return NOTHING

    def _go(self, place: str) -> str:
        if place not in self.game.receptacles or place == self.at:
            return NOTHING
        self.at = place
        return self.view(place)

    def _open(self, verb: str, place: str) -> str:
        """Opens or closes a receptacle where the agent stands."""
        openable = place == self.at and place and self.game.receptacles[place] in tables().openable
        if not openable or self.closed(place) != (verb == "open"):
            return NOTHING
        if verb == "close":
            self.opened.discard(place)
            return f"You close the {place}."
        self.opened.add(place)
        return f"You open the {place}. {self.view(place)}"

    def _examine(self, thing: str) -> str:
        """Describes a receptacle, or an object in sight with what was done to it."""
        if thing and thing == self.at:
            return self.view(thing)
        if thing not in (self.held, *self.visible()) or not thing:
            return NOTHING
        treatments = self.treatments[thing]
        words = [word for word, state in (("hot", "heat"), ("cool", "cool"), ("clean", "clean")) if state in treatments]
        if "slice" in treatments:
            return f"This is a {' and '.join(words)} sliced {thing}." if words else f"This is a sliced {thing}."
        if words:
            return f"This is a {' and '.join(words) if words != ['cool'] else 'cold'} {thing}."
        if thing in self.lit:
            return f"This {thing} is on."
        return f"There's nothing special about {thing}."

    def _use(self, thing: str) -> str:
        if not self.at or self.inside.get(thing) != self.at or not self.able(thing, "Toggleable"):
            return NOTHING
        self.lit.add(thing)
        return f"You turn on the {thing}."

    def _move(self, verb: str, thing: str, place: str) -> str:
        """Takes an object out of a receptacle, or puts it there."""
        if place != self.at or self.closed(place) or thing not in self.game.objects:
            return NOTHING
        if verb == "take":
            lamp = self.able(thing, "Toggleable")
            if self.held or self.inside.get(thing) != place or lamp:
                return NOTHING
            self.held = thing
            del self.inside[thing]
            return f"You pick up the {thing} from the {place}."
        if self.held != thing or not self.fits(thing, place):
            return NOTHING
        self.held, self.inside[thing] = "", place
        return f"You put the {thing} in/on the {place}."

    def _treat(self, verb: str, thing: str, tool: str) -> str:
        """Slices an object with a knife in hand, or heats, cools or cleans the held one in its machine."""
        if verb == "slice":
            sharp = tool and tool == self.held and self.game.objects[tool] in _CARVERS
            if not sharp or self.inside.get(thing, "") != self.at or not self.at or not self.able(thing, "Sliceable"):
                return NOTHING
            self.treatments[thing].add("slice")
            return f"You sliced the {thing} with the {tool}."
        here = tool and tool == self.at and self.game.receptacles[tool] == MACHINES[verb]
        if not here or not thing or thing != self.held or not self.able(thing, ABLE[verb]):
            return NOTHING
        self.treatments[thing] -= {"heat": {"cool"}, "cool": {"heat"}}.get(verb, set())
        self.treatments[thing].add(verb)
        return f"You {verb} the {thing} using the {tool}."


def plan(world: World) -> list[str]:
    """Finds a shortest sequence of commands to the goal, given where everything is; [] once it is reached."""
    if world.won():
        return []
    return min(_plans(world), key=len)


def _plans(world: World) -> Iterator[list[str]]:
    """Yields the commands of each way to the goal: every fitting object with every fitting place."""
    game = world.game
    targets = [name for name, kind in game.objects.items() if kind == game.target]
    if game.kind == "examine":
        lamps = [name for name, kind in game.objects.items() if kind == game.place]
        for thing, lamp in itertools.product(targets, lamps):
            sketch = _Sketch(world).fetch(thing).go(world.inside[lamp])
            yield sketch.then(f"use {lamp}") if not (sketch.commands and lamp in world.lit) else sketch.commands
        return
    places = [name for name, kind in game.receptacles.items() if kind == game.place]
    groups = itertools.permutations(targets, 2) if game.kind == "put two" else ((name,) for name in targets)
    for group, place in itertools.product(list(groups), places):
        sketch = _Sketch(world)
        for thing in group:
            if sketch.inside.get(thing) != place or not world.ready(thing):
                sketch.fetch(thing).treat(thing).put(thing, place)
        yield sketch.commands


class _Sketch:
    """A plan under construction: its commands so far, and the state they lead to."""

    def __init__(self, world: World):
        self.world, self.at, self.held = world, world.at, world.held
        self.inside, self.opened = dict(world.inside), set(world.opened)
        self.commands: list[str] = []

    def then(self, command: str) -> list[str]:
        self.commands.append(command)
        return self.commands

    def go(self, place: str) -> _Sketch:
        """Adds the walk to a place, if the agent is elsewhere."""
        if self.at != place:
            self.then(f"go to {place}")
            self.at = place
        return self

    def reach_into(self, place: str) -> None:
        self.go(place)
        if self.world.closed(place) and place not in self.opened:
            self.then(f"open {place}")
            self.opened.add(place)

    def fetch(self, thing: str) -> _Sketch:
        """Adds the commands that bring an object into the hands."""
        if self.held == thing:
            return self
        if self.held:  # the hands must be empty: where it fits, if possible here or at the thing's place
            fits = [place for place in self.world.game.receptacles if self.world.fits(self.held, place)]
            near = [place for place in (self.at, self.inside[thing]) if place in fits]
            self.put(self.held, (near or fits)[0])
        place = self.inside.pop(thing)
        self.reach_into(place)
        self.then(f"take {thing} from {place}")
        self.held = thing
        return self

    def treat(self, thing: str) -> _Sketch:
        kind = self.world.game.kind
        if not self.world.ready(thing):
            machine = next(name for name, sort in self.world.game.receptacles.items() if sort == MACHINES[kind])
            self.go(machine).then(f"{kind} {thing} with {machine}")
        return self

    def put(self, thing: str, place: str) -> None:
        self.reach_into(place)
        self.then(f"put {thing} in/on {place}")
        self.held, self.inside[thing] = "", place
