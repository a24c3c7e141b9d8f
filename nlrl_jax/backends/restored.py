"""Host games whose states can be stepped again: as they are, by copies of their states, or by repeating their actions.

Models that imagine step one state once per candidate. Where the state is a live environment, all of these steps would
change the one object; see `HostGame.reversible`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.types import HostGame, Outcome, Start

Task = tuple[str, int]
_TRIED = 3  # steps by which a way to restore states is checked
_OF_STATES = ("board", "optimal", "expert", "commands")


class Path(NamedTuple):
    """A state as the way to it: a task, and the actions since its beginning."""

    task: Task
    actions: tuple[str, ...] = ()


def restorable(game: HostGame, task: Task) -> HostGame:
    """The game itself where it is reversible; else the same game with states that can be stepped again.

    Their copies (`copy.deepcopy`) are stepped. Where these cannot be made or share what changes, or where the game
    seeds Python's or NumPy's global generator, which no copy holds, the task is begun anew and all actions repeated.
    Both are tried on a few steps of the expert first. The global generators are left as they were: what is imagined
    must not change what is drawn for the episode itself.

    Raises:
      ValueError: neither leads to the same outcomes twice.
    """
    if game.reversible:
        return game
    with global_generators_kept():
        before = generators()
        (start,) = game.reset([task])
        seeds = generators() != before
        course = _course(game, start)
    for way in (_repeated,) if seeds else (_copied, _repeated):
        made = way(game)
        with contextlib.suppress(Exception):  # whatever the state's class raises where it cannot be copied
            (start,) = made.reset([task])
            if all(_course(made, start) == course for _ in range(2)):
                return made
    raise ValueError(
        f"{game.name} cannot be imagined by its expert: neither a copy of a state (copy.deepcopy) nor its actions "
        "repeated from the task's beginning lead to the same outcomes twice. Let everything random follow from the "
        "task's seed, or give a language model with --model"
    )


def generators() -> tuple[Any, ...]:
    """Where Python's and NumPy's global generators are; values to compare."""
    name, keys, *rest = np.random.get_state()
    return random.getstate(), (name, tuple(keys), *rest)


@contextlib.contextmanager
def global_generators_kept() -> Iterator[None]:
    """Python's and NumPy's global generators are afterwards where they were."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _course(game: HostGame, start: Start) -> list[tuple]:
    """What the expert's first steps lead to."""
    course, now = [(start.goal, start.observation)], Outcome(start.state, start.observation)
    while len(course) <= _TRIED and not now.done:
        (now,) = game.step([now.state], [game.expert(now.state)])
        course.append(now[1:])
    return course


def _changed(game: HostGame, step: Callable, through: Callable[[Any], Any], **more: Any) -> HostGame:
    """The game with another `step`, and with `through` before each function of a state."""

    def of(function):
        def one(state):
            with global_generators_kept():
                return function(through(state))

        return one

    own = {name: of(getattr(game, name)) for name in _OF_STATES if getattr(game, name)}
    return dataclasses.replace(game, step=step, reversible=True, **own, **more)


def _copied(game: HostGame) -> HostGame:
    def reset(tasks: Sequence[Task]) -> list[Start]:
        with global_generators_kept():
            return game.reset(tasks)

    def step(states: Sequence[Any], actions: Sequence[str]) -> list[Outcome]:
        with global_generators_kept():
            return game.step([copy.deepcopy(state) for state in states], actions)

    return _changed(game, step, copy.deepcopy, reset=reset)


def _repeated(game: HostGame) -> HostGame:
    def reset(tasks: Sequence[Task]) -> list[Start]:
        with global_generators_kept():
            starts = game.reset(tasks)
        return [start._replace(state=Path(tuple(task))) for task, start in zip(tasks, starts, strict=True)]

    def live(path: Path) -> Any:
        (start,) = game.reset([path.task])
        state = start.state
        for action in path.actions:
            (outcome,) = game.step([state], [action])
            state = outcome.state
        return state

    def step_one(path: Path, action: str) -> Outcome:  # alone, so that no other episode draws in between
        with global_generators_kept():
            (outcome,) = game.step([live(path)], [action])
        return outcome._replace(state=path._replace(actions=(*path.actions, action)))

    step = lambda paths, actions: [step_one(*pair) for pair in zip(paths, actions, strict=True)]
    return _changed(game, step, live, reset=reset)
