"""The true state at the end of a host game's transcript: found by repeating its actions, imagined steps among them.

For models that know the game (`envs.expert`). A history begins at a task; each step leads to where its action does,
if the observation is what that action leads to, else to where the mistake of an imagination leads (`States.mistakes`),
if that explains it. Any other step leaves the state as it is, as thoughts do. Notes are not read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from nlrl_jax.envs.restorable import restorable
from nlrl_jax.roles.dialogues import THINK, History, Step
from nlrl_jax.types import HostGame, Outcome

_MAX_ALTERNATIVES = 9  # other actions that a model thinks of where any text is one
_TRIED = 3  # other actions tried for a wrong observation
_AHEAD = 50  # steps that the expert plays on to see whether it succeeds
_MAX_NODES = 50_000  # transcripts whose states are kept


@dataclasses.dataclass(eq=False)
class TranscriptNode:
    """Where a transcript has led: the true state, as far as the transcript tells.

    Attributes:
      key: of the transcript; draws follow from it. task: of the episode.
      finished, won: the episode is over, and won. expected: the last observation is what the last action leads to.
      observation: the last observation of the game. idle: the last action could not be carried out or changed nothing.
      actions: all actions so far, each once.
      move, steps_left: the expert's action here and its number of steps to success, inf without; None until asked for.
    """

    key: str
    task: tuple[str, int]
    state: Any
    observation: str
    finished: bool = False
    won: bool = False
    expected: bool = True
    idle: bool = False
    actions: tuple[str, ...] = ()
    move: str | None = None
    steps_left: float | None = None

    def after(self, key: str, action: str, outcome: Outcome | None, expected: bool = True) -> TranscriptNode:
        """The node after an action; if its result is unknown (None), the state stays."""
        actions = self.actions if action in self.actions else (*self.actions, action)
        if outcome is None:
            return dataclasses.replace(self, key=key, expected=False, idle=True, actions=actions)
        observation = plain(outcome.observation)
        idle = not outcome.valid or observation == self.observation
        return TranscriptNode(
            key, self.task, outcome.state, observation, outcome.done, outcome.success, expected, idle, actions
        )


class States:
    """Finds states and steps them; keeps what it has found.

    Args:
      game: with an `expert`; its `simulator`, if it has one, is what is stepped, many times from one state: in a game
        that is not reversible by copies or by repeated actions (`envs.restorable`).
      world: the rate at which an imagined observation is the true one.
    """

    def __init__(self, game: HostGame, world: float):
        stepped = game.simulator or game
        named = {name: getattr(stepped, name) or getattr(game, name) for name in ("expert", "optimal", "commands")}
        self.game, self.world = dataclasses.replace(stepped, **named), world
        self._nodes: OrderedDict[str, TranscriptNode] = OrderedDict()
        self._paths: dict[tuple[str, int], tuple[str, ...]] = {}
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    @property
    def counts(self) -> bool:
        """Whether the game itself counts the steps to success, so that play can stop there."""
        return self.game.optimal is not None

    def find(self, histories: Sequence[History]) -> list[TranscriptNode]:
        """The node of each history, found again step by step from the longest beginning that is known.

        Raises:
          ValueError: a history without its task; a game whose states cannot be restored.
        """
        rows = []
        for history in histories:
            if history.task is None:
                raise ValueError("the model `expert` reads histories that begin at a task, as `host_games.play` makes")
            steps, task = steps_of(history), tuple(history.task)
            keys = [digest(repr(task))]
            for step in steps:
                keys.append(digest(keys[-1], step.action, plain(step.observation)))
            longest = next((n for n in range(len(steps), -1, -1) if keys[n] in self._nodes), -1)
            rows.append([task, steps, keys, longest])
        fresh = list({row[0]: row for row in rows if row[3] < 0}.values())
        if fresh:
            self.game = restorable(self.game, fresh[0][0])
            for row, start in zip(fresh, self.game.reset([row[0] for row in fresh]), strict=True):
                self._keep(TranscriptNode(row[2][0], row[0], start.state, plain(start.observation)))
        nodes = [self._nodes[row[2][max(row[3], 0)]] for row in rows]
        lengths = [max(row[3], 0) for row in rows]  # steps of each history that its node has behind it
        while running := [i for i, row in enumerate(rows) if lengths[i] < len(row[1])]:
            self._advance([(nodes[i], rows[i][1][lengths[i]], rows[i][2][lengths[i] + 1]) for i in running])
            for i in running:
                lengths[i] += 1
                nodes[i] = self._nodes[rows[i][2][lengths[i]]]
        for node in nodes:
            self._nodes.move_to_end(node.key)
        while len(self._nodes) > max(_MAX_NODES, 2 * len(nodes)):  # those unused for longest go first
            self._nodes.popitem(last=False)
        return nodes

    def _advance(self, steps: Sequence[tuple[TranscriptNode, Step, str]]) -> None:
        """Keeps the node after each step: (node before, step, key of the node after)."""
        steps = list({key: (node, step, key) for node, step, key in steps}.values())
        outcomes = self.step([node for node, _, _ in steps], [step.action for _, step, _ in steps])
        same = [
            outcome is not None and plain(outcome.observation) == plain(step.observation)
            for outcome, (_, step, _) in zip(outcomes, steps, strict=True)
        ]
        odd = [(node, step.action) for ok, (node, step, _) in zip(same, steps, strict=True) if not ok]
        mistakes = iter(self.mistakes(odd))
        for ok, outcome, (node, step, key) in zip(same, outcomes, steps, strict=True):
            if not ok:
                outcome = next(mistakes)
                if outcome is not None and plain(outcome.observation) != plain(step.observation):
                    outcome = None
            self._keep(node.after(key, step.action, outcome, ok))

    def options(self, node: TranscriptNode) -> tuple[str, list[str]]:
        """The expert's action, and the others that the model thinks of."""
        right = self.move(node)
        if self.game.actions:
            return right, [action for action in self.game.actions if action != right]
        commands = self.game.commands(node.state) if self.game.commands and not node.finished else ()
        pool = list(dict.fromkeys([*commands, *(self._path(node.task) if not commands else ()), *node.actions]))
        alternatives = [action for action in pool if action != right]
        return right, rng_of(node.key, "pool").sample(alternatives, min(_MAX_ALTERNATIVES, len(alternatives)))

    def _path(self, task: tuple[str, int]) -> tuple[str, ...]:
        """The expert's own episode: its actions."""
        if task not in self._paths:
            (start,) = self.find([History("", "", task=task)])
            self._paths[task] = tuple(self._play_on([start])[0])
        return self._paths[task]

    def move(self, node: TranscriptNode) -> str:
        if node.move is None:
            node.move = (self.game.actions or ("nothing",))[0] if node.finished else self.game.expert(node.state)
        return node.move

    def steps_left(self, nodes: Sequence[TranscriptNode]) -> list[float]:
        """Steps that the expert needs to success; inf where it has none."""
        unknown = [node for node in nodes if node.steps_left is None]
        for node in unknown:
            if node.finished:
                node.steps_left = 0.0 if node.won else math.inf
            elif self.game.optimal:
                steps = self.game.optimal(node.state)
                node.steps_left = math.inf if steps is None or steps < 0 else float(steps)
        unknown = [node for node in unknown if node.steps_left is None]
        if unknown:
            self._play_on(unknown)
        return [node.steps_left for node in nodes]

    def _play_on(self, nodes: Sequence[TranscriptNode]) -> list[list[str]]:
        """The expert's actions from each node; notes how many it needs to success."""
        states = [node.state for node in nodes]
        actions: list[list[str]] = [[] for _ in nodes]
        running = [i for i, node in enumerate(nodes) if not node.finished]
        for node in nodes:
            node.steps_left = math.inf if not node.won else 0.0
        for _ in range(min(_AHEAD, self.game.max_steps)):
            if not running:
                break
            moves = [self.game.expert(states[i]) for i in running]
            outcomes = self.game.step([states[i] for i in running], moves)
            for i, move, outcome in zip(running, moves, outcomes, strict=True):
                states[i] = outcome.state
                actions[i].append(move)
                if outcome.success:
                    nodes[i].steps_left = float(len(actions[i]))
            running = [i for i, outcome in zip(running, outcomes, strict=True) if not outcome.done]
        return actions

    def mistakes(self, pairs: Sequence[tuple[TranscriptNode, str]]) -> list[Outcome | None]:
        """What another action leads to where the imagination of (node, action) is wrong; None where it is right."""
        wrong: list[list[str]] = []
        for node, action in pairs:
            is_wrong = rng_of(node.key, action, "world").random() >= self.world
            tried: list[str] = []
            if is_wrong and not node.finished:
                right, alternatives = self.options(node)
                pool = sorted(candidate for candidate in (right, *alternatives) if candidate != action)
                tried = rng_of(node.key, action, "other").sample(pool, min(_TRIED, len(pool)))
            wrong.append(tried)
        flat = [(node, candidate) for (node, _), row in zip(pairs, wrong, strict=True) for candidate in row]
        outcomes = iter(self.step([node for node, _ in flat], [candidate for _, candidate in flat]))
        truths = self.step([node for node, _ in pairs], [action for _, action in pairs])
        result = []
        for truth, row in zip(truths, wrong, strict=True):
            different = [
                outcome
                for outcome in [next(outcomes) for _ in row]
                if outcome and (truth is None or plain(outcome.observation) != plain(truth.observation))
            ]
            result.append(different[0] if different else None)
        return result

    def step(self, nodes: Sequence[TranscriptNode], actions: Sequence[str]) -> list[Outcome | None]:
        """What each action leads to; None where the episode is over."""
        due = {}
        for node, action in zip(nodes, actions, strict=True):
            if not node.finished and (node.key, action) not in self._outcomes:
                due[node.key, action] = node.state
        if due:
            stepped = self.game.step(list(due.values()), [action for _, action in due])
            self._outcomes.update(zip(due, stepped, strict=True))
        outcomes = [
            None if node.finished else self._outcomes[node.key, action]
            for node, action in zip(nodes, actions, strict=True)
        ]
        while len(self._outcomes) > _MAX_NODES:
            self._outcomes.pop(next(iter(self._outcomes)))
        return outcomes

    def _keep(self, node: TranscriptNode) -> None:
        self._nodes[node.key] = node


def steps_of(history: History) -> list[Step]:
    """All steps of an episode but thoughts, which change nothing."""
    return [step for step in (*history.past, *history.steps) if not step.action.startswith(THINK)]


def plain(text: str) -> str:
    return " ".join(text.split())


def digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def rng_of(*texts: str) -> random.Random:
    """Randomness that follows from texts."""
    return random.Random(digest(*texts))
