"""Games in the TextWorld engine, spoken to in the text of ReAct and LAC; also the program that a worker runs.

    python engine.py DATA    # requests as JSON lines on stdin, answers on stdout; see `serve`

It imports nothing else of this repository, so that a worker starts without JAX. DATA is the folder with ALFWorld's
domain and grammar. They are those of 0.3.5, not the game file's: their commands are those of the papers ("put X in/on
Y"), and a grammar from a file would be code, since the engine evaluates what stands in braces.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import pathlib
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Iterable

_MAX_ENGINES = 128  # engines per worker; about 20 MB each
_ARRIVAL = re.compile(r"^You arrive at loc \d+\. ")


@functools.cache
def _textworld():
    """Imports TextWorld's classes, patched so that nothing is compiled and repeated work is cached."""
    # TextWorld imports an interpreter of Z-machine games that must be compiled; nothing here plays any.
    jericho = types.ModuleType("jericho")
    jericho.UnsupportedGameWarning = jericho.TruncatedInputActionWarning = UserWarning
    sys.modules.setdefault("jericho", jericho)
    import fast_downward
    import textworld
    from textworld.envs.pddl import PddlEnv, textgen
    from textworld.logic import Rule

    # The engine translates a problem when it loads it and again at each reset, and parses the same few rules of its
    # grammar for every command that is possible, at each step: once is enough.
    fast_downward.pddl2sas = functools.lru_cache(2 * _MAX_ENGINES)(fast_downward.pddl2sas)
    parsed = functools.lru_cache(1 << 12)(textgen._parse_and_convert)

    def parse(text: str, **options):
        return copy.deepcopy(parsed(text, **options))

    def copy_context(context: dict) -> dict:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    textgen._parse_and_convert = parse
    textgen.Rule = types.SimpleNamespace(parse_conjunctive_query=functools.cache(Rule.parse_conjunctive_query))
    textgen.copy_context = copy_context
    return PddlEnv, textworld.EnvInfos


def names_of(ids: Iterable[str]) -> dict[str, str]:
    """Maps ids to names: "Cabinet_bar__minus_01..." -> "cabinet 3", numbered from a kind's last id to its first."""
    kinds: dict[str, list[str]] = {}
    for entity in sorted(ids):
        head, bar, _ = entity.partition("_bar_")
        if bar:
            basin = "basin" in entity and not head.endswith("basin")  # e.g. Sink|...|SinkBasin
            kinds.setdefault(f"{head}basin" if basin else head, []).append(entity)
    names = {entity: f"{kind} {len(ids) - i}" for kind, ids in kinds.items() for i, entity in enumerate(ids)}
    return {entity: names.get(entity, entity) for entity in ids}


class Engine:
    """A running game.

    Attributes:
      commands: those since its beginning; None before the first `reset`.

    Raises:
      Exception: of whatever kind the engine raises for a problem that it cannot read.
    """

    def __init__(self, problem: str, data: pathlib.Path):
        make, infos = _textworld()
        domain, grammar = (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()
        self.env = make(infos(admissible_commands=True))
        self.env.load({"pddl_domain": domain, "pddl_problem": problem, "grammar": grammar})
        entities = self.env._entity_infos
        for entity, name in names_of(list(entities)).items():
            entities[entity].name = name
        self.commands: tuple[str, ...] | None = None  # not begun

    def reset(self) -> tuple[str, bool]:
        """Starts the game anew: (first observation without welcome and task, whether the goal is reached)."""
        self.commands = ()
        return self._result(self.env.reset().feedback.split("\n\n")[1])

    def step(self, command: str) -> tuple[str, bool]:
        """Carries out a command: (observation in one line, whether the goal is reached)."""
        self.commands = (*self.commands, command)
        return self._result(self.env.step(command)[0].feedback)

    def plan(self) -> list[str]:
        """Finds a cheapest plan from here with the engine's own planner, in up to a minute; empty if there is none."""
        return self.env._pddl_state.replan(self.env._entity_infos)

    def _result(self, text: str) -> tuple[str, bool]:
        return " ".join(_ARRIVAL.sub("", text).split()), bool(self.env.state["won"])


def serve(data: pathlib.Path, requests: Iterable[str], out) -> None:
    """Answers requests until they end.

    A request is {"problem": PDDL, "commands": those so far, "action": the next one, or null for the last observation};
    an answer is {"observation", "won"}, or {"error"} where the problem cannot be read. An engine that stands elsewhere
    starts again and repeats the commands.
    """
    engines: OrderedDict[str, Engine] = OrderedDict()
    for line in requests:
        request = json.loads(line)
        problem, commands, action = request["problem"], tuple(request["commands"]), request["action"]
        try:
            engine = engines.pop(problem, None) or Engine(problem, data)
            last = None
            if engine.commands != commands or action is None:
                last = engine.reset()
                for command in commands:
                    last = engine.step(command)
            observation, won = last if action is None else engine.step(action)
            answer = {"observation": observation, "won": won}
            engines[problem] = engine
        except Exception as error:  # the problem may come from any file
            answer = {"error": f"{type(error).__name__}: {error}"}
        while len(engines) > _MAX_ENGINES:
            engines.popitem(last=False)
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine and its C++ part print goes to stderr, away from the answers
    serve(pathlib.Path(sys.argv[1]), sys.stdin, replies)
