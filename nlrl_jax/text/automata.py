"""The two byte automata of the reply parser, built on the host as flat tables.

A table cell is `state * (NUM_BYTES + 1) + byte`. The extra column `NUM_BYTES` stands for "no byte"
and leads back to the same state without an event.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np

NUM_BYTES = 256
WHITE_SPACE = b" \t\n\r\x0b\x0c"
_LETTERS = string.ascii_letters.encode()
_NAME_BYTES = (string.ascii_letters + string.digits + "_").encode()


class Automaton(NamedTuple):
    """A finite automaton over bytes, as tables.

    Attributes:
      next_state, event: int32 [states * (NUM_BYTES + 1)].
      final: int32 [states], the event if the text ends there.
    """

    next_state: np.ndarray
    event: np.ndarray
    final: np.ndarray


def _tabulate(start: Hashable, step: Callable, final: Callable) -> Automaton:
    """Numbers the states reachable from `start` (which is 0); `step(state, byte) -> (state, event)`."""
    numbers, states, next_state, event = {start: 0}, [start], [], []
    for state in states:  # grows while it is walked
        for byte in range(NUM_BYTES):
            successor, happens = step(state, byte)
            if successor not in numbers:
                numbers[successor] = len(states)
                states.append(successor)
            next_state.append(numbers[successor])
            event.append(happens)
        next_state.append(numbers[state])
        event.append(0)
    return Automaton(
        np.array(next_state, np.int32), np.array(event, np.int32), np.array([final(s) for s in states], np.int32)
    )


def tag_automaton(names: tuple[str, ...]) -> Automaton:
    """Finds matches of `</?[A-Za-z][A-Za-z0-9_]*>`.

    Events, at the closing '>': 1 + k for the opening tag of `names[k]`, 1 + K + k for its closing
    tag, 1 + 2K for a tag of any other name. A name that cannot become an expected one is forgotten
    at once, so the states are the prefixes of the expected tags and little more.
    """
    tags = [f"<{name}>".encode() for name in names] + [f"</{name}>".encode() for name in names]
    prefixes = {tag[:n] for tag in tags for n in range(len(tag))} | {b"", b"<", b"</"}
    unexpected = b"<?"  # inside a tag whose name is not expected

    def step(state: bytes, byte: int):
        if byte == ord("<"):
            return b"<", 0
        if state == b"":
            return b"", 0
        in_name = state not in (b"<", b"</")
        if byte == ord("/") and state == b"<":
            return b"</", 0
        if in_name and byte == ord(">"):
            tag = state + b">"
            return b"", 1 + (tags.index(tag) if tag in tags else len(tags))
        if byte in (_NAME_BYTES if in_name else _LETTERS):
            longer = state + bytes([byte])
            return (longer if longer in prefixes else unexpected), 0
        return b"", 0

    return _tabulate(b"", step, lambda state: 0)


def word_automaton(words: Mapping[bytes, int], separator: str) -> Automaton:
    """Recognises words between separators, stripped of ASCII white space.

    Events, at the separator's last byte (and `final`, if the text ends there): 2 + `words[word]` when `word`
    ended, 1 when it is none of them.

    A state is (the word so far, how many bytes of a separator it ends with, the word before those);
    a word so far is the beginning of some action, or an action followed by white space, or hopeless.
    """
    word_ids = dict(words)
    beginnings = {word[:n] for word in word_ids for n in range(len(word) + 1)}
    sep = separator.encode()
    hopeless = None

    def append(word, byte: int):
        """A word so far is bytes (a beginning), an int (action a and white space), or hopeless."""
        if word is hopeless:
            return hopeless
        if isinstance(word, int):
            return word if byte in WHITE_SPACE else hopeless
        if word == b"" and byte in WHITE_SPACE:
            return word
        longer = word + bytes([byte])
        if longer in beginnings:
            return longer
        if byte in WHITE_SPACE and longer.rstrip(WHITE_SPACE) in word_ids:
            return word_ids[longer.rstrip(WHITE_SPACE)]
        return hopeless

    def event(word) -> int:
        if isinstance(word, bytes):
            word = word_ids.get(word.rstrip(WHITE_SPACE))
        return 1 if word is None else 2 + word

    def step(state, byte: int):
        word, matched, before = state
        # Bytes that might begin the separator are held back; those that turn out not to do so join the word before it.
        tail = sep[:matched] + bytes([byte])
        if tail == sep:
            return (b"", 0, b""), event(before)
        still_matched = max(n for n in range(len(tail) + 1) if tail[len(tail) - n :] == sep[:n])
        for dropped in tail[: len(tail) - still_matched]:
            before = append(before, dropped)
        return (append(word, byte), still_matched, before), 0

    return _tabulate((b"", 0, b""), step, lambda state: event(state[0]))
