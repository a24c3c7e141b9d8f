"""Reads the action that a language model's reply names: one reader for all games.

    read_action("Action: `go_forward`.", ("turn left", "go forward")) == ("go forward", "")

A reply is peeled layer by layer (label, bullet, tag, box, brackets, quotes, marks), and a line counts as the action
that it is, or begins with: "Right, then down" is Right. After a thought, a line with a label or a tag counts, or the
only line that is an action. Where two actions could be meant ("left or right", "up, down", "up? No, down"), or a number
could be one's place in a list that no prompt shows, there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from nlrl_jax.roles.json_reply import folded, read_json
from nlrl_jax.roles.thoughts import without_thoughts

NO_ACTION, SEVERAL, EMPTY = "no action", "several actions", "empty"

_NOUN = r"(?:action|answer|move|command|choice|decision|output|response|reply)s?"
_LABEL = (
    rf"[\W_]*(?:(?:so|the|my|your|our|final|next|chosen|selected|best|current|correct)\s+){{0,4}}(?:{_NOUN}|step)"
    r"(?:\s+#?\d{1,3})?(?:\s+(?:to take|taken|is|will be|would be|should be)){0,2}[*_`\"']*"
)
_COLON = r"\s*(?:[:=\uff1a\u2192]|[-=]+>)[*_`]*\s*"
_ACTION_LABEL = re.compile(rf"{_LABEL}{_COLON}(?P<inner>.+)", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*\u2022\u2023\u2013\u2014+]\s+|(?:[-=]*>)+\s*|\u2192\s*)(?P<inner>.+)")
TAGGED = re.compile(rf"<({_NOUN})>\s*(?P<inner>.*?)\s*(?:</\1>|$)", re.IGNORECASE | re.DOTALL)
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{(?P<inner>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_MARKS = re.compile(r"(\*{1,3}|_{1,3}|`{1,3}|~~)(?P<inner>(?:(?!\1).)+)\1")
_QUOTED = re.compile(
    r"\"(?P<a>[^\"]+)\"|'(?P<b>.+)'|\u201c(?P<c>[^\u201d]+)\u201d|\u2018(?P<d>.+)\u2019|"
    r"\u00ab(?P<e>[^\u00bb]+)\u00bb|\u300c(?P<f>[^\u300d]+)\u300d|\u201e(?P<g>[^\u201c\u201d]+)[\u201c\u201d]|"
    r"\u2039(?P<h>[^\u203a]+)\u203a"
)
_ENDS = re.compile(r"(?P<inner>.+?)\s*(?:<\|\w+\|>|</s>|<end_of_turn>).*")
_MARKED_SENTENCE = re.compile(r"(?P<inner>`[^`]+`|\*\*[^*]+\*\*)\.")
_GENTLE = (
    _ENDS,
    _ACTION_LABEL,
    TAGGED,
    _MARKS,
    _MARKED_SENTENCE,
    _QUOTED,
)  # where any text is an action, brackets and boxes may belong to it
_LAYERS = (
    *_GENTLE,
    _BULLET,
    re.compile(rf"{_LABEL}(?:(?<=\bis)|(?<=\bbe)|(?<=action))\s+(?:to\s+)?(?P<inner>.+)", re.IGNORECASE),
    re.compile(r"(?:step|position|cell|square|number|option|turn)[\s:=#]+(?P<inner>-?\d+)\W*", re.IGNORECASE),
    re.compile(r"(?:#\d{1,3}[.):]?|\(?(?:\d{1,3}|[a-z])[.):])\s+(?P<inner>.+)", re.IGNORECASE),
    re.compile(rf"[\[(<]\|?{_NOUN}\|?[\])>]\s*(?P<inner>.+)", re.IGNORECASE),
    re.compile(rf"\$*{BOXED.pattern}\$*[\s.]*"),
    re.compile(r"\$*\\(?:text\w*|math\w*|emph)\s*\{(?P<inner>.*)\}\$*"),
    re.compile(r"\[(?P<inner>[^\[\]]+)\]|\((?P<a>[^()]+)\)|\{(?P<b>[^{}]+)\}|<(?P<c>[^<>/]+)/?>"),
    re.compile(r"<[\w:-]+>\s*(?P<inner>.+?)\s*(?:</[\w:-]+>)?"),
    re.compile(r"(?P<inner>.+?)\s*</[\w:-]+>"),
    re.compile(r"(?P<inner>.*\w)\(\s*\)[\s.;]*"),  # a call without arguments
    re.compile(r"(?P<inner>.+?)[\s.!,;:*_`\"']+"),
    re.compile(r"[*_`\"'.\u201c\u201d]+\s*(?P<inner>.+)"),
    re.compile(r"(?![-+]\s?\d)[^\w\s]+\s+(?P<inner>.+)"),
)
# Words that may stand before an action in a sentence that decides on it.
_LEAD = re.compile(
    r"(?:ok(?:ay)?|all ?right|wait|hmm+|actually|so|then|now|thus|therefore|hence|well|sure|first|next|finally|please|"
    r"let'?s|let me|(?:i|we)(?:'ll|'d|'m|'re)?|moving|you|(?:the )?agent|assistant|should|would|will|must|shall|"
    r"(?:am |are )?going to|need to|have to|(?:choose|pick|select|take|play) (?:the )?(?:position|cell|square|number)"
    r"(?=\s*#?\d)|choose|pick|select|decide|take|do|use|perform|execute|play|to|the action|action)\b[\s,:]*"
)
# A decision within a sentence: "the best action is ...", "so I ...", "I will ...".
_DECIDED = re.compile(
    rf"(?<!last )(?<!previous )\b(?:{_NOUN}(?: to take)?(?: now| here)?(?:\s*:|\s+(?:is|will be|would be|should be)\b)|"
    r"(?:so|therefore|thus|hence),? (?:i|we|the agent|let's)\b|"
    r"(?:i|we|the agent)(?:'ll| will| should| would| must| need to| choose(?: to)?| decide to| am going to)\b)"
    r"(?:\s+to\b)?\s*(?P<inner>[^\n]+)",
    re.IGNORECASE,
)
_ENDED = re.compile(r"\W*$|\W*[.,;:!?]|\W*\s(?:to|because|since|as|so|then|and|or|now|again|is|was|would|will|can)\b")
_OTHER = re.compile(
    r"[\s*_`\"'\])}>.]*(?:,\s*or\b|,\s*and\b(?! then)|\b(?:or|vs|and(?! then))\b|[,;/|&+]|[-=]+>|\u2192)"
    r"(?!\s*(?:and )?(?:then|next|after)\b)[\s*_`\"'\[({<|]*"
)
_BESIDE = re.compile(r"[\s*_`\"'\[\](){}<>]*")
_DOUBT = re.compile(
    r"\W*\s(?:is|was|would|will|can|could|does|do)(?: be)?(?:n't|not| not| impossible| blocked)\b|\W*\?.|\W*\sno\b\W|"
    r"\W*\b(?:wait(?=\s*(?:[,.!\u2014-]|no\b|actually))|hmm+|actually\b)|\W*\sif\b[^.\n]*\b(?:otherwise|else)\b"
)
_MEANWHILE = re.compile(r"^\W*(?:observation|state|environment|user)\s*:", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"^\s*```\w*\s*$", re.MULTILINE)
_VERB = re.compile(r"(?:move|go|step) (?=.)")
# Letters, and between them any number of spaces, hyphens and underscores (which are letters to \W). The parts of a
# repetition share no character: else a long word before an exclamation mark takes time that doubles with each letter.
_LETTERS = re.compile(r"[^\W\d](?:[^\W\d]|[\s-])*(?<![\s-])")
_FIELDS = re.compile(rf"(?:{_NOUN}|\w*[ _]{_NOUN})", re.IGNORECASE)

_ASIDE = re.compile(r"(?:thoughts?|thinking|reason(?:ing)?|explanation|observation|plan|analysis)", re.IGNORECASE)


def read_action(text: str, actions: Sequence[str]) -> tuple[str, str]:
    """Reads the action in a reply: (action, problem or "").

    Args:
      actions: all there are; none if any text is one, which is then its line without label, tag, quotes or marks.

    Returns:
      ("", "empty", "no action" or "several actions") where none can be read.
    """
    answer = _FENCE.sub("", without_thoughts(text)).strip()
    if not answer:
        return "", EMPTY
    if not actions:
        return _any_text(answer)
    words = _Words(actions)
    answer = "\n".join(line[: words.room] for line in answer.splitlines() if line.strip())
    for reader in (_marked, _first_line, _fields, _only_line, _decided):
        named = reader(answer, words)
        if len(named) > 1:
            return "", SEVERAL
        if named:
            return named.pop(), ""
    return "", NO_ACTION


def read_last_action(text: str, actions: Sequence[str]) -> tuple[str, str]:
    """Reads the action that a reply of several lines ends with: (action, problem or ""), as `read_action` does.

    The last line with a label ("Action: ...") or a tag counts. Without one it is the last line where any text is an
    action, and else what `read_action` reads in the whole reply.
    """
    lines = [line.strip() for line in _FENCE.sub("", without_thoughts(text)).splitlines() if line.strip()]
    labelled = [line for line in lines if _ACTION_LABEL.fullmatch(line) or TAGGED.search(line)]
    if labelled or (lines and not actions):
        return read_action((labelled or lines)[-1], actions)
    return read_action(text, actions)


def labelled_line(text: str) -> str:
    """Returns what follows the last label ("Action: ...") of a reply's lines; without one, its last line."""
    lines = [line.strip() for line in _FENCE.sub("", without_thoughts(text)).splitlines() if line.strip()]
    labelled = [match["inner"] for line in lines if (match := _ACTION_LABEL.fullmatch(line))]
    return (labelled or lines or [""])[-1]


