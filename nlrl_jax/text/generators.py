"""Python's and NumPy's global generators, which some environments seed and draw from: one of each for every episode."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nlrl_jax.types import HostGame, Outcome, Start

OF_STATES = (
    "board",
    "optimal",
    "expert",
    "commands",
    "closing_reward",
)  # functions of a `HostGame` that take one state


class Generators(NamedTuple):
    """Where the global generators are. python holds 2.5 kB; the tuple of `random.getstate` takes ten times that."""

    python: random.Random
    numpy: tuple

    @classmethod
    def now(cls) -> Generators:
        python = random.Random()
        python.setstate(random.getstate())
        return cls(python, np.random.get_state())

    def restore(self) -> None:
        random.setstate(self.python.getstate())
        np.random.set_state(self.numpy)

    def equal(self, generators: Generators) -> bool:
        same = self.numpy[2:] == generators.numpy[2:] and np.array_equal(self.numpy[1], generators.numpy[1])
        return same and self.python.getstate() == generators.python.getstate()


class Drawn(NamedTuple):
    """A state of a game, and the global generators as its episode has left them.

    is_fresh: nothing has been drawn from them since the task seeded them.
    """

    state: Any
    generators: Generators
    is_fresh: bool = False


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restores the global generators afterwards."""
    before = Generators.now()
    try:
        yield
    finally:
        before.restore()


def are_used(call: Callable[[], Any]) -> bool:
    """Whether a call seeds the global generators or draws from them, which is undone."""
    with preserved():
        before = Generators.now()
        call()
        return not Generators.now().equal(before)


def apart(game: HostGame) -> HostGame:
    """Gives each episode global generators of its own, seeded by the task; games are stepped one by one.

    So an episode draws the same whatever is played beside it, and nothing else's draws change.
    """

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        starts = []
        for task in tasks:
            with preserved():
                seed = zlib.crc32(repr(task).encode())
                random.seed(seed), np.random.seed(seed)
                seeded = Generators.now()
                (start,) = game.reset([task])
                after = Generators.now()
                starts.append(start._replace(state=Drawn(start.state, after, after.equal(seeded))))
        return starts

    def step(states: Sequence[Drawn], actions: Sequence[str]) -> list[Outcome]:
        outcomes = []
        for drawn, action in zip(states, actions, strict=True):
            with preserved():
                drawn.generators.restore()
                (outcome,) = game.step([drawn.state], [action])
                outcomes.append(outcome._replace(state=Drawn(outcome.state, Generators.now())))
        return outcomes

    return of_states(dataclasses.replace(game, reset=reset, step=step), _drawn)


def of_states(game: HostGame, through: Callable[[Callable, Any], Any], *names: str) -> HostGame:
    """Replaces each of the game's functions of one state by `through(function, state)`."""
    functions = {name: getattr(game, name) for name in names or OF_STATES}
    bound = {name: functools.partial(through, function) for name, function in functions.items() if function}
    return dataclasses.replace(game, **bound)


def content(state: Any) -> Any:
    """What makes a state the one it is, to be compared by value.

    A live environment is compared without what its episode is told of it. Global generators from which it has drawn
    nothing count where its code could: where a module of its class mentions `random`.
    """
    drawn, state = (state, state.state) if isinstance(state, Drawn) else (None, state)
    env = getattr(state, "env", state)
    ignores_chance = drawn is None or drawn.is_fresh and not _mentions_random(type(env))
    return env, None if ignores_chance else drawn.generators


@functools.cache
def _mentions_random(kind: type) -> bool:
    """Whether the source of a class, or of one that it is made from, mentions `random`; True where it is not known."""
    modules = {sys.modules.get(base.__module__) for base in kind.__mro__ if base is not object}
    try:
        return any("random" in inspect.getsource(module) for module in modules)
    except (OSError, TypeError):
        return True


def _drawn(function: Callable, state: Drawn) -> Any:
    with preserved():
        state.generators.restore()
        return function(state.state)
