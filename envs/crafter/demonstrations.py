"""Trajectories of Crafter that a model is fine-tuned on (LAC, appendices B.2 and C.3), in our own words.

Nobody unlocks everything in a few steps, so a success is an episode of `STEPS` steps that unlocks at least three
achievements, and a failure one that unlocks none or one. Both are the walker's that reads the text, who slips now and
then, or often. A step is GOOD if it shows something that counts or is what the walker wants, BAD if it is a slip that
brings nothing, and UNKNOWN where the walker only looks around.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from envs.crafter import host, reading, text
from envs.crafter.env import ACTIONS
from envs.crafter.walker import LOOKING, Walker
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT, History, Step
from nlrl_jax.types import HostGame

STEPS = 24
SLIPS = {True: 0.05, False: 0.6}  # share of a walker's actions that are random, in what is to be a success or a failure
_ENOUGH, _FEW = 3, 1
_TRAIN, _HELD_OUT = 1 << 28, 3 << 28  # seeds begin here, above those of tasks
_BATCH = 16


class Demonstration(NamedTuple):
    """history: with reflections. success: at least three achievements."""

    history: History
    success: bool


def demonstrations(successes: int, failures: int, seed: int, held_out: bool = False) -> list[Demonstration]:
    """Episodes with reflections, successes first; the same arguments give the same ones.

    Args:
      seed: another one gives other episodes.
      held_out: worlds of which none is in the other set, whatever the seeds.
    """
    game = host.host_game(STEPS)
    first = (_HELD_OUT if held_out else _TRAIN) + (seed << 16)
    streams = {success: _episodes(game, first, success) for success in SLIPS}
    return [next(streams[success]) for success in [True] * successes + [False] * failures]


def _episodes(game: HostGame, first: int, success: bool) -> Iterator[Demonstration]:
    for start in itertools.count(first, _BATCH):
        for history, unlocked in _play(game, range(start, start + _BATCH), SLIPS[success]):
            if unlocked >= _ENOUGH if success else unlocked <= _FEW:
                yield Demonstration(history, success)


def _play(game: HostGame, seeds: Sequence[int], slips: float) -> list[tuple[History, int]]:
    """One episode per seed: (history, achievements)."""
    starts = game.reset([("", seed) for seed in seeds])
    histories = [History(start.goal, start.observation) for start in starts]
    states, seen = [start.state for start in starts], [start.observation for start in starts]
    walkers, dice = [Walker(seed) for seed in seeds], [random.Random(seed) for seed in seeds]
    scores, running = [0.0] * len(seeds), list(range(len(seeds)))
    for _ in range(STEPS):
        wanted = {i: walkers[i].act(seen[i]) for i in running}
        actions = {i: dice[i].choice(ACTIONS) if dice[i].random() < slips else wanted[i] for i in running}
        outcomes = game.step([states[i] for i in running], [actions[i] for i in running])
        for i, outcome in zip(running, outcomes, strict=True):
            walkers[i].took(actions[i])
            note = _reflection(seen[i], outcome.observation, actions[i], wanted[i], walkers[i].reason)
            histories[i] = histories[i].then(Step(actions[i], outcome.observation, note))
            states[i], seen[i], scores[i] = outcome.state, outcome.observation, scores[i] + outcome.reward
        running = [i for i, outcome in zip(running, outcomes, strict=True) if not outcome.done]
    return [(history, round(score * 22)) for history, score in zip(histories, scores, strict=True)]


def _reflection(before: str, after: str, action: str, wanted: str, reason: str) -> str:
    """What the step did for the goal, e.g. "I need wood. This step is GOOD."."""
    if _achieved(reading.read(before), reading.read(after), action):
        return f"This has brought something. {VERDICT} {GOOD}."
    if action != wanted:
        return f"That was of no use: {reason}. {VERDICT} {BAD}."
    return f"{reason[0].upper()}{reason[1:]}. {VERDICT} {UNKNOWN if reason == LOOKING else GOOD}."


def _achieved(before: reading.View, after: reading.View, action: str) -> bool:
    """Whether a step shows something that counts: an item gained, something placed, food, drink."""
    gained = any(after[name] > before[name] for name in (*text.ITEM_NAMES, "food", "drink"))
    material = reading.MATERIAL.get(action, "")
    return gained or after[material] < before[material]
