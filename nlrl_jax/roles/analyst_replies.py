"""Reads an analyst's replies on an episode: verdicts on timeslots with corrected actions, and rewards (ULTRA).

Two forms are read, with any prose around them and after a reasoning model's <think> part: the paper's (appendix B),
`{timeslot 12, <critical>, <move left>, <why>}, {timeslot 13, ...}` and `{reward = 0.4, analysis: ...}`, whose angle
brackets may be missing, and objects with the same fields in JSON or nearly so. All else is counted as unreadable.
Nothing here raises on a text, and the time is linear in its length.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nlrl_jax.roles import loose_json
from nlrl_jax.roles.thoughts import without_thoughts
from nlrl_jax.roles.trajectories import Action, Verdict

# The text of a field -> the action; None where it is not one of the game's.
ReadAction = Callable[[str], Action | None]

# Once per reply: empty (no text), nothing (no readable entry), form (not, or not only, the requested form), cut (it
# breaks off inside an entry). Once per entry: outside (its timeslot is not in [start, end)), repeated (a later entry on
# the timeslot counts), order (earlier than the entry before it), unclear (does not say whether it is critical: left
# out), action (not one of the game's: left out), unasked (an action for a timeslot that is not critical: left out),
# long (the explanation is shortened). Once per timeslot: missing (it has no entry).
PROBLEMS = ("empty", "nothing", "form", "cut", "outside", "repeated", "order", "unclear", "action", "unasked", "long")
PROBLEMS += ("missing",)
LONGEST = 1000  # characters of an explanation that are kept

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_DASHES = "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d"
_PLAIN = str.maketrans({**dict.fromkeys(_DASHES, "-"), "\u201c": '"', "\u201d": '"', "\u2019": "'", "\u00a0": " "})
_AROUND = " \t\r\n,:;|.<>\"'`*-"
_ASKED = re.compile(r"\{\s*timeslot\s+\d+\s*,\s*<[^<>]*>\s*,\s*<[^<>]*>\s*,\s*<[^<>]*>\s*\}")
_HEAD = re.compile(r"\{\s*timeslot\s*[:=]?\s*(\d{1,9})(?=\s*,)", re.IGNORECASE)
# The next field of an entry. One that breaks off does not match.
_FIELD = re.compile(r"\s*,\s*(?:<([^<>]*)>|([(\[][^()\[\]]*[)\]])|([^,<>]*)(?=,))")
_CRITICAL = re.compile(
    r"(?P<no>\b(?:not|non|un|never)[\s-]?(?:(?:a|so|very|really)\s){0,2})?(?:critical|crucial)(?!\s?(?:or\b|/))"
)
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0", "none", "not")
_UNCHANGED = re.compile(
    r"none|null|no|n/?a|nothing|-+|no (?:correction|change).{0,20}|unchanged|(?:proper|appropriate)|same.{0,7}"
)
_REWARD = rf"\breward\b[^=:\n{{}}]{{0,40}}[=:][\s*_`\"'<]{{0,8}}({_NUMBER}|[-+]?(?:nan|inf(?:inity)?))(?![\w%/]|[.,]\d)"
# In order: the requested form, a line of its own, anywhere. The last of its kind counts: models think aloud.
_REWARDS = [
    re.compile(start + _REWARD, re.IGNORECASE | re.MULTILINE)
    for start in (r"(?:\{|\A)[\s\"'*`]{0,9}", r"^[ \t\"'*`#>-]{0,9}(?:the\s|final\s|assigned\s){0,2}", "")
]
_JSON = re.compile(
    r"[{\[]\s*(?:[\[{\"'`]|timeslot\s*[:=]\s*[\"']?\d+[\"']?\s*,\s*[\"']?\w{1,40}[\"']?\s*[:=])", re.IGNORECASE
)
_FAILURES = 50  # brackets tried as the start of JSON that turn out not to be


class _Entry(NamedTuple):
    """What a reply says of one timeslot. critical: None where it is unclear. action: "" where none is named."""

    timeslot: int
    critical: bool | None
    action: str
    explanation: str


def read_verdicts(text: str, start: int, end: int, read_action: ReadAction) -> tuple[list[Verdict], Counter[str]]:
    """Reads a reply's verdicts on the timeslots [start, end).

    Args:
      read_action: see `choice_reader` and `vector_reader`. Words such as "none" never reach it.

    Returns:
      The verdicts in order of time, at most one per timeslot, and the reply's faults, by kind of `PROBLEMS`.
    """
    size = max(end - start, 0)
    text = _plain(text)
    if not text.strip():
        return [], +Counter(empty=1, missing=size)
    entries, cut = _json_entries(text)
    if not entries:
        entries, cut = _written_entries(text)
    problems = Counter(
        form=int(bool(_ASKED.sub("", text).strip(" \n\r\t,."))),
        cut=int(cut),
        nothing=int(not entries),
        order=sum(later.timeslot < earlier.timeslot for earlier, later in zip(entries, entries[1:])),
    )
    by_slot: dict[int, Verdict | None] = {}
    for entry in reversed(entries):
        if not start <= entry.timeslot < end:
            problems["outside"] += 1
        elif entry.timeslot in by_slot:
            problems["repeated"] += 1
        else:
            by_slot[entry.timeslot] = _verdict(entry, read_action, problems)
    problems["missing"] = size - len(by_slot)
    return [verdict for _, verdict in sorted(by_slot.items()) if verdict is not None], +problems


def written_reward(text: str) -> float | None:
    """Reads the reward as the reply has it, which may lie outside [-1, 1]; None where there is no finite one."""
    text = _plain(text)
    numbers = next((numbers for pattern in _REWARDS if (numbers := pattern.findall(text))), ["nan"])
    return value if math.isfinite(value := float(numbers[-1])) else None


def read_reward(text: str) -> float | None:
    """Reads the reward clipped to [-1, 1]; it differs from `written_reward` exactly where it was clipped."""
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


def vector_reader(size: int) -> ReadAction:
    """Reads `size` numbers in [-1, 1]; anything else is not an action."""
    number = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.])")

    def read(text: str) -> tuple[float, ...] | None:
        if re.search(r"\b(?:nan|inf)", text, re.IGNORECASE):
            return None
        numbers = tuple(float(word) for word in number.findall(text))
        return numbers if len(numbers) == size and all(-1 <= x <= 1 for x in numbers) else None

    return read


def _plain(text: str) -> str:
    """Strips thoughts, and replaces curly quotes and other minus signs by plain ones."""
    return without_thoughts(text).translate(_PLAIN)


def _verdict(entry: _Entry, read_action: ReadAction, problems: Counter[str]) -> Verdict | None:
    """Turns an entry into a verdict, its faults counted; None where it is unclear whether the timeslot is critical."""
    if entry.critical is None:
        problems["unclear"] += 1
        return None
    action, text = None, " ".join(entry.action.strip(_AROUND.replace("-", "")).split())
    unchanged = bool(_UNCHANGED.fullmatch(text.lower()))
    if text and not unchanged:
        action = read_action(text)
        problems["action"] += action is None
        problems["unasked"] += action is not None and not entry.critical
    problems["long"] += len(entry.explanation) > LONGEST
    explanation = " ".join(entry.explanation[:LONGEST].split())
    judged = not entry.critical or unchanged or action is not None
    return Verdict(entry.timeslot, entry.critical, action if entry.critical else None, explanation, judged)


def _judgement(text: str) -> bool | None:
    """Reads whether a field says critical; None where that is unclear ("critical or not")."""
    text = text.lower().strip(_AROUND)
    if text in (*_YES, *_NO):
        return text in _YES
    match = _CRITICAL.search(text)
    return None if match is None else not match["no"]


def _written_entries(text: str) -> tuple[list[_Entry], bool]:
    """Reads the entries in the paper's form, and whether the last one breaks off."""
    heads, entries, cut = list(_HEAD.finditer(text)), [], False
    for head, after in zip(heads, [*(head.start() for head in heads[1:]), len(text)]):
        body, closed, _ = text[head.end() : after].rpartition("}")
        cut = not closed
        body = f"{body}," if closed else text[head.end() : after]
        fields, position = [], 0
        while len(fields) < 2 and (field := _FIELD.match(body, position)):
            fields.append(field[field.lastindex or 0])
            position = field.end()
        critical, action = [*fields, "", ""][:2]
        explanation = body[position:].strip(_AROUND) if len(fields) == 2 else ""
        entries.append(_Entry(int(head[1]), _judgement(critical), action, explanation))
    return entries, cut


