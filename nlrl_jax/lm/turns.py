"""What a chat template writes between turns.

It is read off two renderings, with inert answers of different length, which must agree:

    <|im_start|>user\\nWhat is there?<|im_end|>\\n<|im_start|>assistant\\n     the opening
    Fine.                                                                 the reply: sampled, never rendered
    <|im_end|>\\n<|im_start|>user\\nA wall.<|im_end|>\\n<|im_start|>assistant\\n     the separator of "A wall."
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.lm.chat_template import ChatRenderer
from nlrl_jax.lm.thoughts import closes_thought, opened_thought, thought_end

Message = Mapping[str, Any]

# Inert texts: nothing to trim, none within another.
SYSTEM, QUESTION, OBSERVATION = "These are the rules.", "What is there at first?", "Now a wall is there."
ANSWERS = ("Fine.", "Another answer, which is longer.")
THOUGHT = "A plan of some words."


def user(text: str) -> Message:
    """What the game says."""
    return {"role": "user", "content": text}


def assistant(text: str, **fields: Any) -> Message:
    """What the model says."""
    return {"role": "assistant", "content": text, **fields}


def call_id(number: int) -> str:
    """The id of a reply's call. Nine letters and digits: Mistral's templates refuse others."""
    return f"call{number:05}"


def tool_call(name: str, arguments: Any, identifier: str) -> Mapping[str, Any]:
    """A call of a tool, for `assistant(..., tool_calls=[...])`."""
    return {"type": "function", "id": identifier, "function": {"name": name, "arguments": arguments}}


def tool_reply(text: str, name: str = "environment", number: int = 0) -> Message:
    """What a tool says to a reply's call."""
    return {"role": "tool", "name": name, "tool_call_id": call_id(number), "content": text}


def opening_messages(system: str, question: str, in_user: bool = False) -> list[Message]:
    """A system text, if there is one, and a question; `in_user`: both in the user's message."""
    if in_user and system:
        return [user(f"{system}\n\n{question}")]
    return [*([{"role": "system", "content": system}] if system else []), user(question)]


class InertReply:
    """A reply that could have been sampled, and the messages that may stand for it in a template.

    sampled: what follows the generation prompt. messages: variants; one of them must be rendered as it was sampled.
    """

    def __init__(self, sampled: str, *messages: Message):
        self.sampled, self.messages = sampled, messages


