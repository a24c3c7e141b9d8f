"""Positions at which a text may be taken apart and encoded in parts, with the ids of the whole.

A pre-tokenizer splits a text into pre-tokens and merges happen within them, so their borders are such positions.
Tokenizers made from SentencePiece merge over whole texts instead. There a merge across a position makes a token that
spans it. Where none of the vocabulary's tokens that occur in the text spans a position, no merge crosses it, and the
merges on its two sides keep their order (rank, then leftmost): that position is safe as well.

    "(3)|\n" is safe if no token holds ")\n"; "to |go" is not, as "▁go" is a token

This is false in general; `Borders.problem` names what breaks it. The parts after the first are to be encoded without
the space that such tokenizers put before a text: `Tokenizer.encode(part, continues=True)`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import models

SPACE = "\u2581"  # how SentencePiece writes a space
# Stands for what comes before a text. A private-use character: it is in no token, so that nothing merges with it.
PLACE = "\ue000"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))


class Borders:
    """Where the texts of one tokenizer may be taken apart."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._normalizers = list(_flat(backend.normalizer, "normalizers"))
        self._pre_tokenizers = list(_flat(backend.pre_tokenizer, "pretokenizers"))
        self.words = functools.lru_cache(256)(self._words)

    @functools.cached_property
    def prefix_space(self) -> str:
        """Before which texts the tokenizer puts a space: "first" of all, "always" (after added tokens too) or none.

        None also where `PLACE` has no token of its own, by which a text could be encoded without that space.
        """
        if len(self._backend.encode(PLACE, add_special_tokens=False).ids) < 2:
            return ""
        schemes = [part.get("prepend_scheme") for part in self._pre_tokenizers if part["type"] == "Metaspace"]
        if "always" in schemes or any(part["type"] == "Prepend" for part in self._normalizers):
            return "always"
        return "first" if "first" in schemes else ""

    @functools.cached_property
    def space_left_out(self) -> list[int]:
        """The token of the space before a text, if decoding a text leaves that space out."""
        space = self._backend.encode(PLACE, add_special_tokens=False).ids[:1] if self.prefix_space else []
        return space if space and not self._backend.decode(space) else []

    @functools.cached_property
    def problem(self) -> str:
        """Why positions within a pre-token are not safe even if no token spans them; "" where they are."""
        model = self._backend.model
        if any(part["type"] == "ByteLevel" for part in (*self._pre_tokenizers, *self._normalizers)):
            return "its tokens are made of bytes, not of characters"
        if not isinstance(model, models.BPE):
            return f"its model is {type(model).__name__}, not BPE"
        for part in (*self._normalizers, *self._pre_tokenizers):
            if not _looks_at_characters_alone(part):
                return f"its {part['type']} may look at several characters at once"
        if strips := [token.content for token in self._added.values() if token.lstrip or token.single_word]:
            return f"what stands before its token {strips[0]!r} decides how that is read (lstrip or single_word)"
        if model.dropout:
            return "it leaves out merges at random (dropout)"
        if model.ignore_merges:
            return "it takes words that are tokens whole, whatever its merges (ignore_merges)"
        if model.continuing_subword_prefix or model.end_of_word_suffix:
            return "its tokens differ at the beginning or end of a word (affix markers)"
        vocabulary = self._backend.get_vocab(with_added_tokens=False)
        if not (model.byte_fallback and _BYTES <= vocabulary.keys()):
            if model.unk_token not in vocabulary:
                return "it leaves out unknown characters, so that their neighbours meet"
            if model.fuse_unk:
                return "it makes neighbouring unknown characters one token (fuse_unk)"
        # A character that is in a token would merge with what stands behind it.
        if self.prefix_space and any(PLACE in token for token in vocabulary):
            return f"its vocabulary holds the private-use character U+{ord(PLACE):X}"
        # What a merge makes holds both its parts.
        if any(_BYTE.search(token) for token in vocabulary if token not in _BYTES):
            return "it merges the tokens of bytes"
        return ""

    def is_added(self, token: int) -> bool:
        """Whether it is an added token, which is matched before all merges."""
        return token in self._added

    def _words(self, text: str) -> list[tuple[int, int, list[int]]]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        words: list[tuple[int, int, list[int]]] = []
        previous = None
        for token, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
            if words and word == previous:
                # Tokens of one pre-token: its span grows by theirs.
                first, last, ids = words[-1]
                words[-1] = (min(first, start), max(last, end), ids + [token])
            else:
                words.append((start, end, [token]))
            previous = word
        return words

    def of_pre_tokens(self, text: str) -> set[int]:
        """Positions between pre-tokens; 0 and `len(text)` are among them.

        A position is left out where a special token or a normalizer swallows characters around it.
        """
        pairs = itertools.pairwise(self.words(text))
        return {right[0] for left, right in pairs if left[1] == right[0]} | {0, len(text)}

    def safe(self, text: str, is_cut_short: bool = False) -> set[int]:
        """All safe positions of a text.

        Args:
          is_cut_short: unknown text follows: a token that may begin here and reach into it counts as occurring.
        """
        borders = self.of_pre_tokens(text)
        if self.problem:
            return borders
        follows_added = False
        for start, end, ids in self.words(text):
            # 1. An added token is taken as a whole; behind it a space may be put that a part alone would lack.
            is_added = len(ids) == 1 and self.is_added(ids[0])
            if follows_added and self.prefix_space == "always":
                borders.discard(start)
            # 2. Within a pre-token: wherever no token that occurs there spans a position.
            if not is_added:
                word, shift = self._normalized(text[start:end], start == 0 or follows_added)
                spans = self._spans(word, is_cut_short and end == len(text))
                spanned = {inner for first, last in spans for inner in range(first + 1, last)}
                borders |= {inner for inner in range(start + 1, end) if inner - start + shift not in spanned}
            follows_added = is_added
        return borders | {0, len(text)}

    def spanning(self, text: str, position: int, is_cut_short: bool = False) -> str | None:
        """The longest token that occurs in `text` across `position`, or may if it is cut short; None without one."""
        word, shift = self._normalized(text, begins=True)
        spans = self._spans(word, is_cut_short)
        across = [word[first:last] for first, last in spans if first < position + shift < last]
        longest = max(across, key=len, default=None)
        return longest and next(
            token for token, whole in self._beginnings.items() if whole and token.startswith(longest)
        )

    def _normalized(self, text: str, begins: bool) -> tuple[str, int]:
        """The text in the vocabulary's characters, and how many it has more at its beginning."""
        replaces = any(part["type"] in ("Replace", "Metaspace") for part in (*self._normalizers, *self._pre_tokenizers))
        prefix = SPACE if begins and self.prefix_space else ""
        return prefix + (text.replace(" ", SPACE) if replaces else text), len(prefix)

    def _spans(self, word: str, is_cut_short: bool) -> Iterator[tuple[int, int]]:
        """(beginning, end) of the longest token at each position of `word`."""
        for first in range(len(word)):
            last = longest = first + 1
            while (is_token := self._beginnings.get(word[first:last])) is not None and last <= len(word):
                longest = last if is_token else longest
                last += 1
            # The text may go on so that what has been read is the beginning of a longer token.
            yield first, len(word) + 1 if is_cut_short and last > len(word) else longest

    @functools.cached_property
    def _beginnings(self) -> dict[str, bool]:
        """Beginning of a token -> whether it is one itself. Added tokens are there as they are written in texts too."""
        texts = {*self._backend.get_vocab(with_added_tokens=True)}
        texts |= {token.content.replace(" ", SPACE) for token in self._added.values()}
        beginnings = {text[:n]: False for text in texts for n in range(1, len(text))}
        return beginnings | dict.fromkeys(texts, True)


def _flat(part: Any, name: str) -> Iterable[dict[str, Any]]:
    """The JSON of a normalizer or pre-tokenizer, those of a sequence one after another."""
    if part is None:
        return
    queue = [json.loads(part.__getstate__())]
    while queue:
        spec = queue.pop(0)
        if spec["type"] == "Sequence":
            queue = [*spec[name], *queue]
        else:
            yield spec


def _looks_at_characters_alone(part: dict[str, Any]) -> bool:
    """Whether a normalizer or pre-tokenizer treats each character by itself, but for a space before the text."""
    match part:
        case {"type": "Prepend", "prepend": prefix}:
            return prefix == SPACE
        case {"type": "Replace", "pattern": {"String": " "}, "content": content}:
            return content == SPACE
        case {"type": "Metaspace", "replacement": replacement}:
            return replacement == SPACE
        case {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}:
            return True  # Gemma's: it never splits, as no space is left
    return False
