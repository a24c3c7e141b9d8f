"""Host games whose episodes are played in shares: each process of a run has the environments of its own groups.

    process 0:  group 0, group 1 |     every turn: observations, rewards, ends     | all processes know
    process 1:  group 2, group 3 | <---- exchanged (`multihost.every`, JSON) ----> | what all groups read

The model writes for all groups at once, in one program over the devices of all processes, from prompts that stand in
the same order as in one process. So what it writes is the same to the bit, and only the environments are divided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from nlrl_jax import multihost
from nlrl_jax.text import generators
from nlrl_jax.text.host import divided
from nlrl_jax.types import EpisodeFault, HostGame, Outcome, Start

Task = tuple[str, int]


class SharedState(NamedTuple):
    """owner: the process that plays the episode. state: the game's own there, None elsewhere."""

    owner: int
    state: Any


def shared(game: HostGame) -> HostGame:
    """The game as several processes play it together, each its share; all must call its functions alike. Alone, the
    game itself.

    It has what agents that only act need: no expert, no list of commands, no minimum number of steps.
    """
    if not multihost.several():
        return game
    me, processes = jax.process_index(), jax.process_count()

    def reset(tasks: Sequence[Task]) -> list[Start]:
        owners = divided(tasks, processes, together=game.reversible)
        own_tasks = [task for task, owner in zip(tasks, owners, strict=True) if owner == me]
        starts = game.reset(own_tasks) if own_tasks else []
        states = iter([start.state for start in starts])
        texts = _in_order([(start.goal, start.observation) for start in starts], owners)
        return [
            Start(SharedState(owner, next(states) if owner == me else None), *text)
            for owner, text in zip(owners, texts, strict=True)
        ]

    def step(states: Sequence[SharedState], actions: Sequence[str]) -> list[Outcome]:
        owners = [state.owner for state in states]
        local = [(state.state, action) for state, action in zip(states, actions, strict=True) if state.owner == me]
        outcomes = game.step([state for state, _ in local], [action for _, action in local]) if local else []
        after = iter([outcome.state for outcome in outcomes])
        facts = _in_order([_facts(outcome) for outcome in outcomes], owners)
        return [
            Outcome(SharedState(owner, next(after) if owner == me else None), *fact)
            for owner, fact in zip(owners, facts, strict=True)
        ]

    def at_owner(function: Callable[[Any], Any], state: SharedState) -> Any:
        value, fault = None, ""
        try:
            value = function(state.state) if state.owner == me else None
        except EpisodeFault as error:
            fault = str(error)
        value, fault = multihost.every([_plain(value), fault])[state.owner]
        if fault:  # in all processes alike
            raise EpisodeFault(fault)
        return value

    played = dataclasses.replace(game, reset=reset, step=step, optimal=None, expert=None, commands=None)
    return generators.of_states(played, at_owner, "board", "closing_reward")


def _in_order(local_values: Sequence[Any], owners: Sequence[int]) -> list[Any]:
    """One value (JSON) for each episode, from those that each process has for its own."""
    rows = [iter(values) for values in multihost.every(local_values)]
    return [next(rows[owner]) for owner in owners]


def _facts(outcome: Outcome) -> list[Any]:
    """The fields of an outcome without its state, as JSON."""
    flags = outcome.done, outcome.success, outcome.valid
    return [outcome.observation, float(outcome.reward), *map(bool, flags), outcome.error, bool(outcome.idle)]


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if hasattr(value, "item") else value
