"""Episodes of a game of the host that show its lines: by its expert in a share of them, by chance in the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.run.host_games.tasks import Task
from nlrl_jax.run.ms_grpo.transcripts import Tasks
from nlrl_jax.types import HostGame

EPISODES, STEPS = 256, 30  # at most, and of each at most


def check_walkers(game: HostGame, skilled_share: float) -> None:
    """Raises ValueError: there is nobody to show the actions of a game, or no expert for a share of the episodes."""
    if skilled_share and not game.expert:
        raise ValueError(f"--skilled_share is {skilled_share}, but {game.name} has no expert; leave it out")
    if skilled_share < 1 and not (game.actions or game.commands):
        reason = f"{game.name} has neither a list of actions nor `commands`, so that none can be drawn by chance"
        raise ValueError(reason + ("; give --skilled_share 1" if game.expert else ", and no expert to show some"))


def walk(game: HostGame, number: int, skilled_share: float, seed: int) -> list[History]:
    """Episodes on tasks that a run of this seed may train on. The first of them are the expert's.

    Raises:
      ValueError: see `check_walkers`.
    """
    check_walkers(game, skilled_share)
    rng = np.random.default_rng(seed)
    tasks = Tasks.of(game, game, "", 1, seed).draw(number, rng)
    skilled = int(np.ceil(skilled_share * number))
    return _walked(game, tasks, [i < skilled for i in range(number)], rng)


def _walked(game: HostGame, tasks: Sequence[Task], skilled: Sequence[bool], rng: np.random.Generator) -> list[History]:
    starts = game.reset(tasks)
    states, histories = [start.state for start in starts], [History.begin(*pair) for pair in zip(starts, tasks)]
    going = list(range(len(tasks)))
    for _ in range(min(game.max_steps, STEPS)):
        if not going:
            break
        actions = []
        for i in going:
            choices = () if skilled[i] else game.actions or game.commands(states[i])
            actions.append(str(rng.choice(choices)) if choices else game.expert(states[i]) if game.expert else "look")
        outcomes = game.step([states[i] for i in going], actions)
        for i, action, outcome in zip(going, actions, outcomes, strict=True):
            states[i], histories[i] = outcome.state, histories[i].then(Step(action, outcome.observation))
        going = [i for i, outcome in zip(going, outcomes, strict=True) if not outcome.done]
    return histories
