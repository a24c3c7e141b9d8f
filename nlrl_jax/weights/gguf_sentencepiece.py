"""SentencePiece's vocabularies in GGUF files (`tokenizer.ggml.model` = "llama") as a BPE of `tokenizers`.

Such a file has no merges but a score for each token: of all neighbours in a text that together are a token, those of
the highest score are joined first, the leftmost of equal ones. A merge is therefore each way to split a token in two
tokens, ranked by the whole's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

from nlrl_jax.lm.borders import SPACE


def merges_by_score(tokens: Sequence[str], scores: Sequence[float], may_be_joined: Sequence[bool]):
    """Lists the merges (left, right), first to last, of tokens that `may_be_joined` from others."""
    ranked = sorted(
        # Runs of spaces share one score. The leftmost run grows first, and that is the longest.
        ((-score, -len(token), token) for token, score, joined in zip(tokens, scores, may_be_joined) if joined),
    )
    parts = {token for token, joined in zip(tokens, may_be_joined) if joined}
    merges = []
    for _, _, token in ranked:
        for n in range(1, len(token)):
            if token[:n] in parts and token[n:] in parts:
                merges.append((token[:n], token[n:]))
    return merges


def sentencepiece_backend(
    ids: Mapping[str, int], merges: list[tuple[str, str]], unknown: str | None, adds_space: bool
) -> tokenizers.Tokenizer:
    """The tokenizer of a vocabulary and its merges; characters that it lacks become the tokens of their bytes.

    Args:
      unknown: the token of what has no bytes either. adds_space: a space is put before a text and after added tokens.
    """
    backend = tokenizers.Tokenizer(models.BPE(dict(ids), merges, unk_token=unknown, byte_fallback=True))
    replace = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if adds_space else replace
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend
