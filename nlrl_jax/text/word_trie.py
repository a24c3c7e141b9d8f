"""Words of several tokens as a trie, so that one forward pass after a prompt scores all of them.

    trie = word_trie([[3, 7], [3, 8], [5]])
    # the forward pass reads the prompt and then trie.tokens = [3]; `3` is read once for the two words it begins

Only tokens with a successor are read; the last token of a word is only predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class WordTrie(NamedTuple):
    """M tokens that are read, E that are predicted, A words.

    tokens: int32 [M], each after the one it follows.
    depth: int32 [M], 1 for a word's first token.
    sees: bool [M, M], row m marks the tokens that lead to token m, itself included.
    parent: int32 [E], after which read token a token is predicted: 0 is the prompt's last, m + 1 is `tokens[m]`.
    predicted: int32 [E].
    path: float32 [A, E], 1 where a predicted token is part of a word: `path @ log_probs` are the words'.
    """

    tokens: np.ndarray
    depth: np.ndarray
    sees: np.ndarray
    parent: np.ndarray
    predicted: np.ndarray
    path: np.ndarray

    @property
    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """(int32 [A, W], the words' tokens, zeros after the end; float32 [A, W], 1 for each token)."""
        numbers = [np.flatnonzero(row) for row in self.path]  # edges of a word are numbered in its order
        mask = np.arange(max(map(len, numbers))) < np.array([[len(edges)] for edges in numbers])
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = self.predicted[np.concatenate(numbers)]
        return tokens, mask.astype(np.float32)


def word_trie(words: Sequence[Sequence[int]]) -> WordTrie:
    """Builds the trie of words, each a sequence of token ids.

    Raises:
      ValueError: a word without tokens, or one that another begins with or equals (it would always be likelier).
    """
    edges: dict[tuple[int, ...], int] = {}  # the beginning of a word, its last token included -> its number
    paths = []
    for word in map(tuple, words):
        if not word:
            raise ValueError("a word has no tokens")
        paths.append([edges.setdefault(word[:n], len(edges)) for n in range(1, len(word) + 1)])
    positions: dict[tuple[int, ...], int] = {}  # beginnings that other tokens follow -> their place, from 1
    for beginning in edges:
        if len(beginning) > 1:
            positions.setdefault(beginning[:-1], len(positions) + 1)
    for n, word in enumerate(map(tuple, words)):
        if word in positions or word in map(tuple, words[:n]):
            raise ValueError(f"the tokens {list(word)} of word {n} are also the beginning of another word")
    sees = np.zeros((len(positions), len(positions)), bool)
    for beginning, place in positions.items():
        for n in range(1, len(beginning) + 1):
            sees[place - 1, positions[beginning[:n]] - 1] = True
    path = np.zeros((len(paths), len(edges)), np.float32)
    for a, numbers in enumerate(paths):
        path[a, numbers] = 1
    return WordTrie(
        tokens=np.array([beginning[-1] for beginning in positions], np.int32),
        depth=np.array([len(beginning) for beginning in positions], np.int32),
        sees=sees,
        parent=np.array([positions.get(beginning[:-1], 0) for beginning in edges], np.int32),
        predicted=np.array([beginning[-1] for beginning in edges], np.int32),
        path=path,
    )
