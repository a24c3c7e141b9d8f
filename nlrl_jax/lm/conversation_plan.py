"""Which way a conversation takes with a chat template, so that no reply is tokenised again.

A template is append-only if a longer conversation begins with the text of the shorter one and the reply. Where it is
not, as when it drops the thoughts of earlier turns, the ways of `WAYS` are tried in their order.
"""

from __future__ import annotations

import dataclasses

from nlrl_jax.lm.chat_template import ChatRenderer, variables_of
from nlrl_jax.lm.thoughts import closes_thought, closing, opened_thought
from nlrl_jax.lm.turns import ANSWERS, OBSERVATION, QUESTION, SYSTEM, TurnForm, assistant, opening_messages

APPEND, KEEP, TOOL, IDS, FRESH = "append", "keep", "tool", "ids", "fresh"
WAYS = {
    APPEND: "the template only appends: a conversation has the tokens that the template gives it",
    KEEP: "a variable of the template keeps earlier replies whole",
    TOOL: "observations come in the role tool: the template keeps earlier replies whole while only tools speak",
    IDS: "earlier replies stay as they were sampled, though the template would write them otherwise",
    FRESH: "each turn is rendered anew and is a row of its own",
}
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


@dataclasses.dataclass(frozen=True)
class ConversationPlan:
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


def plan_conversations(
    render: ChatRenderer, thinks: bool | None = None, system: bool = True, way: str = "auto"
) -> ConversationPlan:
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
                return ConversationPlan(candidate, name, tuple(notes), tuple(broken))
    if way in ("auto", IDS) and _is_steady(form, system_text):
        return ConversationPlan(form, IDS, tuple(notes), tuple(broken))
    if way in ("auto", FRESH):
        return ConversationPlan(form, FRESH, tuple(notes), tuple(broken))
    raise ValueError(f"the chat template does not fit {way!r}: {WAYS[way]}")


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