def _json_entries(text: str) -> tuple[list[_Entry], bool]:
    """Reads the entries of a reply in JSON, whole or in part, and whether it breaks off; none where it is not JSON."""
    entries: list[_Entry] = []
    position, failures = 0, 0
    while failures < _FAILURES and (start := _JSON.search(text, position)):
        value, position = _decoded(text, start.start())
        failures += value is None
        entries += _json_walk(value)
    return entries, bool(entries) and failures > 0 and text.rstrip()[-1:] not in "]}`"


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """Decodes what begins at `start`: (value, its end); (None, the next place) where it cannot be read as JSON."""
    try:
        value, end, whole, is_json = loose_json.decode(text, start)
    except ValueError:
        return None, start + 1
    return (value, end) if is_json or whole and value else (None, start + 1)


def _json_walk(value: Any) -> Iterator[_Entry]:
    """Yields every object in `value`, in order, that has a timeslot."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += reversed(node)
        elif isinstance(node, dict):
            slot = _field(node, "timeslot")
            if re.fullmatch(r"\d{1,9}(?:\.0)?", slot):
                action, explanation = _field(node, "action", "correct"), _field(node, "expl", "reason", "why")
                explanation = "" if explanation == "null" else explanation
                yield _Entry(int(float(slot)), _judgement(_field(node, "critical")), action, explanation)
            else:
                stack += reversed(list(node.values()))


def _field(fields: Mapping[str, Any], *names: str) -> str:
    """Returns the text of the first field whose name contains one of `names`; "" if there is none, "null" for None."""
    value = next((value for key, value in fields.items() if any(name in key.lower() for name in names)), "")
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "?"
