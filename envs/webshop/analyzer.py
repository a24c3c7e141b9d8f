"""Pyserini's default English analyzer (pyserini 0.17.0: Lucene 8.11): words, lower case, stop words, Porter stems.

Words are those of Lucene's StandardTokenizer: Unicode 9.0's rules (UAX 29), one ideograph or hiragana a word, Thai and
its like whole between spaces, emoji as words. `characters.txt` holds the classes of characters that its grammar tells
apart (runs of hexadecimal code points after a letter for the class, from the properties of Unicode 9.0 and emoji 11):

    A ALetter  W Hebrew_Letter  L Hangul  I letters that are emoji  0 ASCII digits  N other Numeric  K Katakana  H Han
    h Hiragana  S Complex_Context  s the same and Extend  x Extend, Format  j zero width joiner  t text, v emoji
    presentation selector  g tags, G their end  k enclosing keycap  _ ExtendNumLet  : MidLetter  , MidNum  . MidNumLet
    ' " quotes  # bases of keycaps  B Emoji_Modifier_Base  P other pictographs  M Emoji_Modifier  R Regional_Indicator
"""

from __future__ import annotations

import bisect
import functools
import pathlib
import re
from collections.abc import Iterator

LONGEST = 255  # UTF-16 code units; a longer word is several
STOP = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)


class _Classes(dict):
    """Code point -> letter of its class, for `str.translate`."""

    def __init__(self):
        lines = pathlib.Path(__file__).with_name("characters.txt").read_text("ascii").splitlines()
        runs = sorted(
            (*(int(end, 16) for end in (run.split("-") * 2)[:2]), line[0]) for line in lines for run in line[2:].split()
        )
        self.starts, self.ends, self.letters = zip(*runs)

    def __missing__(self, code: int) -> str:
        run = bisect.bisect_right(self.starts, code) - 1
        self[code] = self.letters[run] if run >= 0 and code <= self.ends[run] else " "
        return self[code]


_classes = functools.cache(_Classes)


def _words() -> tuple[re.Pattern[str], ...]:
    """Compiles the grammar over letters of classes.

    Each part takes the extending characters after it (WB4), possessively.
    """
    x, emoji_x = "[xtkvjgGs]*+", "[xkjgGs]*+"
    joint = f"(?:_{x})"
    letter, number, kana, hebrew = (f"[{kind}]{x}" for kind in ("ALIW", "N0", "K", "W"))
    # A Hebrew letter keeps an apostrophe after it, and a double quote between it and another.
    quoted = f"{hebrew}(?:'{x}|\"{x}{hebrew})"

    def run(part: str, middle: str) -> str:
        return f"{part}(?:(?:{joint}*+(?!{quoted})|[{middle}]{x}){part})*+"

    numbers, letters = run(number, ".',"), run(letter, ".':")
    mixed = f"(?:{quoted}|{numbers}|{letters})++"
    group = f"(?:{kana}(?:{joint}*+{kana})*+|{mixed})"
    word = f"{joint}*+{group}(?:{joint}++{group})*+{joint}*+"
    # After an emoji another one follows where a joiner is last.
    coloured, plain = f"(?:j*B{emoji_x})?M{emoji_x}", f"j*[BPI]{emoji_x}"
    emoji = f"(?:{coloured}|{plain}v?)"
    return tuple(
        re.compile(rule)
        for rule in (
            word,
            f"(?:[Ss]{x})++|[Hh]{x}",
            f"{plain}vg+G|{emoji}(?:(?:(?<=j)|(?<=v)j){emoji})*",
            f"[#0]{emoji_x}vk{emoji_x}|[#0](?=[xjgGs]*k){emoji_x}",
            f"R{x}R{x}",
        )
    )


_WORDS = _words()
_START = re.compile(r"[^ ,.:'\"xtvkgG]")


