"""Crafter as a game of the host, for LAC and other planners (LAC, appendix A.12)."""

from __future__ import annotations

import dataclasses
import functools

import jax

from envs import recorded
from envs.crafter import expert, text
from envs.crafter.env import GOAL, RULES, EnvState, text_game
from nlrl_jax.text.host import of_text_game
from nlrl_jax.types import HostGame

MAX_STEPS = 2000  # as in BALROG, and so is the number of steps that a prompt shows
HISTORY = 16

_fields = jax.jit(jax.vmap(lambda state: text.fields(state.world)))


def texts(states: EnvState) -> list[tuple[str, str]]:
    """(goal, observation) of each state, leading axis [N], on the host."""
    values = {name: array.tolist() for name, array in jax.device_get(_fields(states)).items()}
    rows = ({name: column[i] for name, column in values.items()} for i in range(len(values["faced"])))
    return [(GOAL, text.OBSERVATION.render(row)) for row in rows]


@functools.lru_cache(maxsize=8)  # its step takes seconds to compile
def host_game(max_steps: int = MAX_STEPS) -> HostGame:
    """Crafter with BALROG's horizon; the sum of an episode's rewards is its achievements / 22, success is all of them.

    An action that is none of the 17 changes nothing, not even the time.
    """
    game = of_text_game(text_game(max_steps=max_steps), texts=texts, max_steps=max_steps)
    return dataclasses.replace(
        game,
        rules=RULES,
        examples=functools.partial(recorded.examples, "crafter"),
        score="achievements",
        history=HISTORY,
        expert=lambda state: expert.act(state[1].world),
    )
