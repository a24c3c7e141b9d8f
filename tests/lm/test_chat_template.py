"""What a chat template is given besides the chat: variables and a date."""

import dataclasses
import datetime

import pytest

from nlrl_jax.config import OptionError
from nlrl_jax.lm.chat_template import TemplateOptions, render, variables_of
from tests.tokenizers_from_wheels import small_tokenizer

THINKING = (
    "{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}<no thoughts>{% endif %}"
    "{% set own = words | default([]) %}{{ own | join('+') }}"
)
CHAT = [{"role": "user", "content": "Hi"}]


def with_template(template="", date="2026-01-31", source=THINKING, shared=False):
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=source)
    return tokenizer.with_template(TemplateOptions(template, date, shared))


@pytest.mark.parametrize(
    "template, values",
    [
        ("", {}),
        ("enable_thinking=false", {"enable_thinking": False}),
        (' enable_thinking = false , words=["a", "b,c"],', {"enable_thinking": False, "words": ["a", "b,c"]}),
        ("words=as it is,n=1e3", {"words": "as it is", "n": 1000.0}),
        ('words="true",none=null', {"words": "true", "none": None}),
    ],
)
def test_variables(template, values):
    assert TemplateOptions(template).variables() == values


@pytest.mark.parametrize(
    "options, says",
    [
        ({"template": "enable_thinking"}, "template is 'enable_thinking'; it must be variable=value, several"),
        ({"template": "=false"}, "must be variable=value"),
        ({"template": "a-b=1"}, "must be variable=value"),
        ({"template": "a=1,a=2"}, "sets a twice"),
        ({"template": "enable_thinking=False"}, "template sets enable_thinking=False; write enable_thinking=false"),
        ({"template": "messages=[]"}, "template sets messages, which depends on the chat; leave it out"),
        ({"date": "tomorrow"}, "date is 'tomorrow'; it must be a date such as 2026-01-31"),
    ],
)
def test_what_cannot_be_read_is_refused(options, says):
    with pytest.raises(OptionError, match=says):
        TemplateOptions(**options)


def test_the_template_is_given_its_variables_and_the_date():
    assert with_template().render_chat(CHAT) == "31 Jan 2026\nHi"
    assert with_template("enable_thinking=false").render_chat(CHAT) == "31 Jan 2026\nHi<no thoughts>"
    assert with_template('words=["a","b"]').render_chat(CHAT, False) == "31 Jan 2026\nHia+b"
    opened = [*CHAT, {"role": "assistant", "content": "Well"}]
    assert with_template("enable_thinking=false").render_chat(opened) == "31 Jan 2026\nHi<no thoughts>Well"
    assert with_template(date="").render_chat(CHAT).startswith(datetime.datetime.now().strftime("%d %b %Y"))


def test_special_tokens_can_be_overridden_as_in_transformers():
    source = "{{ eos_token }}"
    assert with_template(source=source).render_chat(CHAT) == "<|im_end|>"
    assert with_template("eos_token=x", source=source).render_chat(CHAT) == "x"


def test_variables_that_nothing_reads_are_refused():
    assert variables_of(THINKING) == {"messages", "add_generation_prompt", "enable_thinking", "words"}
    with pytest.raises(ValueError, match="sets thinking, which .* does not read; .* it reads: enable_thinking, words$"):
        with_template("thinking=false")
    with pytest.raises(ValueError, match="but the model has no chat template; leave it out"):
        with_template("enable_thinking=false", source=None)
    assert with_template("thinking=false", shared=True).render_chat(CHAT) == "31 Jan 2026\nHi"


def test_a_template_that_is_no_jinja_is_one_sentence():
    with pytest.raises(ValueError, match="the chat template refused the chat: "):
        render("{% for %}", messages=CHAT)
    with pytest.raises(ValueError, match="the chat template cannot be read: "):
        variables_of("{% for %}")


ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ROLES
IN_TURN = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", [NO_SYSTEM, IN_TURN + ROLES, IN_TURN + NO_SYSTEM])
def test_a_system_text_stands_before_the_first_question_where_there_is_no_such_role(template):
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=template)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.render_chat(chat) == "<user>Be brief.\n\nHi<a>"
    assert tokenizer.render_chat([*chat, {"role": "assistant", "content": "Yes"}]) == "<user>Be brief.\n\nHi<a>Yes"
    assert tokenizer.render_chat(chat[1:], add_generation_prompt=False) == "<user>Hi"


def test_questions_in_a_row_are_one_where_roles_alternate():
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=IN_TURN + ROLES)
    chat = [{"role": "user", "content": text} for text in ("One", "Two")]
    assert tokenizer.render_chat(chat) == "<user>One\n\nTwo<a>"


@pytest.mark.parametrize("says", ["System role not supported", "no more than one question"])
def test_a_template_that_refuses_every_form_says_why_it_refused_the_first(says):
    tokenizer = dataclasses.replace(small_tokenizer(), chat_template=f"{{{{ raise_exception('{says}') }}}}")
    with pytest.raises(ValueError, match=f"the chat template refused the chat: {says}"):
        tokenizer.render_chat([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
