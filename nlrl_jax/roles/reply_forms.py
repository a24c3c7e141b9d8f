r"""Where the action stands in a free reply: one reader for each form, by name.

    FORMS["boxed"].action_in("Half of 1 to 10 is 5, so \\boxed{5}.") == "5"

A reply may think first; of several marks the last one counts, since what a reply arrives at comes last. These readers
are for environments that fix a form. Where a game lists its actions, `roles.actions` reads them in any form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from nlrl_jax.roles.actions import BOXED, TAGGED
from nlrl_jax.roles.json_reply import read_json
from nlrl_jax.roles.thoughts import without_thoughts

_BRACKETS = re.compile(r"\[(?P<inner>[^\[\]\n]+)\]")
_LABEL = re.compile(r"[\W_]*(?:action|answer|move|guess)[\W_]*[:=][\s*_`]*", re.IGNORECASE)
_CALL = re.compile(r"<tool_call>\s*(?P<inner>.*?)\s*</tool_call>", re.DOTALL)
ACTION_FIELDS = ("action", "answer", "move")  # of a JSON object, the first that it has


class ReplyForm(NamedTuple):
    """A form of replies.

    action_in: the text of a reply -> its action, None where there is none. example: a sentence that shows the form.
    """

    action_in: Callable[[str], str | None]
    example: str


def boxed(text: str) -> str | None:
    r"""Reads what stands in the last \boxed{} of a reply."""
    return _last(BOXED, text)


def brackets(text: str) -> str | None:
    """Reads what stands in the last pair of square brackets of a reply."""
    return _last(_BRACKETS, text)


def tag(text: str) -> str | None:
    """Reads what stands in the last <action>...</action> of a reply."""
    return _last(TAGGED, text)


def last_line(text: str) -> str | None:
    """Reads the last line of a reply that is not blank, without a label such as "Action:"."""
    lines = [line.strip() for line in without_thoughts(text).splitlines() if line.strip()]
    return (_LABEL.sub("", lines[-1], count=1) or None) if lines else None


def json_field(text: str) -> str | None:
    """Reads the field "action" (or "answer", or "move") of the JSON object in a reply."""
    fields = read_json(text).fields
    present = [fields[name] for name in ACTION_FIELDS if fields.get(name) not in (None, "")]
    if not present:
        return None
    return present[0] if isinstance(present[0], str) else json.dumps(present[0], ensure_ascii=False)


def tool_call(text: str) -> str | None:
    """Reads the first tool call of a reply, {"name": ..., "arguments": {...}}, bare or in <tool_call> tags.

    Returns:
      Its JSON text, with these two fields.
    """
    text = without_thoughts(text)
    marked = _CALL.search(text)
    fields = read_json(marked["inner"] if marked else text).fields
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as a string of JSON
        arguments = read_json(arguments).fields
    if not isinstance(fields.get("name"), str) or not isinstance(arguments, dict):
        return None
    return json.dumps({"name": fields["name"], "arguments": arguments}, ensure_ascii=False)


def whole(text: str) -> str | None:
    """Reads all of a reply after its thoughts."""
    return without_thoughts(text).strip() or None


def with_marks(reader: Callable[[str], str | None], pattern: str) -> Callable[[str], str | None]:
    """Puts the marks back around what `reader` finds, for environments that look for them themselves.

    Args:
      pattern: such as "[{}]".
    """

    def read_with_marks(text: str) -> str | None:
        action = reader(text)
        return None if action is None else pattern.format(action)

    return read_with_marks


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = [match["inner"].strip() for match in pattern.finditer(without_thoughts(text))]
    return (matches[-1] or None) if matches else None


FORMS = {
    # No word stands where the action goes: Qwen2.5-Coder-0.5B copied it, and answered "action" to every task.
    "boxed": ReplyForm(boxed, r"You may think first; then give your action as \boxed{...}."),
    "brackets": ReplyForm(brackets, "You may think first; then give your action in square brackets: [action]."),
    "tag": ReplyForm(tag, "You may think first; then give your action as <action>...</action>."),
    "last_line": ReplyForm(last_line, "You may think first; the last line of your reply is your action."),
    "json": ReplyForm(json_field, 'Reply with a JSON object: {"thought": "...", "action": "..."}.'),
    "tool_call": ReplyForm(tool_call, 'Call one tool at a time: {"name": "...", "arguments": {...}}.'),
    "whole": ReplyForm(whole, ""),
}
