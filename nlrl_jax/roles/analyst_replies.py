"""Reads what an analyst writes of an episode: which timeslots are critical, what to do there, and rewards (ULTRA).

The format asked for is the paper's (appendix B): `{timeslot 12, <critical>, <move left>, <why>}, {timeslot 13, ...}`
and `{reward = 0.4, analysis: ...}`. Models also write lists, tables, JSON, prose and nonsense; what can be told is
taken, what cannot is counted. Nothing here raises on a text, and the time is linear in its length.
"""

from __future__ import annotations

import collections
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

from nlrl_jax.roles.entries import NUMBER, Entry, find_entries
from nlrl_jax.roles.json_reply import without_thoughts
from nlrl_jax.roles.trajectories import Action, Verdict

# What a field names -> the action; None where it is not one of the game's.
ReadAction = Callable[[str], Action | None]

# Once a reply: empty (no text), nothing (text without one timeslot), form (not, or not only, what was asked for),
# cut (it breaks off inside an entry). Once an entry: outside (it names a timeslot that is not of [begin, end)),
# repeated (a later entry on the timeslot counts), order (earlier than the entry before it), unclear (does not say
# whether it is critical: left out), action (not one of the game's: left out), unasked (an action for a timeslot that is
# not critical: left out), long (the explanation is shortened). Once a timeslot: missing (no entry speaks of it).
PROBLEMS = ("empty", "nothing", "form", "cut", "outside", "repeated", "order", "unclear", "action", "unasked", "long")
PROBLEMS += ("missing",)
LONGEST = 1000  # characters of an explanation that are kept

_DASHES = "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d"
_PLAIN = str.maketrans({**dict.fromkeys(_DASHES, "-"), "\u201c": '"', "\u201d": '"', "\u2019": "'", "\u00a0": " "})
_ASKED = re.compile(r"\{\s*timeslot\s+\d+\s*,\s*<[^<>]*>\s*,\s*<[^<>]*>\s*,\s*<[^<>]*>\s*\}")
_NOTHING = re.compile(
    r"none|null|nil|no|n/?a|nothing|no (?:correction|change|action).{0,20}|not needed|-+|"
    r"unchanged|proper|correct|appropriate|(?:keep|same)(?: (?:the )?(?:same )?action)?"
)
_REWARD = (
    rf"\breward\b[^=:\n{{}}]{{0,40}}[=:][\s*_`\"'<]{{0,8}}(?P<n>{NUMBER}|[-+]?(?:nan|inf)\w{{0,5}})(?![\w%/]|[.,]\d)"
)
# In order: the asked form, a line of its own, anywhere, a sentence, a number and nothing else. The last of its kind
# counts: models think aloud.
_REWARDS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"(?:\{{|\A)[\s\"'*`]{{0,9}}{_REWARD}",
        rf"^[ \t\"'*`#>-]{{0,9}}(?:the\s|final\s|assigned\s){{0,2}}{_REWARD}",
        _REWARD,
        rf"\breward\b[^.\n]{{0,40}}?\b(?:is|of|be|at|(?:set|equal) to)\s[*`\"'<]{{0,3}}(?P<n>{NUMBER})"
        r"(?![\w%/]|[.,]\d|\sto\s)",
        rf"\A[\s*`\"'<{{]{{0,9}}(?P<n>{NUMBER})[\s*`\"'>}}.]{{0,9}}\Z",
    )
]


