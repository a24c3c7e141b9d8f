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


_ROWS = 16  # least episodes per program
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


@jax.jit
def _perceive(states):
    def one(state):
        place = rules.view_index(state)
        return (place >= 0) & (rules.codes(state).reshape(-1)[place] > 0), place

    return jax.vmap(one)(states)


_step = jax.jit(jax.vmap(rules.step))
_draw = jax.jit(jax.vmap(lambda seed, mission: levels.draw(jax.random.key(seed), mission)))


def _rows(states, n: int):
    return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(n)]


class _Episode:
    """One walker at work."""

    def __init__(self, state, read, text, kind: str, walker: Walker, rng: random.Random, max_steps: int):
        self.state, self.kind, self.walker, self.rng, self.max_steps = state, kind, walker, rng, max_steps
        self.task, self.node = read
        self.history, self.known, self.turns = History(*text), frozenset(), 0
        self.plan, self.values = solver.search(self.task, self.node), []

    def look(self, visible: np.ndarray, place: np.ndarray) -> None:
        self.visible, self.place = visible, place

    def note(self, moment: Moment) -> None:
        """Adds what follows the newest observation."""
        if self.kind == "Critic" and self.history.steps:
            self.history = self.history.noted(annotate.reflection(moment, self.rng))
        elif self.kind == "Thought":
            self.history = self.history.noted(annotate.thought(moment))
        elif self.kind == "Reward" and self.history.steps:
            self.history = self.history.noted(annotate.reward(moment))
        elif self.kind == "Value":
            self.values.append(annotate.value(moment))
        elif (
            self.kind == "Think"
            and (not self.history.steps or self.rng.random() < 0.25)
            and not annotate.won(moment.after)
        ):
            self.history = self.history.then(Step(f"{THINK} {annotate.thought(moment)}", THINK_REPLY))

    def choose(self) -> int:
        """The walker's next action."""
        rng, walker = self.rng, self.walker
        if rng.random() < walker.random:
            return rng.randrange(len(rules.ACTIONS))
        target = annotate.aim(self.state)
        seen = [int(self.place[s]) for s in target.slots if self.visible[s]]
        lure = self._lure(target, seen)
        straight = any(place // 7 == 3 for place in seen)
        chance = walker.simple if straight else walker.hard
        if verdict(self.history.last_note) == BAD:
            chance = min(chance, walker.corrected)
        if lure is not None and not straight:
            chance += walker.lured
        if rng.random() < chance:
            return self._habit(lure)
        if not (set(target.slots) & (self.known | set(np.flatnonzero(self.visible).tolist()))):
            return self._explore()
        return self.plan[0] if self.plan else rng.randrange(len(rules.ACTIONS))

    def _lure(self, target, seen: Sequence[int]) -> int | None:
        """The place of the nearest look-alike that is nearer than the target."""
        distance = lambda place: 6 - place % 7 + abs(place // 7 - 3)
        state, like = self.state, []
        kind, colour = (int(a[target.slots[0]]) for a in (state.kinds, state.colours)) if target.slots else (-1, -1)
        for slot in np.flatnonzero(self.visible).tolist():
            same = int(state.kinds[slot]) == kind or int(state.colours[slot]) == colour
            if slot not in target.slots and same and slot != rules.DOOR_SLOT and slot != int(state.carrying):
                like.append(int(self.place[slot]))
        near = min(like, key=lambda place: (distance(place), place), default=None)
        return near if near is not None and distance(near) < min(map(distance, seen), default=99) else None

    def _free(self) -> bool:
        """Whether the cell ahead can be entered."""
        task, node = self.task, self.node
        return solver.step(task, node, rules.FORWARD).pose != node.pose

    def _habit(self, lure: int | None) -> int:
        if lure is not None:
            sideward, forward = lure // 7 - 3, 6 - lure % 7
            if sideward == 0 and forward == 1:
                wants = annotate.aim(self.state).verb == "pick up" and int(self.state.carrying) < 0
                return rules.PICK_UP if wants else rules.FORWARD
            if forward > 0 and self._free():
                return rules.FORWARD
            return rules.TURN_LEFT if sideward < 0 else rules.TURN_RIGHT
        return rules.FORWARD if self._free() else rules.TURN_LEFT

    def _explore(self) -> int:
        if self.turns < 3 or not self._free():
            return rules.TURN_RIGHT
        return rules.FORWARD

    def advance(self, action: int, after, node: solver.Node, text: tuple[str, str]) -> None:
        self.turns = self.turns + 1 if action in (rules.TURN_LEFT, rules.TURN_RIGHT) else 0
        self.pending = self.state, action, self._left(), self.known | frozenset(np.flatnonzero(self.visible).tolist())
        self.history = self.history.then(Step(rules.ACTIONS[action], text[1]))
        # A step of a shortest plan leaves the rest of it.
        follows = self.plan and action == self.plan[0]
        self.state, self.node, self.plan = after, node, self.plan[1:] if follows else solver.search(self.task, node)

    def _left(self) -> int:
        return 99 if self.plan is None else len(self.plan)

    def moment(self) -> Moment:
        before, action, distance, known = self.pending
        return Moment(before, self.state, action, self.visible, self.place, known, distance, self._left())


def walk(
    mission: str, seeds: Sequence[int], walkers: Sequence[Walker], kinds: Sequence[str], max_steps: Sequence[int]
) -> list[NotedEpisode]:
    """One episode per seed. The same arguments give the same transcripts.

    Args:
      mission: one of `rules.MISSIONS`, or "all": one after the other.
      seeds: of the task and the walker.
      walkers, kinds, max_steps: of each episode.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"the kind of notes is {kind!r}; choose one of {', '.join(map(repr, KINDS))}")
    n, number = len(seeds), levels.mission_id(mission)
    rows = max(_ROWS, 1 << max(0, n - 1).bit_length())  # few sizes, so that few programs are compiled
    missions = np.arange(rows) % len(rules.MISSIONS) if number is None else np.full(rows, number)
    padded = np.resize(np.asarray(seeds, np.uint32), rows)
    states = jax.device_get(_draw(padded, missions.astype(np.int32)))
    made = zip(_rows(states, n), solver.read(states), texts(states), kinds, walkers, seeds, max_steps, strict=False)
    episodes = [_Episode(s, r, t, kind, w, random.Random(f"{mission} {seed}"), m) for s, r, t, kind, w, seed, m in made]
    live, first = list(range(n)), True
    while True:
        visible, place = jax.device_get(_perceive(states))
        for i in live:
            one = episodes[i]
            one.look(visible[i], place[i])
            if first:
                moment = Moment(one.state, one.state, -1, one.visible, one.place, one.known, 0, 0)
                one.note(moment)
            else:
                one.note(one.moment())
                one.known = one.pending[-1]
        first = False
        done = lambda one: sum(not s.action.startswith(THINK) for s in one.history.steps)
        live = [i for i in live if not annotate.won(episodes[i].state) and done(episodes[i]) < episodes[i].max_steps]
        if not live:
            break
        actions = np.zeros(rows, np.int32)
        for i in live:
            actions[i] = episodes[i].choose()
        states = jax.device_get(_step(states, actions))
        shown, after = texts(states), _rows(states, n)
        for i in live:
            one = episodes[i]
            one.advance(int(actions[i]), after[i], solver.step(one.task, one.node, int(actions[i])), shown[i])
    return [NotedEpisode(one.history, one.kind, annotate.won(one.state), tuple(one.values)) for one in episodes]
