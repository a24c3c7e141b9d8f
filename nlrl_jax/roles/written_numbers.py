"""Reads the number that a language model writes as a value: a fraction, a score, a percentage.

    read_number("Score: 7 out of 10 (was 4/10)") == 0.7

What counts, in this order: the last number that a word such as "value" or "probability" announces, the number that a
text begins with, the last one after "is" or a colon, the only fraction, percentage or decimal. A range, a bound, an
amount of money, a date or what is more than one number is no number, and neither is a count of something ("2 doors").
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from nlrl_jax.roles.thoughts import without_thoughts

_LONGEST = 4000  # characters that are looked at, the last ones
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+)"
_POWER = r"(?:[eE][-+]?\d+|\s*(?:[x*\u00d7]|\\times)\s*10\s*(?:\^|\*\*)\s*\{?[-+]?\d+\}?)?"
_PLAIN = rf"[-+]?{_DIGITS}{_POWER}"
_PERCENT = r"(?:\s*\\?%|\s*(?:percent|per\s?cent|pct)\b)"
_OF = (
    r"\s*(?:/|(?:\w+[ -]){0,2}\(?\s*out\s+of(?:\s+(?:a\s+)?(?:possible|total|maximum)(?:\s+of)?)?|of|in(?=\s*\d))"
    r"\s*(?:the\s+)?"
)
_GOOD = (
    rf"(?P<whole>\d+)\s+(?P<part>\d+)\s?/\s?(?P<parts>\d+)|(?P<number>{_PLAIN})(?:{_OF}(?P<total>{_DIGITS})\)?|"
    rf"(?P<percent>{_PERCENT})|\s*\(\s*out\s+of\s+(?P<most>{_DIGITS})\s*\))?(?:\s*(?:\u00b1|\+/?-)\s*{_DIGITS}%?)?"
)
_VALUE = rf"{_PLAIN}(?:\s?/\s?{_DIGITS}|{_PERCENT})?"
_BAD = (
    r"[$\u20ac\u00a3\u00a5]\s*\d[\d.,]*|\b50\s?/\s?50\b|"  # money, an even chance or a full score
    r"\d+(?:\.\d+){2,}|\d+(?:/\d+){2,}|\d+(?:-\d+){2,}|\d+\s?:\s?\d+(?:\.\d+)?|"  # versions, dates, times
    rf"{_VALUE}(?:[,;]\s+{_VALUE})+(?=[\s.*]*$)|"  # lists
    rf"{_VALUE}\s*(?:-|\u2013|\u2014|\.\.+|to|or|and|through|~)\s*{_VALUE}|"  # ranges, alternatives
    rf"(?:[<>\u2264\u2265]=?|\b(?:less|more|greater|lower|higher|fewer)\s+than|\bat\s+(?:least|most)|\b(?:below|above|under|over|"
    rf"up\s+to|beyond))\s*{_VALUE}|"  # bounds
    r"\d+(?:[.,]\d+)?\s*\^\s*\{?[-+]?\d+\}?"
)
_CANDIDATE = re.compile(rf"(?<![\w.,^])(?:(?P<bad>{_BAD})|{_GOOD})(?![\w^]|[.,]\d|/\d)", re.IGNORECASE)
_SCALE = re.compile(
    r"[\[(]\s*(?:from\s+|between\s+)?-?[01](?:\.0)?\s*(?:-|\u2013|to|,|and|\.\.+)\s*(\d+)(?:\.0)?\s*[\])]|"
    r"\(?\s*(?:on|in|using)?\s*(?:a|the)\s+(?:scale|range|number|value|interval)\s+(?:of|from|between|in)?\s*[\[(]?\s*-?[01]"
    r"(?:\.0)?\s*(?:-|\u2013|to|,|and)\s*(\d+)(?:\.0)?\s*[\])]?",
    re.IGNORECASE,
)
_NAME = (
    r"(?:value|scores?|scored|probability|chances?|likelihood|odds|rating|rated?|reward|estimate|fraction|share|confidence|"
    r"grade|evaluation|answer|result|progress|q|p)"
)
_LINK = r"(?:\bis|\bbe|\bof|\bat|\bas|\bequals?|\bto|[:=\uff1a\u2248~\u2192]|->)"
_ABOUT = (
    r"(?:\s*(?:about|around|roughly|approximately|approx\.?|only|likely|probably|now|still|just|exactly|currently|close|"
    r"therefore|thus|a|an|the)\b|[\s*_`\"'(\[{~\u2248:$])*"
)
_NAMED = re.compile(
    rf"\b{_NAME}\b[^.;!?]{{0,80}}?{_LINK}{_ABOUT}$|\b{_NAME}\b{_ABOUT}$|\b(?:actually|correction|rather)\b[^.;!?]{{0,30}}?{_LINK}{_ABOUT}$",
    re.IGNORECASE,
)
_SAID = re.compile(
    rf"(?:{_LINK}|\b(?:it|say|so|thus|hence|therefore|overall|give|guess|estimate|now|actually)){_ABOUT}$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[\s*_`\"'}]*(?:$|[.,;:!?)\](\u2014\u2013|-]|"
    r"(?:because|since|as|so|but|given|for|if|with|that|based|now|overall|in)\b)",
    re.IGNORECASE,
)
_WORDS = [
    (r"\b(?:one|a)[ -]half\b|\bhalf\b", "1/2"), (r"\b(?:one|a)[ -](?:quarter|fourth)\b", "1/4"),
    (r"\bthree[ -](?:quarters|fourths)\b", "3/4"), (r"\b(?:one|a)[ -]third\b", "1/3"), (r"\btwo[ -]thirds\b", "2/3"),
    (r"(?:(?<=^)|(?<=\bis )|(?<=[:=] ))zero\b(?!\s\w)", "0"), (r"(?:(?<=^)|(?<=\bis )|(?<=[:=] ))one\b(?!\s\w)", "1"),
]  # fmt: skip
_ONE_TO_TEN = "one two three four five six seven eight nine ten".split()
_WORDS.append(
    (
        rf"\b({'|'.join(_ONE_TO_TEN)}) (?:in|out of) ({'|'.join(_ONE_TO_TEN)})\b",
        lambda match: "/".join(str(_ONE_TO_TEN.index(match[n].lower()) + 1) for n in (1, 2)),
    )
)
_MARKUP = [
    (r"</?[A-Za-z][\w:-]*>", " "), (r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}", r" \1/\2 "),
    (r"\\[dt]?frac\s*(\d)\s*(\d)(?!\d)", r" \1/\2 "),
    (r"\$([^$]*\d[^$]*)\$", r" \1 "),
    (r"\\(?:boxed|text\w*|math\w*|left|right|[()\[\],;])", " "), (r"[*_`]{1,3}|[{}\"\u201c\u201d]", " "), (r"\s+", " "),
]  # fmt: skip


class _Number(NamedTuple):
    """A number in a text. value: None where it is not one number. shaped: a fraction, a percentage or a decimal."""

    value: float | None
    shaped: bool
    start: int
    end: int


@functools.lru_cache(1 << 10)  # most critics know a few sentences
def read_number(text: str) -> float | None:
    """Reads the value that a line states; None where it states none, or several.

    Fractions and percentages are read too.
    """
    text, scale = _plain(text)
    numbers = list(_numbers(text, scale))
    ended = [number for number in numbers if _AFTER.match(text, number.end)]
    named = [number for number in ended if _NAMED.search(text[max(0, number.start - 200) : number.start])]
    if named:
        return named[-1].value
    if ended and not re.search(r"\w", text[: ended[0].start]):
        return ended[0].value
    stated = [number for number in ended if _SAID.search(text[max(0, number.start - 80) : number.start])]
    if stated:
        return stated[-1].value
    values = {number.value for number in numbers if number.shaped or number.value is None}
    return values.pop() if len(values) == 1 else None


def read_share(text: str) -> float | None:
    """Reads a value from 0 to 1; None where it is another number, which is no success either."""
    number = read_number(text)
    return number if number is not None and 0 <= number <= 1 else None


def read_field(text: str) -> float | None:
    """Reads the number of a field that should hold one: what it begins with, the only one, or `read_number`'s."""
    text, scale = _plain(text)
    numbers = list(_numbers(text, scale))
    if numbers and not re.search(r"\w", text[: numbers[0].start]):
        return numbers[0].value
    values = {number.value for number in numbers}
    return values.pop() if len(values) == 1 else read_number(text)


