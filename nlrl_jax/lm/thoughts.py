"""Chat templates that open a thought for the reply: the prompt ends in "<think>\\n", as with Qwen3.5 or DeepSeek-R1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_OPEN = re.compile(r"(?:<((?:\w+:)?think(?:ing)?(?::\w+)?)>|\[(THINK)\])(\s*)\Z|<\|open\|>think<\|sep\|>\Z")
_CLOSED = re.compile(r"(?:</(?:\w+:)?think(?:ing)?(?::\w+)?>|\[/THINK\]|<\|close\|>think<\|sep\|>)\s*\Z")
_BEGINS = re.compile(r"\s*(?:<(?:\w+:)?think(?:ing)?(?::\w+)?>|\[THINK\]|<\|open\|>think<\|sep\|>)")
# Replies of gpt-oss: <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>final<|message|>ANSWER
ANALYSIS, ANALYSIS_END = "<|channel|>analysis<|message|>", "<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
_MESSAGE = "<|message|>"  # what a channel says stands behind it
_TAIL = 80  # characters of a prompt that are looked at
NO_THOUGHTS = ("enable_thinking", "thinking")  # variables whose False makes templates leave thoughts out


def thought_end(prompt: str) -> str:
    """The mark that ends the thought which a prompt has begun; "" where it has begun none."""
    match = _OPEN.search(prompt[-_TAIL:])
    if match is None:
        return ""
    return f"</{match[1]}>" if match[1] else "[/THINK]" if match[2] else "<|close|>think<|sep|>"


def opened_thought(prompt: str) -> str:
    """What begins a thought at a prompt's end, such as "<think>\\n"; "" where nothing does."""
    match = _OPEN.search(prompt[-_TAIL:])
    return match[0] if match else ""


def written_thought_end(reply: str) -> str:
    """The mark that ends the thought which a reply itself begins with; "" where it begins with none."""
    if reply.lstrip().startswith(ANALYSIS):
        return ANALYSIS_END
    match = _BEGINS.match(reply)
    return thought_end(match[0]) if match else ""


def without_channels(text: str) -> str:
    """What the last channel of a reply says, its special tokens written out."""
    return text.rpartition(_MESSAGE)[2].removesuffix(ANALYSIS_END)


def closes_thought(prompt: str) -> bool:
    """Whether a prompt ends in a thought that is over, as templates put one there for a reply without any."""
    return bool(_CLOSED.search(prompt[-_TAIL:]))


def closing(prompt: str) -> str:
    """What ends the thought that a prompt has begun, as templates write an empty one; "" where it has begun none."""
    match = _OPEN.search(prompt[-_TAIL:])
    blank = match[3] if match else None
    return "\n" * max(2 - len(blank), 0) + thought_end(prompt) + "\n\n" if blank else thought_end(prompt)


def without_thought(render: Callable[..., str]) -> str:
    """A prompt in which no thought is open: by the first known switch that keeps the template from opening one, else
    closed by hand.

    render: (variables of the template) -> the prompt.
    """
    text = render()
    if not closing(text):
        return text
    switched = (render(**{name: False}) for name in NO_THOUGHTS)
    return next((candidate for candidate in switched if not closing(candidate)), text + closing(text))


def answer(tokenizer: Any, tokens: Sequence[int], end: str, continues: bool = False) -> str | None:
    """The text of a reply after its thought, which ends in the mark `end`; None where it never does. "": no thought.

    tokenizer: `lm.tokenizer.Tokenizer`. continues: the reply continues an open message.
    """
    tokens = [token for token in tokens if token not in tokenizer.eos_ids]
    mark = tokenizer.backend.token_to_id(end) if end else None
    if mark in tokens:  # decoding may leave it out
        tokens, end = tokens[len(tokens) - tokens[::-1].index(mark) :], ""
    text = tokenizer.decode(tokens, continues=continues)
    _, ended, text = text.rpartition(end) if end else ("", True, text)
    return text if ended else None