@dataclasses.dataclass(frozen=True, eq=False)
class TurnForm:
    """How a template is asked to render conversations.

    Attributes:
      render: the template.
      variables: those set for the thoughts of the next reply and of earlier ones.
      suffix: what follows each generation prompt: the opening or the closing of a thought that the template lacks.
      in_user: the system text stands in the first user message, as the template has no system role.
      as_tool: observations have the role tool.
      has_system: conversations have a system text; some templates treat others differently.
    """

    render: ChatRenderer
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suffix: str = ""
    in_user: bool = False
    as_tool: bool = False
    has_system: bool = True

    @property
    def inert_opening(self) -> list[Message]:
        """The messages of an inert conversation's beginning."""
        return opening_messages(SYSTEM if self.has_system else "", QUESTION, self.in_user)

    def prompt(self, messages: Sequence[Message]) -> str:
        """A conversation up to and including the generation prompt. ValueError: the template refuses it."""
        return self.render(messages, **self.variables) + self.suffix

    def opening(self, system: str, question: str) -> str:
        """The first prompt."""
        return self.prompt(opening_messages(system, question, self.in_user))

    def observation(self, text: str) -> Message:
        """The message that shows an observation."""
        return tool_reply(text) if self.as_tool else user(text)

    def separator(self, following: Sequence[Message]) -> str:
        """What stands between a reply's text and the next generation prompt.

        Args:
          following: the messages after the reply.

        Raises:
          ValueError: it depends on the reply or repeats what stands before it, or the template refuses the chat.
        """
        start = self.inert_opening
        return self._behind(ANSWERS, lambda answer: [*start, assistant(answer), *following])

    def separator_of_calls(self, results: Sequence[tuple[str, str]]) -> str:
        """What stands between a reply that calls tools and the next generation prompt, from inside the last call: the
        end of the call's own text comes first.

        Args:
          results: (name of the tool, what it answered) for each call.

        Raises:
          ValueError: as `separator`, and where the template writes no calls.
        """
        start = self.inert_opening
        following = [tool_reply(text, name, n) for n, (name, text) in enumerate(results)]

        def chat(text: str, in_json: Callable[[Any], Any]) -> list[Message]:
            calls = [tool_call(name, in_json({"text": text}), call_id(n)) for n, (name, _) in enumerate(results)]
            return [*start, assistant("", tool_calls=calls), *following]

        try:
            return self._behind(ANSWERS, lambda text: chat(text, dict), count=len(results))
        except ValueError:  # a few templates want arguments as a string
            return self._behind(ANSWERS, lambda text: chat(text, json.dumps), count=len(results))

    def _behind(self, texts: Sequence[str], chat: Callable[[str], list[Message]], count: int = 1) -> str:
        """What the template writes behind the last of `count` places of an inert text, which must be the same for all
        of `texts`."""
        continuations = set()
        for text in texts:
            rendered = self.prompt(chat(text))
            # A template that repeats a reply, or cuts it, has no place where it ends.
            if rendered.count(text) != count:
                raise ValueError(f"the chat template writes the reply {rendered.count(text)} times")
            continuations.add(rendered.rpartition(text)[2])
        if len(continuations) > 1:
            raise ValueError("what the chat template writes after a reply depends on the reply")
        (separator,) = continuations
        if SYSTEM in separator or QUESTION in separator:
            raise ValueError("the chat template writes the beginning of the chat again after a reply")
        return separator

    def keeps(self, reply: InertReply) -> bool:
        """Whether each of two such replies stands in a longer conversation as it was sampled."""
        return any(self._keeps_as(message, reply.sampled) for message in reply.messages)

    def _keeps_as(self, message: Message, sampled: str) -> bool:
        chat = self.inert_opening
        try:
            text = self.prompt(chat)
            # Two turns: some templates spare the last answer alone.
            for _ in range(2):
                chat = [*chat, message, self.observation(OBSERVATION)]
                longer = self.prompt(chat)
                if not longer.startswith(text + sampled):
                    return False
                text = longer
        except ValueError:
            return False
        return True

    def replies(self, thinks: bool | None) -> dict[str, InertReply]:
        """Kinds of replies that a model may give after this generation prompt: "plain", "thought"."""
        prompt = self.prompt(self.inert_opening)
        if opened_thought(prompt):
            return {"thought": self.thought(opened_thought(prompt))}
        plain = {"plain": InertReply(self.head() + ANSWERS[0], assistant(ANSWERS[0]))}
        if thinks is False or closes_thought(prompt) or not self.knows_thoughts():
            return plain
        return {**plain, "thought": self.thought(opened_thought(prompt))}

    def head(self) -> str:
        """What a model writes before an answer by itself, such as the name of a channel; mostly nothing."""
        try:
            head = self.last_answer(assistant(ANSWERS[0])).partition(ANSWERS[0])[0]
        except ValueError:
            return ""
        return "" if closes_thought(head) else head

    def last_answer(self, message: Message) -> str:
        """What the template writes of a last answer behind the generation prompt's text, its end mark included.

        ValueError: it does not begin with the prompt.
        """
        chat = self.inert_opening
        prompt, text = self.render(chat, **self.variables), self.render([*chat, message], False, **self.variables)
        if not text.startswith(prompt):
            raise ValueError("the chat template writes an answer otherwise than it opens one")
        return text[len(prompt) :]

    def thought(self, opened: str) -> InertReply:
        """A reply with a thought, as the template itself writes one where it does.

        opened: the beginning of a thought in the generation prompt.
        """
        answer = ANSWERS[0]
        field = assistant(answer, reasoning_content=THOUGHT)
        # Qwen's form, where the template shows none of its own.
        opening_mark = "" if opened else "<think>\n"
        sampled = f"{opening_mark}{THOUGHT}\n{thought_end(opened) or '</think>'}\n\n{answer}"
        if not self.suffix:
            try:
                beginning = self.last_answer(field).partition(answer)[0]
                sampled = beginning + answer if THOUGHT in beginning else sampled
            except ValueError:
                pass
        return InertReply(sampled, field, assistant(opened + sampled))

    @functools.cached_property
    def reads_thoughts(self) -> bool:
        """Whether the template writes the thought of a last answer that stands in its field."""
        try:
            return THOUGHT in self.last_answer(assistant(ANSWERS[0], reasoning_content=THOUGHT))
        except ValueError:
            return False

    def knows_thoughts(self) -> bool:
        """Whether the template writes a thought that stands in its field, or cuts one out of a text."""
        chat = self.inert_opening
        in_field = assistant(ANSWERS[0], reasoning_content=THOUGHT)
        in_text = assistant(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERS[0]}")
        # Shown where the field is read, missing where marks in a text are; each may happen in some turns only.
        for following in ([], [user(OBSERVATION)], [tool_reply(OBSERVATION)]):
            for message, is_shown_if_unknown in ((in_field, False), (in_text, True)):
                try:
                    text = self.render([*chat, message, *following], bool(following), **self.variables)
                except ValueError:
                    continue
                if (THOUGHT in text) != is_shown_if_unknown:
                    return True
        return False
