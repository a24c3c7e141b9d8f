"""Replies and scores out of an OpenAI-compatible server's response."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from nlrl_jax.backends.token_log_probs import Tokens, log_probs_of, read_log_prob, spelt, tail_length
from nlrl_jax.backends.transport import EndpointError, Failure
from nlrl_jax.roles.thoughts import without_thoughts
from nlrl_jax.types import Reply, Score

_FILTER = re.compile(
    r"content[ _-]?(?:filter|policy|management|moderation|safety|exists risk)|content violates|responsible_?ai"
    r"|guardrail|invalid_prompt|\bflagged\b|data_?inspection"
    r"|(?:inappropriate|unsafe|sensitive|prohibited)[ _](?:\w+ )*content"
    r"|sensitive_words|policy_violation|moderation_blocked|safety (?:system|check|filter|reasons)|considered high risk"
    r"|block_?reason|[\"']filtered[\"']:\s*true",
    re.IGNORECASE,
)
# How servers say why a choice ended, in small letters without marks: OpenAI, vLLM, SGLang, llama.cpp, LM Studio, TGI,
# and what hosts pass on from Anthropic, Gemini, Cohere, Mistral and Bedrock.
_ENDED = set(
    "stop stopword stopstring stopstringfound stoptoken stopsequence stopsequencereached eos eosfound eostoken eot "
    "endoftext endofturn endturn end endofsequence finish finished complete completed done normal "
    "toolcall toolcalls tooluse functioncall functioncalls".split()
)
_CUT = set(
    "length limit tokenlimit maxlen maxlength maxtokens maxnewtokens maxoutputtokens maxcompletiontokens modellength "
    "maxpredictedtokensreached contextlength contextlengthreached modelcontextwindowexceeded repetition".split()
)
NOT_WHOLE = "its reply is not whole"  # what an error says where sending the same again may help
_REFUSED = re.compile(
    "contentfilter|safety|refus|sensitive|recitation|prohibited|blocklist|spii|guardrail|toxic|moderation"
)


def read_replies(
    response: dict, prompt_tokens: int, tokens: int, count: int, edit: Callable[[Reply], Reply] = lambda reply: reply
) -> list[Reply]:
    """The valid choices of a response, maximum `count`, in the order of their indices.

    A choice is valid where it has a text and its `finish_reason`, if it is there, is a natural end, a stop string or
    the length limit; with any other, such as "error", "abort" or null, it is not. One that a filter stopped is a reply
    without text.

    Args:
      edit: reply -> the reply whose text counts; of the log-probabilities those of this text stay.

    Raises:
      Failure: it has an error, no list of choices, or no valid one. If a
        message is well-formed but for its text, or the list is empty, the fallback is an empty reply that has not
        ended.
      EndpointError: a log-probability is above 0.
    """
    choices = _choices(response)
    # 1. In order: some servers return choices as they end. Those without an index stay as they stand.
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: choice["index"])
    pairs = [(reply, _tokens(choice)) for choice in choices if (reply := _read_choice(choice)) is not None]
    replies = [reply for reply, _ in pairs]
    # 2. No reply at all: the caller asks again, or takes an empty one in the end.
    if not replies:
        if not choices or any(map(_lacks_text, choices)):
            message = "it has no text" if choices else "it has an empty list of choices"
            raise Failure(message, fallback=[Reply("", prompt_tokens, tokens, ended=False)])
        for choice in choices:
            _check_ended(choice)
        raise Failure(f"it has {len(choices)} choices and none with a text")
    # 3. The server counts all choices together: their tokens are divided by length, so that the sums are exact.
    lengths = list(itertools.accumulate((len(reply.text) + 1 for reply in replies), initial=0))
    token_ends = [round(tokens * length / lengths[-1]) for length in lengths]
    edited_replies = []
    for i, (reply, listed) in enumerate(pairs[:count]):
        reply = reply._replace(prompt_tokens=prompt_tokens if i == 0 else 0, tokens=token_ends[i + 1] - token_ends[i])
        edited = reply if reply.refused else edit(reply)
        edited_replies.append(
            edited._replace(
                log_probs=() if reply.refused else log_probs_of(listed, edited.text, without_thoughts(reply.text))
            )
        )
    return edited_replies


def is_filtered(error: EndpointError | Failure) -> bool:
    """Whether a request was refused for its content, so that other prompts may well be accepted."""
    return _FILTER.search(error.body) is not None


def _choices(response: dict) -> list[dict]:
    """The choices of a response.

    Raises:
      Failure: there is no list of them, or an error beside them.
    """
    if error := response.get("error"):  # some servers and gateways send errors with status 200
        body = json.dumps(error)
        raise Failure(f"it has an error: {body[:200]}", body=body, is_final=_FILTER.search(body) is not None)
    choices = response.get("choices")
    if not choices and _FILTER.search(body := json.dumps(response)):
        raise Failure("a filter stopped the prompt", body=body, is_final=True)
    if not isinstance(choices, list):
        raise Failure("it has no list of choices")
    return [choice if isinstance(choice, dict) else {} for choice in choices]


def _reason(choice: dict) -> str:
    """Why a choice ended, in small letters without marks; "" where it does not say."""
    reason = choice.get("finish_reason", "")
    reason = reason.get("type") if isinstance(reason, dict) else reason
    return re.sub(r"[\W_]+", "", str(reason)).casefold().removeprefix("finishreason")


def _refusal(choice: dict) -> str:
    """What a model says in refusing; "" where it does not refuse."""
    return _text((_message(choice) or {}).get("refusal")) or ""


def _is_refused(choice: dict) -> bool:
    """Whether a content filter, or the model itself, stopped a choice."""
    results = choice.get("content_filter_results")
    filtered = [result for result in results.values() if isinstance(result, dict)] if isinstance(results, dict) else []
    error = choice.get("error")
    by_error = bool(error) and _FILTER.search(json.dumps(error)) is not None
    by_filter = any(result.get("filtered") is True for result in filtered) or bool(_REFUSED.search(_reason(choice)))
    return by_error or by_filter or bool(_refusal(choice))


def _broken(choice: dict) -> bool:
    """Whether a choice ended neither by itself nor at a limit nor by a filter."""
    is_an_end = "finish_reason" not in choice or _reason(choice) in _ENDED | _CUT
    return not _is_refused(choice) and (not is_an_end or bool(choice.get("error")))


def _check_ended(choice: dict) -> None:
    """Raises Failure: its reply is `NOT_WHOLE`, because of a fault that may pass."""
    if _broken(choice):
        reason = choice.get("error") or {"finish_reason": choice.get("finish_reason")}
        raise Failure(f"{NOT_WHOLE}: {json.dumps(reason)[:200]}")


def _read_choice(choice: dict) -> Reply | None:
    """One choice of /chat/completions or /completions, without tokens. No text is an empty one if the server says why,
    else no reply."""
    if _broken(choice):
        return None
    if _is_refused(choice):
        return Reply(_refusal(choice), ended=False, refused=True)
    text, cut = _text((_message(choice) or {}).get("content")), _reason(choice) in _CUT
    return Reply(text or "", ended=not cut) if text is not None or cut else None


def _message(choice: dict) -> dict | None:
    """The message of a choice, also in a stream's field or as the text of /completions; None where there is none."""
    messages = [choice[name] for name in ("message", "delta") if isinstance(choice.get(name), dict)]
    messages += [{"content": choice["text"]}] if "text" in choice else []
    return next((message for message in messages if message.get("content") is not None), next(iter(messages), None))


