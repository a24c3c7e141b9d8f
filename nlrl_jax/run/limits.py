"""Limits on episodes: those of the options beside the game's own, and beside what its tasks need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from absl import flags

from nlrl_jax.rollouts import text_games
from nlrl_jax.types import ControlGame, HostGame, TextGame

_SAMPLED = 32  # tasks whose shortest solutions are looked at


def check_horizon(game: TextGame | ControlGame | HostGame, *names: str) -> None:
    """Refuses options on the command line that count steps beyond those after which the game ends an episode.

    Raises:
      ValueError: names the first of them, with both numbers.
    """
    present = [name for name in names if name in flags.FLAGS and flags.FLAGS[name].present]
    for sentence in capped(game, **{name: flags.FLAGS[name].value or 0 for name in present}):
        raise ValueError(f"{sentence}; give at most {game.max_steps}")


def capped(game: TextGame | ControlGame | HostGame, **options: int) -> list[str]:
    """A sentence for each option that counts steps beyond those after which the game ends an episode."""
    horizon = game.max_steps
    beyond = [(name, number) for name, number in options.items() if horizon and number > horizon]
    return [f"--{name} is {number}, but {game.name} ends an episode after {horizon} steps" for name, number in beyond]


def too_short(
    episodes: str, game: TextGame | HostGame, states: Iterable[Any], turns: str, max_turns: int, max_steps: int = 0
) -> list[str]:
    """A sentence where tasks cannot be solved within an episode's limits, else nothing.

    Args:
      episodes: in words. states: where their tasks begin, on the host.
      turns: the option that limits replies, such as max_turns; the one for steps has the same name with "steps".
      max_steps: 0 where a reply is one step.
    """
    if game.optimal is None:
        return []
    each = getattr(game, "max_actions_per_turn", 1)
    limits = [(max_turns * each, f"--{turns} {max_turns}{f' of {each} actions' if each > 1 else ''}")]
    limits += [(max_steps, f"--{turns.replace('turns', 'steps')} {max_steps}")] if max_steps else []
    limits += [(game.max_steps, "the game's own limit")] if game.max_steps else []
    steps, limit = min(limits)
    needed = [n for n in map(game.optimal, states) if n is not None and n >= 0]
    beyond = [n for n in needed if n > steps]
    if not beyond:
        return []
    ending = f"an episode ends after {steps} step{'s' * (steps != 1)} ({limit})"
    solutions = f"{min(beyond)}" if min(beyond) == max(beyond) else f"{min(beyond)} to {max(beyond)}"
    return [
        f"{len(beyond)} of the {len(needed)} tasks of {episodes} that were looked at cannot be solved: {ending}, and "
        f"their shortest solutions take {solutions}"
    ]


def first_states(game: TextGame, seed: int, number: int = _SAMPLED) -> list[Any]:
    """The first of the initial states that a seed draws for so many episodes, on the host."""
    if game.optimal is None:
        return []
    states = jax.device_get(jax.jit(lambda key: text_games.reset(game, key, number))(jax.random.key(seed)))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(min(number, _SAMPLED))]


def first_tasks(game: HostGame, tasks: Iterable[tuple[str, int]]) -> list[Any]:
    """Where the first of these tasks begin."""
    return [start.state for start in game.reset(list(tasks)[:_SAMPLED])] if game.optimal else []
