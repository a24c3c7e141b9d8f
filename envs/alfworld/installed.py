"""Whether ALFWorld's engine, as it is installed here, plays in the words of ReAct and LAC."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import version

from envs.alfworld import games
from envs.alfworld.workers import Request, Workers
from envs.alfworld.world import World, plan

_PUT = "put {o} in/on {r}"  # in the grammar of 0.3.5; that of 0.4 has "move {o} to {r}"
_TRIAL = games.Game(  # the smallest one: a pencil lies on a bed and belongs on a desk
    "put", 0, "put a pencil on desk", "Pencil", "Desk", {"bed 1": "Bed", "desk 1": "Desk"}, {"pencil 1": "Pencil"},
    {"pencil 1": "bed 1"},
)  # fmt: skip


@functools.cache
def check() -> None:
    """Plays a small game to its end, once in a process; takes about two seconds.

    Raises:
      ValueError: a package is missing, or one of a version with which games go another way.
    """
    missing = [name for name in ("alfworld", "textworld", "fast_downward") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ALFWorld's engine is not installed ({', '.join(missing)}); {games.PACKAGES}")
    data = games.package() / "data"
    grammar = data / "alfred.twl2"
    if not grammar.is_file() or _PUT not in grammar.read_text():
        raise ValueError(
            f"alfworld {version('alfworld')} has another grammar than the papers, whose prompts say 'put X in/on Y' "
            f"(0.4 says 'move X to Y'); {games.PACKAGES}"
        )
    world, commands = World(_TRIAL), plan(World(_TRIAL))
    expected = [world.step(command) for command in commands][-1]
    (answer,) = Workers(data, 1).ask([Request(games.problem(_TRIAL), tuple(commands[:-1]), commands[-1])])
    if answer.error or (answer.observation, answer.won) != (expected, True):
        found = ", ".join(f"{name} {version(name)}" for name in ("alfworld", "textworld", "fast-downward-textworld"))
        raise ValueError(
            f"ALFWorld's engine does not work as it is installed ({found}): {commands[-1]!r} gives "
            f"{answer.error or answer.observation!r} in place of {expected!r}; {games.PACKAGES}"
        )
