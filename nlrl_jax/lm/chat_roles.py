"""Chats for models whose template takes no system message, or wants user and assistant in turn.

folded([system, user, user], {SYSTEM, TURNS}) == [user]    # their texts with an empty line between them
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

SYSTEM, TURNS = "system messages", "two messages of one role in a row"
# What chat templates and servers say: Gemma, Mistral, Phi, Gemini, Bedrock, OpenAI's o1-mini, Anthropic, llama.cpp.
_NEGATED = r"(?:\bnot?\b|\bonly\b|n't|n\u2019t|unsupported|unexpected|unknown|undefined|invalid|beginning|be the first)"
_SYSTEM = r"(?:\b(?:system|developer)[ _]?(?:role|message|prompt|instruction)s?\b|[\"'`]system\b|role\W{1,4}system\b)"
_REFUSALS = {
    SYSTEM: rf"{_SYSTEM}[^.]{{0,60}}{_NEGATED}|{_NEGATED}[^.]{{0,50}}{_SYSTEM}|\bonly user\b[^.]{{0,30}}\broles?\b"
    # A list of the roles there are: pydantic, jsonschema, Gemini.
    r"|(?:should be|must be|permitted|one of|expected|valid role|are)\W{1,4}user\W{1,6}"
    r"(?:or\W+|and\W+)?(?:assistant|model)"
    r"(?:\W{1,6}(?:or\W+|and\W+)?(?:tool|function)\b)*+(?!\W{1,6}(?:or\W+|and\W+)?system)",
    TURNS: r"\balternat(?:e|es|ing)\b[^.]{0,60}\b(?:user|role)|\broles?\b[^.]{0,30}\balternat"
    r"|messages? \w+(?: to)? alternat"
    r"|consecutive (?:user|messages|roles)|\b(?:user|messages|roles?)\b[^.]{0,30}\bin (?:a row|succession)"
    r"|role \W?(\w+)\W? after role \W?\1\b|\b(?:start|begin)s? with (?:an? |the )?(?:role )?\W?user"
    r"|(?:first message|messages\W0\W.{0,4}role)\b[^.]{0,10}\b(?:must|should)[^.]{0,20} \W?user",
}
_NO_PREFILL = re.compile(
    r"prefill|(?:last|final) (?:message|role)|(?:must|should|needs? to) end with|messages at the end of", re.IGNORECASE
)


def refused(error: str) -> list[str]:
    """What of `SYSTEM` and `TURNS` an error says that the model does not take."""
    return [kind for kind, pattern in _REFUSALS.items() if re.search(pattern, error, re.IGNORECASE)]


def refuses_prefill(error: str) -> bool:
    """Whether an error says that the last message must not be the assistant's."""
    return _NO_PREFILL.search(error) is not None


def folded(messages: Sequence[Mapping[str, Any]], kinds: Collection[str]) -> list[dict[str, Any]]:
    """The messages without what the `kinds` name: a system text stands before the first message of the user."""
    messages = [dict(message) for message in messages]
    if SYSTEM in kinds:
        system = [message["content"] for message in messages if message["role"] == "system"]
        messages = [message for message in messages if message["role"] != "system"]
        first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
        if system and first is None:
            messages.insert(0, {"role": "user", "content": "\n\n".join(system)})
        elif system:
            messages[first] = {**messages[first], "content": "\n\n".join([*system, messages[first]["content"]])}
    merged: list[dict[str, Any]] = []
    for message in messages:
        if TURNS in kinds and merged and merged[-1]["role"] == message["role"]:
            message = {**message, "content": f"{merged.pop()['content']}\n\n{message['content']}"}
        merged.append(message)
    return merged


def rendered(render: Callable[[Sequence[Mapping[str, Any]]], str], messages: Sequence[Mapping[str, Any]]) -> str:
    """What a chat template writes, or of the messages folded where it refuses them for their roles.

    Raises:
      ValueError: it refuses them in any form, or for something else.
    """
    try:
        return render(messages)
    except ValueError as error:
        kinds = {*refused(str(error))}
        # Roles that are to alternate may mean that there is no system role.
        for extra in ((), (SYSTEM,)) if kinds else ():
            with contextlib.suppress(ValueError):
                return render(folded(messages, kinds.union(extra)))
        raise
