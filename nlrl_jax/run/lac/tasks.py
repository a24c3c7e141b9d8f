"""The tasks of a run: so many of each kind, each once."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nlrl_jax.config import listed
from nlrl_jax.types import MOST_RUN_SEED, SEEDS_PER_RUN, HostGame, Start

Task = tuple[str, int]


def tasks_of(game: HostGame, kinds: Sequence[str], number: int, seed: int) -> list[Task]:
    """`number` tasks of each kind, or all that it has, kinds in turn, so that any part of the list has all of them.

    Raises:
      ValueError: a kind that the game does not have; a seed above `MOST_RUN_SEED`.
    """
    if seed > MOST_RUN_SEED:
        raise ValueError(
            f"--seed is {seed}; with tasks, of which each has a seed of its own ({SEEDS_PER_RUN} for each --seed), it "
            f"must be at most {MOST_RUN_SEED}"
        )
    for kind in kinds:
        if kind not in game.kinds:
            raise ValueError(f"{game.name} has no tasks {kind!r}; choose some of {', '.join(game.kinds)}")
    has = lambda kind, i: i < game.limits.get(kind, number)
    return [(kind, seed * SEEDS_PER_RUN + i) for i in range(number) for kind in kinds if has(kind, i)]


def kinds_of(game: HostGame, missions: str) -> list[str]:
    """The kinds of tasks of a run: those of --missions, or all."""
    return listed("--missions", missions) if missions else list(game.kinds)


def distinct(game: HostGame, tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that begin as an earlier one does, the unseen part of their states included: played again
    they would count twice in a mean and its error."""
    first: dict[Any, Task] = {}
    for task, start in zip(tasks, game.reset(tasks), strict=True):
        first.setdefault(_content(task, start), task)
    return list(first.values())


def _content(task: Task, start: Start) -> Any:
    """What makes a task the one it is; the task itself where its state cannot be written down."""
    try:
        return task[0], start.goal, start.observation, pickle.dumps(start.state)
    except Exception:  # of whatever kind the state's own class raises
        return task


def shortage(asked: int, kinds: Sequence[str], tasks: Sequence[Task]) -> str:
    """A sentence where there are fewer tasks of a kind than were asked for, else ""."""
    found = Counter(kind for kind, _ in tasks)
    short = [f"{found[kind]}{f' of {kind!r}' if kind else ''}" for kind in kinds if found[kind] < asked]
    only = f"--tasks is {asked}, but there are only {', '.join(short)} different ones; each is played once"
    return only if short else ""
