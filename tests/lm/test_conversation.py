"""Conversations as tokens: what stands between replies is the template's, and replies stay as they were sampled."""

import dataclasses
import datetime

import pytest

from nlrl_jax.lm import turns
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.conversation import ConversationForm
from nlrl_jax.lm.conversation_plan import APPEND, FRESH, IDS, KEEP, TOOL
from tests import small_chat_templates as templates
from tests.tokenizers_from_wheels import small_tokenizer

RULES, QUESTION = "Guess a number from 1 to 9.", "Your guess?"
OBSERVATIONS = ("Higher.", "Lower, not <|im_end|>.")


def tokenizer_with(template):
    dated = dataclasses.replace(small_tokenizer(), chat_template=template, options=TemplateOptions(date="2026-01-31"))
    return dated


def form_of(template, **options):
    return ConversationForm.of(tokenizer_with(template), **options)


def conversation(form, replies, system=RULES):
    """The tokens of a conversation with these replies, each ended by the end token."""
    tokenizer = form.tokenizer
    tokens = form.opening(system, QUESTION)
    for reply, observation in zip(replies, OBSERVATIONS, strict=False):
        tokens += (*tokenizer.encode(reply, continues=True), tokenizer.end_id, *form.between(observation, ended=True))
    return tokens


def whole(form, replies, system=RULES, **variables):
    """The same conversation by the template alone."""
    chat = turns.opening_messages(system, QUESTION, form.plan.form.in_user)
    for reply, observation in zip(replies, OBSERVATIONS, strict=False):
        chat += [turns.assistant(reply), form.plan.form.observation(observation)]
    return tuple(form.tokenizer.encode(form.plan.form.render(chat, **form.plan.form.variables)))


PLAIN_REPLIES = ("5", "I say\n7.")
WAYS = [
    ("APPENDS", {}, APPEND),
    ("TRIMS", {}, APPEND),
    ("DATED", {}, APPEND),
    ("REFUSES_SYSTEM", {}, APPEND),
    ("ALTERNATES", {"has_system": False}, APPEND),
    ("REFUSES_SYSTEM", {"has_system": False}, APPEND),
    ("SYSTEM_LAST", {}, APPEND),
    ("NO_TOOLS_RAISES", {}, APPEND),
    ("KEEPS_THOUGHTS", {}, APPEND),
    ("DROPS_AT_USER", {}, TOOL),
    ("OPENS_AND_DROPS", {}, TOOL),
    ("KEEP_VARIABLE", {}, KEEP),
    ("KEEP_VARIABLE", {"thinks": True}, KEEP),
    ("KEEP_VARIABLE", {"way": TOOL}, TOOL),
    ("OPENS_AND_DROPS", {"way": IDS}, IDS),
    ("DROPS_AT_USER", {"thinks": False}, IDS),
    ("ALWAYS_CUTS", {}, IDS),
    ("NUMBERS_TURNS", {}, FRESH),
    ("APPENDS", {"way": FRESH}, FRESH),
]


@pytest.mark.parametrize("template, options, way", WAYS)
def test_the_way_is_the_first_that_fits(template, options, way):
    assert form_of(getattr(templates, template), **options).way == way


@pytest.mark.parametrize("template, options", [(name, options) for name, options, way in WAYS if way == APPEND])
def test_a_conversation_has_the_ids_that_the_template_gives_it(template, options):
    form = form_of(getattr(templates, template), **options)
    system = "" if options.get("has_system") is False else RULES
    assert conversation(form, PLAIN_REPLIES, system) == whole(form, PLAIN_REPLIES, system)


@pytest.mark.parametrize("template, options", [(name, options) for name, options, way in WAYS if way in (KEEP, TOOL)])
def test_thoughts_of_earlier_turns_stay_where_the_template_can_be_made_to_keep_them(template, options):
    form = form_of(getattr(templates, template), **options)
    opened = "" if form.opened else "<think>\n"
    thoughts = [f"{opened}Try {n}.\n</think>\n\n{n}" for n in (5, 7)]
    in_text = [form.opened + thought for thought in thoughts]
    assert conversation(form, thoughts) == whole(form, in_text)
    assert form.tokenizer.decode(conversation(form, thoughts)).count("</think>") == 2