def unwrapped(text: str, layers: Sequence[re.Pattern[str]] = _LAYERS) -> Iterator[str]:
    """Yields a text, then what is left of it without one layer after the other.

    The layers are labels, bullets, tags, brackets and quotes.
    """
    text = text.strip()
    for _ in range(12):
        if text:
            yield text
        matches = (layer.fullmatch(text) for layer in layers)
        inner = next((_inner(match) for match in matches if match and _inner(match) != text), "")
        if not inner:
            return
        text = inner


def _inner(match: re.Match[str]) -> str:
    return next((group for group in match.groupdict().values() if group), "").strip()


class _Words:
    """The actions of a game, to compare texts with."""

    def __init__(self, actions: Sequence[str]):
        self.by_text = {_plain(action): action for action in actions}
        self.longest_first = sorted(self.by_text, key=len, reverse=True)
        self.room = 300 + 2 * len(self.longest_first[0])  # characters of a line that are looked at

    def equal(self, text: str) -> str | None:
        """Matches a text to an action; None where none fits, or several do.

        In any case, with underscores, in one word, or with another verb of motion or none.
        """
        plain = _plain(text)
        if plain in self.by_text:
            return self.by_text[plain]
        spaced = plain.replace("_", " ")
        moved = _VERB.sub("", spaced, count=1)
        named = {action for word, action in self.by_text.items() if _VERB.sub("", word, count=1) == moved}
        if not named and _LETTERS.fullmatch(plain):
            joined = re.sub(r"[\W_]+", "", plain)
            named = {action for word, action in self.by_text.items() if re.sub(r"[\W_]+", "", word) == joined}
        return named.pop() if len(named) == 1 else None

    def leading_action(self, text: str) -> tuple[str, str]:
        """Splits a text into (the action that it begins with, what follows it); ("", text) where there is none."""
        line = _plain(text)
        for plain in dict.fromkeys((line, line.replace("_", " "), _VERB.sub("", line, count=1))):
            for word in self.longest_first:
                if plain.startswith(word) and not re.match(r"\w|[.,:]\d", plain[len(word) :]):
                    return self.by_text[word], plain[len(word) :]
        return "", text


