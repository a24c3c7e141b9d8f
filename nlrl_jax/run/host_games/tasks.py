"""The tasks of a run: so many of each kind, each once, and those that training never shows.

What makes a start the one it is, is what a player or onlooker sees of it, its `Look`, not its seed. Tasks that look
alike are the same if they answer the same actions alike; what differs then is hidden in them, or chance.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nlrl_jax.config import listed
from nlrl_jax.text import generators
from nlrl_jax.types import MOST_RUN_SEED, SEEDS_PER_RUN, HostGame, Start

Task = tuple[str, int]
Look = tuple[str, str, str, str]  # kind, goal, first observation, board
RESERVED = 5_000  # tasks of each kind and seed that are evaluated on, by any script; those trained on come after them
_AT_ONCE = 16  # a game on the device steps as many rows as once began
_TRIED, _STEPS = 2, 20  # sequences of actions by which tasks that look alike are compared, and their length
_COUNTED = 200  # tasks among which starts are counted
_LEAST = 4  # starts of which one is held out
_NEXT = 4  # further tasks of each kind that show whether the game has other starts


class HeldOut(NamedTuple):
    """What is evaluated on.

    tasks: each once. looks: how they begin, as no task of training does; empty where tasks differ in chance alone.
    note: a sentence of a game with few starts, else "".
    """

    tasks: list[Task]
    looks: frozenset[Look]
    note: str


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
    return [
        (kind, seed * SEEDS_PER_RUN + i)
        for i in range(number)
        for kind in kinds
        if i < game.limits.get(kind, number)  # so many tasks of this kind there are
    ]


def kinds_of(game: HostGame, missions: str) -> list[str]:
    """The kinds of tasks of a run: those of --missions, or all."""
    return listed("--missions", missions) if missions else list(game.kinds)


def looks_of(game: HostGame, tasks: Sequence[Task]) -> list[Look]:
    """How each task begins."""
    game = game.simulator or game
    board, looks = game.board or (lambda state: ""), []
    for first in range(0, len(tasks), _AT_ONCE):
        batch = tasks[first : first + _AT_ONCE]
        # Only looks are kept: a state may be a session on a server that allows so many.
        looks += [
            (kind, start.goal, start.observation, board(start.state))
            for (kind, _), start in zip(batch, game.reset(batch), strict=True)
        ]
    return looks


def distinct(game: HostGame, tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that are the same as an earlier one: played again they would count twice in a mean and
    its error. In a game of chance tasks with equal starts differ."""
    alike: dict[Look, list[Task]] = {}
    for task, look in zip(tasks, looks_of(game, tasks), strict=True):
        alike.setdefault(look, []).append(task)
    first = {task for group in alike.values() for task in (_different(game, group) if len(group) > 1 else group)}
    return [task for task in tasks if task in first]


def _different(game: HostGame, tasks: Sequence[Task]) -> list[Task]:
    """Of tasks that look alike, the first of each that answers otherwise."""
    first: dict[Any, Task] = {}
    for task, answers in zip(tasks, _answers(game.simulator or game, tasks), strict=True):
        first.setdefault(answers, task)
    return list(first.values())


def _answers(game: HostGame, tasks: Sequence[Task]) -> list[Any]:
    """What each task answers to the same random actions. Where any text is one: its state, or, where that cannot be
    written down, the task itself."""
    if not game.actions:
        return [_content(task, start) for task, start in zip(tasks, game.reset(tasks), strict=True)]
    rng, answers = random.Random(0), [[] for _ in tasks]
    for _ in range(_TRIED):
        states, live = [start.state for start in game.reset(tasks)], list(range(len(tasks)))
        for _ in range(min(_STEPS, game.max_steps)):
            if not live:
                break
            outcomes = game.step([states[i] for i in live], [rng.choice(game.actions)] * len(live))
            for i, outcome in zip(live, outcomes, strict=True):
                states[i] = outcome.state
                answers[i].append((outcome.observation, outcome.reward, outcome.done, outcome.success))
            live = [i for i, outcome in zip(live, outcomes, strict=True) if not outcome.done]
    return [tuple(row) for row in answers]


def _content(task: Task, start: Start) -> Any:
    try:
        return pickle.dumps(generators.content(start.state))
    except Exception:  # of whatever kind the state's own class raises
        return task


def hold_out(game: HostGame, kinds: Sequence[str], number: int, seed: int) -> HeldOut:
    """The first `number` tasks of a seed, kinds in turn, and how they begin.

    Of a game with few starts a quarter is held out; a game of chance whose few starts training has to show is
    evaluated on them, with other seeds.
    """
    tasks = tasks_of(game, kinds, -(-number // len(kinds)) + _NEXT, seed)
    tasks, later = tasks[:number], tasks[number:]
    looks = dict(zip(tasks, looks_of(game, tasks), strict=True))
    distinct_looks = dict.fromkeys(looks.values())
    # 1. All tasks begin differently, and some of the next ones in further ways: there are starts enough.
    if len(distinct_looks) == len(tasks):
        if not later or set(looks_of(game, later[: _NEXT * len(kinds)])) - distinct_looks.keys():
            return HeldOut(tasks, frozenset(distinct_looks), "")
    # 2. Few starts beside all that a larger sample shows: training has others.
    sample = max(_COUNTED, 4 * number)
    all_looks = distinct_looks.keys() | set(looks_of(game, tasks_of(game, kinds, -(-sample // len(kinds)), seed)))
    different = distinct(game, tasks)
    if _LEAST * len(distinct_looks) <= len(all_looks):
        return HeldOut(different, frozenset(distinct_looks), "")
    starts = "1 start" if len(all_looks) == 1 else f"{len(all_looks)} different starts"
    summary = f"{game.name} has {starts} among {sample} tasks"
    # 3. A game of chance, or of too few starts to hold one out.
    if len(different) > len(distinct_looks) or len(all_looks) < _LEAST:
        unlike = "in what is hidden or left to chance" if len(different) > len(distinct_looks) else "in nothing"
        return HeldOut(different, frozenset(), f"{summary}: training shows all, and held-out tasks differ {unlike}")
    # 4. A quarter of the starts.
    held_out = frozenset(list(distinct_looks)[: len(all_looks) // _LEAST])
    note = f"{summary}: {len(held_out)} are held out, and the other {len(all_looks) - len(held_out)} are trained on"
    return HeldOut([task for task in different if looks[task] in held_out], held_out, note)


def not_held_out(game: HostGame, tasks: Iterable[Task], number: int, looks: frozenset[Look]) -> list[Task]:
    """The first `number` of these tasks, or fewer, that begin as no held-out one does."""
    tasks, chosen = list(tasks), []
    while len(chosen) < number and tasks:
        batch, tasks = tasks[: number - len(chosen)], tasks[number - len(chosen) :]
        chosen += [task for task, look in zip(batch, looks_of(game, batch), strict=True) if look not in looks]
    return chosen


def shortage(number: int, kinds: Sequence[str], tasks: Sequence[Task]) -> str:
    """A sentence where there are fewer than `number` tasks of a kind, else ""."""
    counts = Counter(kind for kind, _ in tasks)
    short = [f"{counts[kind]}{f' of {kind!r}' if kind else ''}" for kind in kinds if counts[kind] < number]
    there = "is only 1 different one" if short == ["1"] else f"are only {', '.join(short)} different ones"
    return f"--tasks is {number}, but there {there}; each is played once" if short else ""
