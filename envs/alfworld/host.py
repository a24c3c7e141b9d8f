"""ALFWorld as a game of the host: six kinds of tasks in the TextWorld engine, for LAC and other planners."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nlrl_jax.envs import recorded
from nlrl_jax.envs.alfworld import data as files
from nlrl_jax.envs.alfworld import games
from nlrl_jax.envs.alfworld.workers import EngineAnswer, EngineRequest, Workers
from nlrl_jax.envs.alfworld.world import NOTHING, World, plan
from nlrl_jax.envs.workers import TIMEOUT
from nlrl_jax.roles.actions import unwrapped
from nlrl_jax.types import HostGame, Outcome, Start

RULES = (
    "You are in a room of a household and can see the names of all the places where things are kept. To see what is in "
    "or on a place, go to it and, if it is closed, open it. You can carry one thing at a time.\n"
    "Actions, with names exactly as shown: go to PLACE, open PLACE, close PLACE, take THING from PLACE, put "
    "THING in/on PLACE, clean THING with PLACE (at a sinkbasin), heat THING with PLACE (at a microwave), cool THING "
    "with PLACE (at a fridge), use THING (a desklamp), examine THING, inventory, look. If an action is not possible, "
    'the observation is "Nothing happens."'
)

_COMMAND = re.compile(
    r"(?:go|open|close|take|put|move|clean|heat|cool|use|examine|slice|inventory|look)\b", re.IGNORECASE
)


class HouseholdState(NamedTuple):
    """A game and the commands so far, which an engine can repeat: so earlier states can be restored.

    goal: in words. problem: PDDL. commands: so far. game: a generated one; None for a downloaded one.
    """

    goal: str
    problem: str
    commands: tuple[str, ...] = ()
    game: games.Game | None = None


def plain(action: str) -> str:
    """Normalises a command for the engine: lower case, single blanks, no brackets, quotes or full stop."""
    command = next(filter(_COMMAND.match, unwrapped(action)), action)
    return " ".join(command.lower().split()).rstrip(" .")


@functools.lru_cache(1 << 14)
def played(game: games.Game, commands: tuple[str, ...]) -> tuple[World, str]:
    """Plays commands in a generated game: (world, last observation).

    The cached world is shared and must not be stepped; one more command costs one step.
    """
    if not commands:
        return World(game), World(game).intro()
    world = played(game, commands[:-1])[0].copy()
    return world, world.step(commands[-1])


# States with a command each (None: the first observation) -> the engine's answers.
Ask = Callable[[Sequence[tuple[HouseholdState, str | None]]], list[EngineAnswer]]


def simulated(requests: Sequence[tuple[HouseholdState, str | None]]) -> list[EngineAnswer]:
    """Answers requests by simulating generated games in Python."""
    answers = []
    for state, command in requests:
        commands = state.commands if command is None else (*state.commands, command)
        world, observation = played(state.game, commands)
        answers.append(EngineAnswer(observation, world.won()))
    return answers


def step(ask: Ask, states: Sequence[HouseholdState], actions: Sequence[str]) -> list[Outcome]:
    """Steps each game by one action."""
    requests, outcomes = [(state, plain(action)) for state, action in zip(states, actions, strict=True)], []
    for (state, command), (observation, won, error) in zip(requests, ask(requests), strict=True):
        if error:
            outcomes.append(Outcome(state, "The game has stopped.", done=True, error=error))
        else:
            after = state._replace(commands=(*state.commands, command))
            outcomes.append(Outcome(after, observation, float(won), won, won, observation != NOTHING))
    return outcomes


def expert(state: HouseholdState) -> str:
    """Returns the first command of a shortest plan with full knowledge of the state, in a generated game."""
    return (plan(played(state.game, state.commands)[0]) or ["look"])[0]


def optimal(state: HouseholdState) -> int:
    """Counts the commands of a shortest plan with full knowledge of the state; -1 for a downloaded game."""
    return len(plan(played(state.game, state.commands)[0])) if state.game else -1


def commands(state: HouseholdState) -> list[str]:
    """Lists what a player might try in a generated game.

    Other places to go to, what lies here, and what can be done with what is carried.
    """
    world = played(state.game, state.commands)[0]
    here, load = world.at, world.held
    tried = [f"go to {place}" for place in world.game.receptacles if place != here]
    tried += [f"{verb} {here}" for verb in ("open", "close")]
    if load:
        tried += [f"put {load} in/on {here}", *(f"{verb} {load} with {here}" for verb in games.MACHINES)]
    tried += [command for thing in world.visible() for command in (f"take {thing} from {here}", f"use {thing}")]
    return [command for command in tried if world.copy().step(command) != NOTHING]


def host_game(max_steps: int = 40, data: str = "", workers: int = 0, patience: float = TIMEOUT) -> HostGame:
    """ALFWorld (LAC, appendix C.1.1): the kinds of tasks are Table 14's, the horizon is the paper's.

    Worker processes play the games (`workers.Workers`); a game whose engine is lost twice ends as an error. Generated
    games have an expert, and a simulator that plays them in Python; downloaded ones have neither.

    Args:
      data: a folder with ALFWorld's own games; empty: generated games in the rooms that ALFRED holds back.
      workers: processes; 0 is one per core, at most 8. patience: seconds that a step may take in one.

    Raises:
      ValueError: the engine is not installed, or in another version; a folder without games.
    """
    pool = Workers(games.engine_data(), workers, patience)
    files_by_kind = files.game_files(data) if data else {}
    kinds = tuple(kind for kind in games.KINDS if not data or files_by_kind[kind])

    def state_of(kind: str, seed: int) -> HouseholdState:
        if kind not in kinds:
            raise ValueError(f"alfworld has no tasks {kind!r}; it has {', '.join(map(repr, kinds))}")
        if data:
            return HouseholdState(*files.load(files_by_kind[kind][seed % len(files_by_kind[kind])]))
        game = games.make(kind, seed)
        return HouseholdState(game.goal, games.problem(game), game=game)

    def engine(requests: Sequence[tuple[HouseholdState, str | None]]) -> list[EngineAnswer]:
        return pool.ask([EngineRequest(state.problem, state.commands, command) for state, command in requests])

    def reset(ask: Ask, tasks: Sequence[tuple[str, int]]) -> list[Start]:
        states = [state_of(kind, seed) for kind, seed in tasks]
        answers = ask([(state, None) for state in states])
        for (kind, seed), answer in zip(tasks, answers, strict=True):
            if answer.error:
                name, hint = f"the game {kind!r} {seed}", f"; is the engine complete? {games.PACKAGES}"
                name, hint = (files_by_kind[kind][seed % len(files_by_kind[kind])], "") if data else (name, hint)
                raise ValueError(f"{name} does not load: {answer.error}{hint}")
        return [Start(state, state.goal, answer.observation) for state, answer in zip(states, answers, strict=True)]

    def playing(ask: Ask) -> dict[str, Callable]:
        return {"reset": functools.partial(reset, ask), "step": functools.partial(step, ask)}

    game = HostGame(
        name="alfworld",
        rules=RULES,
        actions=(),
        max_steps=max_steps,
        kinds=kinds,
        **playing(engine),
        optimal=optimal,
        examples=functools.partial(recorded.examples, "alfworld"),
        limits={kind: len(paths) for kind, paths in files_by_kind.items() if paths},
    )
    if data:
        return game
    simulator = dataclasses.replace(game, **playing(simulated), expert=expert, commands=commands, reversible=True)
    return dataclasses.replace(game, expert=expert, simulator=simulator)
