"""A reply as the continuation of an open assistant message, also where the server has begun a new one.

    continuation("Goal: shoes\nAction:", "**Action:** search[shoes]") == " search[shoes]"

A server without `continue_final_message` repeats the label, the line or the whole text, in its own case and
spacing, in quotes or a code fence, or after its thoughts. A reply that does none of this stays as it is.
Mistral's servers, and llama.cpp's since spring 2026, continue the message and return it with the text sent in front.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence

from nlrl_jax.roles.thoughts import without_thoughts

_MARKS = "*_`#>\"'\u201c\u201d\u2018\u2019 \t"  # that a reply may put around a label
_SEPARATOR = re.compile(r"[*_`\"'\u201c\u201d\s]*[:\uff1a=\u2013\u2014-]")
_FENCE = re.compile(r"\s*```[\w-]*[ \t]*(?:\n|$)(.*?)(?:```.*|\Z)", re.DOTALL)
_WRAPS = [("***", "***"), ("**", "**"), ("*", "*"), ("```", "```"), ("`", "`"), ('"', '"'), ("'", "'")]
_WRAPS += [("\u201c", "\u201d"), ("\u2018", "\u2019")]
_CHATTER = re.compile(
    r"(?:sure|certainly|of course|okay|alright|great|hello|hi there|as an ai|i'm sorry|i am sorry|i cannot|i can't|"
    r"here is|here's|here are|let me|the next|based on|thank you|understood)\b",
    re.IGNORECASE,
)
_log = logging.getLogger(__name__)


def continuation(text: str, reply: str) -> str:
    """What a reply adds to the text of an open message.

    Returns:
      The reply without what it repeats of the text's end, with one blank in front; as it is if it repeats nothing.
    """
    if text and reply.startswith(text):
        reply = reply.removeprefix(text)
        reply = _glued(reply) if text.endswith(":") else reply
    inner = without_thoughts(reply) if "think>" in reply else reply
    fence = _FENCE.match(inner)
    inner = fence[1] if fence else inner
    if _CHATTER.match(inner.lstrip(_MARKS + "\n")):
        inner = _labelled(text, inner)
    end = _repeated(text, inner)
    if end:
        marks = inner[: len(inner) - len(inner.lstrip(_MARKS + "\n"))].strip()
        return _glued(_unmarked(inner[end:], marks))
    if text.rstrip().endswith(":"):
        if (unwrapped := _unwrapped(inner)) != inner:
            return _glued(unwrapped)
    return inner if inner is reply else _glued(inner)


def _glued(rest: str) -> str:
    rest = rest.strip("\n").lstrip()
    return f" {rest}" if rest else ""


def _repeated(text: str, reply: str) -> int:
    """Where in a reply the repetition of the text's end, or of its last line's label, ends; 0 if there is none."""
    words = list(re.finditer(r"\w+", reply))
    if not words or reply[: words[0].start()].strip(_MARKS + "\n"):
        return 0
    text_words = list(re.finditer(r"\w+", text))[-len(words) :]
    reply_folded = [match[0].casefold() for match in words]
    text_folded = [match[0].casefold() for match in text_words]
    # The longest end of the text first: its last k words are the reply's first k.
    for k in range(len(text_words), 0, -1):
        same = text_folded[-k] == reply_folded[0] and text_folded[-k:] == reply_folded[:k]
        if same and _begins(text, text_words[-k].start()):
            end = words[k - 1].end()
            if not text[text_words[-1].end() :].strip():  # the text ends in a word
                return end
            separator = _SEPARATOR.match(reply, end)
            if separator or k > 2:
                return separator.end() if separator else end
    label, colon, _ = text.rstrip("\n").rpartition("\n")[2].partition(":")
    label = re.findall(r"\w+", label.casefold())
    if colon and label and reply_folded[: len(label)] == label:
        separator = _SEPARATOR.match(reply, words[len(label) - 1].end())
        return separator.end() if separator else 0
    return 0


def _labelled(text: str, reply: str) -> str:
    """A reply from the first line on that begins with the label of the text's last line; as it is if there is none."""
    label, colon, _ = text.rstrip("\n").rpartition("\n")[2].partition(":")
    place = re.search(rf"^[{re.escape(_MARKS)}]*{re.escape(label.strip())}[*_`]*:", reply, re.MULTILINE | re.IGNORECASE)
    return reply[place.start() :] if colon and place else reply


def is_another_message(text: str, reply: str) -> bool:
    """Whether the continuation of a text is none: empty, another line of the transcript, or chatter."""
    label = re.match(r"\s*([A-Z][\w ]{1,40}):", reply)
    other_line = label is not None and re.search(rf"^{re.escape(label[1])}:", text, re.MULTILINE)
    return not reply.strip() or bool(other_line or _CHATTER.match(reply.lstrip(_MARKS + "\n")))


def _begins(text: str, start: int) -> bool:
    """Whether a line or a sentence of a text begins at `start`."""
    before = text[:start].rstrip(_MARKS)
    return not before or before[-1] in "\n.!?:;"


def _unwrapped(line: str) -> str:
    """A line without quotes around all of it."""
    inner = line.rstrip()
    for opening, closing in _WRAPS:
        if line.startswith(opening) and inner.endswith(closing) and len(inner) > len(opening + closing):
            return inner.removeprefix(opening).removesuffix(closing)
    return line


def _unmarked(rest: str, marks: str) -> str:
    """What follows a label that `marks`, such as "**", stand before, without their counterpart and without quotes."""
    for opening, closing in _WRAPS if marks else ():
        if marks.endswith(opening):
            line, newline, later_lines = rest.partition("\n")
            inner = line.rstrip()
            # The counterpart follows the label ("**Action:** go") or ends the line ("**Action: go**").
            if rest.startswith(closing):
                rest = rest.removeprefix(closing)
            elif inner.endswith(closing) and (opening != closing or inner.count(closing) % 2):
                rest = inner.removesuffix(closing) + newline + later_lines
            break
    line, newline, later_lines = rest.lstrip().partition("\n")
    return _unwrapped(line) + newline + later_lines


class Continuations:
    """Watches whether a server continues open messages, and says so once if it does not.

    Attributes:
      good, bad: replies that do, and that do not (`is_another_message`).
    """

    def __init__(self):
        self.good = self.bad = 0
        self._said = self._asked = False
        self._lock = threading.Lock()

    def ask_without_stop(self, text: str, replies: Sequence[str]) -> bool:
        """Whether the same should be requested once without stop strings: the first line of a new message may be the
        label, a fence, a thought or a greeting, with the continuation after it."""
        with self._lock:
            ask = not self.good and not self._asked and all(is_another_message(text, reply) for reply in replies)
            self._asked |= ask
        return ask

    def count(self, text: str, reply: str, server: str) -> None:
        """Counts the continuation of a text."""
        bad = is_another_message(text, reply)
        with self._lock:
            self.good, self.bad = self.good + (not bad), self.bad + bad
            say = not self._said and self.bad >= 2 and self.bad > self.good
            self._said |= say
        if say:
            _log.warning(
                "%s begins new messages where it should continue ours: %d of its first %d replies do not go on from "
                "%r, the last one is %r. Give the model's tokenizer (--endpoint_tokenizer MODEL), so that prompts go "
                "to /completions as text, or use a server with continue_final_message (vLLM, SGLang)",
                server, self.bad, self.bad + self.good, text[-30:], reply[:80],
            )  # fmt: skip
