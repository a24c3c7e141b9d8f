"""What a reasoning model writes before its answer."""

from __future__ import annotations

import re

from nlrl_jax.types import Reply

_THOUGHT = re.compile(
    r"\s*([<\[])((?:seed:|mm:)?think|thinking|thoughts?|reasoning|reflection|scratchpad)([>\]])", re.IGNORECASE
)


def without_thoughts(text: str) -> str:
    """Strips a reasoning model's thoughts at the beginning of a reply; "" where they never end.

    Some servers leave out the opening tag.
    """
    _, ended, answer = text.rpartition("</think>")
    text = answer if ended else text
    while thought := _THOUGHT.match(text):
        end = re.search(rf"{re.escape(thought[1])}/{re.escape(thought[2])}{re.escape(thought[3])}", text, re.IGNORECASE)
        if end is None:
            return ""
        text = text[end.end() :]
    return text


def answered(reply: Reply) -> Reply:
    """Strips the thoughts that a reply begins with; one that is still thinking is cut."""
    text = reply.text.lstrip()
    if not _THOUGHT.match(text) and ("</think>" not in text or text.startswith(("{", "["))):
        return reply
    answer = without_thoughts(text)
    return reply._replace(text=answer, ended=reply.ended and (bool(answer) or "</" in text))
