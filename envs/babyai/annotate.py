"""What a critic who has followed an episode says about a step, and other notes, by rule (LAC, appendix C.3).

The paper's four criteria for the closing word, decided with the shortest plan of the true state:

1. the step is necessary for the goal: a part of the goal is reached, or the known target is nearer -> GOOD;
2. the step shows something essential: the target is seen for the first time -> GOOD;
3. the step is useless or wrong: nothing changes, the wrong thing is taken, the known target is not nearer -> BAD;
4. the history does not decide it: the target is not known yet -> UNKNOWN.

Annotators hesitate: a nearer target counts as GOOD the more surely the nearer it is, else as UNKNOWN, and a target that
is not nearer is UNKNOWN at times (`SURE`), so that the words' probabilities say something.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from nlrl_jax.envs.babyai import rules
from nlrl_jax.envs.babyai.text import KINDS, PLACES
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT

_PLANS = {
    "pick up": "pick it up",
    "go to": "go to it",
    "open": "open it",
    "put it next to": "put the other one next to it",
}
SURE = {"bad": 0.9, "good": 0.95, "per_step": 0.04, "least": 0.5}


class Aim(NamedTuple):
    """The next part of the mission: slots of the objects that fit it, their name, and what to do with one of them."""

    slots: tuple[int, ...]
    name: str
    verb: str


class Moment(NamedTuple):
    """A step in an episode.

    before, after: states on the host.
    action: its id.
    visible: bool [9], which objects are seen after it. place: int [9], their cells of the view, indices into `PLACES`.
    discovered: slots of the objects seen before the step.
    d_before, d_after: steps of the shortest plans before and after it.
    """

    before: rules.BabyAIState
    after: rules.BabyAIState
    action: int
    visible: np.ndarray
    place: np.ndarray
    discovered: frozenset[int]
    d_before: int
    d_after: int


def name_of(kind: int, colour: int) -> str:
    return f"{rules.COLOURS[colour]} {KINDS[kind]}"


def aim(state: rules.BabyAIState) -> Aim:
    """Finds what the agent has to look for next; the last aim once the mission is fulfilled."""
    kinds, colours, mission = state.kinds, state.colours, int(state.mission)

    def of(kind, colour, verb):
        return Aim(tuple(np.flatnonzero((kinds == kind) & (colours == colour)).tolist()), name_of(kind, colour), verb)

    first, second = zip(state.target_kinds.tolist(), state.target_colours.tolist(), strict=True)
    load = int(state.carrying)
    if mission == rules.OPEN_DOOR:
        colour = int(colours[rules.DOOR_SLOT])
        has_key = load >= 0 and kinds[load] == rules.KEY and colours[load] == colour
        if int(state.door) == rules.LOCKED and not has_key:
            return of(rules.KEY, colour, "pick up")
        return of(*first, "open")
    if mission == rules.PUT_NEXT:
        carried = load >= 0 and (int(kinds[load]), int(colours[load])) == first
        return of(*second, "put it next to") if carried else of(*first, "pick up")
    if mission in (rules.GO_AFTER_PICK, rules.PICK_THEN_GO):
        return of(*second, "go to") if int(state.done) else of(*first, "pick up")
    return of(*first, "go to" if mission == rules.GO_TO else "pick up")


def won(state: rules.BabyAIState) -> bool:
    return int(state.done) == int(rules.PARTS[int(state.mission)])


def sees(moment: Moment) -> tuple[str, bool]:
    """Says where the aim is: (a sentence, whether the agent knows).

    The place follows the name as it does in an observation, so that a small model can look it up there: after
    "The green key is" one of a million weights named the place of another thing.
    """
    target = aim(moment.after)
    places = [int(moment.place[slot]) for slot in target.slots if moment.visible[slot]]
    if places:
        # The nearest by steps forward: a place is 7 * column + row, and row 6 is the agent's. Ties go by the words.
        nearest = min(places, key=lambda place: (-(place % 7), PLACES[place]))
        return f"Next: {target.name}{PLACES[nearest]}.", True
    if moment.discovered & set(target.slots):
        return f"Next: {target.name} out of view.", True
    return f"Next: {target.name} not seen yet.", False


def deed(moment: Moment) -> str:
    """Describes what the action did, in a sentence."""
    before, after, action = moment.before, moment.after, moment.action
    moved = (int(before.x), int(before.y)) != (int(after.x), int(after.y))
    slot = int(after.carrying if action == rules.PICK_UP else before.carrying)
    changed = int(before.carrying) != int(after.carrying)
    thing = name_of(int(after.kinds[slot]), int(after.colours[slot])) if slot >= 0 else ""
    return {
        rules.TURN_LEFT: "I have turned left.",
        rules.TURN_RIGHT: "I have turned right.",
        rules.FORWARD: "I have gone forward." if moved else "The way is blocked.",
        rules.PICK_UP: f"I have picked up the {thing}." if changed else "I have picked up nothing.",
        rules.DROP: f"I have put down the {thing}." if changed else "I have put down nothing.",
        rules.TOGGLE: "I have opened the door." if int(before.door) != int(after.door) else "I have opened nothing.",
    }[action]


def judge(moment: Moment, rng: random.Random) -> str:
    """Judges a step as GOOD, BAD or UNKNOWN by the criteria above."""
    before, after, target = moment.before, moment.after, aim(moment.before)
    if won(after) or int(after.done) > int(before.done) or aim(after).name != target.name:
        return GOOD if moment.d_after < moment.d_before else BAD
    known_before = bool(moment.discovered & set(target.slots))
    if not known_before:
        if any(moment.visible[s] for s in target.slots):
            return GOOD
        turned = moment.action in (rules.TURN_LEFT, rules.TURN_RIGHT)
        moved = (int(before.x), int(before.y)) != (int(after.x), int(after.y))
        return UNKNOWN if turned or moved else BAD
    if moment.d_after < moment.d_before:
        sure = max(SURE["least"], SURE["good"] - SURE["per_step"] * moment.d_after)
        return GOOD if rng.random() < sure else UNKNOWN
    return BAD if rng.random() < SURE["bad"] else UNKNOWN


def reflection(moment: Moment, rng: random.Random) -> str:
    """Writes the critic's line, e.g. "I have gone forward. Next: green key 1 step forward. This step is GOOD."."""
    return f"{deed(moment)} {sees(moment)[0]} {VERDICT} {judge(moment, rng)}."


def thought(moment: Moment) -> str:
    """Writes a plan for the next action, as a chain of thought would state it."""
    target = aim(moment.after)
    location, is_located = sees(moment)
    return f"{location} I want to {_PLANS[target.verb] if is_located else 'find it'}."


def reward(moment: Moment) -> str:
    return "1" if won(moment.after) else "0"


def sub_goals(state: rules.BabyAIState, discovered: frozenset[int]) -> tuple[int, int]:
    """Counts (sub-goals done, all sub-goals).

    Each part of the mission has two: to find the target and to do what is asked for.
    """
    mission = int(state.mission)
    parts = 1 if mission in (rules.GO_TO, rules.PICK) else 2
    total = 2 * parts
    if won(state):
        return total, total
    target = aim(state)
    first_part = parts == 1 or target.verb == "pick up"
    return (0 if first_part else 2) + bool(discovered & set(target.slots)), total


def value(moment: Moment) -> str:
    """Writes RAFA's line: the share of the sub-goals that are done."""
    discovered = moment.discovered | set(np.flatnonzero(moment.visible).tolist())
    done, total = sub_goals(moment.after, frozenset(discovered))
    return f"{sees(moment)[0]} The value is {done}/{total}."
