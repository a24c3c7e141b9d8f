"""Reads the JSON object in a language model's reply, also through prose, cuts and broken JSON."""

from __future__ import annotations

import collections
import itertools
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

PROBLEMS = ("empty", "prose", "cut", "repaired", "nothing")
_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"  # possessive: a long run is read once
_DECODER = json.JSONDecoder(strict=False)  # line breaks inside strings are legal: models write boards into them


class JsonReply(NamedTuple):
    """The object of a reply.

    fields: the object; empty if there is none.
    problem: "" for one clean object, else the first that applies: "empty" (no text), "prose" (a whole object with text
      around it), "cut" (it breaks off; its complete fields are kept), "repaired" (no JSON, but with readable
      `"name": value` pairs), "nothing" (no field at all).
    """

    fields: dict[str, Any]
    problem: str


def read_json(text: str) -> JsonReply:
    """The first JSON object of a reply, after its <think> block if it begins with one. Never raises.

    Halves of surrogate pairs, which files and tokenizers refuse, become replacement characters.
    """
    stripped = _whole(text).strip()
    if not _is_object(stripped):  # whose strings may hold what ends a block of thoughts
        stripped = _without_fence(without_thoughts(stripped).strip())
    if not stripped:
        return JsonReply({}, "empty")
    for start in (match.start() for match in re.finditer(r"\{", stripped)):
        try:
            fields, end = _decode(stripped, start)
        except (ValueError, RecursionError):
            break  # a broken outer object: its inner ones are not the answer
        if fields:
            return JsonReply(fields, "" if start == 0 and not stripped[end:].strip() else "prose")
    start = stripped.find("{")
    if start < 0:
        return JsonReply({}, "nothing")
    cut = _complete(stripped[start:])
    if cut:
        return JsonReply(cut, "cut")
    pairs = _pairs(stripped[start:])
    return JsonReply(pairs, "repaired" if pairs else "nothing")


def _is_object(text: str) -> bool:
    try:
        return text.startswith("{") and _decode(text, 0)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def read_number(value: Any) -> float | None:
    """A finite number out of a field: a number, or the first one in a string; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        match = re.search(_NUMBER, value)
        value = match.group() if match else None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def read_choice(value: Any, words: Sequence[str]) -> int | None:
    """The index of the word that a field names; None if it names none of them, or says anything besides.

    Case, underscores, a final full stop and a verb in front ("move up" for "up", and the reverse) do not matter.
    """
    name, names = _bare(str(value)), [_bare(word) for word in words]
    return names.index(name) if names.count(name) == 1 else None


def folded(word: str) -> str:
    """The form in which words are compared: without case, characters composed as most tokenizers write them."""
    return unicodedata.normalize("NFKC", word).lower()


def _bare(word: str) -> str:
    words = " ".join(folded(word).replace("_", " ").split()).removesuffix(".")
    return re.sub(r"^(?:move|go|step) (?=.)", "", words)


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode(text: str, start: int = 0) -> tuple[dict[str, Any], int]:
    """(the object that begins at `start`, where it ends). JSON's escapes can make halves of surrogate pairs too."""
    fields, end = _DECODER.raw_decode(text, start)
    return json.loads(_whole(json.dumps(fields, ensure_ascii=False))), end


def without_thoughts(text: str) -> str:
    """A reply without a reasoning model's thoughts at its beginning; "" where they never end.

    Some servers leave out the opening tag.
    """
    _, ended, answer = text.rpartition("</think>")
    return "" if not ended and text.lstrip().startswith("<think>") else answer


def _without_fence(text: str) -> str:
    """A text without Markdown's code fence around all of it."""
    if not text.startswith("```"):
        return text
    text = text.removeprefix("```").removesuffix("```")
    return text.removeprefix("json").removeprefix("JSON").strip()


def _complete(text: str) -> dict[str, Any]:
    """The fields of an object that breaks off before its end; empty if it is broken in another way."""
    inside, escaped, is_open = False, False, None  # the open bracket: (its closing one, the open bracket around it)
    ends: collections.deque[tuple[int, Any]] = collections.deque(maxlen=50)
    for i, character in enumerate(text):
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
            continue
        if character == '"':
            inside = True
        elif character in "{[":
            is_open = ("}" if character == "{" else "]", is_open)
        elif character in "}]":
            if is_open is None or is_open[0] != character:
                return {}
            is_open = is_open[1]
            if is_open is None:
                return {}  # it has an end, so something else is wrong
        elif character == ",":
            ends.append((i, is_open))
    closed = text + ('"' if inside else "") + _brackets(is_open)
    for candidate in itertools.chain([closed], (text[:i] + _brackets(around) for i, around in reversed(ends))):
        try:
            return _decode(candidate)[0]
        except (ValueError, RecursionError):
            continue
    return {}


def _brackets(is_open: Any) -> str:
    closing = []
    while is_open is not None:
        bracket, is_open = is_open
        closing.append(bracket)
    return "".join(closing)


def _pairs(text: str) -> dict[str, Any]:
    """`"name": number` and `"name": "string"` wherever they stand; the first of a name counts."""
    fields: dict[str, Any] = {}
    value = rf'({_NUMBER})(?=\s*[,}}\]\n]|\s*$)|"((?:[^"\\]|\\.)*)"'
    for name, number, string in re.findall(rf'(?<!\w)["\']?(\w{{1,64}}+)["\']?\s*+:\s*+(?:{value})', text):
        fields.setdefault(name, float(number) if number else string)
    return fields
