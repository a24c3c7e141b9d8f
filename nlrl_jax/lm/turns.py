"""What a chat template writes between turns, and which way a conversation takes so that no reply is tokenised again.

A reply stays as it was sampled. What stands between it and the next generation prompt is read off two renderings, with
inert answers of different length, which must agree:

    <|im_start|>user\\nWhat is there?<|im_end|>\\n<|im_start|>assistant\\n     the opening
    Fine.                                                                 the reply: sampled, never rendered
    <|im_end|>\\n<|im_start|>user\\nA wall.<|im_end|>\\n<|im_start|>assistant\\n     the separator of "A wall."

A template is append-only if a longer conversation begins with the text of the shorter one and the reply. Where it is
not, as when it drops the thoughts of earlier turns, the ways of `WAYS` are tried in their order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nlrl_jax.lm.chat_template import ChatRenderer, variables_of
from nlrl_jax.lm.thoughts import closes_thought, closing, opened_thought, thought_end

Message = Mapping[str, Any]

APPEND, KEEP, TOOL, IDS, FRESH = "append", "keep", "tool", "ids", "fresh"
WAYS = {
    APPEND: "the template only appends: a conversation has the tokens that the template gives it",
    KEEP: "a variable of the template keeps earlier replies whole",
    TOOL: "observations come in the role tool: the template keeps earlier replies whole while only tools speak",
    IDS: "earlier replies stay as they were sampled, though the template would write them otherwise",
    FRESH: "each turn is rendered anew and is a row of its own",
}
# Inert texts: nothing to trim, none within another.
SYSTEM, QUESTION, OBSERVATION = "These are the rules.", "What is there at first?", "Now a wall is there."
ANSWERS = ("Fine.", "Another answer, which is longer.")
THOUGHT = "A plan of some words."

# Variables that keep the thoughts of earlier turns; each is tried where the template reads it.
KEEPING = (
    {"preserve_thinking": True},
    {"preserved_thinking": True},
    {"clear_thinking": False},
    {"truncate_history_thinking": False},
    {"keep_past_thinking": True},
    {"thinking": True, "drop_thinking": False},
    {"drop_thinking": False},
)
# Variables that turn thoughts on and off: name -> (on, off).
SWITCHES = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("high", "no_think"),
}


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
    """

    render: ChatRenderer
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suffix: str = ""
    in_user: bool = False
    as_tool: bool = False

    def prompt(self, messages: Sequence[Message]) -> str:
        """A conversation up to and including the generation prompt. ValueError: the template refuses it."""
        return self.render(messages, **self.variables) + self.suffix

    def opening(self, system: str, question: str) -> str:
        """The first prompt."""
        return self.prompt(opening_messages(system, question, self.in_user))

    def observation(self, text: str) -> Message:
        """The message that shows an observation."""
        return tool_reply(text) if self.as_tool else user(text)

    def separator(self, following: Sequence[Message], system: str = SYSTEM) -> str:
        """What stands between a reply's text and the next generation prompt.

        Args:
          following: the messages after the reply.
          system: the system text of the conversation; "" where there is none.

        Raises:
          ValueError: it depends on the reply or repeats what stands before it, or the template refuses the chat.
        """
        start = opening_messages(system, QUESTION, self.in_user)
        return self._behind(ANSWERS, lambda answer: [*start, assistant(answer), *following])

    def separator_of_calls(self, following: Sequence[Message], names: Sequence[str], system: str = SYSTEM) -> str:
        """What stands between a reply that calls tools and the next generation prompt, from inside the last call: the
        end of the call's own text comes first. Arguments and errors: see `separator`; `names` of the tools."""
        start = opening_messages(system, QUESTION, self.in_user)

        def chat(text: str) -> list[Message]:
            calls = [tool_call(name, {"text": f"{n} {text}"}, call_id(n)) for n, name in enumerate(names)]
            return [*start, assistant("", tool_calls=calls), *following]

        return self._behind(ANSWERS, chat, count=len(names))

    def _behind(self, texts: Sequence[str], chat: Callable[[str], list[Message]], count: int = 1) -> str:
        """What the template writes behind the last of `count` places of an inert text, which must be the same for all
        of `texts`."""
        written = set()
        for text in texts:
            rendered = self.prompt(chat(text))
            if rendered.count(text) != count:
                raise ValueError(f"the chat template writes the reply {rendered.count(text)} times")
            written.add(rendered.rpartition(text)[2])
        if len(written) > 1:
            raise ValueError("what the chat template writes after a reply depends on the reply")
        (separator,) = written
        if SYSTEM in separator or QUESTION in separator:
            raise ValueError("the chat template writes the beginning of the chat again after a reply")
        return separator

    def keeps(self, reply: InertReply, system: str = SYSTEM) -> bool:
        """Whether each of two such replies stands in a longer conversation as it was sampled."""
        return any(self._keeps_as(message, reply.sampled, system) for message in reply.messages)

    def _keeps_as(self, message: Message, sampled: str, system: str) -> bool:
        chat = opening_messages(system, QUESTION, self.in_user)
        try:
            text = self.prompt(chat)
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
        prompt = self.opening(SYSTEM, QUESTION)
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

    def last_answer(self, message: Message, system: str = SYSTEM) -> str:
        """What the template writes of a last answer behind the generation prompt's text, its end mark included.

        ValueError: it does not begin with the prompt.
        """
        chat = opening_messages(system, QUESTION, self.in_user)
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
        begins = "" if opened else "<think>\n"
        sampled = f"{begins}{THOUGHT}\n{thought_end(opened) or '</think>'}\n\n{answer}"
        if not self.suffix:
            try:
                written = self.last_answer(field).partition(answer)[0]
                sampled = written + answer if THOUGHT in written else sampled
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
        chat = opening_messages(SYSTEM, QUESTION, self.in_user)
        in_field = assistant(ANSWERS[0], reasoning_content=THOUGHT)
        in_text = assistant(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERS[0]}")
        for following in ([], [user(OBSERVATION)], [tool_reply(OBSERVATION)]):
            for message, is_shown_if_unknown in ((in_field, False), (in_text, True)):
                try:
                    text = self.render([*chat, message, *following], bool(following), **self.variables)
                except ValueError:
                    continue
                if (THOUGHT in text) != is_shown_if_unknown:
                    return True
        return False


