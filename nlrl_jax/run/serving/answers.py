"""The JSON of answers: whole ones and the chunks of a stream, of chats and of texts."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.backends.batch_worker import WrittenToken
from nlrl_jax.lm.call_forms import ToolCall
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.run.serving.replies import ReplyText
from nlrl_jax.types import LEAST


@dataclasses.dataclass(frozen=True)
class AnswerForm:
    """What all parts of one answer have in common.

    kind: "chat.completion" or "text_completion". model: its served name. top: how many likeliest tokens are listed;
    None: no log-probabilities.
    """

    kind: str
    model: str
    tokenizer: Tokenizer
    top: int | None
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(12))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    @property
    def is_chat(self) -> bool:
        return self.kind.startswith("chat")

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, int]) -> dict[str, Any]:
        """The answer to a request that is no stream."""
        return {**self._head(self.kind), "choices": list(choices), "usage": dict(usage)}

    def chunk(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, int] | None, counts: bool) -> bytes:
        """A part of a stream. counts: the stream has the field `usage`, null before its end."""
        object_name = "chat.completion.chunk" if self.is_chat else self.kind
        chunk = {**self._head(object_name), "choices": list(choices), **({"usage": usage} if counts else {})}
        return b"data: " + json.dumps(chunk, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"

    def _head(self, object_name: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": object_name, "created": self.created, "model": self.model}

    def choice(
        self, index: int, text: ReplyText, reason: str, listed: Sequence[WrittenToken], echoed: str = ""
    ) -> dict[str, Any]:
        """A reply. listed: the tokens that spell it, those of an echoed prompt before them."""
        log_probs = self.log_probs(listed)
        if not self.is_chat:
            text_choice = {"index": index, "text": echoed + text.content}
            return {**text_choice, "logprobs": log_probs, "finish_reason": reason}
        message: dict[str, Any] = {"role": "assistant", "content": text.content}
        if text.calls:
            message |= {"content": text.content or None, "tool_calls": list(map(_call, text.calls))}
            reason = "tool_calls"
        if text.thought:
            message["reasoning_content"] = text.thought
        return {"index": index, "message": message, "logprobs": log_probs, "finish_reason": reason}

    def part(
        self, index: int, new: ReplyText, reason: str, listed: Sequence[WrittenToken], is_first: bool
    ) -> dict[str, Any]:
        """What is new of a reply in a stream."""
        log_probs = self.log_probs(listed) if listed else None
        if not self.is_chat:
            return {"index": index, "text": new.content, "logprobs": log_probs, "finish_reason": reason or None}
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if new.content or is_first:
            delta["content"] = new.content
        if new.thought:
            delta["reasoning_content"] = new.thought
        if new.calls:
            delta["tool_calls"] = [{"index": place, **_call(call)} for place, call in enumerate(new.calls)]
            reason = "tool_calls"
        return {"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": reason or None}

    def log_probs(self, tokens: Sequence[WrittenToken]) -> dict[str, Any] | None:
        """The log-probabilities of tokens in the form of chats or of texts."""
        if self.top is None:
            return None
        if self.is_chat:
            return {"content": [self._entry(token) for token in tokens]}
        spelled = [self._spelled(token.id) for token in tokens]
        offsets = [0]
        for text in spelled[:-1]:
            offsets.append(offsets[-1] + len(text))
        likeliest = [
            None
            if token.log_prob is None
            else {self._spelled(i): max(p, LEAST) for i, p in token.likeliest[: self.top]}
            for token in tokens
        ]
        return {
            "tokens": spelled,
            "token_logprobs": [token.log_prob and max(token.log_prob, LEAST) for token in tokens],
            "top_logprobs": likeliest if self.top else None,
            "text_offset": offsets[: len(spelled)],
        }

    def _entry(self, token: WrittenToken) -> dict[str, Any]:
        def entry(token_id: int, log_prob: float) -> dict[str, Any]:
            raw = self._bytes(token_id)
            return {"token": raw.decode("utf-8", "replace"), "logprob": max(log_prob, LEAST), "bytes": list(raw)}

        top = [entry(*pair) for pair in token.likeliest[: self.top]]
        return {**entry(token.id, token.log_prob), "top_logprobs": top}

    def _spelled(self, token_id: int) -> str:
        """A token as texts list it: a part of a letter by its bytes, as OpenAI writes it."""
        raw = self._bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes(self, token_id: int) -> bytes:
        if token_id >= self.tokenizer.vocab_size:  # the model's vocabulary may be larger
            return b""
        flat, offsets = self.tokenizer.token_bytes
        raw = flat[offsets[token_id] : offsets[token_id + 1]].tobytes()
        return raw or self.tokenizer.decode([token_id], skip_special_tokens=False).encode()


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The tokens read and written, end tokens included."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def _call(call: ToolCall) -> dict[str, Any]:
    # Nine letters and digits: Mistral's templates refuse other ids when they come back.
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": secrets.token_hex(5)[:9], "type": "function", "function": function}