def _plain(text: str) -> str:
    return " ".join(folded(text).split())


def _first_line(answer: str, words: _Words) -> set[str]:
    first, *rest = answer.splitlines()
    named = _line(first, words)
    if re.match(r"\s*(?:[-*\u2022+]|\(?\w{1,2}[.)])\s", first):  # a list of options
        return named.union(*(_line(line, words) for line in rest))
    return named


def _line(line: str, words: _Words) -> set[str]:
    """Finds the actions that a line could mean."""
    layers = list(unwrapped(line))
    if action := next(filter(None, map(words.equal, layers)), None):
        return {action}
    for layer in layers:
        for n, clause in enumerate(_clauses(layer)):
            if n and (action := words.equal(clause.rstrip(" .!,;:*_`\"'"))):
                return {action}
            action, rest = words.leading_action(clause)
            if action and (n == 0 or " " in action or _ENDED.match(rest)):  # not "I left the room"
                later = _decided(rest, words) if n else set()
                pair = {SEVERAL} if action.isdigit() and re.match(r"\s*[,;]\s*\d", rest) else set()  # coordinates
                return {action, *_alternatives(rest, words), *later, *pair}
    return set()


def _clauses(text: str) -> Iterator[str]:
    """Yields a text, then what follows the words that decide on an action: "I will", "So the agent should"."""
    plain = _plain(text).replace("\u2019", "'").lstrip("*_`\"'[({<")
    yield plain
    while lead := _LEAD.match(plain):
        plain = plain[lead.end() :].lstrip("*_`\"'[({< ")
        if not plain:
            return
        yield plain