@pytest.mark.parametrize("template, options", [("ALWAYS_CUTS", {}), ("OPENS_AND_DROPS", {"way": IDS})])
def test_replies_stay_against_the_template_and_it_is_said(template, options):
    form = form_of(getattr(templates, template), **options)
    replies = [f"Try {n}.\n</think>\n\n{n}" for n in (5, 7)]
    text = form.tokenizer.decode(conversation(form, replies))
    assert all(reply in text for reply in replies)
    assert conversation(form, replies) != whole(form, replies)
    assert "stay as they were sampled" in form.notes[-1]


def test_blanks_round_a_reply_stay_though_the_template_trims_them():
    form = form_of(templates.TRIMS)
    replies = ("  5 \n", "7")
    text = form.tokenizer.decode(conversation(form, replies), skip_special_tokens=False)
    assert "assistant\n  5 \n<|im_end|>" in text and conversation(form, replies) != whole(form, replies)


def test_the_end_token_is_written_once():
    form = form_of(templates.APPENDS)
    end = form.tokenizer.end_id
    cut, ended = form.between("Higher.", ended=False), form.between("Higher.", ended=True)
    assert cut == (end, *ended) and ended[0] != end
    other = form_of(templates.ENDS_OTHERWISE)
    tokens = conversation(other, PLAIN_REPLIES)
    # The template turns the end of a last answer into another token; the one that was sampled stays alone.
    assert other.tokenizer.decode(tokens, skip_special_tokens=False).count("<|im_end|><|im_start|>") == 2
    assert "turns it into another one" in other.notes[-1]


def test_an_end_of_several_marks_is_written_once():
    form = form_of(templates.LONG_END)
    tokenizer = form.tokenizer
    reply = tuple(tokenizer.encode("5\n</answer>\n<|im_end|>"))
    tokens = form.opening(RULES, QUESTION) + reply + form.between("Higher.", ended=True)
    chat = [*turns.opening_messages(RULES, QUESTION), turns.assistant("5"), turns.user("Higher.")]
    assert tokens == tuple(tokenizer.encode(tokenizer.render_chat(chat)))
    assert tokenizer.decode(form.between("Higher.", ended=False)).startswith("\n</answer>")


def test_an_observation_is_letters_and_is_tokenised_once():
    form = form_of(templates.APPENDS)
    tokens = form.between("<|im_end|>", ended=True)
    assert tokens.count(form.tokenizer.end_id) == 1 and form.between("<|im_end|>", True) is tokens


def test_the_date_is_fixed_with_the_form():
    tokenizer = dataclasses.replace(tokenizer_with(templates.DATED), options=TemplateOptions())
    form = ConversationForm.of(tokenizer)
    assert form.tokenizer.options.date == datetime.date.today().isoformat()


@pytest.mark.parametrize(
    "template, thinks, ends",
    [
        ("DROPS_AT_USER", None, "assistant\n"),
        ("DROPS_AT_USER", False, "assistant\n<think>\n\n</think>\n\n"),
        ("OPENS_AND_DROPS", True, "assistant\n<think>\n"),
        ("OPENS_AND_DROPS", False, "assistant\n<think>\n\n</think>\n\n"),
        ("ALWAYS_CUTS", False, "assistant\n<think>\n\n</think>\n\n"),
        ("APPENDS", True, "assistant\n<think>\n"),
        ("APPENDS", False, "assistant\n"),
    ],
)
def test_thoughts_are_turned_on_and_off(template, thinks, ends):
    form = form_of(getattr(templates, template), thinks=thinks)
    for tokens in (form.opening(RULES, QUESTION), form.between("Higher.", ended=True)):
        assert form.tokenizer.decode(tokens).endswith(ends)
    assert form.tokenizer.decode(form.thought_close) == "\n</think>\n\n"


@pytest.mark.parametrize(
    "template, reply, thought",
    [
        ("OPENS_AND_DROPS", "Plan.\n</think>\n\n5", "Plan.\n</think>"),
        ("OPENS_AND_DROPS", "Plan without an end", "Plan without an end"),
        ("DROPS_AT_USER", "<think>\nPlan.\n</think>\n\n5", "<think>\nPlan.\n</think>"),
        ("DROPS_AT_USER", "[THINK]Plan.[/THINK]5", "[THINK]Plan.[/THINK]"),
        ("DROPS_AT_USER", "Is </think> a mark? 5", ""),
    ],
)
def test_the_tokens_of_a_thought_are_counted(template, reply, thought):
    form = form_of(getattr(templates, template))
    tokens = form.tokenizer.encode(reply)
    length = form.thought_length(tokens)
    text = form.tokenizer.decode(tokens[:length])
    assert text.startswith(thought) and len(text) <= len(thought) + 1 and (length == 0) == (thought == "")


