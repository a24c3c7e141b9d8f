"""The bytes that a vocabulary's token stands for, in the two ways in which vocabularies write them; blanks in texts."""

from __future__ import annotations

import functools

# What decoding a vocabulary of words replaces, in this order.
_BLANKS = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
_BLANKS += [(f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")]


@functools.lru_cache(maxsize=1)
def byte_table() -> dict[int, str]:
    """GPT-2's bijection from bytes to printable characters: printable bytes stand for themselves,
    the other 68 are counted up from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    unmapped = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(0x100 + n) for n, byte in enumerate(unmapped)}


@functools.lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    return {character: byte for byte, character in byte_table().items()}


def byte_level_bytes(token: str) -> bytes:
    """A token of GPT-2's way: a character for each byte (`byte_table`)."""
    table = _byte_of()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


def token_bytes(token: str) -> bytes:
    """The bytes of a vocabulary's token, of whichever kind: "\u0120go" and "\u2581go" are both " go"."""
    return sentencepiece_bytes(token) if "\u2581" in token else byte_level_bytes(token)


def sentencepiece_bytes(token: str) -> bytes:
    """A token of SentencePiece's way: U+2581 is a space, `<0x0A>` is a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def without_blanks(text: str) -> str:
    """Deletes the blanks before punctuation and contractions."""
    for blank, mark in _BLANKS:
        text = text.replace(blank, mark)
    return text
