"""Reads the JSON object in a language model's reply, also through prose, cuts and broken JSON."""

from __future__ import annotations

import collections
import itertools
import json
import re
import unicodedata
from typing import Any, NamedTuple

from nlrl_jax.roles import loose_json, written_numbers
from nlrl_jax.roles.thoughts import without_thoughts

PROBLEMS = ("empty", "prose", "cut", "repaired", "nothing")
_LONGEST, _TRIED = 50_000, 50  # characters, and brackets as the beginning of an object, that are looked at
_FINAL = re.compile(r"\b(?:final|answer|correct(?:ed|ion)?|actually|instead|wait|rather|better|no)\b", re.IGNORECASE)
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>"?)|[{}\[\],]', re.DOTALL
)  # a string, maybe cut; what structures


class JsonReply(NamedTuple):
    """The object of a reply.

    fields: the object; empty if there is none.
    problem: "" for one clean object, else the first that applies: "empty" (no text), "prose" (a whole object with text
      around it), "cut" (it breaks off; its complete fields are kept), "repaired" (no JSON, but read by
      `loose_json`), "nothing" (no field at all).
    """

    fields: dict[str, Any]
    problem: str


def read_json(text: str) -> JsonReply:
    """Reads the JSON object of a reply, after its thoughts if it begins with them. Never raises.

    What is no JSON is read as `loose_json` reads it. Of several objects the first counts, and what later ones add to
    it; a later one that is called the final or the right one counts first. Halves of surrogate pairs, which files and
    tokenizers refuse, become replacement characters.
    """
    stripped = _whole(text).strip()
    if not _is_object(stripped):  # whose strings may hold what ends a block of thoughts
        stripped = _without_fence(without_thoughts(stripped).strip())
    if not stripped:
        return JsonReply({}, "empty")
    reply = _objects(stripped[:_LONGEST])
    if not reply.fields and r"{\"" in stripped:  # a string that holds an object
        fields = _objects(stripped[:_LONGEST].replace(r"\"", '"')).fields
        reply = JsonReply(fields, "repaired" if fields else "nothing")
    if not reply.fields and (narrow := _narrow(stripped[:_LONGEST])) != stripped[:_LONGEST]:
        fields = _objects(narrow).fields
        reply = JsonReply(fields, "repaired" if fields else "nothing")
    return reply


def _narrow(text: str) -> str:
    """Narrows brackets, colons and commas between fields that are of full width, as in East Asian writing."""
    text = text.translate({0xFF5B: "{", 0xFF5D: "}", **dict.fromkeys((0x300C, 0x300D, 0x300E, 0x300F), '"')})
    text = re.sub(r"(?<=[\"'\u201d\w])\s*\uff1a", ":", text)
    return re.sub(r"\uff0c(?=\s*[\"'\u201c}])", ",", text)


def _objects(text: str) -> JsonReply:
    """Collects the fields of the objects in a text."""
    fields, problem, end, starts = {}, "nothing", 0, re.finditer(r"\{", text)
    for start in itertools.islice((match.start() for match in starts), _TRIED):
        if start < end:
            continue
        parsed, after, fault = _object(text, start)
        if not parsed and after == len(text):
            break
        if not parsed:
            continue
        if not fields:
            fields, problem = parsed, fault or ("prose" if text[:start].strip() or text[after:].strip() else "")
        elif not fault:
            final = _FINAL.search(text, max(end, start - 200), start)
            fields = {**fields, **parsed} if final else {**parsed, **fields}
        end = after
        if problem == "cut":
            break
    if not fields and (name := re.search(r"[\"'\u201c]\w{1,64}[\"'\u201d]\s*:", text)) and "{" not in text:
        fields = _clean(loose_json.decode_fields(text, name.start()).value)
        problem = "repaired" if fields else problem
    return JsonReply(fields, problem)


def _object(text: str, start: int) -> tuple[dict[str, Any], int, str]:
    """Reads the object that begins at `start`: (its fields, where it ends, "" or its problem)."""
    try:
        fields, end, whole, is_json = loose_json.decode(text, start)
    except ValueError:
        return {}, len(text), "nothing"
    if not whole and (fields_before := _complete(text[start:])):
        return fields_before, len(text), "cut"
    return _clean(fields), end, "" if is_json else "repaired" if whole else "cut"


def _clean(fields: dict[str, Any]) -> dict[str, Any]:
    return json.loads(_whole(json.dumps(fields, ensure_ascii=False)))


def _is_object(text: str) -> bool:
    try:
        return text.startswith("{") and _decode(text, 0)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def read_number(value: Any) -> float | None:
    """Reads a finite number out of a field: a number, or one in a string (`written_numbers.read_field`); else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = written_numbers.read_field(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < float("inf") else None


def folded(word: str) -> str:
    """Folds a word for comparison: without case, characters composed as most tokenizers write them."""
    return unicodedata.normalize("NFKC", word).lower()


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode(text: str, start: int = 0) -> tuple[dict[str, Any], int]:
    """(the object that begins at `start`, where it ends). JSON's escapes can make halves of surrogate pairs too."""
    fields, end = loose_json.JSON.raw_decode(text, start)
    return _clean(fields), end


def _without_fence(text: str) -> str:
    """Strips Markdown's code fence around all of a text."""
    if not text.startswith("```"):
        return text
    text = text.removeprefix("```").removesuffix("```")
    return text.removeprefix("json").removeprefix("JSON").strip()


def _complete(text: str) -> dict[str, Any]:
    """Returns the fields of an object that breaks off before its end; empty if it is broken in another way."""
    is_open, unfinished = None, False  # the open bracket: (its closing one, the open bracket around it)
    commas: collections.deque[tuple[int, Any]] = collections.deque(maxlen=50)
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] == '"':
            unfinished = not match["end"]
        elif token in "{[":
            is_open = ("}" if token == "{" else "]", is_open)
        elif token == ",":
            commas.append((match.start(), is_open))
        elif is_open is None or is_open[0] != token or is_open[1] is None:
            return {}  # the wrong bracket, or the object's own end: then something else is wrong
        else:
            is_open = is_open[1]
    closed = text + ('"' if unfinished else "") + _brackets(is_open)
    # Without what follows the last comma, then the one before it: what breaks off there is not complete.
    for candidate in itertools.chain([closed], (text[:i] + _brackets(around) for i, around in reversed(commas))):
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
