"""Thoughts, calls of tools, stop strings and letters of several tokens, as clients get them, whole and in streams."""

import dataclasses
import json

import openai
import pytest

from nlrl_jax.lm import turns
from nlrl_jax.lm.chat_template import ChatRenderer
from nlrl_jax.run.serving.prompts import PromptWriter
from nlrl_jax.run.serving.requests import read_chat
from tests.run.serving.running import scripted
from tests.small_chat_templates import CALLS

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
OPENS = PLAIN + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}, "times": {"type": "integer"}}},
    },
}


def asked(url, **fields):
    """The message of a whole answer, and of a stream's parts put together, with why they ended."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    whole = client.chat.completions.create(**ASKED, **fields).choices[0]
    content, thought, calls, reason, parts = "", "", [], None, 0
    for chunk in client.chat.completions.create(**ASKED, **fields, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        thought += getattr(delta, "reasoning_content", None) or ""
        calls += delta.tool_calls or []
        reason, parts = chunk.choices[0].finish_reason, parts + 1
    streamed = [(call.function.name, call.function.arguments) for call in calls]
    assert streamed == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
    assert content == (whole.message.content or "") and reason == whole.finish_reason
    assert thought == getattr(whole.message, "reasoning_content", "")
    return whole, parts


@pytest.mark.parametrize(
    "reply, fields, content",
    [
        ("One, two, three.", {}, "One, two, three."),
        ("Gr\u00fc\u00dfe \u65e5\u672c \U0001f600!", {}, "Gr\u00fc\u00dfe \u65e5\u672c \U0001f600!"),
        ("One, two, three.", {"stop": ["o, th"]}, "One, tw"),
        ("One, two, three.", {"stop": ["three.."]}, "One, two, three."),
        ("  blanks  ", {}, "  blanks  "),
        ("<b>not a thought</b>", {}, "<b>not a thought</b>"),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_a_reply_is_the_same_whole_and_in_parts(reply, fields, content, size):
    with scripted(reply, reply, template=PLAIN) as (url, worker):
        worker.size = size
        choice, parts = asked(url, **fields)
    assert (choice.message.content, choice.finish_reason) == (content, "stop") and parts > 1


@pytest.mark.parametrize("template", [PLAIN, OPENS])
@pytest.mark.parametrize("size", [1, 4])
def test_a_thought_is_apart_from_the_answer(template, size):
    reply = "I go\nleft.\n</think>\n\nLeft."
    reply = reply if template == OPENS else f"<think>\n{reply}"
    with scripted(reply, reply, template=template) as (url, worker):
        worker.size = size
        choice, parts = asked(url, stop=["</", "go"])  # stop strings end answers, not thoughts
    assert (choice.message.content, choice.message.reasoning_content) == ("Left.", "I go\nleft.") and parts > 2


def test_a_thought_without_an_end_is_no_answer():
    with scripted("still th", "still th", template=OPENS) as (url, _):
        choice, _ = asked(url)
    assert choice.message.content == "" and choice.message.reasoning_content == "still th"


def test_template_variables_turn_thoughts_off():
    with scripted("Left.", "Left.", template=OPENS) as (url, _):
        choice, _ = asked(url, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert choice.message.content == "Left." and not hasattr(choice.message, "reasoning_content")


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>'


@pytest.mark.parametrize("family", ["none", *CALLS])
def test_calls_of_tools_are_parsed_as_the_family_writes_them(family):
    template, reply = PLAIN, f"I look.\n{CALL}"
    if family not in ("none", "unknown"):
        template = CALLS[family]
        call = turns.tool_call("look", {"at": "door", "times": 2}, turns.call_id(0))
        chat, content = [turns.user("Where?")], "" if family == "llama" else "I look."
        render = ChatRenderer(template)
        text = render([*chat, turns.assistant(content, tool_calls=[call])], False)
        reply = text.removeprefix(render(chat)).removesuffix("<|im_end|>\n")
    with scripted(reply, reply, template=template) as (url, _):
        choice, _ = asked(url, tools=[TOOL])
    (call,) = choice.message.tool_calls
    arguments = {"at": "door"} if template == PLAIN else {"at": "door", "times": 2}
    assert choice.message.content in ("I look.", None) and choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", arguments)
    assert call.id.isalnum() and len(call.id) == 9


@pytest.mark.parametrize(
    "reply, names, content",
    [
        (CALL + CALL.replace("door", "wall"), ["look", "look"], None),
        (CALL.replace("look", "jump"), ["jump"], None),  # no such tool: the caller says so
        ("<tool_call>\n{broken", [], "<tool_call>\n{broken"),
        ("No call.", [], "No call."),
    ],
)
def test_replies_with_tools(reply, names, content):
    with scripted(reply, reply, template=PLAIN) as (url, _):
        choice, _ = asked(url, tools=[TOOL])
    assert [call.function.name for call in choice.message.tool_calls or []] == names
    assert choice.message.content == content


def test_one_call_at_a_time_and_none_at_all():
    two = CALL + CALL.replace("door", "wall")
    with scripted(two, two, two, two, template=PLAIN) as (url, _):
        (call,) = asked(url, tools=[TOOL], parallel_tool_calls=False)[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"at": "door"}
        message = asked(url, tools=[TOOL], tool_choice="none")[0].message
    assert message.tool_calls is None and message.content == two


def conversation():
    call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
    return {
        "tools": [TOOL],
        "messages": [
            {"role": "system", "content": "Rules."},
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "It is open."},
        ],
    }


def test_a_conversation_with_tools_is_the_templates(local):
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    tokenizer = dataclasses.replace(local.tokenizer, chat_template=CALLS["hermes"])
    asked = conversation()
    prompt = PromptWriter(tokenizer).of_chat(read_chat(asked))
    chat = [dict(message) for message in asked["messages"]]
    chat[2] = {**chat[2], "content": ""}
    chat[2]["tool_calls"] = [
        {**call, "function": {"name": "look", "arguments": {"at": "door"}}} for call in chat[2]["tool_calls"]
    ]
    (text,), _ = transformers.render_jinja_template(
        [chat], tools=[TOOL], chat_template=CALLS["hermes"], add_generation_prompt=True
    )
    assert list(prompt.tokens) == tokenizer.encode(text)


def test_a_template_without_tools_gets_them_as_texts(local):
    tokenizer = dataclasses.replace(local.tokenizer, chat_template=PLAIN)
    text = tokenizer.decode(PromptWriter(tokenizer).of_chat(read_chat(conversation())).tokens)
    assert text.startswith("<system>Rules.\n\nYou can call these tools") and '"name": "look"' in text
    assert '<assistant><tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>' in text
    assert text.endswith("<user><tool_response>\nIt is open.\n</tool_response><assistant>")
