"""Calls of tools in a model's replies, in the form of its chat template: the template writes a call once, and the form
is read off there.

    form = call_form(tokenizer.renderer)
    read_calls(form, '<tool_call>\\n{"name": "look", "arguments": {"at": "door"}}\\n</tool_call>').calls
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlrl_jax.lm import turns
from nlrl_jax.lm.call_forms import (
    BareCalls,
    CallError,
    CallForm,
    JsonCalls,
    KeyedCalls,
    NamedCalls,
    PythonCalls,
    TaggedCalls,
    ToolCall,
)
from nlrl_jax.lm.chat_template import ChatRenderer

# The call that a template is asked to write.
NAME, ARGUMENTS = "inert_tool", {"first_key": "inert value", "second_key": "another inert value"}
_DECODER = json.JSONDecoder()


class ReadCalls(NamedTuple):
    """What a reply holds of calls.

    calls: those that could be read. errors: a sentence for each that could not. text: the reply before the first one.
    """

    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]
    text: str


HERMES = JsonCalls("<tool_call>")


def call_form(render: ChatRenderer) -> CallForm | None:
    """The form in which a template writes calls; None where it writes none, or in a form that is not known here."""
    chat = [turns.user(turns.QUESTION)]
    inert = ToolCall(NAME, ARGUMENTS)
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        call = turns.tool_call(NAME, arguments, turns.call_id(0))
        try:
            prompt, text = render(chat), render([*chat, turns.assistant("", tool_calls=[call])], False)
        except ValueError:
            continue
        # What the model would write, without an empty thought before the call.
        common = os.path.commonprefix([prompt, text])
        if common.rfind("<") > common.rfind(">"):  # not from the middle of a mark
            common = common[: common.rindex("<")]
        text = text[len(common) :].rpartition("</think>")[2]
        # A form counts only if it reads back what the template has just written.
        for form in (_json_form(text), _bare_form(text), _tagged_form(text), _python_form(text)):
            if form is not None and read_calls(form, text).calls == (inert,):
                return form
    return None


def read_calls(form: CallForm, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> ReadCalls:
    """The calls in a reply without its thought.

    Args:
      text: the reply, its special tokens written out, without the end token.
      tools: JSON schemas; a call that does not fit them is an error. Without any, calls are taken as they are.
    """
    calls: list[ToolCall] = []
    errors: list[str] = []
    starts, position = form.starts(text), 0
    for start in starts:
        if start < position:  # within the call before
            continue
        try:
            parsed, position = form.parse(text, start)
            calls += [fitted(call, tools, isinstance(form, TaggedCalls)) if tools else call for call in parsed]
        except CallError as error:
            errors.append(str(error))
    return ReadCalls(tuple(calls), tuple(errors), form.before(text[: starts[0]]) if starts else text.strip())


_TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def fitted(call: ToolCall, tools: Sequence[Mapping[str, Any]], as_text: bool = False) -> ToolCall:
    """A call whose arguments fit the tool's schema.

    Args:
      as_text: arguments were written without quotes: those that are no strings by the schema are read as JSON.

    Raises:
      CallError: there is no such tool, an argument is missing or unknown, or has another type.
    """
    schemas = {tool["name"]: tool.get("parameters", {}) for tool in (tool.get("function", tool) for tool in tools)}
    if call.name not in schemas:
        raise CallError(f"there is no tool {call.name!r}; tools: {', '.join(schemas)}")
    schema = schemas[call.name]
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in call.arguments:
            raise CallError(f"{call.name} needs the argument {name!r}")
    arguments = {}
    for name, argument in call.arguments.items():
        if name not in properties:
            raise CallError(f"{call.name} has no argument {name!r}; arguments: {', '.join(properties) or 'none'}")
        declared = properties[name].get("type")
        types = [declared] if isinstance(declared, str) else list(declared or ())
        if as_text and types and "string" not in types:
            argument = _json_or_text(argument)
        if types and not any(_is_of(argument, kind) for kind in types):
            raise CallError(f"the argument {name!r} of {call.name} must be of type {' or '.join(types)}")
        choices = properties[name].get("enum")
        if choices and argument not in choices:
            raise CallError(f"the argument {name!r} of {call.name} must be one of {json.dumps(choices)}")
        arguments[name] = argument
    return ToolCall(call.name, arguments)


def _is_of(argument: Any, kind: str) -> bool:
    if isinstance(argument, bool):  # an int to Python, not to JSON
        return kind == "boolean"
    return kind not in _TYPES or isinstance(argument, _TYPES[kind])


def _json_or_text(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):  # models write True for true
        try:
            return read(text.strip())
        except (ValueError, SyntaxError):
            continue
    return text


def _mark(text: str) -> str:
    """The last mark of a text: its last line, from the last bracket in it."""
    line = text.rstrip().rpartition("\n")[2].lstrip()
    return line[max(line.rfind("<"), line.rfind("["), 0) :]


def _json_form(text: str) -> CallForm | None:
    for match in re.finditer(r"[\[{]", text):
        try:
            decoded, _ = _DECODER.raw_decode(text, match.start())
        except ValueError:
            continue
        before = text[: match.start()]
        entry = decoded[0] if isinstance(decoded, list) and decoded else decoded
        if entry == ARGUMENTS and NAME in before:
            opener = _mark(before[: before.rindex(NAME)])
            return None if '"' in opener else NamedCalls(opener)
        if not isinstance(entry, dict):
            continue
        if entry == {NAME: ARGUMENTS}:
            return KeyedCalls(_mark(before))
        keys_of_name = [key for key in entry if entry[key] == NAME]
        keys_of_arguments = [key for key in entry if entry[key] in (ARGUMENTS, json.dumps(ARGUMENTS))]
        if keys_of_name and keys_of_arguments:
            return JsonCalls(_mark(before), keys_of_name[0], keys_of_arguments[0])
    return None


def _tagged_form(text: str) -> CallForm | None:
    between, position = [], 0
    # before NAME after_name KEY after_key VALUE after_text KEY ... : the gaps are the form.
    for part in (NAME, *(part for pair in ARGUMENTS.items() for part in pair)):
        start = text.find(part, position)
        if start < 0:
            return None
        between.append(text[position:start])
        position = start + len(part)
    before, after_name, after_key, after_text, _ = between
    if not all("<" in gap for gap in (before, after_name, after_text)):
        return None
    key_open = after_name[after_name.rindex("<") :]
    value_close = after_text.removesuffix(key_open).strip()
    if not value_close or not after_text.endswith(key_open):
        return None
    # The first marks behind the last argument that end no argument.
    ending = text[position:].strip().removeprefix(value_close).strip()
    closers = (ending[: match.end()] for match in re.finditer(">", ending))
    opener = _mark(before)
    return TaggedCalls(
        opener=opener,
        wrapper=_mark(before.rstrip().removesuffix(opener)),
        name_close=after_name.removesuffix(key_open).strip(),
        key_open=key_open,
        key_close=after_key,
        value_close=value_close,
        call_close=next((closer for closer in closers if closer not in value_close), ">"),
    )


def _bare_form(text: str) -> CallForm | None:
    key, value = next(iter(ARGUMENTS.items()))
    match = re.search(rf"{NAME}{{{key}:(\W+?){value}\1", text)
    return BareCalls(_mark(text[: match.start()]), match[1]) if match else None


def _python_form(text: str) -> CallForm | None:
    match = re.search(rf"\[{NAME}\(.*\)\]", text)
    if match is None:
        return None
    closer = re.match(r"<[^<>]*>", text[match.end() :])
    return PythonCalls(_mark(text[: match.start()]), closer[0]) if closer else None
