"""Rule-based scripts for the roles of language GPI in a maze.

A script parses the texts of the prompt (`envs.maze.prompts` puts nothing else into the context): no layout, no true
distances, no search. The policy goes by the Manhattan distance; the value also reads walls that force a detour, dead
ends and places visited before.

- policy: takes a move that no wall blocks with probability proportional to exp(-distance after it / 0.5) and has no
  memory, so it walks back and forth where the distance misleads. Its temperature is set so that alone it is as good on
  double T as the paper's gpt-4o-mini: -27.9 expected over all starts, against -27.3. On medium it earns -18.7 (paper:
  -27.1, with a goal that it does not name). Greedy (0) it would earn -32.0 and -18.5, at 0.7 -22.7 and -18.8, and at
  its best (1.2) -18.6 and -18.7.
- value: the distance, plus 2 for a detour, 2 for a dead end and 1 for each earlier visit of the place in the text.
- q: the distance after the action by arithmetic, plus 1 for each earlier visit; the walls there are unknown to it.
- aggregator: averages the steps that the evaluations name, and adds the moves of the variation.
- improver: takes the action whose evaluation names the fewest steps; ties are broken at random.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nlrl_jax.envs.maze.env import ACTIONS, OFFSETS

TEMPERATURE = 0.5  # of the policy, in steps
DETOUR, DEAD_END, VISIT = 2, 2, 1  # steps that a reader adds to the distance

_OFFSET = {word: tuple(offset) for word, offset in zip(ACTIONS, OFFSETS.tolist(), strict=True)}
_SIDE = {"move up": "above you", "move down": "below you", "move left": "to your left", "move right": "to your right"}
_STEPS = re.compile(r"about (\d+(?:\.\d+)?) steps")


class Observation(NamedTuple):
    """The content of an observation's text. goal, position: (row, column), or None where the text has none."""

    goal: tuple[int, int] | None
    position: tuple[int, int] | None
    open: tuple[str, ...]

    @property
    def arrived(self) -> bool:
        return self.position is not None and self.position == self.goal

    def distance(self, action: str = "") -> int | None:
        """Counts rows plus columns to the goal, after an action if one is given; None where the text has neither."""
        if self.goal is None or self.position is None:
            return None
        row, column = self.after(action)
        return abs(self.goal[0] - row) + abs(self.goal[1] - column)

    def after(self, action: str) -> tuple[int, int]:
        """Returns the position that an action leads to: the same where a wall is."""
        down, right = _OFFSET[action] if action in self.open else (0, 0)
        return self.position[0] + down, self.position[1] + right


@functools.lru_cache(maxsize=4096)
def read_observation(text: str) -> Observation:
    """Reads an observation as `envs.maze` writes it."""
    goal = re.search(r"goal is at position (\d+), (\d+)", text)
    position = re.search(r"Your current position is at position (\d+), (\d+)", text)
    walls = text if position is None else text[position.end() :]
    free = tuple(action for action in ACTIONS if _SIDE[action] not in walls)
    return Observation(_cell_in(goal), _cell_in(position), free)


def _cell_in(match: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(match[1]), int(match[2])) if match else None


def policy(context: Mapping[str, Any], rng: random.Random) -> str:
    """Answers for pi_L by the last observation alone."""
    now = read_observation(context["observations"][-1])
    choices = now.open or ACTIONS
    if now.distance() is None:
        action, thoughts = rng.choice(choices), "The goal cannot be seen, so any way that is open will do."
    else:
        weights = [math.exp(-now.distance(word) / TEMPERATURE) for word in choices]
        action = rng.choices(choices, weights)[0]
        distances = ", ".join(f"{word} to {now.distance(word)}" for word in choices)
        thoughts = f"The goal is {now.distance()} steps away if no wall were in between. Open are: {distances}."
    return json.dumps({"thoughts": thoughts, "action": action})


def value(context: Mapping[str, Any], rng: random.Random) -> str:
    """Answers for V^L by the last position and the moves that led to it."""
    *past, now = map(read_observation, context["observations"])
    if now.arrived:
        return _evaluation("The agent stands on the goal.", 0)
    if now.distance() is None:
        return _unclear(now)
    thoughts = [f"The goal {_cell(now.goal)} is {now.distance()} rows and columns away from {_cell(now.position)}."]
    steps = now.distance()
    if not any(now.distance(word) < steps for word in now.open):
        thoughts.append(f"Walls block every direct way; a detour costs {DETOUR} more.")
        steps += DETOUR
    if len(now.open) == 1:
        thoughts.append(f"It is a dead end, open to one side only: {DEAD_END} more.")
        steps += DEAD_END
    visits = _visits(past, now.position)
    if visits:
        thoughts.append(f"The moves so far lead back here, visits before this one: {visits}, so {VISIT * visits} more.")
        steps += VISIT * visits
    return _evaluation(" ".join(thoughts), steps)


