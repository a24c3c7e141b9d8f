"""Objects as language models write them where they do not write JSON: Python's, JavaScript's, and cut or damaged ones.

    decode("{'thought': 'O's turn', best_move: 7,}").value == {"thought": "O's turn", "best_move": 7}

Strings in single, curly or triple quotes, with quotes inside them; names without quotes; True, None, NaN; comments;
commas too many or too few. Where a string ends is decided by what follows it. A value that is none of these is left
out.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

JSON = json.JSONDecoder(strict=False)  # line breaks inside strings are legal: models write boards into them
_DEEPEST, _LONGEST = 60, 50_000  # brackets in each other; characters of what is nearly JSON that are looked at
_QUOTES_TRIED, _ALL_TRIED = 200, 5000  # quotes that may turn out to stand inside a string, and inside all strings
_CLOSING = {'"': '"\u201d\u201c', "'": "'\u2019", "\u201c": '\u201d"', "\u2018": "\u2019'", "\u201e": '\u201c\u201d"'}
_CLOSING |= {"`": "`", "\u00ab": "\u00bb"}
_BLANK = re.compile(r"(?:\s++|//[^\n]*+|#[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$][\w$-]{0,63}+(?: [\w$-]{1,20}+){0,3}+(?=\s*+[:=])")
_NUMBER = re.compile(r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+(?=\s*+(?:,(?!\d)|[}\])\n#]|//|/\*|\Z))")
_ITEM = re.compile(_NUMBER.pattern.replace(r",(?!\d)", ","))  # in a list, where "1,2" is two numbers
_WORD = re.compile(r"(?:true|false|null|none|nil|undefined|nan|-?infinity)\b", re.IGNORECASE)
_WORDS = {"true": True, "false": False, "nan": float("nan"), "infinity": float("inf"), "-infinity": float("-inf")}
_RAW = re.compile(r"[-+.]?\d(?:[^,{}\[\]\n\"]|,(?=\d)){0,80}+")  # 5 (centre), 1/2, 0,85
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_JUNK = re.compile(r"[^,}\])\"'\u201c\u2018]*+")
_NAMED = r"[\w$ .-]{1,60}+"
# What follows a string that is a value in an object, an item of a list, the name of a field.
_AFTER = {
    "}": re.compile(
        rf"\s*+(?:[,;.]\s*+)*+(?:\}}|\Z|//|#|/\*|[\"'\u201c\u2018`]{_NAMED}[\"'\u201d\u2019`]\s*+[:=])|"
        rf"\s*+[,;]\s*+{_NAMED}[:=]"
    ),
    "]": re.compile(r"\s*+(?:[\]),]|\Z)"),
    ":": re.compile(r"\s*+(?:[:=]|\Z)"),
}
_MISSING = object()


class Decoded(NamedTuple):
    """A decoded JSON text.

    Attributes:
      value: what was read.
      end: where it ends.
      whole: False where the text breaks off inside it.
      is_json: it is JSON as it is.
    """

    value: Any
    end: int
    whole: bool
    is_json: bool = False


def decode(text: str, start: int = 0) -> Decoded:
    """Decodes the object or list that begins at `start`, "{" or "[": as JSON, else as what is meant for it.

    Raises:
      ValueError: another character stands there, or it is nested too deeply.
    """
    if text[start : start + 1] not in ("{", "["):
        raise ValueError("neither an object nor a list begins here")
    try:
        return Decoded(*JSON.raw_decode(text, start), whole=True, is_json=True)
    except (ValueError, RecursionError):
        pass
    reader = _Reader(text[: start + _LONGEST], start)
    value = reader.value("}")
    return Decoded(value, reader.position, not reader.cut)


def decode_fields(text: str, start: int) -> Decoded:
    """Decodes the fields that begin at `start`, of an object without its opening bracket."""
    reader = _Reader(text, start)
    value = reader.object()
    return Decoded(value, reader.position, not reader.cut)


class _Reader:
    def __init__(self, text: str, start: int):
        self.text, self.position, self.cut, self.depth = text, start, False, 0
        self.left = _ALL_TRIED

    def value(self, inside: str) -> Any:
        """Reads the value that stands here, in an object ("}") or a list ("]")."""
        self._skip()
        character = self.text[self.position : self.position + 1]
        if character and character in "{[(":
            return self._nested(character)
        if character in _CLOSING and character:
            return self._string(inside)
        number = _ITEM if inside == "]" else _NUMBER
        for pattern, make in ((number, _number), (_WORD, lambda word: _WORDS.get(word.lower())), (_RAW, str.strip)):
            if match := pattern.match(self.text, self.position):
                self.position = match.end()
                return make(match.group())
        self.cut |= not character
        return _MISSING

    def _nested(self, bracket: str) -> Any:
        self.position, self.depth = self.position + 1, self.depth + 1
        if self.depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} brackets in each other")
        value = self.object() if bracket == "{" else self._list("])")
        self.depth -= 1
        return value

    def object(self) -> dict[str, Any]:
        """Reads the fields up to the closing bracket."""
        fields: dict[str, Any] = {}
        for character in self._items("}"):
            quoted = character in _CLOSING
            bare = None if quoted else _NAME.match(self.text, self.position)
            if not quoted and not bare:
                self.position = max(_JUNK.match(self.text, self.position).end(), self.position + 1)
                continue
            name = self._string(":") if quoted else bare.group()
            self.position = self.position if quoted else bare.end()
            self._skip()
            if self.text[self.position : self.position + 1] not in (":", "="):
                continue
            self.position += 1
            value = self.value("}")
            if value is not _MISSING:
                fields[name] = value
        return fields

    def _list(self, closing: str) -> list[Any]:
        items = []
        for _ in self._items(closing):
            before, value = self.position, self.value("]")
            if value is not _MISSING:
                items.append(value)
            self.position += self.position == before
        return items

    def _items(self, closing: str) -> Iterator[str]:
        """Yields the first character of each item, up to the closing bracket or the text's end."""
        while True:
            self._skip()
            character = self.text[self.position : self.position + 1]
            if not character:
                self.cut = True
                return
            if character in closing or character in "}])" and self.depth:
                self.position += 1
                return
            if character in ",;":
                self.position += 1
            else:
                yield character

    def _skip(self) -> None:
        self.position = _BLANK.match(self.text, self.position).end()

    def _string(self, inside: str) -> str:
        """Reads a string; a quote closes it only where what follows it can follow a string inside this structure."""
        opening = self.text[self.position]
        triple = opening * 3 if opening in "\"'" and self.text.startswith(opening * 3, self.position) else ""
        start = self.position + len(triple or opening)
        closing = re.escape(triple) if triple else f"[{_CLOSING[opening]}]"
        quotes = (m for m in re.compile(rf"\\.|{closing}", re.DOTALL).finditer(self.text, start) if m[0][0] != "\\")
        first = end = None
        for match in itertools.islice(quotes, 1 if triple else min(_QUOTES_TRIED, self.left + 1)):
            self.left -= first is not None and self.left > 0
            if triple or _AFTER[inside].match(self.text, match.end()):
                end = match
                break
            first = first or (match if match[0] == _CLOSING[opening][0] else None)
        end = end or first
        self.cut |= end is None
        self.position = len(self.text) if end is None else end.end()
        return _ESCAPE.sub(_unescaped, self.text[start : len(self.text) if end is None else end.start()])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)


def _number(text: str) -> float | int:
    return int(text) if re.fullmatch(r"[-+]?\d{1,15}", text) else float(text)
