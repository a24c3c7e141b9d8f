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

_OTHERS = 9  # other actions that a model thinks of where any text is one
_TRIED = 3  # other actions tried for a wrong observation
_AHEAD = 50  # steps that the expert plays on to see whether it succeeds
_PLACES = 50_000  # transcripts whose states are kept


@dataclasses.dataclass(eq=False)
class Place:
    """Where a transcript has led: the true state, as far as the transcript tells.

    Attributes:
      key: of the transcript; draws follow from it. task: of the episode.
      over, won: the episode is over, and won. shown: the last observation is what the last action leads to.
      seen: the last observation of the game. idle: the last action could not be carried out or changed nothing.
      taken: all actions so far, each once.
      move, left: the expert's action here and its number of steps to success, inf without; None until asked for.
    """

    key: str
    task: tuple[str, int]
    state: Any
    seen: str
    over: bool = False
    won: bool = False
    shown: bool = True
    idle: bool = False
    taken: tuple[str, ...] = ()
    move: str | None = None
    left: float | None = None

    def then(self, key: str, action: str, outcome: Outcome | None, shown: bool = True) -> Place:
        """The place after an action; if its result is unknown (None), the state stays."""
        taken = self.taken if action in self.taken else (*self.taken, action)
        if outcome is None:
            return dataclasses.replace(self, key=key, shown=False, idle=True, taken=taken)
        seen = plain(outcome.observation)
        idle = not outcome.valid or seen == self.seen
        return Place(key, self.task, outcome.state, seen, outcome.done, outcome.success, shown, idle, taken)


