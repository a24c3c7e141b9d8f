"""What a chat template does, found by rendering: small templates with one habit each."""

import dataclasses

import pytest

from nlrl_jax.lm.chat_probe import DROPPED, IN_LOOP, KEPT, NEVER, RAISES, SHOWN, probe, reading_notes
from nlrl_jax.lm.chat_template import ChatRenderer, TemplateOptions, settable
from nlrl_jax.lm.conversation_plan import plan_conversations
from nlrl_jax.lm.template_sentences import sentences
from tests import small_chat_templates as templates

PLAIN = {"appends": True, "system": "role", "two_users": SHOWN, "late_system": SHOWN, "date": "never", "switch": ""}
FACTS = {
    "APPENDS": PLAIN | {
        "keeps_leading": True, "keeps_trailing": True, "keeps_user_blanks": True, "thoughts": NEVER,
        "thoughts_in_text": KEPT, "tools": DROPPED, "calls": "", "tool_role": SHOWN, "no_content": RAISES,
        "prompt_end": "<|im_start|>assistant\n", "reply_end": "<|im_end|>\n", "thought_in_prompt": "",
    },
    "TRIMS": {"appends": True, "keeps_leading": False, "keeps_trailing": False, "keeps_user_blanks": False},
    "DATED": PLAIN | {"date": "always"},
    "REFUSES_SYSTEM": {"system": RAISES, "two_users": RAISES, "bare_tool_role": RAISES},
    "ALTERNATES": {"two_users": RAISES, "system": DROPPED, "prompt_end": "", "late_system": DROPPED},
    "SYSTEM_LAST": {"system": "last user message"},
    "GLUES_SYSTEM": {"system": "first user message"},
    "KEEPS_THOUGHTS": {"thoughts": KEPT, "thoughts_in_text": KEPT, "switch": "enable_thinking"},
    "DROPS_AT_USER": {"thoughts": IN_LOOP, "thoughts_in_text": IN_LOOP, "keep_variables": {}, "appends": True},
    "OPENS_AND_DROPS": {"thoughts": IN_LOOP, "thought_in_prompt": "opened", "switch": "enable_thinking"},
    "KEEP_VARIABLE": {
        "thoughts": IN_LOOP, "keep_variables": {"preserve_thinking": True},
        "variables": ("enable_thinking", "preserve_thinking"),
    },
    "ALWAYS_CUTS": {"thoughts": NEVER, "thoughts_in_text": NEVER, "switch": ""},
    "NUMBERS_TURNS": {"appends": False, "late_system": SHOWN, "separator": ""},
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    facts = dataclasses.asdict(probe(ChatRenderer(getattr(templates, name))))
    assert {fact: facts[fact] for fact in FACTS[name]} == FACTS[name]


@pytest.mark.parametrize(
    "name, calls, opener, several, strings",
    [
        ("hermes", "json", "<tool_call>", SHOWN, "quoted twice"),
        ("llama", "json", "", RAISES, "quoted twice"),
        ("mistral", "named", "[TOOL_CALLS]", SHOWN, "quoted twice"),
        ("qwen_xml", "tagged", "<function=", SHOWN, RAISES),
        ("lfm", "python", "<|tool_call_start|>", SHOWN, RAISES),
        ("unknown", "unknown", "", SHOWN, RAISES),
    ],
)
def test_facts_of_tools(name, calls, opener, several, strings):
    facts = probe(ChatRenderer(templates.CALLS[name]))
    assert (facts.tools, facts.calls, facts.call_opener) == ("beginning", calls, opener)
    assert (facts.several_calls, facts.string_arguments, facts.tool_role) == (several, strings, SHOWN)


def test_what_raises_is_named():
    facts = probe(ChatRenderer(templates.REFUSES_SYSTEM))
    assert facts.errors["a system text"] == "System role not supported"
    assert "roles must alternate" in sentences(facts)["what it refuses"]


def test_sentences_tell_a_template_that_keeps_thoughts_in_the_loop():
    rows = sentences(probe(ChatRenderer(templates.KEEP_VARIABLE)))
    assert rows["thoughts"] == (
        "kept while only tools reply; turned on and off by enable_thinking; kept with preserve_thinking=true"
    )
    assert rows["generation prompt"].endswith("it opens a thought")
    assert rows["today's date"] == "never printed" and rows["two users in a row"] == "shown"


def test_variables_that_can_be_set():
    source = (
        "{% macro show(text) %}{{ text }}{% endmacro %}{% for m in messages %}{% set role = m.role %}{{ role }}"
        "{% endfor %}{% if effort is not defined %}{% set effort = 'low' %}{% endif %}{{ effort }}{{ bos_token }}"
        "{{ style | default(1) }}"
    )
    assert settable(source) == {"messages", "effort", "bos_token", "style"}


@pytest.mark.parametrize("name", [*FACTS, *templates.CALLS])
def test_rendering_equals_that_of_transformers(name):
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    source = templates.CALLS.get(name) or getattr(templates, name)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    call = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"at": "été", "n": 1}}}
    chat = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "reasoning_content": "A plan.", "tool_calls": [call]},
        {"role": "tool", "name": "look", "tool_call_id": "call00000", "content": "A wall."},
    ]
    if name in ("REFUSES_SYSTEM", "ALTERNATES"):
        chat = chat[:1]
    for tools in (None, [tool]):
        for prompt in (True, False):
            ours = ChatRenderer(source, {"bos_token": "<s>"}, tools=tools)(chat, prompt)
            (theirs,), _ = utilities.render_jinja_template(
                [chat], tools=tools, chat_template=source, add_generation_prompt=prompt, bos_token="<s>"
            )
            assert ours == theirs


@pytest.mark.parametrize("name, says", [
    ("APPENDS", []),
    ("TRIMS", ["the template trims users' texts: blanks round an observation are not read"]),
    ("DATED", ["the template prints the date, in all of this run 2026-01-31"]),
])  # fmt: skip
def test_a_run_says_what_a_template_changes_of_its_texts(name, says):
    renderer = ChatRenderer(getattr(templates, name), options=TemplateOptions(date="2026-01-31"))
    assert reading_notes(plan_conversations(renderer).form) == says
