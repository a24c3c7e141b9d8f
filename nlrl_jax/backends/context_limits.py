"""Refusals of a prompt, or of a reply's length, that do not fit a server's context, in the words of many servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_COUNT = r"\b(\d[\d,_]*\d|\d)\b"
_TOO_LONG = re.compile(
    r"context_(?:length|window)_exceeded|exceed_context_size|string_above_max_length|inputs`? tokens \+"
    r"|context[ -]?(?:length|size|window|limit)|maximum (?:model|prompt|input|sequence) length|max_(?:model|seq)_len"
    r"|(?:prompt|inputs?):? too long|context of \d|\bn_ctx\b|session_len|(?:sequence|total) length[^.]{0,40} exceed"
    r"|token limit exceeded\W+\d"
    r"|model token limit|range of input length|total tokens limit|too many (?:input |prompt )?tokens"
    r"|reduce (?:the |your )?(?:length|prompt|message|input)"
    r"|(?:prompt|inputs?|messages?|request)\b[^.]{0,40}\b"
    r"(?:is too long|too large for model|exceeds? (?:the )?(?:limit|max)|must have less than)",
    re.IGNORECASE,
)
_REPLY = re.compile(
    r"max_(?:completion_|new_|output_)?tokens\b[^.]{0,40}"
    r"(?:too large|greater than|less than|range|exceed|at most| <= | > )"
    r"|at most \d+ (?:completion|output) tokens",
    re.IGNORECASE,
)
_OTHER_LIMIT = re.compile(r"\bbytes\b|per minute|rate.?limit", re.IGNORECASE)
_STATUS = re.compile(r"[\"']?\b(?:code|status)[\"']?\s*[:=]\s*\d+", re.IGNORECASE)
# Where the limit stands, the surest first.
_LIMITS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_COUNT} maximum context",
        rf"\b(?:n_ctx|session_len)\b\W{{1,5}}{_COUNT}|context of {_COUNT}|token limit exceeded\D+\d+ > {_COUNT}",
        rf"context[ -]?(?:length|size|window|limit)(?! by| exceeds limit \()\D{{0,40}}{_COUNT}(?! \+)",
        rf"max_(?:model|seq|total)_(?:len|tokens)\w*\D{{0,24}}{_COUNT}",
        rf"(?:model token|total tokens) limit\D{{0,12}}{_COUNT}",
        rf"maximum (?:prompt|input|model|sequence|allowed) length\D{{0,24}}{_COUNT}",
        rf"(?:at most|<=|less than(?: or equal to)?|limit (?:is|of)|tokens allowed| > |\[1, |exceeds(?: max)?)"
        rf"\D{{0,4}}{_COUNT}",
    )
]
_PROMPT = re.compile(
    rf"n_prompt_tokens\W{{1,4}}{_COUNT}"
    rf"|{_COUNT} (?:input|prompt|in the messages|in your prompt|tokens from the input|`inputs`|\+)"
    rf"|(?:prompt|input)\w*(?: token)?[ (]*(?:contains|length|count)(?: of)?\D{{0,3}}{_COUNT}",
    re.IGNORECASE,
)


def advice(error: str, body: Mapping[str, Any]) -> str:
    """What helps where an error says that prompt and reply are too long; "" where it says something else."""
    error = _STATUS.sub("", error)
    about_context, about_reply = _TOO_LONG.search(error), _REPLY.search(error)
    if _OTHER_LIMIT.search(error) or not (about_context or about_reply):
        return ""
    reply = next((body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)), 0)
    limit = next((number for pattern in _LIMITS for number in _numbers(pattern, error)), 0)
    lower = f"a lower limit of the reply, now {reply} tokens (--line_tokens or --large_max_tokens)"
    if not about_context:
        return f"The model writes no more than {limit or 'a certain number of'} tokens in one reply; give {lower}"
    needed = max((number for number in _numbers(re.compile(_COUNT), error) if number > limit), default=0)
    if needed in (0, reply):  # the server adds nothing up
        needed = max(_numbers(_PROMPT, error), default=0) + reply
    sizes = f"prompt and reply take at least {needed}" if needed > limit > 0 else "prompt and reply take more"
    return (
        f"The server's context holds {limit or 'too few'} tokens, {sizes}. Give {lower}, --context_tokens "
        f"{limit or 'N'} where there is that option (old steps are then left out), or start the server with a longer "
        "context"
    )


def _numbers(pattern: re.Pattern, text: str) -> list[int]:
    """The numbers in a pattern's groups."""
    groups = [group for match in pattern.finditer(text) for group in match.groups() if group]
    return [int(re.sub(r"[,_]", "", group)) for group in groups]
