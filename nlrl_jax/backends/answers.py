"""Replies and scores out of what an OpenAI-compatible server answers."""

from __future__ import annotations

import itertools
import math

from nlrl_jax.backends.transport import EndpointError, Unusable
from nlrl_jax.types import Reply, Score


def read_replies(answer: dict, prompt_tokens: int, tokens: int, wanted: int) -> list[Reply]:
    """The usable choices of an answer, `wanted` at most, in the order of their indices.

    Raises:
      Unusable: it has no list of choices, or none of use where one was wanted. A message without a text (a model that
        refuses) may be taken in the end as an empty reply that has not ended.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise Unusable("it has no list of choices")
    choices = [choice if isinstance(choice, dict) else {} for choice in choices]
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: choice["index"])
    found = [reply for reply in map(_read_choice, choices) if reply is not None]
    if wanted == 1 and not found:
        silent = [Reply("", prompt_tokens, tokens, ended=False)] if any(map(_is_silent, choices)) else None
        message = f"it has {len(choices)} choices and none with a text" if choices else "it has no choice"
        raise Unusable(message, silent)
    lengths = list(itertools.accumulate((len(reply.text) + 1 for reply in found), initial=0))
    ends = [round(tokens * length / lengths[-1]) for length in lengths] if found else []
    return [
        Reply(reply.text, prompt_tokens if i == 0 else 0, ends[i + 1] - ends[i], reply.ended)
        for i, reply in enumerate(found[:wanted])
    ]


def _read_choice(choice: dict) -> Reply | None:
    """One choice, without tokens. A null is an empty text where the server says that it was cut; else no reply."""
    message, reason = choice.get("message"), choice.get("finish_reason")
    cut = reason in ("length", "content_filter")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        return Reply("", ended=False) if _is_silent(choice) and cut else None
    # JSON can hold halves of surrogate pairs, which no file and no tokenizer takes.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Reply(text, ended=not cut)


def _is_silent(choice: dict) -> bool:
    """Whether its message is well-formed but for the text, which is null or missing."""
    message = choice.get("message")
    return isinstance(message, dict) and message.get("content") is None


def read_score(answer: dict, continuation: str) -> Score:
    """Sums the log-probabilities of the last tokens, which must spell the continuation.

    Counted from the end, because special tokens at the beginning may be spelt unlike the prompt.

    Raises:
      EndpointError: they spell something else; sending it again would not help.
      Unusable: fields are missing.
    """
    try:
        found = answer["choices"][0]["logprobs"]
        tokens, log_probs = list(found["tokens"]), list(found["token_logprobs"])
        start, text = len(tokens), ""
        while start > 0 and len(text) < len(continuation):
            start -= 1
            text = tokens[start] + text
    except (KeyError, IndexError, TypeError):
        raise Unusable("it has no choices[0].logprobs with tokens and token_logprobs") from None
    if text != continuation or start == 0 or len(tokens) != len(log_probs):
        raise EndpointError(
            f"the last tokens that the server echoes spell {text[-80:]!r}, and before them there must be a "
            f"prompt; the continuation is {continuation[-80:]!r}. Either the server does not echo, or a token reaches "
            "over the border: let `render` end where a token ends"
        )
    if not all(isinstance(log_prob, int | float) and not math.isnan(log_prob) for log_prob in log_probs[start:]):
        raise Unusable("a token of the continuation has no log-probability")
    return Score(float(sum(log_probs[start:])), len(tokens) - start)
