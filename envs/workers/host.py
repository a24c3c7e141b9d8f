"""A host game whose environments live in workers; its states here are names of those there."""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import json
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from nlrl_jax.envs.outside.episodes import STOPPED, beginning_alike
from nlrl_jax.envs.user_host_game import shown
from nlrl_jax.envs.workers import Choice, actors
from nlrl_jax.envs.workers.process import Process, WorkerLost, at_once, stop_all
from nlrl_jax.text import generators
from nlrl_jax.text.host import divided
from nlrl_jax.types import EpisodeFault, HostGame, Outcome, Start

_TO_START = 300.0  # seconds to import what a game needs and to make it
_OF_LOST = {"board": STOPPED, "optimal": None, "expert": "", "commands": ()}
Task = tuple[str, int]


class Worker:
    """A game in a `serve.GameServer`, which is started anew after it was lost.

    Args:
      channel: to the server. recipe: name, max_steps and options of the game. patience: seconds for a step.

    Attributes:
      losses: how often it was lost. reason: the last time.
      dropped: numbers of states that nobody holds any more.
    """

    def __init__(self, channel: Process | actors.Actor, recipe: Sequence[Any], patience: float):
        self.channel, self.recipe, self.patience = channel, recipe, patience
        self.losses, self.reason, self.has_game = 0, "", False
        self.dropped: list[int] = []
        self._lock = threading.RLock()  # a channel serves one request at a time

    def begin(self, tasks: Sequence[Task]) -> list[Start]:
        """Begins episodes. Where the worker is lost twice, they end at their first step."""
        with self._lock:
            for _ in range(2):
                try:
                    rows = self._ask("reset", tasks, patience=len(tasks) * self.patience)
                    return [Start(RemoteState(self, number), goal, text) for number, goal, text in rows]
                except WorkerLost as loss:
                    reason = str(loss)
            return [Start(RemoteState(self, 0, reason), "", STOPPED) for _ in tasks]

    def step(self, state: RemoteState, action: str) -> Outcome:
        """Steps a state; the outcome has an error where the worker is lost."""
        with self._lock:
            try:
                number, *fields = self.ask_about(state, "step", action)
            except WorkerLost as loss:
                return Outcome(state, STOPPED, done=True, valid=False, error=str(loss))
            return Outcome(RemoteState(self, number), *fields)

    def unless_lost(self, outcome: Outcome) -> Outcome:
        """The outcome, with an error where its state is lost before it has ended."""
        if outcome.done or outcome.state.losses == self.losses:
            return outcome
        return Outcome(outcome.state, STOPPED, done=True, valid=False, error=self.reason)

    def ask_about(self, state: RemoteState, what: str, *arguments: Any) -> Any:
        """Asks about a state. Raises WorkerLost: it is lost, now or before; ValueError: what the game raises."""
        with self._lock:
            if state.fault or state.losses != self.losses:
                raise WorkerLost(state.fault or self.reason)
            return self._ask(what, state.number, *arguments)

    def start(self) -> None:
        """Makes the game. Raises ValueError: it cannot be made there."""
        with self._lock:
            try:
                self._make()
            except WorkerLost as loss:
                raise ValueError(
                    f"{self.recipe[0]} cannot be made in a worker: {loss} (NLRL_TRACEBACK=1 shows what it prints)"
                ) from None

    def stop(self) -> None:
        self.channel.stop()

    def _make(self) -> None:
        self._exchange("make", self.recipe, [], patience=_TO_START)
        self.has_game = True

    def _ask(self, what: str, *arguments: Any, patience: float = 0.0) -> Any:
        if not self.has_game:
            self._make()
        dropped, self.dropped = self.dropped, []
        return self._exchange(what, arguments, dropped, patience=patience or self.patience)

    def _exchange(self, *request: Any, patience: float) -> Any:
        try:
            answer = self.channel.exchange(request, patience)
        except WorkerLost as loss:
            what, arguments, _ = request
            at = f" at the action {shown(arguments[-1])}" if what == "step" else ""
            self.losses, self.reason, self.has_game, self.dropped = self.losses + 1, f"{loss}{at}", False, []
            raise WorkerLost(self.reason) from None
        if answer.get("type") == "EpisodeFault":
            raise EpisodeFault(answer["error"])
        if "error" in answer:
            is_sentence = answer["type"] in ("ValueError", "GameError")
            raise ValueError(answer["error"] if is_sentence else f"{answer['type']}: {answer['error']}")
        return answer["value"]


