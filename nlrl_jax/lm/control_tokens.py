"""Control tokens that are written in a text, such as "<|im_end|>" in a shop's page: letters, not the end of a message.

As `transformers` reads content with `split_special_tokens`: where a text is marked (`marked`), its control tokens are
spelt by letters (`encode`), while those that the chat template writes around it stay what they are.
"""

from __future__ import annotations

import functools
import re

import tokenizers
from tokenizers import AddedToken

# Stands behind the first character of a control token in content. A noncharacter: no text that is exchanged holds one,
# and a template that trims or quotes its messages leaves it alone.
MARK = "\U0010ffff"


def broken(text: str) -> str:
    """A marked text for somebody else's tokenizer: a blank keeps it from reading the marked control tokens."""
    return text.replace(MARK, " ")


class ControlTokens:
    """The control tokens of one tokenizer: its special tokens of two characters or more."""

    def __init__(self, backend: tokenizers.Tokenizer):
        special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
        longest_first = sorted((text for text in special if len(text) > 1), key=len, reverse=True)
        recognised = longest_first and not backend.encode_special_tokens
        self._backend, self._texts = backend, {backend.token_to_id(text): text for text in special}
        self._written = re.compile("|".join(map(re.escape, longest_first))) if recognised else None

    def marked(self, text: str) -> str:
        """A text as content: its control tokens marked, which `encode` then spells by letters."""
        text = text.replace(MARK, "")
        return self._written.sub(lambda match: match[0][0] + MARK + match[0][1:], text) if self._written else text

    def encode(self, text: str) -> list[int]:
        """Token ids of a text with marks in it. What lies between two control tokens of its own is tokenised as a
        whole, by letters where there is a mark in it."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = []
        between: list[int] = []  # the tokens since the last control token, which ends at `end`
        end = 0
        for token, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._texts and self._texts[token] in text[first:last]:  # not an unknown character
                ids += [*self._spelt(text[end:first], between, end), token]
                between, end = [], last
            else:
                between.append(token)
        return ids + self._spelt(text[end:], between, end)

    def _spelt(self, text: str, tokens: list[int], start: int) -> list[int]:
        if MARK not in text:
            return tokens
        letters, place = text.replace(MARK, ""), MARK if start else ""
        return self._splitting.encode(place + letters, add_special_tokens=False).ids[len(place) :]

    @functools.cached_property
    def _splitting(self) -> tokenizers.Tokenizer:
        """The tokenizer that spells control tokens by letters. `MARK` is a token that stands for the one before."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        backend.add_tokens([AddedToken(MARK, normalized=False)])
        return backend