def read_verdicts(text: str, begin: int, end: int, read_action: ReadAction) -> tuple[list[Verdict], Counter[str]]:
    """The verdicts of a reply on the timeslots [begin, end).

    Args:
      read_action: see `choice_reader` and `vector_reader`. Words such as "none" never reach it.

    Returns:
      The verdicts in order of time, at most one a timeslot, and what was wrong, by kind of `PROBLEMS`.
    """
    size = max(end - begin, 0)
    text = _plain(text)
    if not text.strip():
        return [], +Counter(empty=1, missing=size)
    entries, cut = find_entries(text)
    problems = Counter(
        form=int(bool(_ASKED.sub("", text).strip(" \n\r\t,."))),
        cut=int(cut),
        nothing=int(not entries),
        order=sum(later.first < earlier.first for earlier, later in zip(entries, entries[1:])),
        outside=sum(entry.first < begin or entry.last >= end for entry in entries),
    )
    found: dict[int, Verdict] = {}
    named: set[int] = set()
    for entry in reversed(entries):
        slots = range(max(entry.first, begin), min(entry.last + 1, end))
        problems["repeated"] += any(slot in named for slot in (*slots[:1], *slots[-1:]))
        fresh = [slot for slot in slots if slot not in found] if len(found) < size else []
        named.update(fresh)
        if fresh and entry.critical is None:
            problems["unclear"] += 1
        elif fresh:
            action, why, judged = _checked(entry, read_action, problems)
            found.update({slot: Verdict(slot, entry.critical, action, why, judged) for slot in fresh})
    problems["missing"] = size - len(named)
    return [found[slot] for slot in sorted(found)], +problems


def written_reward(text: str) -> float | None:
    """The reward as the reply has it, which may lie outside [-1, 1]; None where there is none, or no finite one."""
    text = _plain(text)
    found = next((last for pattern in _REWARDS if (last := _last(pattern, text))), None)
    if found is None or found["n"].lstrip("+-")[0] in "niNI":
        return None
    return value if math.isfinite(value := float(found["n"])) else None


def read_reward(text: str) -> float | None:
    """`written_reward`, clipped to [-1, 1]: the two differ exactly where it was clipped."""
    reward = written_reward(text)
    return None if reward is None else min(max(reward, -1.0), 1.0)


def choice_reader(words: Mapping[str, int]) -> ReadAction:
    """Reads one of several actions by name, with words around it; two different ones, or a negation, are none.

    Args:
      words: name -> action id; several names may stand for one action.
    """
    longest_first = sorted(words, key=len, reverse=True)
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, longest_first)) + r")\b")
    negation = re.compile(r"\b(?:not|never|avoid|don't)\b")

    def read(text: str) -> int | None:
        text = " ".join(text.lower().replace("_", " ").split())
        named = {words[word] for word in pattern.findall(text)}
        return named.pop() if len(named) == 1 and not negation.search(text) else None

    return read


def vector_reader(size: int, low: float = -1.0, high: float = 1.0) -> ReadAction:
    """Reads `size` numbers in [low, high], bare or each with its label; anything else is no action."""
    labelled = re.compile(rf"[:=]\s*({NUMBER})(?![\w.])")
    number = re.compile(rf"(?<![\w.]){NUMBER}(?![\w.])")

    def read(text: str) -> tuple[float, ...] | None:
        if re.search(r"\b(?:nan|inf)", text, re.IGNORECASE):
            return None
        found = labelled.findall(text)
        found = found if len(found) == size else number.findall(text)
        numbers = tuple(float(word) for word in found)
        return numbers if len(numbers) == size and all(low <= x <= high for x in numbers) else None

    return read


def _plain(text: str) -> str:
    """Without thoughts, and with plain quotes and minus signs."""
    return without_thoughts(text).translate(_PLAIN)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(text), maxlen=1)), None)


def _checked(entry: Entry, read_action: ReadAction, problems: Counter[str]) -> tuple[Action | None, str, bool]:
    """(action, explanation, judged) of an entry, see `Verdict`, with what is wrong with them counted."""
    action, written = None, " ".join(entry.action.strip(" \t\r\n<>\"'`*|").rstrip(".").split())
    stands = bool(_NOTHING.fullmatch(written.lower()))
    if written and not stands:
        action = read_action(written)
        problems["action"] += action is None
        problems["unasked"] += action is not None and not entry.critical
    problems["long"] += len(entry.explanation) > LONGEST
    judged = not entry.critical or stands or action is not None
    return action if entry.critical else None, " ".join(entry.explanation[:LONGEST].split()), judged
