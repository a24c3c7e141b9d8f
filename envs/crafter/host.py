"""Crafter as a game of the host, for LAC and other planners (LAC, appendix A.12)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from nlrl_jax.envs import recorded
from nlrl_jax.envs.crafter import expert
from nlrl_jax.envs.crafter.env import GOAL, RULES, text_game
from nlrl_jax.text.host import counted, of_text_game
from nlrl_jax.types import HostGame, Start

MAX_STEPS = 2000  # as in BALROG, and so is the number of steps that a prompt shows
HISTORY = 16
_WORLDS = 8  # made at once: XLA's CPU compiler (jax 0.10.2) gives the rows of a larger batch after the 8th other noise


@functools.lru_cache(maxsize=8)  # its step takes seconds to compile
def host_game(max_steps: int = MAX_STEPS) -> HostGame:
    """Makes Crafter with BALROG's horizon.

    An episode's rewards sum to its achievements / 22; success is all of them.

    An action that is none of the 17 takes a step and changes nothing else. A task has the same world in every batch.
    """
    game = of_text_game(text_game(max_steps=max_steps))

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        tasks = counted(tasks)  # before they are parted
        batches = [tasks[i : i + _WORLDS] for i in range(0, len(tasks), _WORLDS)]
        return [start._replace(goal=GOAL) for batch in batches for start in game.reset(batch)]

    return dataclasses.replace(
        game,
        reset=reset,
        rules=RULES,
        examples=functools.partial(recorded.examples, "crafter"),
        score="achievements",
        history=HISTORY,
        expert=lambda state: expert.act(state[1].world),
    )
