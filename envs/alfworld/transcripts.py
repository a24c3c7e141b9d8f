"""Episodes of our own games by walkers of mixed quality, with notes: what a language model reads to learn the game.

A walker acts on what it has read (`belief.Belief`): it looks into likely places until it has seen what it needs, then
does what the goal asks for. Now and then it makes one of the mistakes that language models make here: it takes another
thing that lies there, skips the cleaning, looks into a place again, or gives a command that does nothing. In some
situations one mistake is a habit of all walkers, likelier than what is right. Behind a critic's BAD mistakes are rarer.
"""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

from envs.alfworld import annotate, games
from envs.alfworld.belief import Belief, kind_of
from envs.alfworld.world import World
from nlrl_jax.roles.dialogues import BAD, THINK, THINK_REPLY, History, Step, verdict

KINDS = ("Critic", "", "Value", "Reward", "Thought", "Think")  # of notes; "" and Value have none in the history


@dataclasses.dataclass(frozen=True)
class Walker:
    """Probabilities of a walker's mistakes.

    Attributes:
      mistake: per step. habit: where the situation has one. corrected: behind a critic's BAD, of either. random: of a
        command with names at random.
    """

    mistake: float = 0.25
    habit: float = 0.75
    corrected: float = 0.15
    random: float = 0.05


EXPERT = Walker(0.0, 0.0, 0.0, 0.0)
_TASTES = 0.3  # share of walkers with an order of their own in which they look into places
_HABITS = 0.35  # share of situations that have one
WANDERER = Walker(random=0.5)  # for what commands do that nobody would choose


class Transcript(NamedTuple):
    """An episode and its ending.

    history: with notes of the kind. kind: one of `KINDS`. success: the goal is reached at its end.
    values: a line for each observation, the first included, for the kind "Value"; else empty.
    """

    history: History
    kind: str
    success: bool
    values: tuple[str, ...] = ()


def right(belief: Belief, taste: str = "") -> str:
    """What an expert does who has read the same.

    Args:
      taste: of somebody's: in which order places of the same likelihood are looked into; "" is as they are listed.
    """
    wanted = belief.next()
    if wanted.commands:
        return wanted.commands[0]
    if belief.at in belief.closed and belief.at not in belief.looked:
        return f"open {belief.at}"
    places = belief.unlooked(wanted.thing, taste)
    places = places or [place for place in belief.places if place != belief.at]
    return belief.way_into(places[0]) if places else "look"


def wrong(belief: Belief, rng: random.Random) -> str:
    """A mistake that fits the situation."""
    here = [name for name, place in belief.seen.items() if place == belief.at and not name.endswith("lamp 1")]
    options = [f"go to {place}" for place in sorted(belief.looked) if place != belief.at][:3]
    options += ["look", "inventory"]
    wanted = belief.next()
    others = [name for name in sorted(here) if kind_of(name) != belief.goal.target]
    if others and not belief.held:
        options += [f"take {rng.choice(others)} from {belief.at}"] * 3
    if wanted.verb == "treat" and belief.home():
        place = belief.home()
        options += [f"go to {place}" if belief.at != place else f"put {belief.held} in/on {place}"] * 3
    if wanted.verb in ("put", "treat") and belief.at in belief.looked and belief.held:
        options += [f"put {belief.held} in/on {belief.at}"]
    return rng.choice(options)


def anything(belief: Belief, rng: random.Random) -> str:
    """A command with names at random."""
    things = [*sorted(belief.seen), *([belief.held] if belief.held else [])] or [f"{belief.goal.target} 1"]
    thing, place = rng.choice(things), rng.choice([belief.at or belief.places[0], *belief.places])
    forms = ("go to {p}", "open {p}", "close {p}", "take {o} from {p}", "put {o} in/on {p}", "examine {p}", "use {o}")
    forms += ("clean {o} with {p}", "heat {o} with {p}", "cool {o} with {p}", "examine {o}", "look", "inventory")
    return rng.choice(forms).format(o=thing, p=place)


def choose(belief: Belief, walker: Walker, last_note: str, rng: random.Random, taste: str = "") -> str:
    """A walker's next command."""
    if rng.random() < walker.random:
        return anything(belief, rng)
    wanted = belief.next()
    situation = random.Random(" ".join([wanted.verb, *wanted.thing.split()[:1], *belief.at.split()[:1]]))
    habit = situation.random() < _HABITS
    chance = walker.habit if habit else walker.mistake
    if verdict(last_note) == BAD:
        chance = min(chance, walker.corrected)
    if rng.random() < chance:
        return wrong(belief, situation if habit else rng)
    return right(belief, taste)


def walk(task: str, seed: int, walker: Walker, kind: str, max_steps: int, split: str = "train") -> Transcript:
    """One episode. The same arguments give the same transcript.

    Args:
      task: one of `games.KINDS`. seed: of the game and of the walker. kind: of notes.
    """
    if kind not in KINDS:
        raise ValueError(f"the kind of notes is {kind!r}; choose one of {', '.join(map(repr, KINDS))}")
    rng = random.Random(f"{task} {seed}")
    game = games.make(task, seed, split)
    world = World(game)
    history = History(game.goal, world.intro())
    belief, values = Belief(game.goal, world.intro()), []
    taste = str(seed) if rng.random() < _TASTES else ""
    if kind == "Thought":
        history = history.noted(annotate.thought(belief))
    if kind == "Value":
        values.append(annotate.value(belief))
    for t in range(max_steps):
        if kind == "Think" and (t == 0 or rng.random() < 0.25):
            history = history.then(Step(f"{THINK} {annotate.thought(belief)}", THINK_REPLY))
        command = choose(belief, walker, history.last_note, rng, taste)
        observation = world.step(command)
        before, belief = belief, belief.after(command, observation)
        history = history.then(Step(command, observation))
        if kind == "Critic":
            history = history.noted(annotate.reflection(before, belief, command, observation))
        elif kind == "Thought":
            history = history.noted(annotate.thought(belief))
        elif kind == "Reward":
            history = history.noted(annotate.reward(belief))
        if kind == "Value":
            values.append(annotate.value(belief))
        if world.won():
            break
    return Transcript(history, kind, world.won(), tuple(values))
