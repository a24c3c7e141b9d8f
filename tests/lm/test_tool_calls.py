"""Calls of tools: their form is read off the template, and what the template writes is read back."""

import dataclasses
import json

import pytest

from nlrl_jax.lm import turns
from nlrl_jax.lm.call_forms import (
    BareCalls,
    CallError,
    JsonCalls,
    KeyedCalls,
    NamedCalls,
    PythonCalls,
    TaggedCalls,
    ToolCall,
)  # fmt: skip
from nlrl_jax.lm.chat_template import ChatRenderer
from nlrl_jax.lm.conversation import ConversationForm, ToolResult
from nlrl_jax.lm.tool_calls import HERMES, call_form, fitted, read_calls
from tests import small_chat_templates as templates
from tests.tokenizers_from_wheels import small_tokenizer

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at something.",
        "parameters": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "At what."},
                "steps": {"type": "integer", "description": "From how far."},
                "cells": {"type": "array", "items": {"type": "integer"}, "description": "Where."},
                "side": {"type": "string", "enum": ["left", "right"], "description": "Which side."},
            },
            "required": ["at"],
        },
    },
}
ARGUMENTS = {"at": 'the "red" <door> {1}', "steps": 3, "cells": [1, 2]}
FORMS = {
    "hermes": HERMES,
    "mistral_list": JsonCalls("[TOOL_CALLS]"),
    "llama": JsonCalls("", "name", "parameters"),
    "cohere": JsonCalls("<|START_ACTION|>", "tool_name", "parameters"),
    "minimax": JsonCalls("<tool_calls>"),
    "mistral": NamedCalls("[TOOL_CALLS]"),
    "functionary": NamedCalls("<function="),
    "qwen_xml": TaggedCalls(
        "<function=", "<tool_call>", ">", "<parameter=", ">\n", "</parameter>", "</function>"
    ),
    "glm": TaggedCalls(
        "<tool_call>", "", "", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</tool_call>"
    ),
    "deepseek": TaggedCalls(
        '<invoke name="', "<calls>", '">', '<parameter name="', '" string="true">', "</parameter>", "</invoke>"
    ),
    "lfm": PythonCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma": BareCalls("<|tool_call>call:", '<|"|>'),
    "apertus": KeyedCalls("<|tools_prefix|>"),
}  # fmt: skip


def written(render, content, *calls):
    """What a template writes of a reply that calls tools, behind the generation prompt."""
    chat = [turns.user("Where?")]
    tool_calls = [turns.tool_call(call.name, call.arguments, turns.call_id(n)) for n, call in enumerate(calls)]
    text = render([*chat, turns.assistant(content, tool_calls=tool_calls)], False)
    return text.removeprefix(render(chat)).removesuffix("<|im_end|>\n")


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_read_off_the_template_and_its_calls_are_read_back(name):
    render = ChatRenderer(templates.CALLS[name], tools=[LOOK])
    form = call_form(render)
    assert form == FORMS[name]
    calls = [ToolCall("look", {**ARGUMENTS, "steps": n}) for n in range(1 if name == "llama" else 3)]
    content = "" if name == "llama" else "I look."
    read = read_calls(form, written(render, content, *calls), [LOOK])
    assert read == (tuple(calls), (), content)


@pytest.mark.parametrize("name", FORMS)
def test_a_reply_without_a_call_is_its_text(name):
    assert read_calls(FORMS[name], " I <b>think</b> {so} [1]. ", [LOOK]) == ((), (), "I <b>think</b> {so} [1].")


