"""Log-probabilities of words out of the `top_logprobs` of one generated token.

    scores([(" GOOD", -0.1), (" Good", -4.0), (" BAD", -2.5)], ["GOOD", "BAD"])

The probability of a word is that of all tokens that begin it: the word itself in any capitals, with or without blanks
around it or a mark after it, and its own first letters, where the tokenizer cuts it ("GO" of "GOOD"). A token that
begins several of the words counts for none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nlrl_jax.types import Score

SPELLINGS = 16  # of a word that a vocabulary may have, about: capitals, blanks, marks, first letters
TOP = 20  # tokens to request: the most that OpenAI and vLLM list
Top = Sequence[tuple[str, float]]
_BLANKS = " \t\r\n\u2581\u0120\u010a*_`\"'"  # also as vocabularies write them


def scores(top: Top, words: Sequence[str], limit: int = TOP) -> list[Score]:
    """The score of each word.

    Args:
      top: (token, log-probability) in any order; the generated token may be there beside the `limit` likeliest.

    Returns: the sum over a word's listed spellings, a lower bound; `partial` where those that are not listed may weigh
      as much. The score of a word that no token begins is that of the last of the `limit` likeliest, and has `bounded`:
      each of its spellings is at most as likely as that, several together may be likelier.
    """
    top = dict.fromkeys(map(tuple, top))  # some servers list the generated token twice
    ordered = sorted((log_prob for _, log_prob in top), reverse=True)[:limit]
    spellings: dict[str, list[float]] = {word: [] for word in words}
    for token, log_prob in top:
        candidates = [word for word in spellings if _begins(token, word.strip())]
        if len(candidates) == 1:
            spellings[candidates[0]].append(log_prob)
    last = ordered[-1] if ordered else 0.0
    rest = min(1 - sum(map(math.exp, ordered)), SPELLINGS * math.exp(last))
    rows = []
    for word in words:
        score = min(0.0, float(np.logaddexp.reduce(spellings[word]))) if spellings[word] else last
        is_partial = bool(spellings[word]) and rest > math.exp(score)
        rows.append(Score(score, 1, bounded=not spellings[word], partial=is_partial))
    return rows


def _begins(token: str, word: str) -> bool:
    text = token.strip(_BLANKS)
    if not text:
        return False
    if text.casefold().startswith(word.casefold()):
        return not text[len(word) :][:1].isalnum()
    return word.encode().startswith(text.encode("utf-8", "surrogateescape"))  # a token may hold a part of a letter
