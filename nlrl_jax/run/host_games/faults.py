"""Episodes that their game has broken off: each fault is told once, with what repeats it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from nlrl_jax.rollouts.host_games import Episode
from nlrl_jax.run import processes

_LONGEST = 4000  # characters of an episode's actions in a sentence


class FaultLog:
    """Called with episodes; prints each fault that it has not met before, numbers in it aside.

    Args:
      game: its name.
    """

    def __init__(self, game: str):
        self.game = game
        self._told: set[str] = set()

    def __call__(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            kind = _without_numbers(episode.error)
            if episode.error and kind not in self._told:
                self._told.add(kind)
                if processes.first():
                    print(f"warning: {told(self.game, episode)}", file=sys.stderr, flush=True)


def told(game: str, episode: Episode) -> str:
    """Describes an episode that broke off, and how it can be repeated."""
    actions = str([step.action for step in episode.history.steps])
    if len(actions) > _LONGEST:
        half = _LONGEST // 2
        actions = f"{actions[:half]} ... {actions[-half:]}"
    return (
        f"an episode of {game} broke off: {episode.error}. It counts nowhere but in broke_off; its task is "
        f"{tuple(episode.task[:2])}, its actions {actions}"
    )


def _without_numbers(error: str) -> str:
    return re.sub(r"\d+", "#", error)