@pytest.mark.parametrize(
    "name, reply, says",
    [
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": door}}</tool_call>', "JSON: Expecting value"),
        ("hermes", "<tool_call>\n", "no valid JSON: Expecting value at character 0"),
        ("hermes", '<tool_call>["look"]</tool_call>', 'must be a JSON object with a text "name"'),
        ("hermes", '<tool_call>{"name": "look", "arguments": [1]}', "arguments of a call must be a JSON object"),
        ("hermes", '<tool_call>{"name": "see", "arguments": {}}', "there is no tool 'see'; tools: look"),
        ("hermes", '<tool_call>{"name": "look"}', "look needs the argument 'at'"),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": "a", "by": 1}}', "look has no argument 'by'"),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": 1}}', "'at' of look must be of type string"),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": "a", "steps": true}}', "must be of type integer"),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"at": "a", "side": "up"}}', 'one of ["left", "right"]'),
        ("hermes", '<tool_call>' + "[" * 100_000, "no valid JSON"),
        ("llama", '{"name": "look", "parameters": {"at"', "no valid JSON"),
        ("llama", "<|python_tag|>look.call('door')", "must be written NAME(argument=value)"),
        ("llama", "<|python_tag|>look.call(at=open)", "must be plain values"),
        ("llama", "<|python_tag|>look.call(", "no valid Python: '(' was never closed"),
        ("mistral", '[TOOL_CALLS]look{"at"}', "no valid JSON"),
        ("mistral", "[TOOL_CALLS]look", "the name of a tool and a JSON object"),
        ("qwen_xml", "<function=look>\n<parameter=at>\ndoor\n</parameter>", "a call must end in </function>"),
        ("qwen_xml", "<function=look>\n<parameter=at>\ndoor\n</function>", "each argument must be written <parameter="),
        ("qwen_xml", "<function=look\n</function>", "must begin with <function=NAME>"),
        (
            "qwen_xml", "<function=look><parameter=at>a</parameter><parameter=steps>few</parameter></function>",
            "'steps' of look must be of type integer",
        ),
        ("gemma", "<|tool_call>call:look{at:door}<tool_call|>", "no valid JSON"),
        ("gemma", "<|tool_call>call:look{steps:2}<tool_call|>", "look needs the argument 'at'"),
        ("apertus", '<|tools_prefix|>[{"look": {"at": "a"}, "more": {}}]', "with one key, the name of a tool"),
        ("lfm", "<|tool_call_start|>[look(at=']<|tool_call_end|>", "no valid Python"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_a_sentence_for_the_model(name, reply, says):
    calls, (error,), _ = read_calls(FORMS[name], reply, [LOOK])
    assert calls == () and says in error and "\n" not in error


def test_one_bad_call_of_several_is_named_alone():
    good = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
    read = read_calls(HERMES, f"Well.{good}<tool_call>{{</tool_call>{good}", [LOOK])
    assert [call.name for call in read.calls] == ["look", "look"] and len(read.errors) == 1 and read.text == "Well."


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "look", "parameters": {"at": "door"}}',
        '{"name": "look", "arguments": {"at": "door"}}',
        '<|python_tag|>{"name": "look", "parameters": {"at": "door"}}',
        '<|python_tag|>look.call(at="door")',
        "<|python_tag|>look(at='door')",
    ],
)
def test_llamas_python_tag_is_read(reply):
    assert read_calls(FORMS["llama"], reply, [LOOK]).calls == (ToolCall("look", {"at": "door"}),)


def test_arguments_in_a_string_are_read():
    arguments = json.dumps({"at": "door"})
    reply = f"<tool_call>{json.dumps({'name': 'look', 'arguments': arguments})}</tool_call>"
    assert read_calls(HERMES, reply, [LOOK]).calls == (ToolCall("look", {"at": "door"}),)


def test_arguments_without_quotes_are_read_by_their_type():
    call = ToolCall("look", {"at": "3", "steps": " 3 ", "cells": "[1]"})
    assert fitted(call, [LOOK], as_text=True).arguments == {"at": "3", "steps": 3, "cells": [1]}
    with pytest.raises(CallError, match="must be of type integer"):
        fitted(call, [LOOK])


def test_unknown_forms_and_templates_without_calls_have_none():
    assert call_form(ChatRenderer(templates.APPENDS)) is None
    assert call_form(ChatRenderer(templates.CALLS["unknown"])) is None


def form_of(template, **options):
    return ConversationForm.of(dataclasses.replace(small_tokenizer(), chat_template=template), [LOOK], **options)


@pytest.mark.parametrize("name", FORMS)
def test_a_conversation_with_calls_has_the_ids_that_the_template_gives_it(name):
    form = form_of(templates.CALLS[name])
    tokenizer, render = form.tokenizer, form.plan.form.render
    call = ToolCall("look", {"at": "door"})
    reply = tuple(tokenizer.encode(written(render, "", call)))
    results = [ToolResult("look", "It is <|im_end|> open.")]
    tokens = form.opening("Rules.", "Where?") + (*reply, tokenizer.end_id) + form.after_calls(results, ended=True)
    chat = [
        *turns.opening_messages("Rules.", "Where?"),
        turns.assistant("", tool_calls=[turns.tool_call("look", {"at": "door"}, turns.call_id(0))]),
        turns.tool_reply(results[0].text, "look"),
    ]
    assert tokens == tuple(tokenizer.encode(render(chat)))
    assert form.read_calls((*reply, tokenizer.end_id)).calls == (call,)
    assert form.after_calls(results, ended=False) == (tokenizer.end_id, *form.after_calls(results, ended=True))


def test_a_template_without_tools_has_them_described_in_the_system_text():
    form = form_of(templates.TRIMS)
    text = form.tokenizer.decode(form.opening("Rules.", "Where?"), skip_special_tokens=False)
    assert "system\nRules.\n\nYou can call" in text and json.dumps(LOOK) in text
    assert any("system text describes them" in note for note in form.notes)
    reply = form.tokenizer.encode('Well.\n<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>')
    assert form.read_calls(reply).calls == (ToolCall("look", {"at": "door"}),)
    after = form.tokenizer.decode(form.after_calls([ToolResult("look", "Open.")], ended=True))
    assert "Open." in after and after.endswith("assistant\n")


def test_calls_in_a_thought_are_no_calls():
    form = form_of(templates.OPENS_AND_DROPS)
    call = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
    for answer, calls in (("No.", 0), (call, 1)):
        tokens = form.tokenizer.encode(f"Maybe {call}\n</think>\n\n{answer}")
        assert len(form.read_calls(tokens[form.thought_length(tokens) :]).calls) == calls
