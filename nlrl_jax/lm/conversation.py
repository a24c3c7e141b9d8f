"""Conversations as tokens: replies stay as they were sampled, what stands between them comes from the chat template.

    form = ConversationForm.of(tokenizer)
    tokens = form.opening("You play a guessing game.", "Guess a number.")
    reply = ...                                          # sampled after `tokens`
    tokens += reply + form.between("Higher.", ended=reply[-1] in tokenizer.eos_ids)

`lm.turns` finds what the template writes and `lm.conversation_plan` which way conversations take with it (`form.way`).
With the way `FRESH` there is nothing between: each turn's prompt is `rendered`.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.lm import turns
from nlrl_jax.lm.call_forms import CallForm
from nlrl_jax.lm.chat_probe import reading_notes
from nlrl_jax.lm.chat_template import ChatRenderer
from nlrl_jax.lm.conversation_plan import FRESH, WAYS, ConversationPlan, plan_conversations
from nlrl_jax.lm.thoughts import (
    ANALYSIS,
    ANALYSIS_END,
    FINAL,
    opened_thought,
    thought_end,
    without_channels,
    written_thought_end,
)  # fmt: skip
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.tool_calls import HERMES, ReadCalls, call_form, read_calls

_LARGEST_CACHE = 1 << 14  # observations whose tokens are kept

# For templates that offer no tools: Hermes' form, in which most models have seen calls.
_TOOLS = (
    "You can call these tools, each described by a JSON schema:\n{}\nTo call one, write\n"
    '<tool_call>\n{{"name": NAME, "arguments": {{...}}}}\n</tool_call>\nand end your turn; the answer comes next.'
)
TOOL_RESPONSE = "<tool_response>\n{}\n</tool_response>"


class ToolResult(NamedTuple):
    """What a tool answered to a call. name: the tool's. text: its answer."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True, eq=False)
