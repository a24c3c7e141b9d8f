"""What a chat template does with a conversation: facts, each found by rendering small chats with the template itself.

facts = probe(tokenizer.renderer)
facts.thoughts    # "kept while only tools reply"; for a person see `template_sentences`
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from nlrl_jax.lm import turns
from nlrl_jax.lm.call_forms import CallForm
from nlrl_jax.lm.chat_template import GIVEN, ChatRenderer, settable
from nlrl_jax.lm.conversation_plan import is_steady, keeping, plain_form, switches
from nlrl_jax.lm.thoughts import closes_thought, opened_thought
from nlrl_jax.lm.tool_calls import ARGUMENTS, NAME, call_form
from nlrl_jax.lm.turns import ANSWERS, OBSERVATION, QUESTION, SYSTEM, THOUGHT, Message, TurnForm, assistant, user

RAISES, DROPPED, SHOWN = "raises", "dropped", "shown"
# What becomes of a thought.
KEPT, IN_LOOP, LAST_ONLY, NEVER = "kept", "kept while only tools reply", "shown in the last answer only", "never shown"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Does nothing.",
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string", "description": "A text."} for key in ARGUMENTS},
            "required": list(ARGUMENTS),
        },
    },
}


@dataclasses.dataclass(frozen=True)
class TemplateFacts:
    """What a template does. Attributes whose values are words have them from the constants above, or as listed.

    Attributes:
      variables: names that can be set for it, besides the chat and special tokens.
      prompt_end: what the generation prompt adds to a chat.
      thought_in_prompt: "opened", "closed" (an empty one) or "".
      reply_end: what follows a last answer; "" also where an answer is written otherwise than it is opened.
      separator: what stands between an answer and the next generation prompt, with `turns.OBSERVATION` in it; "" where
        it depends on more than the observation.
      appends: a plain answer stays in later turns as it was.
      keeps_leading, keeps_trailing: so do the blanks before and after it.
      keeps_user_blanks: a user's text is not trimmed.
      thoughts, thoughts_in_text: of a thought in the message's field, and of one in its text within <think> marks.
      switch: the variable that turns thoughts on and off; "" where there is none.
      keep_variables: variables that keep the thoughts of earlier turns.
      system: "role", "first user message", "last user message", DROPPED or RAISES.
      late_system: a system text after the first turn: SHOWN, DROPPED or RAISES.
      two_users: two user messages in a row: SHOWN, DROPPED or RAISES.
      tool_role: what a tool says to a call: SHOWN, DROPPED or RAISES. bare_tool_role: without a call.
      tools: where they are offered: "beginning", "last user message" or DROPPED.
      calls: the kind of `CallForm`; "unknown" where calls are written in another form, "" where not at all.
      call_opener: what stands before a call of that kind.
      several_calls, string_arguments: two calls in a reply, arguments as a JSON string: SHOWN, DROPPED, RAISES or
        "quoted twice".
      no_content: an answer without content: SHOWN as nothing, "printed as None" or RAISES.
      date: when it prints the date: "always", "without a system text" or "never".
      errors: what raised -> the message.
    """

    variables: tuple[str, ...]
    prompt_end: str
    thought_in_prompt: str
    reply_end: str
    separator: str
    appends: bool
    keeps_leading: bool
    keeps_trailing: bool
    keeps_user_blanks: bool
    thoughts: str
    thoughts_in_text: str
    switch: str
    keep_variables: Mapping[str, Any]
    system: str
    late_system: str
    two_users: str
    tool_role: str
    bare_tool_role: str
    tools: str
    calls: str
    call_opener: str
    several_calls: str
    string_arguments: str
    no_content: str
    date: str
    errors: Mapping[str, str]


def probe(render: ChatRenderer) -> TemplateFacts:
    """Renders some forty small chats.

    Raises:
      ValueError: the template refuses every conversation.
    """
    # As replies write them: marks of thoughts may be control tokens, which content must not hold.
    form, _ = plain_form(dataclasses.replace(render, as_content=str), system=False)
    errors: dict[str, str] = {}
    chats = _Chats(form, errors)
    offered = _Chats(dataclasses.replace(form, render=dataclasses.replace(form.render, tools=(TOOL,))), errors)
    prompt, calls = form.opening("", QUESTION), call_form(offered.form.render)
    answer = chats.text("an answer", [user(QUESTION), assistant(ANSWERS[0])], opened=False)
    separator = chats.attempt("what stands between turns", lambda: form.separator([user(OBSERVATION)]))
    return TemplateFacts(
        variables=tuple(sorted(settable(render.source).difference(GIVEN, render.special_tokens))),
        prompt_end=prompt[len(os.path.commonprefix([prompt, form.render([user(QUESTION)], False)])) :],
        thought_in_prompt="opened" if opened_thought(prompt) else "closed" if closes_thought(prompt) else "",
        reply_end=answer.rpartition(ANSWERS[0])[2],
        separator=separator if is_steady(form) else "",
        appends=_appends(form, ANSWERS[0]),
        keeps_leading=_appends(form, f"\n {ANSWERS[0]}"),
        keeps_trailing=_appends(form, f"{ANSWERS[0]} \n"),
        keeps_user_blanks=_keeps_user_blanks(form),
        thoughts=_fate(chats, assistant(ANSWERS[0], reasoning_content=THOUGHT)),
        thoughts_in_text=_fate(chats, assistant(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWERS[0]}")),
        switch=_switch(form),
        keep_variables=_keep_variables(form),
        system=_system(chats),
        late_system=chats.fate(
            "a late system text",
            [user(QUESTION), assistant(ANSWERS[0]), {"role": "system", "content": SYSTEM}, user(OBSERVATION)],
            SYSTEM,
        ),
        two_users=chats.fate("two user messages in a row", [user(QUESTION), user(OBSERVATION)], OBSERVATION, QUESTION),
        tool_role=offered.fate("a tool's reply", [*_calling(1), turns.tool_reply(OBSERVATION, NAME)], OBSERVATION),
        bare_tool_role=chats.fate(
            "a tool's reply without a call",
            [user(QUESTION), assistant(ANSWERS[0]), turns.tool_reply(OBSERVATION, NAME)],
            OBSERVATION,
        ),
        tools=_tools(offered),
        calls=_calls(offered, calls),
        call_opener=calls.opener if calls else "",
        several_calls=offered.fate("two calls in a reply", _calling(2), "value 0", "value 1", opened=False),
        string_arguments=_string_arguments(offered),
        no_content=_no_content(offered),
        date=_date(form),
        errors=errors,
    )


def reading_notes(form: TurnForm) -> list[str]:
    """What a run says of a template that lets the model read something else than the run's texts."""
    notes, date = [], _date(form)
    if not _keeps_user_blanks(form):
        notes.append("the template trims users' texts: blanks round an observation are not read")
    if date == "always" or date != "never" and (form.in_user or not form.has_system):
        notes.append(f"the template prints the date, in all of this run {form.render.options.date}")
    return notes


