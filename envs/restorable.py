"""Host games whose states can be stepped again: as they are, by copies of their states, or by repeating their actions.

Models that imagine step one state once per candidate. Where the state is a live environment, all of these steps would
change the one object; see `HostGame.reversible`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from nlrl_jax.text import generators
from nlrl_jax.types import HostGame, Outcome, Start

Task = tuple[str, int]
NOTHING = "nothing"  # what a game gets where a reply holds no action
_STEPS = 3  # by which it is checked that a state can be stepped again


class Path(NamedTuple):
    """A state as the way to it: a task, and the actions since its beginning."""

    task: Task
    actions: tuple[str, ...] = ()


def restorable(game: HostGame, task: Task) -> HostGame:
    """The game itself where it is reversible; else the same game with states that can be stepped again.

    Their copies (`copy.deepcopy`) are stepped. Where these cannot be made or share what changes, the task is begun anew
    and all actions are repeated. Both are tried on a few steps of the expert first. Python's and NumPy's global
    generators are left as they were: what is imagined must not change what is drawn for the episode itself.

    Raises:
      ValueError: neither leads to the same outcomes twice.
    """
    if game.reversible:
        return game

    def new_course() -> list[tuple]:
        return walk(game, *game.reset([task]))

    game = generators.apart(game) if generators.are_used(new_course) else game
    course = new_course()
    for restored_by in (_copied, _repeated):
        candidate = restored_by(game)
        with contextlib.suppress(Exception):  # whatever the state's class raises where it cannot be copied
            (start,) = candidate.reset([task])
            if all(walk(candidate, start) == course for _ in range(2)):
                return candidate
    raise ValueError(
        f"{game.name} cannot be imagined by its expert: neither a copy of a state (copy.deepcopy) nor its actions "
        "repeated from the task's beginning lead to the same outcomes twice. Let everything random follow from the "
        "task's seed, or give a language model with --model"
    )


def walk(game: HostGame, start: Start) -> list[tuple]:
    """What the first steps of the expert lead to, or of the first action where there is no expert."""
    course, now = [(start.goal, start.observation)], Outcome(start.state, start.observation)
    while len(course) <= _STEPS and not now.done:
        (now,) = game.step([now.state], [first_move(game, now.state)])
        course.append(now[1:])
    return course


def first_move(game: HostGame, state: Any) -> str:
    return game.expert(state) if game.expert else (*game.actions, NOTHING)[0]


def _copied(game: HostGame) -> HostGame:
    """Each step is that of a copy."""

    def reset(tasks: Sequence[Task]) -> list[Start]:
        with generators.preserved():
            return game.reset(tasks)

    def step(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        with generators.preserved():
            return game.step([copy.deepcopy(state) for state in states], actions)

    copied = dataclasses.replace(game, reset=reset, step=step, reversible=True)
    return generators.of_states(copied, lambda function, state: function(copy.deepcopy(state)))


def _repeated(game: HostGame) -> HostGame:
    """Each step begins with the episode's task."""

    def reset(tasks: Sequence[Task]) -> list[Start]:
        with generators.preserved():
            starts = game.reset(tasks)
        return [start._replace(state=Path(tuple(task))) for task, start in zip(tasks, starts, strict=True)]

    def live(path: Path) -> Any:
        (start,) = game.reset([path.task])
        state = start.state
        for action in path.actions:
            (outcome,) = game.step([state], [action])
            state = outcome.state
        return state

    def step(paths: Sequence[Path], actions: Sequence[str]) -> list[Outcome]:
        with generators.preserved():
            outcomes = game.step([live(path) for path in paths], actions)
        after = [path._replace(actions=(*path.actions, action)) for path, action in zip(paths, actions, strict=True)]
        return [outcome._replace(state=path) for outcome, path in zip(outcomes, after, strict=True)]

    repeated = dataclasses.replace(game, reset=reset, step=step, reversible=True)
    return generators.of_states(repeated, lambda function, path: function(live(path)))