def q(context: Mapping[str, Any], rng: random.Random) -> str:
    """Answers for Q^L(s, a) without look-ahead: where the action leads by arithmetic."""
    *past, now = map(read_observation, context["observations"])
    action = context["action"]
    if now.distance() is None:
        return _unclear(now)
    there, steps = now.after(action), now.distance(action)
    if action in now.open:
        thoughts = f"To {action} leads from {_cell(now.position)} to {_cell(there)}, {steps} rows and columns away."
    else:
        thoughts = f"A wall blocks the way: to {action} changes nothing, and the goal stays {steps} away."
    visits = _visits([*past, now], there)
    if visits and steps:
        thoughts += f" Visits there before: {visits}."
    return _evaluation(thoughts, 1 + steps + (VISIT * visits if steps else 0))


def aggregator(context: Mapping[str, Any], rng: random.Random) -> str:
    """Answers for G2 and G1: the mean over the variations of the moves made and the steps that the evaluation names."""
    totals, thoughts = [], []
    for i, (variation, evaluation) in enumerate(zip(context["descriptions"], context["evaluations"], strict=True), 1):
        moves, remaining = variation.split(" Reward:")[0].count("move "), _named_steps(evaluation)
        if remaining is None:
            thoughts.append(f"Variation {i} is not evaluated in steps.")
            continue
        totals.append(moves + remaining)
        thoughts.append(f"Variation {i} makes {moves} moves and leaves about {remaining:g} steps.")
    if not totals:
        final = f"It cannot be told how good it is to {context['action']}."
        return json.dumps({"thoughts": " ".join(thoughts), "final_evaluation": final})
    mean = sum(totals) / len(totals)
    thoughts.append(f"That is {mean:.2f} in the mean of {len(totals)} and {min(totals):g} at best.")
    return _evaluation(" ".join(thoughts), mean, f"To {context['action']}: ")


def improver(context: Mapping[str, Any], rng: random.Random) -> str:
    """Answers for I: the fewest steps by the evaluations."""
    named = {word: _named_steps(text) for word, text in context["evaluations"].items()}
    steps_by_action = {word: steps for word, steps in named.items() if steps is not None}
    if not steps_by_action:
        thoughts = "No evaluation names a number of steps, so all actions look alike."
        return json.dumps({"thoughts": thoughts, "action": rng.choice(list(named))})
    fewest = min(steps_by_action.values())
    action = rng.choice([word for word, steps in steps_by_action.items() if steps == fewest])
    ranking = sorted(steps_by_action.items(), key=lambda item: item[1])
    listed = ", ".join(f"{word} about {steps:g}" for word, steps in ranking)
    thoughts = f"Steps to the goal by the evaluations: {listed}. The fewest follow after {action}."
    return json.dumps({"thoughts": thoughts, "action": action})


SCRIPTS = {"policy": policy, "value": value, "q": q, "aggregator": aggregator, "improver": improver}


def _visits(past: list[Observation], there: tuple[int, int]) -> int:
    """Counts the earlier visits of a place; a step that a wall stopped counts too."""
    return [earlier.position for earlier in past].count(there)


def _named_steps(evaluation: str) -> float | None:
    """Reads the number of steps in a final evaluation's sentence."""
    match = _STEPS.search(evaluation.rpartition("final_evaluation")[2])
    return float(match[1]) if match else None


def _evaluation(thoughts: str, steps: float, subject: str = "") -> str:
    judgement = "the goal is reached" if not steps else "good" if steps <= 4 else "fair" if steps <= 8 else "poor"
    final = f"{subject}{judgement}, about {steps:.2f} steps to go."
    return json.dumps({"thoughts": thoughts, "final_evaluation": final[0].upper() + final[1:]})


def _unclear(now: Observation) -> str:
    ways = len(now.open)
    final = "A dead end, poor." if ways == 1 else f"Open to {ways} sides; how far the goal is cannot be told."
    return json.dumps({"thoughts": "Neither goal nor position is shown, only walls.", "final_evaluation": final})


def _cell(cell: tuple[int, int]) -> str:
    return f"({cell[0]}, {cell[1]})"
