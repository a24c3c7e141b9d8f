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
from envs.crafter.walker import LOOKING, SAPLING, Walker
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT, History, Step
from nlrl_jax.types import HostGame

STEPS = 24
SLIPS = {True: 0.05, False: 0.6}  # share of a walker's actions that are random, in what is to be a success or a failure
_ENOUGH, _FEW = 3, 1
_TRAIN, _HELD_OUT = 1 << 28, 3 << 28  # seeds begin here, above those of tasks
_BATCH = 16


class Demonstration(NamedTuple):
    """history: with reflections. success: at least three achievements. seed: of the world. thoughts, values: notes of
    these kinds after each observation, the first included."""

    history: History
    success: bool
    seed: int
    thoughts: list[str]
    values: list[str]


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
        seeds = range(start, start + _BATCH)
        for seed, (history, unlocked, *notes) in zip(seeds, _play(game, seeds, SLIPS[success]), strict=True):
            if unlocked >= _ENOUGH if success else unlocked <= _FEW:
                yield Demonstration(history, success, seed, *notes)


def _play(game: HostGame, seeds: Sequence[int], slips: float) -> list[tuple[History, int, list[str], list[str]]]:
    """One episode per seed: (history, achievements, thoughts, values)."""
    starts = game.reset([("", seed) for seed in seeds])
    histories = [History(start.goal, start.observation) for start in starts]
    states, seen = [start.state for start in starts], [start.observation for start in starts]
    walkers, dice = [Walker(seed) for seed in seeds], [random.Random(seed) for seed in seeds]
    scores, running = [0.0] * len(seeds), list(range(len(seeds)))
    value = lambda i: f"The value is {scores[i] * 22:.0f}/22."
    thoughts: list[list[str]] = [[] for _ in seeds]
    values = [[value(i)] for i in running]
    for _ in range(STEPS):
        wanted = {i: walkers[i].act(seen[i]) for i in running}
        actions = {i: dice[i].choice(ACTIONS) if dice[i].random() < slips else wanted[i] for i in running}
        for i in running:
            link = ", so my next action is" if actions[i] == wanted[i] else ", but I will try"
            thoughts[i].append(f'I am {walkers[i].reason}{link} "{actions[i]}".')
        outcomes = game.step([states[i] for i in running], [actions[i] for i in running])
        for i, outcome in zip(running, outcomes, strict=True):
            walkers[i].took(actions[i])
            note = _reflection(seen[i], outcome.observation, actions[i], wanted[i], walkers[i].reason)
            histories[i] = histories[i].then(Step(actions[i], outcome.observation, note))
            states[i], seen[i], scores[i] = outcome.state, outcome.observation, scores[i] + outcome.reward
            values[i].append(value(i))
        running = [i for i, outcome in zip(running, outcomes, strict=True) if not outcome.done]
    for i in range(len(seeds)):
        after = walkers[i].act(seen[i]) if i in running else ""
        thoughts[i].append(f'I am {walkers[i].reason}, so my next action is "{after}".' if after else "I am dead.")
    return [(histories[i], round(scores[i] * 22), thoughts[i], values[i]) for i in range(len(seeds))]


def _reflection(before: str, after: str, action: str, wanted: str, reason: str) -> str:
    """What the step did for the goal, e.g. "I need wood. This step is GOOD."."""
    if achieved := _achieved(reading.read(before), reading.read(after), action):
        return f"{achieved} {VERDICT} {GOOD}."
    if action != wanted:
        return f"That did not help: I should be {reason}. {VERDICT} {BAD}."
    return f"I am {reason}. {VERDICT} {UNKNOWN if reason in (LOOKING, SAPLING) else GOOD}."


def _achieved(before: reading.View, after: reading.View, action: str) -> str:
    """What a step has brought, in a sentence: an item gained, something placed, food, drink; "" for nothing."""
    material = reading.MATERIAL.get(action, "")
    if after[material] < before[material]:
        return "I planted the sapling." if material == "sapling" else f"I placed a {action.removeprefix('place ')}."
    gained = [name for name in (*text.ITEM_NAMES, "food", "drink") if after[name] > before[name]]
    if not gained:
        return ""
    if gained[0] in ("food", "drink"):
        return {"food": "I ate something.", "drink": "I drank."}[gained[0]]
    if action.startswith("make "):
        return f"I made {'an' if gained[0][0] == 'i' else 'a'} {gained[0]}."
    return f"I now have {after[gained[0]]} {gained[0]}."
