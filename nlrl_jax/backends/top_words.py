"""Log-probabilities of words out of the `top_logprobs` of one generated token.

    scores([(" GOOD", -0.1), (" Good", -4.0), (" BAD", -2.5)], ["GOOD", "BAD"])

The probability of a word is that of all tokens that begin it: the word itself in any capitals, with or without blanks
around it or a mark after it, and its own first letters, where the tokenizer cuts it ("GO" of "GOOD"). A token that
begins several of the words counts for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nlrl_jax.types import Score

TOP = 20  # tokens to request: the most that OpenAI and vLLM list
Top = Sequence[tuple[str, float]]
_BLANKS = " \t\r\n\u2581\u0120\u010a*_`\"'"  # also as vocabularies write them


def scores(top: Top, words: Sequence[str], limit: int = TOP) -> list[Score]:
    """The score of each word.

    Args:
      top: (token, log-probability) in any order; the generated token may be there beside the `limit` likeliest.

    Returns: the score of a word that no token begins is that of the last of the `limit` likeliest, which it cannot
      exceed, and has `bounded`.
    """
    ordered = sorted((log_prob for _, log_prob in top), reverse=True)[:limit]
    found: dict[str, list[float]] = {word: [] for word in words}
    for token, log_prob in top:
        begun = [word for word in found if _begins(token, word.strip())]
        if len(begun) == 1:
            found[begun[0]].append(log_prob)
    bound = ordered[-1] if ordered else 0.0
    return [
        Score(min(0.0, float(np.logaddexp.reduce(found[word]))), 1) if found[word] else Score(bound, 1, bounded=True)
        for word in words
    ]


def _begins(token: str, word: str) -> bool:
    text = token.strip(_BLANKS)
    if not text:
        return False
    if text.casefold().startswith(word.casefold()):
        return not text[len(word) :][:1].isalnum()
    return word.encode().startswith(text.encode("utf-8", "surrogateescape"))  # a token may hold a part of a letter
