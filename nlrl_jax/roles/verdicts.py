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
_SEEMS = r"(?:is|was|seems|looks|appears|has been|counts as|should be|can be)"
_STEP = rf"this{_GAP}step{_GAP}{_SEEMS}"
# Counts without `_STEP` alone.
_ACTION = rf"(?:(?:the|this|my|last|previous){_GAP}){{1,2}}(?:step|action|move){_GAP}(?:taken{_GAP})?{_SEEMS}"
_TITLE = (
    r"(?:verdict|judge?ment|rating|assessment|conclusion|evaluation|label|answer|critic|step|"
    r"(?:judged?|rated?|mark(?:ed)?|call) (?:it|this|this step)(?: as)?)(?:\W{0,4}\b(?:is|was))?"
    r"(?=\W*[:=>\]]|\W+(?:is|as|was|it|step)\b|(?<= it)|(?<= as)|(?<= is))"
)
# Between the phrase and the word: marks, tags, LaTeX, and words that change nothing.
_BETWEEN = (
    r"(?:\W|_|</?\w{1,20}>|\\\w{1,10}\{|\b(?:an?|the|very|really|clearly|definitely|therefore|thus|so|hence|probably|"
    r"likely|certainly|absolutely|mostly|potentially|considered|judged|rated|marked|label+ed|classified|deemed|as|"
    r"to be|also|still|overall|simply|quite|indeed|currently|now|rather)\b){0,40}?"
)
_SO = r"\b(?i:it is|it's|say|so|therefore|thus|hence|verdict|conclusion|overall)\b[,:]?\s"
_AFTERTHOUGHT = r"\b(?i:wait|hmm+|no|oh)\W+(?i:actually)\b[,:]?\s"
_OPEN = re.compile(r"\b(?:whether|if)[\s*_`\"']+$", re.IGNORECASE)
_NOT = r"(?:n't|n\u2019t|\b(?:not|never|neither|no|hardly|far from)\b)"


def verdict(note: str, words: Sequence[str] = (GOOD, BAD, UNKNOWN)) -> str:
    """Reads the last of these words that a note gives as its judgement, in capitals; "" where it gives none.

    It stands after "This step is" or the like, after a title ("Verdict: GOOD"), or by itself at the end. A judgement
    that is negated, leaves a choice ("GOOD or BAD") or breaks off within a word is none.
    """
    return _judgement(without_thoughts(note), words)[1]


def before_verdict(note: str) -> str:
    """Cuts a note after its last "This step is", which is added where it is missing.

    A judgement in another form is left out.
    """
    phrases = [match.start() for match in re.finditer(VERDICT.replace(" ", _GAP), note, re.IGNORECASE)]
    start = phrases[-1] if phrases else _judgement(note, (GOOD, BAD, UNKNOWN))[0]
    head = note[:start].rstrip(" \t\n*_`#<(").lstrip()
    return f"{head} {VERDICT}" if re.search(r"\w", head) else VERDICT


def _judgement(note: str, words: Sequence[str]) -> tuple[int, str]:
    """Finds a note's last judgement: (where it begins, its word); (the note's length, "") where there is none."""
    word, places = "|".join(map(re.escape, words)), []
    choice = rf"[\s*_`\"']*(?:,|/|\||\bor\b|\band\b)[\s*_`\"']*(?:or\s+)?(?:{word})\b"
    choice = rf"(?:{choice}|\s+(?:only )?if\b[^.!?\n]*\b(?:otherwise|else)\b)"
    ending = rf"(?P<not>{_NOT})?{_BETWEEN}(?:(?P<word>{word})(?![^\W_])(?P<choice>{choice})?|(?P<cut>[^\W_]+)$)"
    for phrase in (rf"(?:{_STEP}|{_TITLE})", _ACTION):
        for match in re.finditer(rf"\b{phrase}{_BETWEEN}{ending}", note, re.IGNORECASE):
            if match["word"]:
                named = (
                    ""
                    if match["not"] or match["choice"] or _OPEN.search(note[: match.start()][-20:])
                    else match["word"].upper()
                )
                places.append((match.start("word"), match.start(), named))
            elif any(option.upper().startswith(match["cut"].upper()) for option in words):
                places.append((match.start("cut"), match.start(), ""))
        if places:
            break
    before = r"[.!?;:)]\s|[\u2014-]\s|->|\u2192|\\boxed\{" + f"|{_AFTERTHOUGHT}"
    if not any(named for _, _, named in places) and not re.search(
        rf"{_NOT}|\bdoubt", note[max(places)[0] :] if places else ""
    ):
        before += f"|{_SO}"
    alone = re.search(rf"(?:{before})(?P<all>[\W_]*(?P<word>{word})[\W_]*$)", note)
    if alone := alone or re.fullmatch(rf"(?P<all>[\W_]*(?P<word>{word})[\W_]*)", note, re.IGNORECASE):
        places.append((alone.start("word"), alone.start("all"), alone["word"].upper()))
    if not places:
        places = [(match.start("word"), match.start(), match["word"].upper()) for match in _elsewhere(note, word)]
    return max(places, key=lambda place: place[0], default=(0, len(note), ""))[1:]


def _elsewhere(note: str, word: str) -> list[re.Match[str]]:
    """Finds judgements in capitals that begin a note ("GOOD: the key is near") or stand in it ("That was a BAD move").

    There are none where it names another of the words too, as a list of what they mean does.
    """
    if len(re.findall(rf"\b(?:{word})\b", note)) != 1:
        return []
    first = re.match(rf"[\s*_`\"'#]*(?P<word>{word})[*_`\"']*(?:[:.!,\n]|\s[\u2014\u2013-]\s)", note)
    noun = rf"(?i:an?){_GAP}(?P<word>{word}){_GAP}(?i:step|move|action|choice)\b(?!\W*\?)"
    passing = re.search(rf"(?<!if )(?<!If )(?<!whether )\b(?i:this|that|it){_GAP}(?i:is|was){_GAP}{noun}", note)
    return [match for match in (first or passing,) if match]
