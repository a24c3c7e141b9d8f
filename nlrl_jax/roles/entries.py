"""Finds the entries on timeslots in what an analyst wrote, in whatever form it wrote them (see `verdicts`).

Three readings, the first that finds something counts: JSON objects; entries that begin a line or a bracket, in the
paper's form `{timeslot 12, <critical>, <move left>, <why>}`, as a list or as a table; sentences that name a timeslot
together with its judgement. Every pattern's repetitions are bounded or cannot overlap: the time is linear in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
AROUND = " \t\r\n,:;|.<>\"'*-"

_SLOT = r"(?:time[\s_-]?(?:slots?|steps?)|slots?|t(?=\s?=))"
_NAME = rf"(?:{_SLOT}|steps?|states?)"  # "Step 1: ..." may be a step of the analyst's thoughts
_NO = r"(?:not|non|un|no longer|never|hardly|isn't|neither)[\s-]{0,2}(?:(?:a|an|so|very|really|that|yet)\s){0,2}"
# "critical", "not critical"; the echo "critical or not" says nothing.
_CRITICAL = rf"(?P<no>\b{_NO})?(?:\b|(?<=un))(?:critical|crucial)(?!\s?(?:or|/)\s?(?:not|un))\w{{0,5}}"
_VALUE = r"(?:[\"'*?_\s]{0,4}[:=][\"'<*\s]{0,4}(?P<value>yes|true|1|no\b|none|not|false|0|un|non)\w{0,9})?"
_JUDGED = re.compile(_CRITICAL + _VALUE, re.IGNORECASE)  # "critical: no" too
_SOON = re.compile(r"[\s,:;|<\"'*(=-]{0,9}" + _CRITICAL, re.IGNORECASE)
_BARE = re.compile(r"[\s,:;|<\"'*(=-]{0,9}(?P<value>yes|true|no|false)\s?(?=[,;>|}.\n\"'*)]|$)", re.IGNORECASE)
_WHOLE = r"(?<![\d.])(?P<first>-?\d{1,9})(?![\d%]|e[-+]?\d)"  # 1e400 is no timeslot
_WHICH = rf"{_WHOLE}(?:\s?(?:-|~|to|through)\s?(?:{_SLOT}\s)?(?P<last>\d{{1,9}})\b)?"
_HEAD = re.compile(
    r"(?P<start>^|[{(\[};])[\s,>*#\"'`|<-]{0,12}(?:\d{1,3}[.)]\s{1,2})?[*\"'`]{0,3}"
    rf"(?:(?P<name>{_NAME})[\s\"'`*:=#<]{{0,8}})?{_WHICH}(?!\.\d)",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(
    rf"\b{_NAME}[\s\"'`*:=#<]{{0,8}}{_WHICH}"
    rf"(?=[\s,:;|<\"'*()=-]{{0,9}}(?:(?:is|are|was|were|a|as|state)\s){{0,3}}{_CRITICAL})",
    re.IGNORECASE,
)
_FIELD = re.compile(r"<([^<>]*)>")
_LABEL = re.compile(r"\b(?:actions?|torques?)\b[^:=\n]{0,20}[:=]\s?|\bshould (?:have )?", re.IGNORECASE)
_GAP = re.compile(r"(?:[\s,:;|>\"'*]|\.(?!\d)|-(?=\s+[A-Za-z]))*")
_ACTION = re.compile(
    rf"[(\[{{][^)\]}}]*[)\]}}]?|{NUMBER}(?:(?:\s+|\s*[,;]\s+|,){NUMBER})*"
    rf"|(?:[\w ]{{1,20}}[:=]\s?{NUMBER}[,;\s]{{0,3}}){{2,}}|[^,;|.\n}}\"]*"
)
_NUMBERS = re.compile(rf"[(\[{{]|{NUMBER}|[\w ]{{1,20}}[:=]")
_WHY = re.compile(r"\b(?:explanation|reason(?:ing)?|rationale|why|analysis)\b[\"'*]{0,3}\s?[:=]\s?", re.IGNORECASE)
_DECODER = json.JSONDecoder(strict=False)
_FAILURES = 50  # brackets tried as the start of JSON that turn out not to be


class Entry(NamedTuple):
    """What stands in a reply on the timeslots [first, last].

    critical: None where it cannot be told. action: its text, "" where none is named.
    """

    first: int
    last: int
    critical: bool | None
    action: str
    explanation: str


def find_entries(text: str) -> tuple[list[Entry], bool]:
    """The entries of a reply in the order in which they stand there, and whether the last one breaks off."""
    entries, cut = _json_entries(text)
    if entries:
        return entries, cut
    heads = [head for head in _HEAD.finditer(text) if _begins_entry(text, head)]
    heads = heads or list(_SENTENCE.finditer(text))
    if not heads:
        return [], False
    stops = [*(head.start() for head in heads[1:]), len(text)]
    entries = [_written(head, text[head.end() : stop]) for head, stop in zip(heads[:-1], stops)]
    body = text[heads[-1].end() :]
    cut = "{" in heads[-1].group() and "}" not in body
    return [*entries, _written(heads[-1], body[: body.rfind("}")] if "}" in body else body, cut)], cut


def _begins_entry(text: str, head: re.Match[str]) -> bool:
    """A number alone, or a step, must be judged at once to be a timeslot."""
    if head["name"] and re.match(_SLOT, head["name"], re.IGNORECASE):
        return True
    after = text[head.end() : head.end() + 60]
    if not head["name"] and not head["start"] and not re.match(r"[\s*\"']{0,3}[:,|]", after):
        return False  # "1. Critical states"
    return bool(_BARE.match(after) or _SOON.match(after))


def _written(head: re.Match[str], body: str, cut: bool = False) -> Entry:
    """An entry out of the text from its timeslot to the next entry."""
    first, last = int(head["first"]), int(head["last"] or head["first"])
    last = max(first, last)
    body = body.rstrip(" \t\r\n,{[*#-`|").removesuffix("}")
    if re.match(r"[\s,:;|*-]{0,6}<", body):
        fields = _FIELD.findall(body)  # what breaks off is no field
        rest = body.split(">", 2)
        critical = _judgement(fields[0]) if fields else None
        return Entry(first, last, critical, "".join(fields[1:2]), rest[2].strip(AROUND) if len(rest) == 3 else "")
    judged = _BARE.match(body) or _JUDGED.search(body)
    if judged is None:
        return Entry(first, last, None, "", "")
    rest = body[judged.end() :]
    action, why = _split(rest, cut, sentence=head.re is _SENTENCE)
    return Entry(first, last, _decide(judged), action, (why or rest).strip(AROUND))


def _split(rest: str, cut: bool, sentence: bool) -> tuple[str, str]:
    """(action, explanation) out of what follows the judgement where there are no angle brackets; "" for what is not.

    sentence: running text, in which an action must be announced.
    """
    label = _LABEL.search(rest)
    field = _ACTION.match(rest, _GAP.match(rest, label.end() if label else 0).end())
    action, after = field.group(), field.end()
    is_prose = not _NUMBERS.match(action) and (sentence or len(action.split()) > 3)
    if cut and after == len(rest) or not label and is_prose:
        return "", ""
    why = _WHY.search(rest, after)
    return action, "" if label and not why else rest[why.end() if why else after :]


def _judgement(field: str) -> bool | None:
    """Whether a field says critical; None where it does not tell."""
    judged = _JUDGED.search(field) or _BARE.match(field)
    return None if judged is None else _decide(judged)


def _decide(judged: re.Match[str]) -> bool:
    groups = judged.groupdict()
    return groups["value"].lower() in ("yes", "true", "1") if groups["value"] else not groups.get("no")


def _json_entries(text: str) -> tuple[list[Entry], bool]:
    """The entries of a reply in JSON, whole or in part; none where it is not JSON. And whether it breaks off."""
    entries: list[Entry] = []
    position, failures, bracket = 0, 0, re.compile(r"[{\[]")
    while failures < _FAILURES and (found := bracket.search(text, position)):
        try:
            value, position = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            failures, position = failures + 1, found.start() + 1
            continue
        entries += _json_walk(value)
    return entries, bool(entries) and failures > 0 and text.rstrip()[-1:] not in "]}`"


def _json_walk(value: Any) -> Iterator[Entry]:
    """Every object in `value`, in order, that speaks of a timeslot."""
    stack = [("", value)]
    while stack:
        key, node = stack.pop()
        if isinstance(node, list):
            stack += [(key, inner) for inner in reversed(node)]
        if not isinstance(node, dict):
            continue
        named = {re.sub(r"[^a-z]", "", name.lower()): inner for name, inner in node.items()}
        slots = next((named[n] for n in ("timeslot", "timestep", "slot", "step", "time", "t") if n in named), None)
        if slots is None and any("critic" in name or "crucial" in name for name in named):
            slots = key
        which = _json_slots(slots)
        if which:
            yield _json_entry(*which, named)
        else:
            stack += reversed(list(node.items()))


def _json_slots(value: Any) -> tuple[int, int] | None:
    """(first, last) of a timeslot's number or range."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (int(value), int(value)) if abs(value) < 1e9 and value == int(value) else None
    found = re.fullmatch(rf"\s?(?:{_NAME}\s?)?{_WHICH}\s?", value, re.IGNORECASE) if isinstance(value, str) else None
    return (int(found["first"]), max(int(found["first"]), int(found["last"] or -1))) if found else None


def _json_entry(first: int, last: int, named: Mapping[str, Any]) -> Entry:
    pick = lambda *parts: next((value for name, value in named.items() if any(p in name for p in parts)), "")
    critical = pick("critic", "crucial")
    is_number = isinstance(critical, int | float) and abs(critical) < math.inf  # Python's JSON has NaN
    judged = bool(critical) if is_number else _judgement(_spell(critical))
    action, why = pick("action", "correct", "suggest", "torque"), pick("expl", "reason", "why", "rationale")
    return Entry(first, last, judged, _spell(action), _spell(why or ""))


def _spell(value: Any) -> str:
    """A JSON value as text; "null" for none."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except RecursionError:
        return "?"
