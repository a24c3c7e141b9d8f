"""BabyAI-Text as a game of the host: six missions in one game, for LAC and other planners."""

from __future__ import annotations

from envs.babyai import rules, solver
from envs.babyai.env import text_game
from envs.babyai.text import texts
from nlrl_jax.text.host import of_text_game
from nlrl_jax.types import HostGame


def host_game(max_steps: int = 30) -> HostGame:
    """BabyAI-Text (LAC, appendix C.1.2): the kinds of tasks are the missions, the horizon is the paper's.

    The goal is the mission alone and the observation its sentences. Tasks whose goal is out of reach after a mistake (a
    box that was opened) run until the horizon.
    """
    games = {mission: text_game(mission, max_steps=max_steps) for mission in rules.MISSIONS}
    return of_text_game(games, texts=texts, optimal=solver.distance, max_steps=max_steps)
