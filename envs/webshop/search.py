"""WebShop's search: BM25 as Pyserini ranks by default (Lucene, k1 = 0.9, b = 0.4, Porter stems).

Lucene rounds a document's length down to four significant bits, and so do we. Its tokeniser follows Unicode's rules for
words; ours keeps letters, digits, inner apostrophes and decimal points together, which is the same for plain English.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import snowballstemmer

from envs.webshop.catalogue import Product

K1, B = 0.9, 0.4
RESULTS = 50
# Lucene's list for English.
STOP = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
_WORD = re.compile(r"\w+(?:(?:(?<=\d)[.,](?=\d)|(?<=[^\W\d])['’.](?=[^\W\d]))\w+)*")
_STEMMER = snowballstemmer.stemmer("porter")


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    return _STEMMER.stemWord(word)


def terms(text: str) -> list[str]:
    """Stems of the words of a text, without stop words."""
    words = (re.sub(r"['’]s$", "", word) for word in _WORD.findall(text.lower()))
    return [stem(word) for word in words if word not in STOP]


def document(product: Product) -> str:
    """What is searched of a product: title, description, first bullet and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, *product.bullets[:1], options]).lower()


def rounded_length(length: int) -> int:
    """A document's length as Lucene stores it in a byte: exact below 40, then with four significant bits."""
    over = length - 24
    if over < 16:
        return length
    shift = over.bit_length() - 4
    return 24 + (over >> shift << shift)


class Index:
    """Documents by BM25.

    Args:
      ids: of the documents, which equals are ordered by; by default their positions.
    """

    def __init__(self, documents: Sequence[str], ids: Sequence[str] = ()):
        counts = [Counter(terms(text)) for text in documents]
        lengths = np.array([sum(count.values()) for count in counts], float)
        mean = lengths.mean() if len(lengths) else 1.0
        kept = np.array([rounded_length(int(length)) for length in lengths], float)
        norm = K1 * (1 - B + B * kept / max(mean, 1e-9))
        postings: dict[str, list[tuple[int, int]]] = {}
        for i, count in enumerate(counts):
            for term, number in count.items():
                postings.setdefault(term, []).append((i, number))
        self.size, self.postings = len(counts), {}
        self.rank = np.argsort(np.argsort(np.array(ids))) if len(ids) else np.arange(self.size)
        for term, rows in postings.items():
            at, tf = np.array(rows).T
            idf = np.log(1 + (self.size - len(rows) + 0.5) / (len(rows) + 0.5))
            self.postings[term] = at, idf * tf / (tf + norm[at])

    def scores(self, query: str) -> np.ndarray:
        """float64 [documents]; 0 where no word of the query occurs."""
        total = np.zeros(self.size)
        for term in terms(query):
            if term in self.postings:
                at, weight = self.postings[term]
                total[at] += weight
        return total

    def search(self, query: str, most: int = RESULTS) -> list[int]:
        """The documents with any of the query's words, best first, at most so many.

        Scores are compared in single precision and equals ordered by id, as Anserini does on Lucene's index.
        """
        scores = self.scores(query).astype(np.float32)
        order = np.lexsort((self.rank, -scores))[:most]
        return [int(i) for i in order if scores[i] > 0]
