"""Each form of replies is read by its reader, and what has another form is not."""

import pytest

from nlrl_jax.roles.reply_forms import FORMS, with_marks

READ = [
    ("boxed", r"Half is \boxed{5}.", "5"),
    ("boxed", r"Not \boxed{5}; \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("boxed", r"\boxed{5", None),
    ("boxed", "<think>\\boxed{3}</think> 4", None),
    ("boxed", r"\boxed{}", None),
    ("brackets", "From [1] to [20], so [ 10 ].", "10"),
    ("brackets", "[1\n2]", None),
    ("tag", "<action>left</action> no <action>go\nright</action>", "go\nright"),
    ("tag", "left", None),
    ("last_line", "The key is near.\n**Action:** go left\n\n", "go left"),
    ("last_line", " \n", None),
    ("json", '```json\n{"thought": "near", "action": "left"}\n```', "left"),
    ("json", '{"action": {"x": 1}}', '{"x": 1}'),
    ("json", '{"thought": "near"}', None),
    ("tool_call", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
     '{"name": "add", "arguments": {"a": 1}}'),
    ("tool_call", 'I add. {"name": "add", "parameters": "{\\"a\\": 1}"}', '{"name": "add", "arguments": {"a": 1}}'),
    ("tool_call", '{"name": "look"}', '{"name": "look", "arguments": {}}'),
    ("tool_call", '{"name": "add", "arguments": [1]}', None),
    ("tool_call", "It is 5.", None),
    ("whole", "<think>so</think> Deal? [Accept]\n", "Deal? [Accept]"),
    ("whole", "<think>without an end", None),
]  # fmt: skip


@pytest.mark.parametrize("form, text, action", READ)
def test_the_action_is_read(form, text, action):
    assert FORMS[form].action_in(text) == action


def test_marks_are_put_back():
    read = with_marks(FORMS["boxed"].action_in, r"\boxed{{{}}}")
    assert read(r"So \boxed{5}, I think") == r"\boxed{5}" and read("5") is None


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form].example])
def test_the_sentence_that_shows_a_form_has_the_form(form):
    if form != "last_line":  # whose sentence is itself a line
        assert FORMS[form].action_in(FORMS[form].example) is not None