def _keeps_user_blanks(form: TurnForm) -> bool:
    return f" \n{QUESTION} \n" in form.opening("", f" \n{QUESTION} \n")


class _Chats:
    """Small chats rendered by one template; what raises is noted.

    form: how the template is asked. errors: what was tried -> why the template refused it.
    """

    def __init__(self, form: TurnForm, errors: dict[str, str]):
        self.form, self.errors = form, errors

    def attempt(self, case: str, rendering: Callable[[], str]) -> str:
        """The text, or "" where the template raises."""
        try:
            return rendering()
        except ValueError as error:
            self.errors.setdefault(case, str(error).removeprefix("the chat template refused the chat: "))
            return ""

    def text(self, case: str, chat: list[Message], opened: bool = True, **variables: Any) -> str:
        """A rendered chat, with a generation prompt where it is `opened`; "" where the template raises."""
        variables = {**self.form.variables, **variables}
        return self.attempt(case, lambda: self.form.render(chat, opened, **variables))

    def fate(self, case: str, chat: list[Message], *texts: str, opened: bool = True) -> str:
        """Whether all of `texts` are SHOWN in a chat, one is DROPPED, or the template RAISES."""
        text = self.text(case, chat, opened)
        return RAISES if case in self.errors else SHOWN if all(part in text for part in texts) else DROPPED


def _calling(number: int, in_json: Callable[[Any], Any] = dict, **fields: Any) -> list[Message]:
    """A question, and an answer that calls a tool so many times."""
    arguments = [dict.fromkeys(ARGUMENTS, f"inert value {n}") for n in range(number)]
    calls = [turns.tool_call(NAME, in_json(argument), turns.call_id(n)) for n, argument in enumerate(arguments)]
    return [user(QUESTION), {**assistant(""), "tool_calls": calls, **fields}]