class RemoteState:
    """A state in a worker.

    Attributes:
      number: there. losses: of the worker when it was made. fault: why the episode could not begin, else "".
    """

    __slots__ = ("fault", "losses", "number", "worker")

    def __init__(self, worker: Worker, number: int, fault: str = ""):
        self.worker, self.number, self.losses, self.fault = worker, number, worker.losses, fault

    def __del__(self):
        if self.losses == self.worker.losses and not self.fault:
            self.worker.dropped.append(self.number)

    def __deepcopy__(self, memo: dict) -> RemoteState:
        """A copy in the worker, for models that imagine. Raises ValueError: it cannot be copied there."""
        return RemoteState(self.worker, self.worker.ask_about(self, "copy"))

    def __reduce__(self) -> tuple:
        """Pickled it is the bytes of the state, by which two are compared."""
        return bytes, (base64.b64decode(self.worker.ask_about(self, "content")),)


def in_workers(game: HostGame, chosen: Choice, recipe: tuple[str, int, dict[str, Any]], patience: float) -> HostGame:
    """Puts a game's environments into workers, which are started at once.

    Args:
      game: made here, for its fields. recipe: its name, max_steps and options, of which workers make it.
      patience: seconds for a step.

    Raises:
      ValueError: the game cannot be made in a worker; Ray is not there.
    """
    try:
        json.dumps(recipe)
    except TypeError:
        raise ValueError(f"{game.name}: options of a game in workers must be texts and numbers") from None
    number = actors.connect(chosen.number) if chosen.on_ray else chosen.number
    channels = [actors.Actor(i) if chosen.on_ray else _process() for i in range(number)]
    workers = [Worker(channel, recipe, patience) for channel in channels]
    offset = itertools.count()  # tasks that come one at a time go to the workers in turn

    def reset(tasks: Sequence[Task]) -> list[Start]:
        # Some games draw another stream of chance each time that a task is listed, so that such tasks begin together.
        places, first = divided(tasks, number, together=game.reversible), next(offset)
        starts: list[Any] = [None] * len(tasks)

        def begin(worker: Worker, positions: list[int]) -> None:
            for i, start in zip(positions, worker.begin([tasks[i] for i in positions]), strict=True):
                starts[i] = start

        at_once(begin, workers, [(first + place) % number for place in places])
        return starts

    def step(states: Sequence[RemoteState], actions: Sequence[str]) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(states)

        def advance(worker: Worker, positions: list[int]) -> None:
            for i in positions:
                outcomes[i] = worker.step(states[i], actions[i])

        at_once(advance, workers, [workers.index(state.worker) for state in states])
        # A worker that was lost at a later step of the same call has lost these states, too.
        return [outcome.state.worker.unless_lost(outcome) for outcome in outcomes]

    functions = {name: functools.partial(_of_state, name) for name in generators.OF_STATES if getattr(game, name)}
    game = dataclasses.replace(game, reset=reset, step=step, **functions)
    weakref.finalize(reset, stop_all, workers)
    at_once(lambda worker, _: worker.start(), workers, range(number))
    return dataclasses.replace(game, reset=beginning_alike(game))


def _of_state(name: str, state: RemoteState) -> Any:
    """What one of the game's functions of a state returns; of a lost state what says the least. Raises EpisodeFault."""
    try:
        return state.worker.ask_about(state, "of_state", name)
    except WorkerLost as loss:
        if name == "closing_reward":
            raise EpisodeFault(str(loss)) from None
        return _OF_LOST[name]


def _process() -> Process:
    """A worker process that finds our modules, and leaves accelerators to this one."""
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    command = [sys.executable, "-m", "nlrl_jax.envs.workers.serve"]
    return Process(command, {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"})