class States:
    """Finds states and steps them; keeps what it has found.

    Args:
      game: with an `expert`; its `simulator`, if it has one, is what is stepped, many times from one state: in a game
        that is not reversible by copies or by repeated actions (`envs.restorable`).
      world: the rate at which an imagined observation is the true one.
    """

    def __init__(self, game: HostGame, world: float):
        own = game.simulator or game
        named = {name: getattr(own, name) or getattr(game, name) for name in ("expert", "optimal", "commands")}
        self.game, self.world = dataclasses.replace(own, **named), world
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._paths: dict[tuple[str, int], tuple[str, ...]] = {}
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    @property
    def counts(self) -> bool:
        """Whether the game itself counts the steps to success, so that play can stop there."""
        return self.game.optimal is not None

    def find(self, histories: Sequence[History]) -> list[Place]:
        """The place of each history, found again step by step from the longest beginning that is known.

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
            known = next((n for n in range(len(steps), -1, -1) if keys[n] in self._places), -1)
            rows.append([task, steps, keys, known])
        fresh = list({row[0]: row for row in rows if row[3] < 0}.values())
        if fresh:
            self.game = restorable(self.game, fresh[0][0])
            for row, start in zip(fresh, self.game.reset([row[0] for row in fresh]), strict=True):
                self._keep(Place(row[2][0], row[0], start.state, plain(start.observation)))
        found = [self._places[row[2][max(row[3], 0)]] for row in rows]
        at = [max(row[3], 0) for row in rows]
        while going := [i for i, row in enumerate(rows) if at[i] < len(row[1])]:
            self._advance([(found[i], rows[i][1][at[i]], rows[i][2][at[i] + 1]) for i in going])
            for i in going:
                at[i] += 1
                found[i] = self._places[rows[i][2][at[i]]]
        for place in found:
            self._places.move_to_end(place.key)
        while len(self._places) > max(_PLACES, 2 * len(found)):
            self._places.popitem(last=False)
        return found

    def _advance(self, steps: Sequence[tuple[Place, Step, str]]) -> None:
        """Keeps the place after each step: (place before, step, key of the place after)."""
        steps = [one for one in {key: (place, step, key) for place, step, key in steps}.values()]
        outcomes = self.step([place for place, _, _ in steps], [step.action for _, step, _ in steps])
        same = [
            outcome is not None and plain(outcome.observation) == plain(step.observation)
            for outcome, (_, step, _) in zip(outcomes, steps, strict=True)
        ]
        odd = [(place, step.action) for ok, (place, step, _) in zip(same, steps, strict=True) if not ok]
        mistakes = iter(self.mistakes(odd))
        for ok, outcome, (place, step, key) in zip(same, outcomes, steps, strict=True):
            if not ok:
                outcome = next(mistakes)
                if outcome is not None and plain(outcome.observation) != plain(step.observation):
                    outcome = None
            self._keep(place.then(key, step.action, outcome, ok))

    def options(self, place: Place) -> tuple[str, list[str]]:
        """The expert's action, and the others that the model thinks of."""
        right = self.move(place)
        if self.game.actions:
            return right, [action for action in self.game.actions if action != right]
        own = self.game.commands(place.state) if self.game.commands and not place.over else ()
        pool = list(dict.fromkeys([*own, *(self._path(place.task) if not own else ()), *place.taken]))
        others = [action for action in pool if action != right]
        return right, rng_of(place.key, "pool").sample(others, min(_OTHERS, len(others)))

    def _path(self, task: tuple[str, int]) -> tuple[str, ...]:
        """The expert's own episode: its actions."""
        if task not in self._paths:
            (start,) = self.find([History("", "", task=task)])
            self._paths[task] = tuple(self._play_on([start])[0])
        return self._paths[task]

    def move(self, place: Place) -> str:
        if place.move is None:
            place.move = (self.game.actions or ("nothing",))[0] if place.over else self.game.expert(place.state)
        return place.move

    def left(self, places: Sequence[Place]) -> list[float]:
        """Steps that the expert needs to success; inf where it has none."""
        open_ = [place for place in places if place.left is None]
        for place in open_:
            if place.over:
                place.left = 0.0 if place.won else math.inf
            elif self.game.optimal:
                steps = self.game.optimal(place.state)
                place.left = math.inf if steps is None or steps < 0 else float(steps)
        open_ = [place for place in open_ if place.left is None]
        if open_:
            self._play_on(open_)
        return [place.left for place in places]

    def _play_on(self, places: Sequence[Place]) -> list[list[str]]:
        """The expert's actions from each place; notes how many it needs to success."""
        states = [place.state for place in places]
        actions: list[list[str]] = [[] for _ in places]
        going = [i for i, place in enumerate(places) if not place.over]
        for place in places:
            place.left = math.inf if not place.won else 0.0
        for _ in range(min(_AHEAD, self.game.max_steps)):
            if not going:
                break
            moves = [self.game.expert(states[i]) for i in going]
            outcomes = self.game.step([states[i] for i in going], moves)
            for i, move, outcome in zip(going, moves, outcomes, strict=True):
                states[i] = outcome.state
                actions[i].append(move)
                if outcome.success:
                    places[i].left = float(len(actions[i]))
            going = [i for i, outcome in zip(going, outcomes, strict=True) if not outcome.done]
        return actions

    def mistakes(self, pairs: Sequence[tuple[Place, str]]) -> list[Outcome | None]:
        """What another action leads to where the imagination of (place, action) is wrong; None where it is right."""
        wrong: list[list[str]] = []
        for place, action in pairs:
            is_wrong = rng_of(place.key, action, "world").random() >= self.world
            tried: list[str] = []
            if is_wrong and not place.over:
                right, others = self.options(place)
                pool = sorted(one for one in (right, *others) if one != action)
                tried = rng_of(place.key, action, "other").sample(pool, min(_TRIED, len(pool)))
            wrong.append(tried)
        flat = [(place, one) for (place, _), row in zip(pairs, wrong, strict=True) for one in row]
        outcomes = iter(self.step([place for place, _ in flat], [one for _, one in flat]))
        truths = self.step([place for place, _ in pairs], [action for _, action in pairs])
        result = []
        for truth, row in zip(truths, wrong, strict=True):
            found = [next(outcomes) for _ in row]
            differs = lambda one, truth=truth: truth is None or plain(one.observation) != plain(truth.observation)
            result.append(next((one for one in found if one is not None and differs(one)), None))
        return result

    def step(self, places: Sequence[Place], actions: Sequence[str]) -> list[Outcome | None]:
        """What each action leads to; None where the episode is over."""
        due = {}
        for place, action in zip(places, actions, strict=True):
            if not place.over and (place.key, action) not in self._outcomes:
                due[place.key, action] = place.state
        if due:
            made = self.game.step(list(due.values()), [action for _, action in due])
            self._outcomes.update(zip(due, made, strict=True))
        found = [None if p.over else self._outcomes[p.key, a] for p, a in zip(places, actions, strict=True)]
        while len(self._outcomes) > _PLACES:
            self._outcomes.pop(next(iter(self._outcomes)))
        return found

    def _keep(self, place: Place) -> None:
        self._places[place.key] = place


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
