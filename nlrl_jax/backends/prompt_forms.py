"""How a chat is sent to a server. An open assistant message takes one of these forms:

TEXT       the whole prompt as text to /completions, rendered by the model's own chat template
CONTINUED  to /chat/completions as it is, with the fields that make vLLM and SGLang continue the last message;
           llama.cpp's server does so without them
PREFIX     the same with a mark in that message: Mistral's and DeepSeek's "prefix", PARTIAL for Kimi's and Qwen's
ASKED      to /chat/completions, with the transcript in the last user message, which asks for what comes next
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.backends.optional_fields import CONTINUE
from nlrl_jax.lm.control_tokens import broken
from nlrl_jax.lm.tokenizer import Tokenizer

Messages = list[dict[str, str]]
TEXT, CONTINUED, PREFIX, PARTIAL, ASKED = "text", "continued", "prefix", "partial", "asked"
FORMS = {
    TEXT: "as text to /completions",
    CONTINUED: "as chats whose last message the server continues",
    PREFIX: 'as chats whose last message the server continues, as it is marked with "prefix"',
    PARTIAL: 'as chats whose last message the server continues, as it is marked with "partial"',
    ASKED: "as chats whose last message asks for the next line, because the server does not continue messages",
}


@dataclasses.dataclass(frozen=True)
class PromptText:
    """Messages -> the prompt as text, for a server whose model has this tokenizer.

    The server reads control tokens in it, so those in contents get a blank: "< |im_end|>". The bos is left out where
    the server puts one there: llama.cpp, vLLM and SGLang do in /completions if the model's tokenizer does, also before
    a text that begins with one.

    Attributes:
      adds_bos: whether the server puts a bos before a text.
    """

    tokenizer: Tokenizer
    adds_bos: bool

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        text = broken(self.tokenizer.render_chat(messages))
        return text.removeprefix(self.bos) if self.adds_bos else text

    @property
    def bos(self) -> str:
        """The text of the bos; "" where the model has none."""
        return self.tokenizer.bos_token or ""


class Route(NamedTuple):
    """Where a chat is sent.

    content: the field that holds the chat. flags: further fields for its sake.
    open_text: what a reply by /chat/completions should continue; "" where it continues nothing.
    """

    path: str
    content: dict[str, Any]
    flags: dict[str, Any]
    open_text: str = ""

    @property
    def is_chat(self) -> bool:
        """Whether it goes to /chat/completions."""
        return "messages" in self.content

    def listed(self, top: int) -> dict[str, Any]:
        """The fields that ask for so many likeliest tokens with each one written; none for 0."""
        if not top:
            return {}
        return {"logprobs": True, "top_logprobs": top} if self.is_chat else {"logprobs": top}


def route(
    messages: Messages,
    form: str,
    render: Callable[[Messages], str] | None = None,
    user_fields: Collection[str] = (),
    words: Sequence[str] = (),
) -> Route:
    """The route of a chat.

    Args:
      form: of an open message.
      render: messages -> the prompt as text, for `TEXT`.
      user_fields: those that the user sets.
      words: what `ASKED` asks to choose from; empty: for the whole last line.
    """
    # No open message: every server takes it as it is.
    if not messages or messages[-1]["role"] != "assistant":
        return Route("/chat/completions", {"messages": messages}, {})
    if form == TEXT:
        return Route("/completions", {"prompt": render(messages)}, {})
    text = messages[-1]["content"]
    if form == ASKED:
        return Route("/chat/completions", {"messages": as_question(messages, words)}, {}, text)
    if form in (PREFIX, PARTIAL):
        return Route("/chat/completions", {"messages": [*messages[:-1], {**messages[-1], form: True}]}, {}, text)
    flags = {name: value for name, value in CONTINUE.items() if name not in user_fields}
    return Route("/chat/completions", {"messages": messages}, flags, text)


def as_question(messages: Sequence[Mapping[str, str]], words: Sequence[str] = ()) -> Messages:
    """Messages without the open one, whose text the last user message quotes, and asks how it goes on."""
    text = messages[-1]["content"]
    last = text.rpartition("\n")[2]
    if words:
        ask = f'Which word comes next, after "{last}": {" or ".join(words)}? Reply with that word alone.'
    else:
        ask = f'Write the line that begins with "{last}", and nothing else.'
    question = f"{text}\n\n{ask}"
    head = [dict(message) for message in messages[:-1]]
    # One user message in place of two in a row, which some chat templates refuse.
    if head and head[-1]["role"] == "user":
        question = f"{head.pop()['content']}\n\nThe transcript up to now:\n\n{question}"
    return [*head, {"role": "user", "content": question}]
