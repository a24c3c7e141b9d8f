"""Requests as tokens: chats in the model's own template, with the tools that they offer; texts as they are."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.lm.call_forms import CallForm
from nlrl_jax.lm.chat_roles import SYSTEM, folded, rendered
from nlrl_jax.lm.chat_template import GIVEN, ChatRenderer
from nlrl_jax.lm.conversation import TOOL_RESPONSE, offer_tools, tools_text
from nlrl_jax.lm.thoughts import thought_end, without_thought
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.run.serving.errors import wrong
from nlrl_jax.run.serving.requests import ChatRequest, TextRequest


class Prompt(NamedTuple):
    """What a reply is written after, and how the reply is read.

    continues: a text stands right before the reply. thought_end: the mark that ends the thought that the prompt opens.
    calls: the form of calls of the `tools`; None where none are offered. is_parallel: several calls in a reply.
    is_chat: it was made from messages.
    """

    tokens: tuple[int, ...]
    continues: bool = True
    thought_end: str = ""
    calls: CallForm | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    is_parallel: bool = True
    is_chat: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class PromptWriter:
    """How requests become prompts of one model.

    Attributes:
      variables: of its chat template, where a request sets no others.
      suffix: what follows each generation prompt of a chat.
      in_user: system texts go into the user's first message.
    """

    tokenizer: Tokenizer
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suffix: str = ""
    in_user: bool = False

    def of_texts(self, request: TextRequest) -> list[Prompt]:
        """Texts, behind the bos where the model's texts begin with one, or token ids as they are."""
        begins_with_bos = request.adds_special_tokens and self.tokenizer.adds_bos
        bos = (self.tokenizer.bos_id,) if begins_with_bos else ()
        prompts = []
        for prompt in request.prompts:
            tokens = (*bos, *self.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
            prompts.append(Prompt(tokens))
        return prompts

    def of_chat(self, request: ChatRequest) -> Prompt:
        """A chat up to its next reply.

        Raises:
          ApiError: a variable that the server sets itself, or a chat that the template refuses.
        """
        variables = {**self.variables, **request.variables}
        reserved = {*GIVEN, *self.tokenizer.special_tokens}.intersection(request.variables)
        if reserved:
            raise wrong("chat_template_kwargs", f"sets {min(reserved)}, which follows from the request")
        try:
            renderer, calls, describes_tools = self._offering(json.dumps(request.tools))
            messages = request.messages
            if describes_tools:
                messages = _with_tools(messages, request.tools)
            if self.in_user:
                messages = folded(messages, [SYSTEM])
            text = self._text(renderer, messages, variables, request.is_open)
        except ValueError as error:
            raise wrong("messages", f"cannot be written as a prompt: {error}") from None
        tokens = tuple(self.tokenizer.encode(text))
        form = calls if request.tools else None
        end = "" if request.is_open else thought_end(text)
        return Prompt(tokens, request.is_open, end, form, request.tools, request.is_parallel, is_chat=True)

    def _text(
        self, renderer: ChatRenderer, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], is_open: bool
    ) -> str:
        chat = messages[:-1] if is_open else messages

        def render(**switches: Any) -> str:
            return rendered(lambda folded_chat: renderer(folded_chat, True, **{**variables, **switches}), chat)

        if not is_open:
            return render() + self.suffix
        # Templates close an assistant's message; this one is to be continued, behind its thought.
        return without_thought(render) + self.tokenizer.as_content(messages[-1]["content"])

    @functools.cached_property
    def _offering(self):
        @functools.lru_cache(maxsize=64)  # a template is asked for its form of calls by some renderings
        def offering(tools: str):
            return offer_tools(self.tokenizer.renderer, json.loads(tools))

        return offering


def _with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages for a template that knows no tools: a system text describes them, and calls and their results are
    texts, as that description says."""
    has_system = messages[0]["role"] == "system"
    first = messages[0]["content"] if has_system else ""
    chat = [{"role": "system", "content": f"{first}\n\n{tools_text(tools)}".lstrip()}]
    for message in messages[has_system:]:
        content = message["content"]
        if message["role"] == "tool":
            chat.append({"role": "user", "content": TOOL_RESPONSE.format(content)})
            continue
        for call in message.get("tool_calls", ()):
            content += f"\n<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        chat.append({"role": message["role"], "content": content.lstrip("\n")})
    return chat