def _plain(text: str) -> tuple[str, float]:
    """Strips thoughts and marks, with fractions in digits: (text, the maximum of the scale that it names, or 1)."""
    text = without_thoughts(text)[-_LONGEST:].translate(_SIGNS)
    text = "".join(_vulgar(character) for character in text)
    for pattern, plain in (*_MARKUP, *_WORDS):
        text = re.sub(pattern, plain, text.strip(), flags=re.IGNORECASE)
    scales = [float(match[1] or match[2]) for match in _SCALE.finditer(text)]
    return _SCALE.sub(" ", text).strip(), max([1.0, *scales])


_SIGNS = {0x2212: "-", 0xFF0D: "-", 0x2010: "-", 0x2011: "-", 0x2044: "/", 0x2215: "/", 0x00A0: " ", 0x202F: " "}


def _vulgar(character: str) -> str:
    parts = unicodedata.normalize("NFKC", character)
    if "\uff01" <= character <= "\uff5e":  # of full width
        return parts
    return f" {parts.replace(chr(0x2044), '/')}" if chr(0x2044) in parts and len(parts) > 2 else character


def _numbers(text: str, scale: float) -> Iterator[_Number]:
    """Yields the numbers in a text on a scale of 0 to 1, fractions, percentages and 'x of y' among them."""
    for match in _CANDIDATE.finditer(text):
        value, total = None, match["total"] or match["most"]
        shaped = bool(match["parts"] or total or match["percent"] or "." in match[0] or "," in match[0])
        if match["parts"]:
            value = _quotient(float(match["part"]), float(match["parts"]))
            value = None if value is None else float(match["whole"]) + value
        elif match["number"]:
            value = _float(match["number"])
            value = _quotient(value, _float(total) if total else 100.0 if match["percent"] else scale)
        if value is not None and not math.isfinite(value):
            value = None
        yield _Number(value, shaped, match.start(), match.end())


def _quotient(number: float, divisor: float) -> float | None:
    return number / divisor if divisor else None


def _float(text: str) -> float:
    """Parses a number with commas between thousands or before decimals, and powers of ten."""
    text = re.sub(r"\s*(?:[x*\u00d7]|\\times)\s*10\s*(?:\^|\*\*)\s*\{?([-+]?\d+)\}?", r"e\1", text, flags=re.IGNORECASE)
    thousands = re.match(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+", text)
    return float(text.replace(",", "" if thousands else "."))