class ConversationForm:
    """How a run's conversations are written with one model's chat template. Made by `of`.

    Attributes:
      plan: how the template is asked, and which way conversations take.
      tools: JSON schemas of the tools that the model is offered.
      calls: the form of calls in replies.
      describes_tools: the template leaves tools out, so that the system text describes them.
    """

    tokenizer: Tokenizer
    plan: ConversationPlan
    tools: tuple[Mapping[str, Any], ...] = ()
    calls: CallForm = HERMES
    describes_tools: bool = False

    @staticmethod
    def of(
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] = (),
        thinks: bool | None = None,
        has_system: bool = True,
        way: str = "auto",
    ) -> ConversationForm:
        """Probes the template.

        Args:
          tools: JSON schemas of the tools that the model is offered.
          thinks: whether replies begin with a thought; None: as the template does by default.
          has_system: conversations have a system text; `opening` may also leave it out of one.
          way: one of `WAYS` to insist on; "auto": the first that fits.

        Raises:
          ValueError: there is no chat template, it refuses conversations, or `way` does not fit it.
        """
        if not tokenizer.options.date:  # a run that passes midnight keeps its prompts
            today = datetime.date.today().isoformat()
            tokenizer = dataclasses.replace(tokenizer, options=dataclasses.replace(tokenizer.options, date=today))
        # 1. Does the template offer these tools, and write calls that can be read back?
        plain = tokenizer.renderer
        offering, calls, describes_tools = offer_tools(plain, tools)
        # 2. Which way do conversations take, with the tools in their prompts?
        plan = plan_conversations(plain if describes_tools else offering, thinks, has_system or describes_tools, way)
        return ConversationForm(tokenizer, plan, tuple(tools), calls, describes_tools)

    @property
    def way(self) -> str:
        """One of `WAYS`."""
        return self.plan.way

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What a run says once of the template and of the way its conversations take."""
        notes = [*self.plan.notes, *reading_notes(self.plan.form), WAYS[self.way]]
        if self.describes_tools:
            notes.append("the template offers no tools in a form that is known here: the system text describes them")
        if self.way != FRESH and not self._end:
            notes.append("no end token of the model stands between turns: a reply's own is followed by the template's")
        elif self.way != FRESH and self._end[-1] not in self.tokenizer.eos_ids:
            notes.append("a reply's end token stays, though the template turns it into another one in later turns")
        return tuple(notes)

    def opening(self, system: str, question: str) -> tuple[int, ...]:
        """The tokens of a conversation up to the first reply."""
        return tuple(self.tokenizer.encode(self.plan.form.opening(self._with_tools(system), question)))

    def read_calls(self, answer: Sequence[int]) -> ReadCalls:
        """The calls of tools in a reply, and why some cannot be read. answer: its tokens behind its thought."""
        tokens = [token for token in answer if token not in self.tokenizer.eos_ids]
        return read_calls(self.calls, self.tokenizer.decode(tokens, skip_special_tokens=False), self.tools)

    def answer_text(self, answer: Sequence[int]) -> str:
        """The text of a reply without its thought. answer: its tokens behind that."""
        if not self._has_channels:
            return self.tokenizer.decode(answer)
        tokens = [token for token in answer if token not in self.tokenizer.eos_ids]
        return without_channels(self.tokenizer.decode(tokens, skip_special_tokens=False))

    @functools.cached_property
    def _has_channels(self) -> bool:
        return ANALYSIS.partition("analysis")[0] in self.tokenizer.renderer.source

    def _with_tools(self, system: str) -> str:
        if not self.describes_tools:
            return system
        return f"{system}\n\n{tools_text(self.tools)}".lstrip()

    def between(self, observation: str, ended: bool) -> tuple[int, ...]:
        """The tokens between a reply and the next one: the end of its turn, an observation, the generation prompt.

        Args:
          ended: the reply's last token is one that ends replies; it is not written again.

        Raises:
          ValueError: the way is `FRESH`, or the template refuses the observation.
        """
        return self._between(observation, ended)

    def after_calls(self, results: Sequence[ToolResult], ended: bool) -> tuple[int, ...]:
        """`between` for the results of all tools that a reply has called."""
        return self._after_calls(tuple(results), ended)

    def rendered(self, messages: Sequence[turns.Message]) -> tuple[int, ...]:
        """The tokens of a whole chat up to the next reply, written anew, for the way `FRESH`.

        messages: an assistant's content is the text of its reply as it was sampled, with its thought.
        """
        chat = [self._written(message) if message["role"] == "assistant" else message for message in messages]
        if self.describes_tools:
            rules = chat.pop(0)["content"] if chat[0]["role"] == "system" else ""
            chat.insert(0, {"role": "system", "content": self._with_tools(rules)})
        if self.plan.form.in_user and len(chat) > 1 and chat[0]["role"] == "system":
            chat = [*turns.opening_messages(chat[0]["content"], chat[1]["content"], in_user=True), *chat[2:]]
        return tuple(self.tokenizer.encode(self.plan.form.prompt(chat)))

    @functools.cached_property
    def opened(self) -> str:
        """The thought that the generation prompt begins, such as "<think>\\n"; "" where a reply begins outside one."""
        return opened_thought(self.plan.form.opening("", turns.QUESTION))

    @functools.cached_property
    def thought_close(self) -> tuple[int, ...]:
        """The tokens that end a thought by force: its closing mark, with the blanks that the template writes round
        it."""
        if self._has_channels:
            return tuple(self.tokenizer.encode(ANALYSIS_END + FINAL, continues=True))
        end = thought_end(self.opened) or "</think>"
        reply = self.plan.form.thought(self.opened).sampled
        closing_text = reply[reply.index(turns.THOUGHT) + len(turns.THOUGHT) :].removesuffix(turns.ANSWERS[0])
        return tuple(self.tokenizer.encode(closing_text if end in closing_text else f"\n{end}\n\n", continues=True))

    def thought_length(self, tokens: Sequence[int]) -> int:
        """How many of a reply's tokens are its thought, the closing mark included; all where it never closes."""
        # A few tokens are enough to spell the mark with which a reply may begin a thought itself.
        beginning = self.tokenizer.decode(tokens[:16], skip_special_tokens=False)
        end = thought_end(self.opened) or written_thought_end(beginning)
        return self._closed_at(tuple(tokens), end) if end else 0

    def _closed_at(self, tokens: tuple[int, ...], end: str) -> int:
        mark = self.tokenizer.backend.token_to_id(end)
        if mark is not None:
            return tokens.index(mark) + 1 if mark in tokens else len(tokens)
        # The mark is spelt by several tokens: the shortest beginning whose text holds it, by bisection.
        first, last = 0, len(tokens)
        if end not in self.tokenizer.decode(tokens):
            return len(tokens)
        while first < last:
            middle = (first + last) // 2
            if end in self.tokenizer.decode(tokens[:middle]):
                last = middle
            else:
                first = middle + 1
        return first

    @functools.cached_property
    def _between(self):
        @functools.lru_cache(_LARGEST_CACHE)
        def between(observation: str, ended: bool) -> tuple[int, ...]:
            self._check_appends()
            form = self.plan.form
            text = form.separator([form.observation(observation)])
            return self._without_end(tuple(self.tokenizer.encode(text, continues=True)), ended)

        return between

    @functools.cached_property
    def _after_calls(self):
        @functools.lru_cache(_LARGEST_CACHE)
        def after_calls(results: tuple[ToolResult, ...], ended: bool) -> tuple[int, ...]:
            self._check_appends()
            end_ids = {*self.tokenizer.eos_ids, *self._end[-1:]}
            try:
                tokens = tuple(self.tokenizer.encode(self.plan.form.separator_of_calls(results), continues=True))
                first = next(n for n, token in enumerate(tokens) if token in end_ids)
            except (ValueError, StopIteration):
                text = self._separator_of_results(results)
                return self._without_end(tuple(self.tokenizer.encode(text, continues=True)), ended)
            # What stands before the end token belongs to the call.
            return tokens[first + 1 :] if ended else tokens[first:]

        return after_calls

    def _separator_of_results(self, results: Sequence[ToolResult]) -> str:
        """What stands between turns with a template that writes no calls: the results alone, in the role tool or, where
        that is not shown, in the user's message."""
        form = self.plan.form
        try:
            separator = form.separator([turns.tool_reply(text, name, n) for n, (name, text) in enumerate(results)])
            if all(result.text.strip() in separator for result in results):
                return separator
        except ValueError:
            pass
        return form.separator([turns.user("\n".join(map(TOOL_RESPONSE.format, [text for _, text in results])))])

    def _check_appends(self) -> None:
        if self.way == FRESH:
            raise ValueError("conversations with this chat template are rendered anew for each turn")

    def _without_end(self, tokens: tuple[int, ...], ended: bool) -> tuple[int, ...]:
        """What is left to write where a reply has ended itself."""
        size = len(self._end)
        return tokens[size:] if ended and tokens[:size] == self._end else tokens

    @functools.cached_property
    def _end(self) -> tuple[int, ...]:
        """The tokens with which the template ends an earlier reply, as far as a reply that has ended wrote them itself:
        mostly the end token alone, in some templates marks and blanks before it; none where it writes no end token."""
        form, end_ids = self.plan.form, self.tokenizer.eos_ids
        separator = form.separator([form.observation(turns.OBSERVATION)])
        tokens = tuple(self.tokenizer.encode(separator, continues=True))
        try:
            last = form.last_answer(turns.assistant(turns.ANSWERS[0])).partition(turns.ANSWERS[0])[2]
        except ValueError:
            last = ""
        last_tokens = tuple(self.tokenizer.encode(last, continues=True)) if last else ()
        # "\n</assistant>" ends a turn of Laguna, "<|im_end|>" one of Qwen: up to and with the end token.
        size = next((n + 1 for n, token in enumerate(tokens) if token in end_ids), 0)
        is_own = tokens[:size] == last_tokens[:size] or not self.tokenizer.decode(tokens[: size - 1]).strip()
        if size and is_own:
            return tokens[:size]
        # A last answer may end in a token that later becomes another one (gpt-oss).
        becomes_another = last_tokens[:1] and last_tokens[0] in end_ids
        is_special = tokens[0] in self.tokenizer.backend.get_added_tokens_decoder()
        return tokens[:1] if becomes_another and is_special else ()

    def _written(self, message: turns.Message) -> turns.Message:
        """A sampled reply as a message: the template gets its thought in a field and in the text's own form."""
        text = self.opened + message["content"]
        end = thought_end(self.opened) or "</think>"
        thought, closed, answer = text.rpartition(end)
        if not closed or not self.plan.form.reads_thoughts:
            return turns.assistant(text)
        return turns.assistant(answer.strip(), reasoning_content=thought.partition(">")[2].strip())


def offer_tools(render: ChatRenderer, tools: Sequence[Mapping[str, Any]]) -> tuple[ChatRenderer, CallForm, bool]:
    """How a template is asked to offer tools.

    Returns: the template with the tools, the form of calls in replies, and whether the template leaves the tools out or
      writes calls in no form that is known, so that a text of ours has to describe them (`tools_text`).
    """
    offering = dataclasses.replace(render, tools=tuple(tools)) if tools else render
    calls = call_form(offering)
    describes_tools = bool(tools) and (calls is None or not _shows(offering, tools))
    return offering, HERMES if calls is None or describes_tools else calls, describes_tools


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """The description of tools for a template that offers none."""
    return _TOOLS.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def _shows(renderer: ChatRenderer, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a template writes the names of the tools that are offered."""
    try:
        text = renderer([turns.user(turns.QUESTION)])
    except ValueError:
        return False
    return all(tool.get("function", tool)["name"] in text for tool in tools)
