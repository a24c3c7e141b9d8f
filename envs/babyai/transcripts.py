"""Episodes of BabyAI-Text by walkers of mixed quality, with notes: what a language model reads to learn the game.

A walker follows a shortest plan once it knows where its target is, and looks around before. With a probability that
depends on the situation it does something habitual instead: it heads for a look-alike (the same kind of thing, or the
same colour), or just goes forward. Habits are rare where the target lies straight ahead and frequent where it does not.
After a critic's BAD they are rarer. A few actions are random.

The corpus of the built-in model and the demonstrations for fine-tuning come from the same walkers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from nlrl_jax.envs.babyai import annotate, levels, rules, solver
from nlrl_jax.envs.babyai.annotate import Moment
from nlrl_jax.envs.babyai.text import texts
from nlrl_jax.roles.dialogues import BAD, THINK, THINK_REPLY, History, Step, verdict
from nlrl_jax.text.host import in_blocks

KINDS = ("Critic", "", "Value", "Reward", "Thought", "Think")  # of notes; "" and Value have none in the history


@dataclasses.dataclass(frozen=True)
class Walker:
    """Probabilities of a walker's mistakes.

    Attributes:
      simple, hard: of a habit where the target lies straight ahead, and where it does not.
      corrected: of a habit in a hard situation, after a critic's BAD.
      lured: added where a look-alike is nearer than the target.
      random: of a random action.
    """

    simple: float = 0.2
    hard: float = 0.45
    corrected: float = 0.35
    lured: float = 0.12
    random: float = 0.08


EXPERT = Walker(0.0, 0.0, 0.0, 0.0, 0.0)
WANDERER = Walker(random=0.5)  # for the dynamics of actions that nobody would choose


class NotedEpisode(NamedTuple):
    """An episode and its ending.

    history: with notes of the kind. kind: one of `KINDS`. success: the mission is fulfilled at its end.
    values: a line for each observation, the first included, for the kind "Value"; else empty.
    """

    history: History
    kind: str
    success: bool
    values: tuple[str, ...] = ()


@in_blocks
def _perceive(state):
    """Perceives states: (which objects are in sight, bool [9]; their cells of the view, int32 [9], -1 outside it)."""
    place = rules.view_index(state)
    return (place >= 0) & (rules.codes(state).reshape(-1)[place] > 0), place


_step = in_blocks(rules.step)


class _Episode:
    """One walker at work.

    Attributes:
      row: its row in the batch of states. task, node: the state as the solver reads it.
      discovered: slots of the objects seen before the last action.
      visible, place: see `_perceive`, of the newest state.
      plan: the rest of a shortest plan; None where there is none.
      previous: (state, action, steps of the plan, slots discovered) at the last action.
    """

    def __init__(self, row: int, state, task, node, text, kind: str, walker: Walker, rng, max_steps: int):
        self.row, self.state, self.task, self.node = row, state, task, node
        self.kind, self.walker, self.rng, self.max_steps = kind, walker, rng, max_steps
        self.history, self.discovered, self.turns = History(*text), frozenset(), 0
        self.plan, self.values = solver.search(task, node), []
        self.previous = state, -1, 0, frozenset()

    def look(self, visible: np.ndarray, place: np.ndarray) -> None:
        """Perceives the newest state and notes what it shows; see `Moment` for `visible` and `place`."""
        self.visible, self.place = visible, place
        before, action, steps_before, self.discovered = self.previous
        steps_after = self._steps_left()
        self._note(Moment(before, self.state, action, visible, place, self.discovered, steps_before, steps_after))

    def _note(self, moment: Moment) -> None:
        """Adds what follows the newest observation."""
        has_acted = bool(self.history.steps)
        match self.kind:
            case "Critic" if has_acted:
                self.history = self.history.noted(annotate.reflection(moment, self.rng))
            case "Thought":
                self.history = self.history.noted(annotate.thought(moment))
            case "Reward" if has_acted:
                self.history = self.history.noted(annotate.reward(moment))
            case "Value":
                self.values.append(annotate.value(moment))
            case "Think" if (not has_acted or self.rng.random() < 0.25) and not annotate.won(moment.after):
                self.history = self.history.then(Step(f"{THINK} {annotate.thought(moment)}", THINK_REPLY))

    def is_over(self) -> bool:
        num_actions = sum(not step.action.startswith(THINK) for step in self.history.steps)
        return annotate.won(self.state) or num_actions >= self.max_steps

    def choose(self) -> int:
        """Chooses the walker's next action."""
        rng, walker = self.rng, self.walker
        if rng.random() < walker.random:
            return rng.randrange(len(rules.ACTIONS))
        target = annotate.aim(self.state)
        target_places = [int(self.place[slot]) for slot in target.slots if self.visible[slot]]
        lure = self._lure(target, target_places)
        straight = any(place // 7 == 3 for place in target_places)
        chance = walker.simple if straight else walker.hard
        if verdict(self.history.last_note) == BAD:
            chance = min(chance, walker.corrected)
        if lure is not None and not straight:
            chance += walker.lured
        if rng.random() < chance:
            return self._habit(lure)
        if not set(target.slots) & self._discovered_now():
            return self._explore()
        return self.plan[0] if self.plan else rng.randrange(len(rules.ACTIONS))

    def _discovered_now(self) -> frozenset[int]:
        return self.discovered | frozenset(np.flatnonzero(self.visible).tolist())

    def _lure(self, target, target_places: Sequence[int]) -> int | None:
        """Finds the place of the nearest look-alike that is nearer than the target."""
        state, places = self.state, []
        kind, colour = (int(a[target.slots[0]]) for a in (state.kinds, state.colours)) if target.slots else (-1, -1)
        for slot in np.flatnonzero(self.visible).tolist():
            same = int(state.kinds[slot]) == kind or int(state.colours[slot]) == colour
            if slot not in target.slots and same and slot != rules.DOOR_SLOT and slot != int(state.carrying):
                places.append(int(self.place[slot]))
        nearest = min(places, key=lambda place: (_distance(place), place), default=None)
        if nearest is None or _distance(nearest) >= min(map(_distance, target_places), default=99):
            return None
        return nearest

    def _free(self) -> bool:
        """Whether the cell ahead can be entered."""
        return solver.step(self.task, self.node, rules.FORWARD).pose != self.node.pose

    def _habit(self, lure: int | None) -> int:
        if lure is None:
            return rules.FORWARD if self._free() else rules.TURN_LEFT
        sideward, forward = lure // 7 - 3, 6 - lure % 7
        if sideward == 0 and forward == 1:
            picks_up = annotate.aim(self.state).verb == "pick up" and int(self.state.carrying) < 0
            return rules.PICK_UP if picks_up else rules.FORWARD
        if forward > 0 and self._free():
            return rules.FORWARD
        return rules.TURN_LEFT if sideward < 0 else rules.TURN_RIGHT

    def _explore(self) -> int:
        if self.turns < 3 or not self._free():
            return rules.TURN_RIGHT
        return rules.FORWARD

    def advance(self, action: int, after, text: tuple[str, str]) -> None:
        """Moves on to the state after an action, with its (goal, observation)."""
        self.turns = self.turns + 1 if action in (rules.TURN_LEFT, rules.TURN_RIGHT) else 0
        self.previous = self.state, action, self._steps_left(), self._discovered_now()
        self.history = self.history.then(Step(rules.ACTIONS[action], text[1]))
        self.state, self.node = after, solver.step(self.task, self.node, action)
        # A step of a shortest plan leaves the rest of it.
        follows_plan = self.plan and action == self.plan[0]
        self.plan = self.plan[1:] if follows_plan else solver.search(self.task, self.node)

    def _steps_left(self) -> int:
        return 99 if self.plan is None else len(self.plan)


def _distance(place: int) -> int:
    """Steps to a cell of the view, 7 * column + row, from column 3 of row 6."""
    return 6 - place % 7 + abs(place // 7 - 3)


def walk(
    mission: str, seeds: Sequence[int], walkers: Sequence[Walker], kinds: Sequence[str], max_steps: Sequence[int]
) -> list[NotedEpisode]:
    """Plays one episode per seed. The same arguments give the same episodes.

    Args:
      mission: one of `rules.MISSIONS`, or "all": one after the other.
      seeds: of the task and the walker.
      walkers, kinds, max_steps: of each episode.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"the kind of notes is {kind!r}; choose one of {', '.join(map(repr, KINDS))}")
    n, number = len(seeds), levels.mission_id(mission)
    missions = np.arange(n) % len(rules.MISSIONS) if number is None else np.full(n, number)
    states = levels.draw_many(np.asarray(seeds, np.uint32), missions.astype(np.int32), np.zeros(n, bool))
    tasks, words = solver.read(states), texts(states)
    episodes = [
        _Episode(i, _row(states, i), *tasks[i], words[i], kind, walker, random.Random(f"{mission} {seed}"), limit)
        for i, (kind, walker, seed, limit) in enumerate(zip(kinds, walkers, seeds, max_steps, strict=True))
    ]
    running = episodes
    while True:
        # 1. Everyone looks and takes notes. 2. Who is not done chooses an action. 3. All states are stepped at once.
        visible, place = _perceive(states)
        for episode in running:
            episode.look(visible[episode.row], place[episode.row])
        running = [episode for episode in running if not episode.is_over()]
        if not running:
            break
        actions = np.zeros(n, np.int32)
        for episode in running:
            actions[episode.row] = episode.choose()
        states = _step(states, actions)
        words = texts(states)
        for episode in running:
            i = episode.row
            episode.advance(int(actions[i]), _row(states, i), words[i])
    return [NotedEpisode(e.history, e.kind, annotate.won(e.state), tuple(e.values)) for e in episodes]


def _row(states, i: int):
    return jax.tree.map(lambda leaf: leaf[i], states)
