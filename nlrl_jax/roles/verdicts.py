"""Reads the judgement in a note: GOOD, BAD or UNKNOWN, in the forms that language models give it.

verdict("I have the key. **This step is** `GOOD`.") == "GOOD"
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nlrl_jax.roles.thoughts import without_thoughts

GOOD, BAD, UNKNOWN = "GOOD", "BAD", "UNKNOWN"
VERDICT = "This step is"

_GAP = r"[\s*_`\"'\u201c\u201d\u2018\u2019#~$]+"
_STEP = (
    rf"(?:(?:this|that|the|my|last|previous){_GAP}){{1,2}}(?:step|action|move){_GAP}"
    r"(?:is|was|has been|counts as|should be)"
)
_TITLE = (
    r"(?:verdict|judge?ment|rating|assessment|conclusion|evaluation|label|answer|critic|step|"
    r"(?:judged?|rated?|mark(?:ed)?|call) (?:it|this|this step)(?: as)?)(?:\W{0,4}\b(?:is|was))?"
    r"(?=\W*[:=>\]]|\W+(?:is|as|was|it|step)\b|(?<= it)|(?<= as)|(?<= is))"
)
# Between the phrase and the word: marks, tags, LaTeX, and words that change nothing.
_BETWEEN = (
    r"(?:\W|_|</?\w{1,20}>|\\\w{1,10}\{|\b(?:an?|the|very|really|clearly|definitely|therefore|thus|so|hence|probably|"
    r"likely|certainly|considered|judged|rated|marked|label+ed|classified|deemed|as|to be|also|still|overall|simply|"
    r"quite|indeed|currently|now|rather)\b){0,40}?"
)
_NOT = r"(?:n't|n\u2019t|\b(?:not|never|neither|no|hardly|far from)\b)"


def verdict(note: str, words: Sequence[str] = (GOOD, BAD, UNKNOWN)) -> str:
    """The last of these words that a note gives as its judgement, in capitals; "" where it gives none.

    It stands after "This step is" or the like, after a title ("Verdict: GOOD"), or by itself at the end. A judgement
    that is negated, leaves a choice ("GOOD or BAD") or breaks off within a word is none.
    """
    return _judgement(without_thoughts(note), words)[1]


def before_verdict(note: str) -> str:
    """A note up to and including its last "This step is", which is added where it is missing.

    A judgement in another form is left out.
    """
    phrases = [match.start() for match in re.finditer(VERDICT.replace(" ", _GAP), note, re.IGNORECASE)]
    start = phrases[-1] if phrases else _judgement(note, (GOOD, BAD, UNKNOWN))[0]
    head = note[:start].rstrip(" \t\n*_`#<(").lstrip()
    return f"{head} {VERDICT}" if re.search(r"\w", head) else VERDICT


def _judgement(note: str, words: Sequence[str]) -> tuple[int, str]:
    """(where the last judgement of a note begins, its word); (the note's length, "") where there is none."""
    word, places = "|".join(map(re.escape, words)), [(-1, len(note), "")]
    choice = rf"[\s*_`\"']*(?:,|/|\||\bor\b)[\s*_`\"']*(?:or\s+)?(?:{word})\b"
    ending = rf"(?P<not>{_NOT})?{_BETWEEN}(?:(?P<word>{word})(?![^\W_])(?P<choice>{choice})?|(?P<cut>[^\W_]+)$)"
    for match in re.finditer(rf"\b(?:{_STEP}|{_TITLE}){_BETWEEN}{ending}", note, re.IGNORECASE):
        if match["word"]:
            named = "" if match["not"] or match["choice"] else match["word"].upper()
            places.append((match.start("word"), match.start(), named))
        elif any(word.upper().startswith(match["cut"].upper()) for word in words):
            places.append((match.start("cut"), match.start(), ""))
    alone = re.search(rf"(?:(?<=[.!?;:)]\s)|(?<=\u2014\s)|(?<=->)|(?<=\u2192))[\W_]*(?P<word>{word})[\W_]*$", note)
    if alone := alone or re.fullmatch(rf"[\W_]*(?P<word>{word})[\W_]*", note, re.IGNORECASE):
        places.append((alone.start("word"), alone.start(), alone["word"].upper()))
    return max(places, key=lambda place: place[0])[1:]