def _alternatives(rest: str, words: _Words) -> set[str]:
    """Finds the other action that a line names right after the first one; any where the first one is taken back."""
    if _DOUBT.match(rest):
        return {SEVERAL}
    if separator := _OTHER.match(rest):
        candidates = (words.leading_action(clause)[0] for clause in _clauses(rest[separator.end() :]))
        return {action for action in candidates if action}
    action, _ = words.leading_action(rest[_BESIDE.match(rest).end() :])
    return {action} if action else set()


def _marked(answer: str, words: _Words) -> set[str]:
    """Finds the actions in tags, in boxes and after labels, before the model goes on with the game."""
    ahead = _MEANWHILE.search(answer)
    text = answer[: ahead.start()] if ahead and ahead.start() else answer
    marked = [match["inner"] for pattern in (TAGGED, BOXED) for match in pattern.finditer(text)]
    labelled = re.finditer(rf"(?:^|[.!?;]\s){_ACTION_LABEL.pattern}$", text, re.IGNORECASE | re.MULTILINE)
    named = set().union(*(_line(inner, words) for inner in marked or [match["inner"] for match in labelled]))
    first = words.equal(answer.partition("\n")[0])
    return named | {first} if named and first else named


def _fields(answer: str, words: _Words) -> set[str]:
    """Finds the actions under "action" and the like in a JSON object."""
    fields = dict(read_json(answer).fields) if "{" in answer else {}
    fields |= {name: value for call in fields.values() if isinstance(call, dict) for name, value in call.items()}
    values: list[Any] = [value for name, value in fields.items() if _FIELDS.fullmatch(name)]
    return set().union(*(_line(str(value), words) for value in values))


def _only_line(answer: str, words: _Words) -> set[str]:
    """Finds the actions that whole lines are."""
    layers = (unwrapped(line) for line in answer.splitlines())
    return {action for row in layers if (action := next(filter(None, map(words.equal, row)), None))}


def _decided(answer: str, words: _Words) -> set[str]:
    """Finds the actions that sentences decide on."""
    candidates = [
        words.leading_action(match["inner"].lstrip("*_`\"'[({<\\ "))
        for match in _DECIDED.finditer(answer.replace("\u2019", "'"))
    ]
    named = [(action, rest) for action, rest in candidates if action and (" " in action or _ENDED.match(rest))]
    return set().union(*({action, *_alternatives(rest, words)} for action, rest in named))


def _any_text(answer: str) -> tuple[str, str]:
    """Finds the line of a reply that is the action, where any text is one."""
    if answer.startswith("{"):
        fields = read_json(answer).fields
        values = [value for name, value in fields.items() if not _ASIDE.fullmatch(name)]
        if len(values) == 1 and isinstance(values[0], str) and any(map(_FIELDS.fullmatch, fields)):
            return values[0].strip(), ""
        return answer.partition("\n")[0], ""  # a game may read objects
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    labelled = [line for line in lines if _ACTION_LABEL.fullmatch(line) or TAGGED.search(line)]
    line = (labelled or lines)[0]
    if not _ACTION_LABEL.fullmatch(line) and (tagged := TAGGED.search(line)):
        line = tagged["inner"]
    for inner in unwrapped(line, _GENTLE):
        line = inner
    bullet = re.fullmatch(r"[-*\u2022>]\s+(?!\d)(.+)", line)
    return (bullet[1] if bullet else line), ""
