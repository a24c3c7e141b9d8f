"""Which way a conversation takes with a chat template, so that no reply is tokenised again.

A template is append-only if a longer conversation begins with the text of the shorter one and the reply. Where it is
not, as when it drops the thoughts of earlier turns, the ways of `WAYS` are tried in their order.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from nlrl_jax.lm.chat_template import ChatRenderer, variables_of
from nlrl_jax.lm.thoughts import closes_thought, closing, opened_thought
from nlrl_jax.lm.turns import ANSWERS, OBSERVATION, QUESTION, SYSTEM, TurnForm, assistant

APPEND, KEEP, TOOL, IDS, FRESH = "append", "keep", "tool", "ids", "fresh"
WAYS = {
    APPEND: "the template only appends: a conversation has the tokens that the template gives it",
    KEEP: "with that variable the template keeps earlier replies whole",
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
    # Marks of thoughts may be control tokens, which content must not hold; inert replies have the model's own.
    form, notes = plain_form(dataclasses.replace(render, as_content=str), system)
    form, note = _with_thoughts(form, thinks)
    replies = form.replies(thinks)
    broken = tuple(kind for kind, reply in replies.items() if not form.keeps(reply))

    def chosen(name: str, candidate: TurnForm) -> ConversationPlan:
        settings = [f"the template gets {_settings(candidate)}"] if name == KEEP else note
        marking = dataclasses.replace(candidate.render, as_content=render.as_content)
        return ConversationPlan(dataclasses.replace(candidate, render=marking), name, (*notes, *settings), broken)

    # In the order of `WAYS`: the first that keeps all kinds of replies.
    candidates = {APPEND: [form], KEEP: keeping(form), TOOL: [dataclasses.replace(form, as_tool=True)]}
    for name, forms in candidates.items():
        for candidate in forms if way in ("auto", name) else ():
            if all(map(candidate.keeps, replies.values())) and is_steady(candidate):
                return chosen(name, candidate)
    if way in ("auto", IDS) and is_steady(form):
        return chosen(IDS, form)
    if way in ("auto", FRESH):
        return chosen(FRESH, form)
    raise ValueError(f"the chat template does not fit {way!r}: {WAYS[way]}")


def plain_form(render: ChatRenderer, system: bool) -> tuple[TurnForm, list[str]]:
    """The form that shows the system text, once, and is asked for nothing else; and what is to be said of it.

    Raises:
      ValueError: the template refuses every conversation.
    """
    glued = TurnForm(render, in_user=True, has_system=system)
    try:
        text = glued.opening("", QUESTION)
    except ValueError:
        if render.tools is not None:
            raise
        glued = dataclasses.replace(glued, render=dataclasses.replace(render, tools=()))  # a few want a list
        text = glued.opening("", QUESTION)
    if QUESTION not in text:
        raise ValueError("the chat template does not show a user's text: it is not made for chats of plain texts")
    form = dataclasses.replace(glued, in_user=False)
    if not system:
        return form, []
    place = "the rules stand in the first user message"
    try:
        if SYSTEM not in form.opening(SYSTEM, QUESTION):
            return glued, [f"the template drops system texts: {place}"]
    except ValueError:
        return glued, [f"the template has no system role: {place}"]
    # A text that moves changes what stood before earlier replies.
    if not is_steady(form) and is_steady(glued):
        return glued, [f"the template moves system texts to the last turn: {place}"]
    return form, []


def _with_thoughts(form: TurnForm, thinks: bool | None) -> tuple[TurnForm, list[str]]:
    """The form whose generation prompt asks for thoughts, or for none; and what is to be said of it."""
    if thinks is None:
        return form, []
    prompt = form.opening("", QUESTION)
    for name, (on, off) in switches(form.render).items():
        setting = on if thinks else off
        switched = dataclasses.replace(form, variables={**form.variables, name: setting})
        try:
            text = switched.opening("", QUESTION)
        except ValueError:
            continue
        # On: the prompt opens a thought or leaves it to the model. Off: it opens none, or an empty one that is over.
        if thinks and not closes_thought(text) or not thinks and not opened_thought(text):
            return switched, [f"the template gets {_settings(switched)}"]
    if thinks and not opened_thought(prompt) and not form.knows_thoughts():
        return dataclasses.replace(form, suffix="<think>\n"), ["the template knows no thoughts: <think> is put there"]
    if not thinks and opened_thought(prompt):
        return dataclasses.replace(form, suffix=closing(prompt)), ["the template always opens a thought: it is closed"]
    if not thinks and form.knows_thoughts():
        return form, ["the template cannot turn thoughts off: the model may write some"]
    return form, []


def _settings(form: TurnForm) -> str:
    return ", ".join(f"{name}={json.dumps(setting)}" for name, setting in form.variables.items())


def switches(render: ChatRenderer) -> dict[str, tuple[Any, Any]]:
    """Variables that a template reads and that turn thoughts (on, off)."""
    readable = variables_of(render.source)
    # A template that knows an effort by name writes or compares it.
    return {
        name: settings
        for name, settings in SWITCHES.items()
        if name in readable and (isinstance(settings[1], bool) or settings[1] in render.source)
    }


def keeping(form: TurnForm) -> list[TurnForm]:
    """The form with each set of variables of `KEEPING` that the template reads."""
    readable = variables_of(form.render.source)
    fitting = [variables for variables in KEEPING if readable.issuperset(variables)]
    return [dataclasses.replace(form, variables={**form.variables, **variables}) for variables in fitting]


def is_steady(form: TurnForm) -> bool:
    """Whether what stands between turns depends on nothing but the observation, and shows it."""
    following = [form.observation(OBSERVATION)]
    try:
        separator = form.separator(following)
        chat = [*form.inert_opening, assistant(ANSWERS[0]), *following, assistant(ANSWERS[1]), *following]
        later = form.prompt(chat).rpartition(ANSWERS[1])[2]
    except ValueError:
        return False
    return separator == later and OBSERVATION in separator