def words(text: str) -> Iterator[str]:
    """Splits a text into words as StandardTokenizer does: the longest that any rule gives, then on behind it."""
    classes, end, plain = text.translate(_classes()), 0, text.isascii()
    rules = _WORDS[:1] if plain else _WORDS
    while start := _START.search(classes, end):
        at, stop = start.start(), start.start() + LONGEST
        while not plain and len(text[at:stop].encode("utf-16-le", "surrogatepass")) > 2 * LONGEST:
            stop -= 1
        end = max((match.end() for rule in rules if (match := rule.match(classes, at, stop))), default=at)
        if end > at:
            yield text[at:end]
        end = max(end, at + 1)


def lowered(word: str) -> str:
    """Lowers each character by itself, as Java does: no final sigma, and one letter for a capital i with a dot."""
    return word.lower() if word.isascii() else "".join(character.lower()[0] for character in word)


def terms(text: str) -> list[str]:
    """Returns what a text is found by: stems of its words, in order, without stop words."""
    plain = (lowered(re.sub(r"['’＇][sS]$", "", word)) for word in words(text))
    return [stem(word) for word in plain if word not in STOP]


def _pairs(text: str) -> dict[str, str]:
    endings = text.split()
    return {end: new.strip("-") for end, new in zip(endings[::2], endings[1::2])}


# Porter's algorithm (1980) with its author's later changes, as Lucene has it: -bli, -logi, words of two letters.
_SECOND = _pairs(
    "ational ate tional tion enci ence anci ance izer ize bli ble alli al entli ent eli e ousli ous ization ize "
    "ation ate ator ate alism al iveness ive fulness ful ousness ous aliti al iviti ive biliti ble logi log"
)
_THIRD = _pairs("icate ic ative - alize al iciti ic ical ic ful - ness -")
_FOURTH = dict.fromkeys("al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize".split(), "")


def _kinds(word: str) -> str:
    """Classifies letters: c for a consonant, v for a vowel; y is a vowel after a consonant."""
    kinds = ""
    for letter in word:
        kinds += "v" if letter in "aeiou" or (letter == "y" and kinds.endswith("c")) else "c"
    return kinds


def _measure(word: str) -> int:
    return _kinds(word).count("vc")


def _doubled(word: str) -> bool:
    return word[-2:-1] == word[-1:] and _kinds(word).endswith("c")


def _short(word: str) -> bool:
    return _kinds(word).endswith("cvc") and word[-1] not in "wxy"


def _replaced(word: str, endings: dict[str, str], min_measure: int) -> str:
    """Replaces the longest of these endings, if the measure of the stem before it is at least `min_measure`."""
    for size in range(7, 1, -1):
        before, ending = word[:-size], word[-size:]
        if len(word) >= size and ending in endings:
            long_enough = _measure(before) >= min_measure and (ending != "ion" or before.endswith(("s", "t")))
            return before + endings[ending] if long_enough else word
    return word


def _without_past(word: str) -> str:
    """Applies steps 1a and 1b: plurals, -ed and -ing."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    before = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if before == word or "v" not in _kinds(before):
        return word
    if before.endswith(("at", "bl", "iz")):
        return before + "e"
    if _doubled(before):
        return before if before[-1] in "lsz" else before[:-1]
    return before + "e" if _measure(before) == 1 and _short(before) else before


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Stems a word in lower case with Porter's algorithm."""
    if word and max(word) > "\uffff":  # Java counts UTF-16 code units
        units = word.encode("utf-16-le", "surrogatepass")
        stemmed = stem("".join(map(chr, memoryview(units).cast("H"))))
        return stemmed.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if len(word) <= 2:
        return word
    word = _without_past(word)
    if word.endswith("y") and "v" in _kinds(word[:-1]):
        word = word[:-1] + "i"
    for endings, min_measure in ((_SECOND, 1), (_THIRD, 1), (_FOURTH, 2)):
        word = _replaced(word, endings, min_measure)
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word