def _appends(form: TurnForm, answer: str) -> bool:
    """Whether a plain answer stays in later turns as it was."""
    return form.keeps(turns.InertReply(form.head() + answer, assistant(answer)))


def _fate(chats: _Chats, answer: Message, **variables: Any) -> str:
    """What becomes of the thought of an answer."""

    def shows_thought(*following: Message) -> bool:
        chat = [user(QUESTION), answer, *following]
        return THOUGHT in chats.text("an answer with a thought", chat, opened=bool(following), **variables)

    # From the longest life to the shortest: a template that keeps a thought for users keeps it for tools.
    if shows_thought(user(OBSERVATION)):
        return KEPT
    if shows_thought(turns.tool_reply(OBSERVATION, NAME)):
        return IN_LOOP
    return LAST_ONLY if shows_thought() else NEVER


def _switch(form: TurnForm) -> str:
    for name, (on, off) in switches(form.render).items():
        try:
            prompts = [form.render([user(QUESTION)], **{name: setting}) for setting in (on, off)]
        except ValueError:
            continue
        if prompts[0] != prompts[1]:
            return name
    return ""


def _keep_variables(form: TurnForm) -> Mapping[str, Any]:
    thought = assistant(ANSWERS[0], reasoning_content=THOUGHT)
    if _fate(_Chats(form, {}), thought) == KEPT:
        return {}
    for candidate in keeping(form):
        if _fate(_Chats(candidate, {}), thought) == KEPT:
            return candidate.variables
    return {}


def _system(chats: _Chats) -> str:
    text = chats.text("a system text", turns.opening_messages(SYSTEM, QUESTION))
    if "a system text" in chats.errors:
        return RAISES
    if SYSTEM not in text:
        return DROPPED
    chat = [*turns.opening_messages(SYSTEM, QUESTION), assistant(ANSWERS[0]), user(OBSERVATION)]
    if SYSTEM in chats.text("a second turn", chat).rpartition(ANSWERS[0])[2]:
        return "last user message"
    # A role of its own has a mark of its own between the two texts.
    between = text.partition(SYSTEM)[2].partition(QUESTION)[0]
    return "role" if between.strip() else "first user message"


def _tools(offered: _Chats) -> str:
    chat = [user(QUESTION), assistant(ANSWERS[0]), user(OBSERVATION)]
    text = offered.text("a list of tools", chat)
    if NAME not in text:
        return DROPPED
    return "last user message" if NAME in text.rpartition(ANSWERS[0])[2] else "beginning"


def _calls(offered: _Chats, form: CallForm | None) -> str:
    if form is not None:
        return type(form).__name__.removesuffix("Calls").lower()
    chat = _calling(1)
    texts = [offered.text("a call", chat, opened=False), offered.text("a call", _calling(1, json.dumps), opened=False)]
    return "unknown" if any(NAME in text.rpartition(QUESTION)[2] for text in texts) else ""


def _string_arguments(offered: _Chats) -> str:
    text = offered.text("arguments as a JSON string", _calling(1, json.dumps), opened=False)
    if "arguments as a JSON string" in offered.errors:
        return RAISES
    if "inert value 0" not in text:
        return DROPPED
    # `tojson` of a text escapes its quotes.
    return "quoted twice" if '\\"' in text.rpartition(QUESTION)[2] else SHOWN


def _no_content(offered: _Chats) -> str:
    case = "a call without content"
    text = offered.text(case, _calling(1, content=None), opened=False).rpartition(QUESTION)[2]
    if case in offered.errors:
        return RAISES
    return "printed as None" if "None" in text else SHOWN


def _date(form: TurnForm) -> str:
    def differs(chat: list[Message]) -> bool:
        texts = set()
        for date in ("2026-01-31", "2031-12-24"):
            dated = dataclasses.replace(form.render, options=dataclasses.replace(form.render.options, date=date))
            texts.add(dated(chat))
        return len(texts) > 1

    # Some print the date within a system text of their own, which the chat's replaces.
    if not differs([user(QUESTION)]):
        return "never"
    try:
        return "always" if differs(turns.opening_messages(SYSTEM, QUESTION)) else "without a system text"
    except ValueError:
        return "always"