def plan(render: ChatRenderer, thinks: bool | None = None, system: bool = True, way: str = "auto") -> Plan:
    """The way that a run's conversations take with a template.

    Args:
      render: the template, with the tools that are offered.
      thinks: True: with thoughts, False: without, None: as the template does by default.
      system: whether conversations have a system text.
      way: one of `WAYS` to insist on; "auto" is the first one that fits.

    Raises:
      ValueError: the template refuses every conversation, or `way` does not fit it.
    """
    form, notes = _first_form(render, system)
    form, note = _with_thoughts(form, thinks)
    notes = [*notes, *note]
    system_text = SYSTEM if system else ""
    replies = form.replies(thinks)
    broken = [kind for kind, reply in replies.items() if not form.keeps(reply, system_text)]
    candidates = {APPEND: [form], KEEP: _keeping(form), TOOL: [dataclasses.replace(form, as_tool=True)]}
    for name, forms in candidates.items():
        for candidate in forms if way in ("auto", name) else ():
            if all(candidate.keeps(reply, system_text) for reply in replies.values()) and _is_steady(
                candidate, system_text
            ):
                return Plan(candidate, name, tuple(notes), tuple(broken))
    if way in ("auto", IDS) and _is_steady(form, system_text):
        return Plan(form, IDS, tuple(notes), tuple(broken))
    if way in ("auto", FRESH):
        return Plan(form, FRESH, tuple(notes), tuple(broken))
    raise ValueError(f"the chat template does not fit {way!r}: {WAYS[way]}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How conversations are written.

    Attributes:
      way: of `WAYS`.
      notes: what a run says once of the template.
      broken: kinds of replies that the template, asked plainly, writes otherwise in later turns: "plain", "thought".
    """

    form: TurnForm
    way: str
    notes: tuple[str, ...]
    broken: tuple[str, ...]


def _first_form(render: ChatRenderer, system: bool) -> tuple[TurnForm, list[str]]:
    """The form that shows the system text, once; and what is to be said of it."""
    plain = TurnForm(render, in_user=True)
    try:
        shown = plain.opening("", QUESTION)
    except ValueError:
        if render.tools is not None:
            raise
        plain = TurnForm(dataclasses.replace(render, tools=()), in_user=True)  # a few want a list, be it empty
        shown = plain.opening("", QUESTION)
    if QUESTION not in shown:
        raise ValueError("the chat template does not show a user's text: it is not made for chats of plain texts")
    form = dataclasses.replace(plain, in_user=False)
    if not system:
        return form, []
    place = "the rules stand in the first user message"
    try:
        if SYSTEM not in form.opening(SYSTEM, QUESTION):
            return plain, [f"the template drops system texts: {place}"]
    except ValueError:
        return plain, [f"the template has no system role: {place}"]
    if not _is_steady(form, SYSTEM) and _is_steady(plain, SYSTEM):
        return plain, [f"the template moves system texts to the last turn: {place}"]
    return form, []


def _with_thoughts(form: TurnForm, thinks: bool | None) -> tuple[TurnForm, list[str]]:
    """The form whose generation prompt asks for thoughts, or for none; and what is to be said of it."""
    if thinks is None:
        return form, []
    prompt, readable = form.opening("", QUESTION), variables_of(form.render.source)
    for name, values in SWITCHES.items():
        if name not in readable:
            continue
        switched = dataclasses.replace(form, variables={**form.variables, name: values[not thinks]})
        try:
            text = switched.opening("", QUESTION)
        except ValueError:
            continue
        if thinks and not closes_thought(text) or not thinks and not opened_thought(text):
            return switched, [f"the template gets {name}={values[not thinks]}"]
    if thinks and not opened_thought(prompt) and not form.knows_thoughts():
        return dataclasses.replace(form, suffix="<think>\n"), ["the template knows no thoughts: <think> is put there"]
    if not thinks and opened_thought(prompt):
        return dataclasses.replace(form, suffix=closing(prompt)), ["the template always opens a thought: it is closed"]
    return form, []


def _keeping(form: TurnForm) -> list[TurnForm]:
    readable = variables_of(form.render.source)
    fitting = [variables for variables in KEEPING if readable.issuperset(variables)]
    return [dataclasses.replace(form, variables={**form.variables, **variables}) for variables in fitting]


def _is_steady(form: TurnForm, system: str) -> bool:
    """Whether what stands between turns depends on nothing but the observation, and shows it."""
    following = [form.observation(OBSERVATION)]
    try:
        separator = form.separator(following, system)
        start = opening_messages(system, QUESTION, form.in_user)
        chat = [*start, assistant(ANSWERS[0]), *following, assistant(ANSWERS[1]), *following]
        later = form.prompt(chat).rpartition(ANSWERS[1])[2]
    except ValueError:
        return False
    return separator == later and OBSERVATION in separator
