"""What a critic who has read an episode says about its last step, and other notes, by rule (LAC, appendix C.3).

The paper's four criteria for the closing word, decided from the text so far (`belief.Belief`):

1. the step is necessary for the goal: a part of it is done, or what comes next is nearer -> GOOD;
2. the step shows something essential: the thing or the lamp that is looked for is seen for the first time -> GOOD;
3. the step is useless or wrong: nothing happens, the wrong thing is taken, a place is looked into again, one goes away
   from what comes next -> BAD;
4. the episode so far does not decide it: a place that was not known is looked into, in vain -> UNKNOWN.
"""

from __future__ import annotations

import re

from envs.alfworld.belief import Belief, plain
from envs.alfworld.games import MACHINES
from envs.alfworld.world import NOTHING
from nlrl_jax.roles.dialogues import BAD, GOOD, UNKNOWN, VERDICT

_PARTS = {"put": 3, "examine": 4, "put two": 6}  # sub-goals; the others have 4
_DONE = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}


def sub_goals(belief: Belief) -> tuple[int, int]:
    """(done, all): find, take, clean or heat or cool, put; for two things twice; for a lamp find, take, find, use."""
    total, wanted = _PARTS.get(belief.goal.kind, 4), belief.next()
    if not wanted.verb:
        return total, total
    lamp_known = any(name.startswith(f"{belief.goal.place} ") for name in belief.seen)
    if belief.goal.kind == "examine":
        has = wanted.verb == "use" or (wanted.verb == "find" and wanted.thing == belief.goal.place)
        return (2 if has else int(wanted.verb in ("take", "put away"))) + int(lamp_known), total
    before = 3 * len(belief.in_place())
    if wanted.verb == "put":
        return before + (3 if belief.goal.kind in MACHINES else 2), total
    return before + {"find": 0, "take": 1, "put away": 1, "treat": 2}[wanted.verb], total


def judge(before: Belief, after: Belief, observation: str) -> str:
    """GOOD, BAD or UNKNOWN by the criteria above."""
    if not before.goal.kind:
        return BAD if observation.startswith(NOTHING) else UNKNOWN
    done, earlier = sub_goals(after)[0], sub_goals(before)[0]
    if done != earlier:
        return GOOD if done > earlier else BAD
    old, new = before.next(), after.next()
    if old.verb == "find":
        fresh = after.looked - before.looked or (after.closed - before.closed - before.looked)
        return UNKNOWN if fresh and after.held == before.held else BAD
    if old.verb == "put away" and new.verb != "put away":
        return GOOD
    return GOOD if len(new.commands) < len(old.commands) and old.verb == new.verb else BAD


def deed(action: str, observation: str, after: Belief) -> str:
    """What the action did, as a sentence."""
    if observation.startswith(NOTHING):
        return "Nothing happened."
    rules = (
        (r"You pick up the (\w+ \d+) from", "I picked up {}."),
        (r"You open the (\w+ \d+)\.", "I opened {}."),
        (r"You close the (\w+ \d+)\.", "I closed {}."),
        (r"You turn on the (\w+ \d+)", "I turned on {}."),
    )
    for pattern, sentence in rules:
        if match := re.match(pattern, observation):
            return sentence.format(match[1])
    if match := re.match(r"You put the (\w+ \d+) in/on the (\w+ \d+)", observation):
        return f"I put {match[1]} in/on {match[2]}."
    if match := re.match(r"You (clean|heat|cool) the (\w+ \d+)", observation):
        return f"I {_DONE[match[1]]} {match[2]}."
    closed = ", which is closed" if "is closed" in observation else ""
    return f"I went to {after.at}{closed}." if plain(action).startswith("go to ") else "That changed nothing."


def article(word: str) -> str:
    if word in ("bread", "lettuce", "toiletpaper"):
        return "any"
    return "an" if word.startswith(tuple("aeiou")) else "a"


def _where(belief: Belief, place: str) -> str:
    return "here" if belief.at == place else f"at {place}"


def situation(belief: Belief) -> str:
    """Where things stand, as a sentence."""
    wanted = belief.next()
    thing = wanted.thing
    if wanted.verb == "take":
        return f"{thing.capitalize()} is {_where(belief, wanted.place)}."
    return {
        "": "I have reached the goal.",
        "find": f"I have not found {'another' if belief.in_place() else article(thing)} {thing} yet.",
        "treat": f"I still have to {belief.goal.kind} {thing} with {wanted.place}.",
        "put": f"{thing.capitalize()} belongs in or on {wanted.place}.",
        "use": f"{thing.capitalize()} is {_where(belief, wanted.place)}.",
        "put away": f"I do not need {thing}.",
    }[wanted.verb]


def reflection(before: Belief, after: Belief, action: str, observation: str) -> str:
    """The critic's line, e.g. "I am at the desk 1. The mug 2 is here. This step is GOOD."."""
    lamps = [name for name in after.seen if name not in before.seen and name.startswith(f"{after.goal.place} ")]
    lamp = f" I found {lamps[0]}." if lamps and after.goal.kind == "examine" else ""
    now = situation(after)
    if after.next().verb == "find" and after.looked - before.looked and not lamp:
        kind = after.next().thing
        now = f"There is no {'other ' * bool(after.in_place())}{kind} there."
    return f"{deed(action, observation, after)}{lamp} {now} {VERDICT} {judge(before, after, observation)}."


def thought(belief: Belief) -> str:
    """A plan for the next action, as a chain of thought would state it."""
    wanted = belief.next()
    if wanted.verb == "find":
        likely = belief.unlooked(wanted.thing)[:3]
        return f"{situation(belief)} I could look at {' or '.join(likely)}." if likely else situation(belief)
    plans = {"take": "I will take it.", "put": "I will put it there."}
    plans |= {"use": "I will turn it on.", "put away": "I will put it down."}
    return f"{situation(belief)} {plans.get(wanted.verb, '')}".strip()


def reward(belief: Belief) -> str:
    return "1" if belief.goal.kind and not belief.next().verb else "0"


def value(belief: Belief) -> str:
    """RAFA's line: which share of the sub-goals is done."""
    done, total = sub_goals(belief)
    return f"{situation(belief)} The value is {done}/{total}."
