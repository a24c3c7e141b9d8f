"""Replies and scores out of an OpenAI-compatible server's response."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from nlrl_jax.backends.transport import EndpointError, Failure, InvalidResponse
from nlrl_jax.types import Reply, Score

_FILTER = re.compile(
    r"content[ _-]?(filter|policy|management)|responsible_?ai|invalid_prompt|\bflagged\b", re.IGNORECASE
)


def read_replies(
    response: dict, prompt_tokens: int, tokens: int, count: int, edit: Callable[[Reply], Reply] = lambda reply: reply
) -> list[Reply]:
    """The valid choices of a response, maximum `count`, in the order of their indices.

    Args:
      edit: reply -> the reply whose text counts; of the log-probabilities those of this text stay.

    Raises:
      InvalidResponse: it has no list of choices, or no valid one. If a message is well-formed but for its text, the
        fallback is an empty reply that has not ended.
    """
    choices = response.get("choices")
    if not isinstance(choices, list):
        raise InvalidResponse("it has no list of choices")
    choices = [choice if isinstance(choice, dict) else {} for choice in choices]
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: choice["index"])
    read = [(reply, _tokens(choice)) for choice in choices if (reply := _read_choice(choice)) is not None]
    replies = [reply for reply, _ in read]
    if not replies:
        empty = [Reply("", prompt_tokens, tokens, ended=False)] if any(map(_lacks_text, choices)) else None
        raise InvalidResponse(f"it has {len(choices)} choices and none with a text", empty)
    lengths = list(itertools.accumulate((len(reply.text) + 1 for reply in replies), initial=0))
    ends = [round(tokens * length / lengths[-1]) for length in lengths]
    made = []
    for i, (reply, spelt) in enumerate(read[:count]):
        reply = reply._replace(prompt_tokens=prompt_tokens if i == 0 else 0, tokens=ends[i + 1] - ends[i])
        edited = reply if reply.refused else edit(reply)
        made.append(edited._replace(log_probs=_kept(spelt, edited.text)))
    return made


def is_filtered(error: EndpointError | Failure) -> bool:
    """Whether a request was refused for its content, so that other prompts may well be accepted."""
    return _FILTER.search(error.body) is not None


def _read_choice(choice: dict) -> Reply | None:
    """One choice of /chat/completions or /completions, without tokens. No text is an empty one if the server says why,
    else no reply."""
    message, reason = choice.get("message", {"content": choice.get("text")}), choice.get("finish_reason")
    message = message if isinstance(message, dict) else {}
    text, refusal = _text(message.get("content")), _text(message.get("refusal"))
    cut, refused = reason == "length", reason == "content_filter" or bool(refusal)
    if text is None and not cut and not refused:
        return None
    return Reply(text or refusal or "", ended=not cut and not refused, refused=refused)


def _tokens(choice: dict) -> list[tuple[str, float]]:
    """The tokens of a choice with their log-probabilities, in either form; none where there are none."""
    found = choice.get("logprobs")
    try:
        if "content" in found:
            return [(token["token"], float(token["logprob"])) for token in found["content"]]
        return list(zip(found["tokens"], map(float, found["token_logprobs"])))
    except (KeyError, TypeError, ValueError):
        return []


def _kept(tokens: Sequence[tuple[str, float]], text: str) -> tuple[float, ...]:
    """The log-probabilities of the tokens that spell a text, which stands somewhere among them."""
    whole, text = "".join(token for token, _ in tokens), text.strip()
    start = max(whole.find(text), 0)
    end = start + len(text) if text in whole else len(whole)
    places = itertools.accumulate((len(token) for token, _ in tokens), initial=0)
    return tuple(
        log_prob for (token, log_prob), at in zip(tokens, places) if at < end and at + len(token) > start and text
    )


def read_top(response: dict) -> list[tuple[str, float]]:
    """The likeliest first tokens of a reply with their log-probabilities; none where it ends before the first.

    Raises:
      InvalidResponse: there is no list of them.
    """
    try:
        found = response["choices"][0]["logprobs"]
        if "content" in found:
            pairs = [(one["token"], one["logprob"]) for token in found["content"][:1] for one in token["top_logprobs"]]
        else:
            pairs = [pair for token in found["top_logprobs"][:1] for pair in token.items()]
        pairs = [(str(token), float(log_prob)) for token, log_prob in pairs]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise InvalidResponse("it has no choices[0].logprobs with top_logprobs of its first token") from None
    if any(math.isnan(log_prob) for _, log_prob in pairs):
        raise InvalidResponse("a log-probability is not a number")
    return pairs


def _text(content: Any) -> str | None:
    """The text of a message, which may be a list of parts, of which those of other types are left out."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        content = "".join(texts) if texts else None
    if not isinstance(content, str):
        return None
    # JSON can hold halves of surrogate pairs, which no file and no tokenizer takes.
    return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _lacks_text(choice: dict) -> bool:
    """Whether its message is well-formed but for the text, which is null or missing."""
    message = choice.get("message")
    return isinstance(message, dict) and message.get("content") is None


def read_score(response: dict, continuation: str) -> Score:
    """Sums the log-probabilities of the last tokens, which must spell the continuation.

    Counted from the end, because special tokens at the beginning may be spelt unlike the prompt.

    Raises:
      EndpointError: they spell something else; sending it again would not help.
      InvalidResponse: fields are missing.
    """
    try:
        echo = response["choices"][0]["logprobs"]
        tokens, log_probs = list(echo["tokens"]), list(echo["token_logprobs"])
        start, text = len(tokens), ""
        while start > 0 and len(text) < len(continuation):
            start -= 1
            text = tokens[start] + text
    except (KeyError, IndexError, TypeError):
        raise InvalidResponse("it has no choices[0].logprobs with tokens and token_logprobs") from None
    if text != continuation or start == 0 or len(tokens) != len(log_probs):
        raise EndpointError(
            f"the last tokens that the server echoes spell {text[-80:]!r}, and before them there must be a "
            f"prompt; the continuation is {continuation[-80:]!r}. Either the server does not echo, or a token reaches "
            "over the border: let `render` end where a token ends"
        )
    if not all(isinstance(log_prob, int | float) and not math.isnan(log_prob) for log_prob in log_probs[start:]):
        raise InvalidResponse("a token of the continuation has no log-probability")
    return Score(float(sum(log_probs[start:])), len(tokens) - start)
