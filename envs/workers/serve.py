"""What a worker does: it has a game and the states of its episodes, and answers requests about them.

    python -m nlrl_jax.envs.workers.serve    # requests as JSON lines on stdin, answers on stdout

A request is [what, arguments..., numbers of states that nobody holds any more]; see `GameServer`.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any


class GameServer:
    """A game by name, and states by number: those that a step leaves are new ones."""

    def __init__(self):
        self.game: Any = None
        self.states: dict[int, Any] = {}
        self.count = 0

    def answer(self, what: str, arguments: Sequence[Any], dropped: Sequence[int]) -> dict[str, Any]:
        """{"value": ...}, or {"error": text, "type": the exception's name}."""
        for number in dropped:
            self.states.pop(number, None)
        try:
            return {"value": getattr(self, what)(*arguments)}
        except Exception as error:  # whatever the environment's code raises
            return {"error": str(error), "type": type(error).__name__}

    def make(self, name: str, max_steps: int, options: dict[str, Any]) -> None:
        """Makes the game; see `envs.make_host`."""
        from nlrl_jax import envs

        self.game = envs.make_host(name, max_steps, **options)

    def reset(self, tasks: Sequence[Sequence[Any]]) -> list[tuple[int, str, str]]:
        """Begins tasks -> number, goal and observation of each."""
        starts = self.game.reset([tuple(task) for task in tasks])
        return [(self._add(start.state), start.goal, start.observation) for start in starts]

    def step(self, number: int, action: str) -> list[Any]:
        """Steps a state -> the number of the next one, and the other fields of the outcome."""
        (outcome,) = self.game.step([self.states[number]], [action])
        after, text, reward, *flags, error, idle = outcome
        return [self._add(after), text, float(reward), *map(bool, flags), error, bool(idle)]

    def of_state(self, number: int, name: str) -> Any:
        """What a function of one state returns, such as the game's `board`."""
        value = getattr(self.game, name)(self.states[number])
        return value.item() if hasattr(value, "item") else value

    def copy(self, number: int) -> int:
        """Copies a state -> the copy's number."""
        return self._add(copy.deepcopy(self.states[number]))

    def content(self, number: int) -> str:
        """A state in bytes, by which two are compared."""
        from nlrl_jax.text import generators

        return base64.b64encode(pickle.dumps(generators.content(self.states[number]))).decode()

    def _add(self, state: Any) -> int:
        self.count += 1
        self.states[self.count] = state
        return self.count


def _lines() -> queue.Queue[str]:
    """The lines of stdin as they come. When they end, this process does, whatever its environment is at."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def main() -> None:
    # A cluster that stops a run tells all its processes; this one ends with its input. (A function, as programs that an
    # environment starts would inherit SIG_IGN.)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the environment prints goes to stderr, away from the answers
    lines, server = _lines(), GameServer()
    while True:
        answers.write(json.dumps(server.answer(*json.loads(lines.get()))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
