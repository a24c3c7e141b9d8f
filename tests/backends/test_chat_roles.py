"""Chats for models that take no system message, or want user and assistant in turn."""

import logging

import pytest

from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.lm import chat_roles
from nlrl_jax.lm.chat_roles import SYSTEM, TURNS
from nlrl_jax.types import Chat
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, model
from tests.backends.server import Server

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
CANNOT_CONTINUE = "does not continue an assistant message.*--endpoint_tokenizer MODEL"
WORDINGS = [
    ("System role not supported", [SYSTEM]),  # Gemma
    ("jinja2.exceptions.TemplateError: System role not supported", [SYSTEM]),
    ("System role is not supported by this model", [SYSTEM]),
    ("Developer instruction is not enabled for models/gemma-3-27b-it", [SYSTEM]),  # Gemini's API
    ("Only user and assistant roles are supported!", [SYSTEM]),  # Mistral's first templates
    ("Only user, model and assistant roles are supported", [SYSTEM]),
    ("Unsupported value: 'messages[0].role' does not support 'system' with this model.", [SYSTEM]),  # OpenAI's o1-mini
    ("This model doesn't support system messages. Try again without one", [SYSTEM]),  # Bedrock
    ("System messages are not allowed", [SYSTEM]),
    ('messages: Unexpected role \\"system\\". The API accepts a top-level parameter', [SYSTEM]),  # Anthropic
    ("Unsupported role: system", [SYSTEM]),
    ("Jinja Exception: System message must be at the beginning", [SYSTEM]),  # Qwen 3.5
    (ALTERNATE, [TURNS]),  # Gemma, Mistral
    ("After the optional system message, conversation roles must alternate user/assistant/...", [TURNS]),
    ("A conversation must alternate between user and assistant roles.", [TURNS]),  # Bedrock
    (
        'roles must alternate between \\"user\\" and \\"assistant\\", but found multiple \\"user\\" roles in a row',
        [TURNS],
    ),
    ("After the (optional) system message(s), user and assistant roles should be alternating.", [TURNS]),  # Perplexity
    ("Please ensure that multiturn requests alternate between user and model", [TURNS]),  # Gemini
    ("A conversation must start with a user message", [TURNS]),
    ("Please use a valid role: user, model.", [SYSTEM]),  # Gemini
    ('Input should be \'user\' or \'assistant\'", "input": "system"', [SYSTEM]),  # pydantic
    ("'system' is not one of ['user', 'assistant', 'tool'] - 'messages.0.role'", [SYSTEM]),  # jsonschema
    ("unknown variant `system`, expected `user` or `assistant`", [SYSTEM]),  # serde
    ("value is not a valid enumeration member; permitted: 'user', 'assistant'", [SYSTEM]),
    ("Messages with role 'system' must be the first message", [SYSTEM]),
    ("Developer messages are not supported", [SYSTEM]),
    ("Unexpected role 'user' after role 'user'", [TURNS]),  # mistral-common
    ("Conversations must begin with a user prompt", [TURNS]),
    ("First message should be from user", [TURNS]),
    ("Two user messages in a row", [TURNS]),
    ("Messages must alternate", [TURNS]),
    ("Input should be 'user', 'assistant', 'tool' or 'system'", []),
    ("Input should be 'system', 'user' or 'assistant'", []),
    ("Could not reach the file system", []),
    ("internal system error: not available", []),
    ("'stop' is not supported", []),
    ("Only no echo is supported", []),
    ("Only one completion choice is allowed", []),
    ("the user must give a key", []),
]


@pytest.mark.parametrize("error, kinds", WORDINGS)
def test_what_servers_say_about_roles(error, kinds):
    assert chat_roles.refused(error) == kinds


def test_messages_are_folded():
    system, user, reply = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))
    folded = lambda messages, *kinds: [(m["role"], m["content"]) for m in chat_roles.folded(messages, kinds)]
    assert folded([system, user, reply], SYSTEM) == [("user", "s\n\nu"), ("assistant", "a")]
    assert folded([user, user, reply, user], TURNS) == [("user", "u\n\nu"), ("assistant", "a"), ("user", "u")]
    assert folded([system, user, user], TURNS) == [("system", "s"), ("user", "u\n\nu")]
    assert folded([system, user, system, user], SYSTEM, TURNS) == [("user", "s\n\ns\n\nu\n\nu")]
    assert folded([system, reply], SYSTEM) == [("user", "s"), ("assistant", "a")]
    assert folded([user, reply], SYSTEM, TURNS) == [("user", "u"), ("assistant", "a")]


def strict(error, code):
    """A model whose template takes only user and assistant in turn."""

    def behaviour(request):
        roles = [message["role"] for message in request.body["messages"]]
        return s.well if roles == ["user", "assistant"][: len(roles)] else s.status(code, error)

    return behaviour


@pytest.mark.parametrize("code", [400, 422, 500])
@pytest.mark.parametrize("error", [error for error, kinds in WORDINGS if kinds])
def test_a_system_text_goes_into_the_users_message_from_then_on_and_this_is_said_once(error, code, caplog):
    caplog.set_level(logging.WARNING)
    with Server(behaviour=strict(error, code)) as server:
        ask = model(server)
        for continued in (None, "Action:", None):
            (reply,) = ask.complete([Chat.of("question", system="rules", continued=continued)], GREEDY, "r")
            assert reply.text
        assert len(server.requests) == 1 + 3
        assert all(r.body["messages"][0]["content"] == "rules\n\nquestion" for r in server.requests[1:])
        assert all(r.body["repetition_penalty"] == 1.0 for r in server.requests)  # no field is blamed
    assert [record.message.split(" does not take ")[1][-42:] for record in caplog.records] == [
        ": its system text goes into the user's message"[-42:]
    ]


@pytest.mark.parametrize(
    "error, continued, advice, sent",
    [
        (ALTERNATE, None, "chat template refuses messages of user: serve it with another template", 1),
        ("Cannot have a prefill with thinking", "Action:", CANNOT_CONTINUE, 1),
        ("Unrecognized request argument supplied: add_generation_prompt", "Action:", CANNOT_CONTINUE, 2),
    ],
)
def test_where_nothing_can_be_folded_the_sentence_says_so(error, continued, advice, sent):
    with Server(behaviour=lambda request: s.status(400, error)) as server:
        with pytest.raises(EndpointError, match=advice):
            model(server).complete([Chat.of("question", continued=continued)], GREEDY, "r")
        assert len(server.requests) == sent
