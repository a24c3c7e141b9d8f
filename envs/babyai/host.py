"""BabyAI-Text as a game of the host: six missions in one game, for LAC and other planners."""

from __future__ import annotations

import dataclasses

import numpy as np

from nlrl_jax.envs.babyai import levels, rules, solver
from nlrl_jax.envs.babyai.env import text_game
from nlrl_jax.envs.babyai.text import texts
from nlrl_jax.envs.babyai.transcripts import EXPERT, walk
from nlrl_jax.roles.dialogues import History
from nlrl_jax.text.host import of_text_game
from nlrl_jax.types import HostGame

RULES = (
    "You walk through rooms of square cells and see the cells in front of you, described in steps to your left or "
    "right and steps forward. Walls and closed doors block your view.\n"
    "Actions: turn left, turn right, go forward, pick up, drop, toggle. Pick up, drop and toggle (which opens doors) "
    "act on the cell directly in front of you. You can carry one thing at a time. A locked door opens with the key of "
    "its colour. You have gone to a thing when you face it from the cell next to it: it is then 1 step forward."
)
_EXAMPLES = 1 << 30  # seeds of examples, which no task has


def examples(label: str, number: int) -> list[History]:
    """Makes successful episodes by a walker without mistakes, one mission after the other, with notes of this kind."""
    kind = "" if label == "Value" else label
    histories = []
    for i in range(number):
        mission = rules.MISSIONS[i % len(rules.MISSIONS)]
        (episode,) = walk(mission, [_EXAMPLES + i], [EXPERT], [kind], [30])
        histories.append(episode.history)
    return histories


def draw(seeds: np.ndarray, missions: np.ndarray) -> rules.BabyAIState:
    """Draws tasks of missions, int32 [N], from seeds, uint32 [N].

    Missions with the same seed share no layout, so that tasks are independent.
    """
    return levels.draw_many(seeds, missions, np.ones(len(seeds), bool))


def move(state: rules.BabyAIState) -> str:
    """Returns the first action of a shortest plan over the true state; "turn left" where there is no plan."""
    actions = solver.plan(state)
    return rules.ACTIONS[actions[0] if actions else rules.TURN_LEFT]


def host_game(max_steps: int = 30) -> HostGame:
    """Makes BabyAI-Text as a host game (LAC, appendix C.1.2).

    The kinds of tasks are the missions; the horizon is the paper's.

    The goal is the mission alone and the observation its sentences. Tasks whose goal is out of reach after a mistake (a
    box that was opened) run until the horizon.
    """
    game = of_text_game(
        text_game("all", max_steps=max_steps),
        texts=texts,
        max_steps=max_steps,
        kinds=rules.MISSIONS,
        draw=draw,
    )
    return dataclasses.replace(game, rules=RULES, examples=examples, expert=lambda state: move(state[1]))