def _tokens(choice: dict) -> Tokens:
    """The tokens of a choice, in either form; none where there are none, or none with a number."""
    log_probs = choice.get("logprobs")
    try:
        if log_probs.get("content") is not None:
            rows = _pairs(log_probs["content"])
        else:
            rows = [(spelt(token), p) for token, p in zip(log_probs["tokens"], log_probs["token_logprobs"])]
        return [(token, read_log_prob(p, token)) for token, p in rows] if any(p is not None for _, p in rows) else []
    except (KeyError, TypeError, AttributeError):
        return []


def _pairs(listed: Any) -> list[tuple[str, Any]]:
    """Tokens with the values of their log-probabilities: listed one by one, or a mapping as in /completions."""
    if isinstance(listed, dict):
        return [(spelt(token), value) for token, value in listed.items()]
    return [(spelt(row["token"], row.get("bytes")), row.get("logprob")) for row in listed]


def read_top(response: dict, without_text: Tokens | None = None) -> Tokens:
    """The likeliest first tokens of a reply; none where it ends before the first, or where a filter stopped it.

    Raises:
      Failure: there is no list of them, or the reply broke off; the fallback of one without a text is
        `without_text`.
      EndpointError: a log-probability is above 0.
    """
    choice = (_choices(response) or [{}])[0]
    if _is_refused(choice):
        return []
    _check_ended(choice)
    try:
        log_probs = choice["logprobs"]
        if log_probs.get("content") is not None:
            rows = [token["top_logprobs"] for token in log_probs["content"][:1]]
        else:
            top = log_probs["top_logprobs"]
            rows = [top] if isinstance(top, dict) else top[:1]
        return [(token, read_log_prob(log_prob, token)) for row in rows for token, log_prob in _pairs(row)]
    except (KeyError, TypeError, AttributeError):
        lacks_text = not choice or _lacks_text(choice) or _text((_message(choice) or {}).get("content")) == ""
        raise Failure(
            "it has no choices[0].logprobs with top_logprobs of its first token",
            fallback=without_text if lacks_text else None,
        ) from None


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
    """Whether it has ended and is well-formed but for the text, which is null or missing."""
    message = _message(choice)
    return message is not None and message.get("content") is None and not _broken(choice)


def read_score(response: dict, continuation: str) -> Score:
    """Sums the log-probabilities of the last tokens, which must spell the continuation.

    Counted from the end, because special tokens at the beginning may be spelt unlike the prompt.

    Raises:
      EndpointError: they spell something else, or one is above 0; sending it again would not help.
      Failure: fields are missing, or it broke off.
    """
    choice = (_choices(response) or [{}])[0]
    if choice.get("finish_reason") is not None:  # an echo writes nothing that could end
        _check_ended(choice)
    try:
        tokens = [spelt(token) for token in choice["logprobs"]["tokens"]]
        log_probs = list(choice["logprobs"]["token_logprobs"])
    except (KeyError, TypeError):
        raise Failure("it has no choices[0].logprobs with tokens and token_logprobs") from None
    number = tail_length(tokens, continuation)
    if not 0 < number < len(tokens) or len(tokens) != len(log_probs):
        end = "".join(tokens)[-len(continuation) :][-80:]
        raise EndpointError(
            f"the last tokens that the server echoes spell {end!r}, and before them there must be a "
            f"prompt; the continuation is {continuation[-80:]!r}. Either the server does not echo, or a token reaches "
            "over the border: let `render` end where a token ends"
        )
    if all(log_prob is None for log_prob in log_probs):
        raise Failure("no token has a log-probability")
    return Score(float(sum(map(read_log_prob, log_probs[-number:], tokens[-number:]))), number)