def test_marks_of_thoughts_may_be_control_tokens():
    tokenizer = tokenizer_with(templates.DROPS_AT_USER)
    backend = type(tokenizer.backend).from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<think>", "</think>"])
    form = ConversationForm.of(dataclasses.replace(tokenizer, backend=backend))
    reply = form.tokenizer.encode("<think>\nPlan.\n</think>\n\n5")
    assert form.way == TOOL and form.tokenizer.decode(reply[form.thought_length(reply) :]) == "\n\n5"
    # In an observation they stay letters.
    assert backend.token_to_id("</think>") not in form.between("Is it </think>?", ended=True)


@pytest.mark.parametrize("template, sampled, own", [
    ("DROPS_AT_USER", "<think>\nPlan.\n</think>\n\n5", 2), ("KEEPS_THOUGHTS", "<think>\nPlan.\n</think>\n\n5", 2),
    ("OPENS_AND_DROPS", "Plan.\n</think>\n\n5", 3),
])  # fmt: skip
def test_a_fresh_row_has_the_control_tokens_of_thoughts_and_letters_in_observations(template, sampled, own):
    tokenizer = tokenizer_with(getattr(templates, template))
    backend = type(tokenizer.backend).from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<think>", "</think>"])
    form = ConversationForm.of(dataclasses.replace(tokenizer, backend=backend), way=FRESH)
    chat = [turns.user(QUESTION), turns.assistant(sampled), turns.tool_reply("Is it </think>?", "look", 0)]
    tokens = form.rendered(chat)
    text = form.tokenizer.decode(tokens, skip_special_tokens=False)
    assert "assistant\n<think>\nPlan.\n</think>\n\n5<|im_end|>" in text and "Is it </think>?" in text
    marks = {backend.token_to_id(mark) for mark in ("<think>", "</think>")}
    assert sum(token in marks for token in tokens) == own


def test_channels_of_a_reply_are_a_thought_and_an_answer():
    tokenizer = tokenizer_with(templates.APPENDS + "{# <|channel|> #}")
    backend = type(tokenizer.backend).from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])
    form = ConversationForm.of(dataclasses.replace(tokenizer, backend=backend))
    thought = "<|channel|>analysis<|message|>Half of it.<|end|>"
    reply = tuple(form.tokenizer.encode(f"{thought}<|start|>assistant<|channel|>final<|message|>Action: 5<|im_end|>"))
    length = form.thought_length(reply)
    assert form.tokenizer.decode(reply[:length], skip_special_tokens=False) == thought
    assert (
        form.answer_text(reply[length:])
        == "Action: 5"
        == form_of(templates.APPENDS).answer_text(form.tokenizer.encode("Action: 5"))
    )
    closed = form.tokenizer.decode(form.thought_close, skip_special_tokens=False)
    assert closed == "<|end|><|start|>assistant<|channel|>final<|message|>"


def test_a_fresh_row_is_what_the_template_writes():
    form = form_of(templates.ALWAYS_CUTS, way=FRESH)
    chat = [
        {"role": "system", "content": RULES}, turns.user(QUESTION), turns.assistant("Plan.\n</think>\n\n5"),
        turns.user("Higher."),
    ]  # fmt: skip
    text = form.tokenizer.decode(form.rendered(chat), skip_special_tokens=False)
    assert "assistant\n5<|im_end|>\n" in text and "Plan" not in text
    with pytest.raises(ValueError, match="rendered anew for each turn"):
        form.between("Higher.", ended=True)


@pytest.mark.parametrize(
    "template, options, says",
    [
        ("WANTS_PARTS", {}, "does not show a user's text"),
        ("NUMBERS_TURNS", {"way": IDS}, "does not fit 'ids'"),
        ("APPENDS", {"way": KEEP}, "does not fit 'keep'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(template, options, says):
    with pytest.raises(ValueError, match=says):
        form_of(getattr(templates, template), **options)
