"""A host game made of live environments: one object for each episode, which its steps change."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from nlrl_jax.envs import user_host_game
from nlrl_jax.text import generators
from nlrl_jax.types import HostGame, Outcome, Start

STOPPED = "The environment has stopped."  # the last observation of an episode that a fault ends
_THREADS = 32  # requests to servers at a time


class Beginning(NamedTuple):
    """How an episode of an environment begins: goal and observation in words. The goal stays in every prompt."""

    env: Any
    goal: str
    observation: str


@dataclasses.dataclass
class LiveEpisode:
    """The state of an episode.

    Attributes:
      env: the environment, which steps change; None where it could not begin.
      earned: the sum of its rewards. steps: actions so far.
      fault: why it could not begin, else "".
    """

    env: Any
    earned: float = 0.0
    steps: int = 0
    fault: str = ""


def host_game(
    name: str,
    new_episode: Callable[[str, int], Beginning],
    move: Callable[[LiveEpisode, str], Outcome],
    on_a_server: bool = False,
    **fields,
) -> HostGame:
    """Makes a host game of an environment's functions, and tries it on a few steps.

    Each episode has Python's and NumPy's global generators to itself, as many environments draw from them. Episodes of
    one task must begin alike. A fault of the environment costs its episode and not the run.

    Args:
      new_episode: (kind, seed) -> a new environment at the beginning of this task.
      move: (episode, action) -> its outcome; the outcome's state is filled in here.
      on_a_server: the environments are elsewhere, so that episodes begin and step at the same time.
      **fields: of `HostGame`.

    Raises:
      ValueError: what is wrong with the environment.
    """

    def start(task: tuple[str, int]) -> Start:
        try:
            env, goal, observation = new_episode(*task)
        except Exception as error:  # whatever another package's code raises
            return Start(LiveEpisode(None, fault=described(error)), "", STOPPED)
        return Start(LiveEpisode(env), _text(goal), _text(observation))

    def advance(episode: LiveEpisode, action: str) -> Outcome:
        if episode.fault:
            return Outcome(episode, STOPPED, done=True, valid=False, error=episode.fault)
        try:
            outcome = move(episode, action)
            reward = float(outcome.reward or 0)
            if not math.isfinite(reward):
                raise ValueError(f"the environment paid the reward {reward}")
        except Exception as error:
            return Outcome(episode, STOPPED, done=True, valid=False, error=described(error))
        episode.earned, episode.steps = episode.earned + reward, episode.steps + 1
        return outcome._replace(state=episode, observation=_text(outcome.observation), reward=reward)

    each = _at_once if on_a_server else map

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        return list(each(start, tasks))

    def step(episodes: Sequence[LiveEpisode], actions: Sequence[str]) -> list[Outcome]:
        return list(each(advance, episodes, actions))

    game = HostGame(name=name, kinds=("",), reset=reset, step=step, **fields)
    game = game if on_a_server else generators.apart(game)

    game = dataclasses.replace(game, reset=_beginning_alike(game))
    _try(game)
    return user_host_game.checked(game, contextlib.nullcontext)


def described(error: BaseException) -> str:
    """Describes an error of another package's code in one line."""
    text = " ".join(str(error).split())
    sentence = isinstance(error, ValueError | ConnectionError | TimeoutError) and text
    return text if sentence else f"{type(error).__name__}: {text}"


def _try(game: HostGame) -> None:
    """Begins a task twice and takes a step that is no action. Raises ValueError for a fault of the environment."""
    starts = game.reset([("", 0)] * 2)
    for start in starts:
        (outcome,) = game.step([start.state], [user_host_game.NOTHING])
        if outcome.error:
            began = start.observation != STOPPED
            cause = f"its first step, with {user_host_game.NOTHING!r}, fails: " if began else ""
            raise ValueError(f"{cause}{outcome.error}")


def _beginning_alike(game: HostGame) -> Callable[[Sequence[tuple[str, int]]], list[Start]]:
    """Refuses episodes of one task that begin differently: a group of them could not be compared."""

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        starts, texts = game.reset(tasks), {}
        for task, start in zip(tasks, starts, strict=True):
            text = (start.goal, start.observation)
            first = texts.setdefault(tuple(task[:2]), text)
            if first != text and STOPPED not in (first[1], text[1]):
                texts_apart = next(pair for pair in zip(first, text, strict=True) if pair[0] != pair[1])
                raise ValueError(
                    f"{game.name} does not follow its seed: two episodes of seed {task[1]} began with "
                    f"{_difference(*texts_apart)}. Let everything random follow from reset(seed=...), so that episodes "
                    "of one task can be compared"
                )
        return starts

    return reset


def _difference(first: str, second: str, width: int = 60) -> str:
    """Shows where two texts part."""
    same = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
    start = max(same - width // 3, 0)
    return f"{first[start : start + width]!r} and {second[start : start + width]!r}"


def _at_once(function: Callable, *arguments: Sequence[Any]) -> list[Any]:
    """Maps a function that waits for a server, in threads."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(function, *arguments))


def _text(value: Any) -> str:
    """What an environment says, as a string; None is nothing said."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "replace").decode()
