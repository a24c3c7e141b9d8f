"""Tokens with their log-probabilities, as servers list them.

Servers write a probability of 0 as null, NaN, -Infinity, -9999 (OpenAI, vLLM) or float32's lowest number (llama.cpp):
all of these are `types.LEAST`. A token that holds a part of a character has its bytes in a field, in an escape, or only
as U+FFFD.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.lm.spelling import token_bytes
from nlrl_jax.types import LEAST, ROUNDING

Tokens = Sequence[tuple[str, float]]
_HUGE = 1e30  # a magnitude that stands for "no number"
_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")
_PART = re.compile(rf"bytes:(.*{_ESCAPES.pattern}.*)|({_ESCAPES.pattern}|<0x[0-9a-fA-F]{{2}}>)", re.DOTALL)


def read_log_prob(value: Any, token: str) -> float:
    """A log-probability; `LEAST` where the server gives no finite one.

    Raises:
      EndpointError: it is above 0, by more than rounding.
    """
    try:
        number = float("nan" if value is None else value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or abs(number) > _HUGE:
        return LEAST
    if number > ROUNDING:
        raise EndpointError(
            f"the server gives the token {token[:40]!r} the log-probability {number:g}, and none is above 0; does it "
            "send probabilities in their place? Use another server, or methods that need none (--critic direct)"
        )
    return min(max(number, LEAST), 0.0)


def spelt(token: Any, listed: Any = None) -> str:
    """A token as text; bytes that are no UTF-8 are escaped as Python escapes them (`surrogateescape`).

    Args:
      listed: its field `bytes`, which counts if it is a list of bytes.
    """
    text = str(token).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    part = _PART.fullmatch(text)
    if isinstance(listed, list) and listed and all(type(byte) is int and 0 <= byte < 256 for byte in listed):
        raw = bytes(listed)
    elif part and part[2]:
        raw = bytes.fromhex(re.sub(r"\\x|<0x|>", "", part[2]))
    elif part:
        raw = _ESCAPES.sub(lambda match: bytes.fromhex(match[0].replace("\\x", "")).decode("latin-1"), part[1])
        raw = raw.encode("latin-1", "replace")
    else:
        return text
    return raw.decode("utf-8", "surrogateescape")


def log_probs_of(tokens: Tokens, text: str, reply: str = "") -> tuple[float, ...]:
    """The log-probabilities of the tokens that spell a text, which stands somewhere among them; none where it does not.
    The text is sought in the `reply`, which ends the tokens: thoughts before it may hold the same words.

    They are compared by bytes, then with any bytes in the place of letters outside ASCII (servers that write U+FFFD),
    then as a vocabulary spells them.
    """
    exact, loose = _patterns(text.strip())
    whole, loose_whole = _patterns(reply.strip())
    raw = [_as_bytes(token) for token, _ in tokens]
    vocabulary = [_vocabulary_bytes(token) for token, _ in tokens]
    for pieces, pattern, around in ((raw, exact, whole), (raw, loose, loose_whole), (vocabulary, exact, whole)):
        joined = b"".join(pieces)
        start = max((match.start() for match in re.finditer(around, joined) if around), default=0)
        match = re.compile(pattern).search(joined, start) or re.search(pattern, joined)
        if match and pattern:
            places = itertools.accumulate(map(len, pieces), initial=0)
            spans = zip(tokens, places, map(len, pieces))
            return tuple(p for (_, p), at, size in spans if at < match.end() and at + size > match.start())
    return ()


def tail_length(tokens: Sequence[str], text: str) -> int:
    """How many of the last tokens spell a text, compared as in `log_probs_of`; 0 where none do."""
    exact, loose = _patterns(text)
    tail = b""
    for number, token in enumerate(reversed(tokens), 1):
        tail = _as_bytes(token) + tail
        # Where the text begins with a letter outside ASCII, nothing shows with which U+FFFD it does.
        if re.fullmatch(exact, tail) or text[:1].isascii() and re.fullmatch(loose, tail):
            return number
        if len(tail) > 3 * len(_as_bytes(text)):
            break
    return 0


def _patterns(text: str) -> tuple[bytes, bytes]:
    """Expressions for a text's bytes: exactly, and with any in the place of letters outside ASCII."""
    exact = re.escape(_as_bytes(text))
    return exact, re.sub(rb"[\x80-\xff]+", rb"[\\x80-\\xff]+", exact)


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _vocabulary_bytes(token: str) -> bytes:
    return token_bytes(token) if token.isprintable() else _as_bytes(token)  # parts of letters are not printable
