"""A host game made of live environments: one object for each episode, which its steps change."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from nlrl_jax.envs import user_host_game
from nlrl_jax.envs.code_location import code_location
from nlrl_jax.text import generators
from nlrl_jax.types import MOST_REWARD, EpisodeFault, HostGame, Outcome, Start

STOPPED = "The environment has stopped."  # the last observation of an episode that a fault ends
ENDED = "the episode has ended before its first step"
SLOW = 60.0  # seconds of one batch of steps in this process, after which is said who takes them
_THREADS = 32  # requests to servers at a time


class Beginning(NamedTuple):
    """How an episode of an environment begins: goal and observation in words. The goal stays in every prompt.

    has_ended: already, which is a fault.
    """

    env: Any
    goal: str
    observation: str
    has_ended: bool = False


@dataclasses.dataclass
class LiveEpisode:
    """The state of an episode.

    Attributes:
      env: the environment, which steps change; None where it could not begin.
      task: (kind, seed). earned: the sum of its rewards. actions: so far.
      fault: why it could not begin, else "".
    """

    env: Any
    task: tuple[str, int] = ("", 0)
    earned: float = 0.0
    actions: list[str] = dataclasses.field(default_factory=list)
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

    busy = LiveEpisode(None)  # the episode that begins or steps now, in this process one at a time

    def start(task: tuple[str, int]) -> Start:
        nonlocal busy
        busy = episode = LiveEpisode(None, tuple(task[:2]))
        try:
            episode.env, goal, observation, has_ended = new_episode(*task)
            goal, observation = _text(goal), _text(observation)
            episode.fault = ENDED if has_ended else ""
        except (Exception, SystemExit) as error:  # whatever another package's code raises
            episode.fault = described(error)
        return Start(episode, "", STOPPED) if episode.fault else Start(episode, goal, observation)

    def advance(episode: LiveEpisode, action: str) -> Outcome:
        nonlocal busy
        if episode.fault:
            return Outcome(episode, STOPPED, done=True, valid=False, error=episode.fault)
        busy = episode
        episode.actions.append(action)
        try:
            outcome = move(episode, action)
            reward, observation = reward_of(outcome.reward), _text(outcome.observation)
        except (Exception, SystemExit) as error:
            return Outcome(episode, STOPPED, done=True, valid=False, error=described(error))
        episode.earned += reward
        return outcome._replace(state=episode, observation=observation, reward=reward)

    each = _at_once if on_a_server else map

    def who() -> str:
        return f"the task {busy.task}" + (f" after the actions {busy.actions}" if busy.actions else "")

    watched = contextlib.nullcontext if on_a_server else SlowWatch(name, who)

    def reset(tasks: Sequence[tuple[str, int]]) -> list[Start]:
        with watched():
            return list(each(start, tasks))

    def step(episodes: Sequence[LiveEpisode], actions: Sequence[str]) -> list[Outcome]:
        with watched():
            return list(each(advance, episodes, actions))

    if at_the_end := fields.get("closing_reward"):
        fields["closing_reward"] = lambda episode: closing_reward(episode, at_the_end)
    game = HostGame(name=name, kinds=("",), reset=reset, step=step, **fields)
    game = game if on_a_server else generators.apart(game)

    game = dataclasses.replace(game, reset=beginning_alike(game))
    _try(game)
    return user_host_game.checked(game, contextlib.nullcontext)


def reward_of(reward: float | None) -> float:
    """What an environment paid, as a number; None is nothing. Raises ValueError: it cannot be summed up."""
    number = float(0 if reward is None else reward)
    if not abs(number) <= MOST_REWARD:
        raise ValueError(f"the environment paid the reward {number}")
    return number


def closing_reward(episode: LiveEpisode, at_the_end: Callable[[LiveEpisode], float]) -> float:
    """What an episode earns that is cut off. Raises EpisodeFault for whatever the environment raises."""
    try:
        return 0.0 if episode.fault else reward_of(at_the_end(episode))
    except (Exception, SystemExit) as error:
        raise EpisodeFault(described(error)) from error


class SlowWatch:
    """Says once which episode is at its step where a batch of steps takes longer than `SLOW`, as it may never end.

    Args:
      who: -> that episode in words.
    """

    def __init__(self, name: str, who: Callable[[], str]):
        self.name, self.who, self.told = name, who, False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        timer = threading.Timer(SLOW, self._tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self) -> None:
        if not self.told:
            print(
                f"note: the steps of {self.name} take longer than {SLOW:g} s; {self.who()} is at its step. An "
                "environment that hangs in this process cannot be given up: Ctrl-C twice ends the run, and --resume "
                "continues it, with --env_workers in a process that is given up after --env_timeout seconds",
                file=sys.stderr,
                flush=True,
            )
        self.told = True


def described(error: BaseException) -> str:
    """Describes an error in a sentence, with the line of the user's own code that it comes from."""
    text, location = " ".join(str(error).split()), code_location(error)
    is_sentence = isinstance(error, ValueError | ConnectionError | TimeoutError) and text and not location
    return text if is_sentence else f"{type(error).__name__}{': ' if text else ''}{text}{location}"


def _try(game: HostGame) -> None:
    """Begins a task twice and takes a step that is no action. Raises ValueError for a fault of the environment."""
    starts = game.reset([("", 0)] * 2)
    for start in starts:
        (outcome,) = game.step([start.state], [user_host_game.NOTHING])
        if outcome.error:
            began = start.observation != STOPPED
            cause = f"its first step, with {user_host_game.NOTHING!r}, fails: " if began else ""
            raise ValueError(f"{cause}{outcome.error}")


def beginning_alike(game: HostGame) -> Callable[[Sequence[tuple[str, int]]], list[Start]]:
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
