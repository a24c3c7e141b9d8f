"""WebShop's search: BM25 as Pyserini ranks by default (pyserini 0.17.0: Lucene 8.11, k1 = 0.9, b = 0.4).

    score(q, d) = sum over terms t of q:  idf(t) * f / (f + k1 * (1 - b + b * |d| / mean |d|)),   f = count of t in d

Like Lucene it counts documents that have a term at all, rounds a document's length down to four significant bits, and
computes in single precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nlrl_jax.envs.webshop.analyzer import terms
from nlrl_jax.envs.webshop.catalogue import Product

K1, B = np.float32(0.9), np.float32(0.4)
RESULTS = 50


def document(product: Product) -> str:
    """Joins what is searched of a product: title, description, first bullet and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, *product.bullets[:1], options]).lower()


def rounded_length(length: int) -> int:
    """Rounds a document's length as Lucene stores it in a byte: exact below 40, then with four significant bits."""
    excess = length - 24
    if excess < 16:
        return length
    shift = excess.bit_length() - 4
    return 24 + (excess >> shift << shift)


class Index:
    """Ranks documents by BM25.

    Args:
      ids: of the documents, which equals are ordered by; by default their positions.
    """

    def __init__(self, documents: Sequence[str], ids: Sequence[str] = ()):
        counts = [Counter(terms(text)) for text in documents]
        lengths = np.array([count.total() for count in counts])
        self.size, self.documents = len(counts), int((lengths > 0).sum())
        mean = np.float32(lengths.sum() / max(self.documents, 1))
        rounded = np.array([rounded_length(int(length)) for length in lengths], np.float32)
        self.norm = 1 / (K1 * (1 - B + B * rounded / max(mean, np.float32(1))))
        # The place of each id in their sorted order: argsort inverts the permutation.
        self.rank = np.argsort(np.argsort(np.array(ids))) if len(ids) else np.arange(self.size)
        self.postings: dict[str, list[tuple[int, int]]] = {}
        for i, count in enumerate(counts):
            for term, number in count.items():
                self.postings.setdefault(term, []).append((i, number))

    def scores(self, query: str) -> np.ndarray:
        """Scores all documents, float32 [documents]; 0 where no word of the query occurs. Repeated words add up."""
        total = np.zeros(self.size)
        for term, times in Counter(terms(query)).items():
            if rows := self.postings.get(term):
                at, frequency = np.array(rows).T
                idf = np.float32(np.log(1 + (self.documents - len(rows) + 0.5) / (len(rows) + 0.5)))
                weight = np.float32(times) * idf
                # weight * f / (f + 1 / norm), in the form and precision in which Lucene computes it.
                total[at] += weight - weight / (1 + frequency.astype(np.float32) * self.norm[at])
        return total.astype(np.float32)

    def search(self, query: str, limit: int = RESULTS) -> list[int]:
        """Returns the documents with any of the query's words, best first and equals by id, at most `limit`."""
        scores = self.scores(query)
        order = np.lexsort((self.rank, -scores))[:limit]
        return [int(i) for i in order if scores[i] > 0]
