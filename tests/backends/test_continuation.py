"""Replies of servers that begin a new message in place of continuing the open one."""

import pytest

from nlrl_jax.backends.continuation import continuation
from nlrl_jax.types import Chat, Sampling
from tests.backends.endpoints import GREEDY, model
from tests.backends.server import Server, writes

TEXT = "Goal of the agent: red shoes\nObservation: a search box\nAction:"
NOTE = "Observation: a wall\nCritic: I have turned left. This step is"
PLAN = f"{NOTE} GOOD.\nCritic: I have seen a key. The probability that the goal is reached is"


@pytest.mark.parametrize(
    "reply",
    [
        "Action: search[red shoes]",
        "action:search[red shoes]",
        "  Action :  search[red shoes]",
        "ACTION: search[red shoes]",
        "**Action:** search[red shoes]",
        "**Action**: search[red shoes]",
        "**Action: search[red shoes]**",
        "`Action: search[red shoes]`",
        '"Action: search[red shoes]"',
        "\u201cAction: search[red shoes]\u201d",
        "# Action: search[red shoes]",
        "> Action: `search[red shoes]`",
        "Action:`search[red shoes]`",
        "`Action:` search[red shoes]",
        "Action: 'search[red shoes]'\nObservation: shoes",
        "Action:\nsearch[red shoes]",
        "\n\nAction: search[red shoes]",
        "```\nAction: search[red shoes]\n```",
        "```text\nsearch[red shoes]\n```",
        "`search[red shoes]`",
        '"search[red shoes]"',
        "<think>I need shoes.\nAction: click[x]</think>\n\nAction: search[red shoes]",
        "<think>\n\n</think>\n\nsearch[red shoes]",
        "thoughts without a first tag</think>search[red shoes]",
        TEXT + " search[red shoes]",
        "Observation: a search box\nAction: search[red shoes]",
        "goal of the agent: red shoes  Observation: a search box Action: search[red shoes]",
        "Sure! Here is the next action:\n\nAction: search[red shoes]",
        "Action\uff1a search[red shoes]",
    ],
)
def test_what_a_reply_repeats_is_taken_off(reply):
    assert continuation(TEXT, reply).partition("\n")[0].strip() == "search[red shoes]"


@pytest.mark.parametrize(
    "text, reply, wanted",
    [
        (NOTE, "Critic: I have turned left. This step is GOOD.", " GOOD."),
        (NOTE, "I have turned left. This step is GOOD.", " GOOD."),
        (NOTE, "This step is **GOOD**.", " **GOOD**."),
        (NOTE, "Critic: It was useless. This step is BAD.", " It was useless. This step is BAD."),
        (PLAN, "The probability that the goal is reached is 0.7", " 0.7"),
        (PLAN, "The probability that the goal is reached is -0.7", " -0.7"),
        ("Beobachtung: T\u00fcr\nAktion:", "AKTION: \u00f6ffne T\u00fcr", " \u00f6ffne T\u00fcr"),
        ("\u884c\u52a8:", "\u884c\u52a8\uff1a\u5411\u5de6", " \u5411\u5de6"),
    ],
)
def test_parts_of_the_last_line(text, reply, wanted):
    assert continuation(text, reply) == wanted


@pytest.mark.parametrize(
    "text, reply",
    [
        (TEXT, " search[red shoes]"),
        (TEXT, "search[red shoes]"),
        (TEXT, " search[action: the game]"),
        (TEXT, " actionable"),
        (TEXT, ' "quoted"'),
        (TEXT, " turn left\nObservation: a key\nAction: turn right"),
        (TEXT, ""),
        (NOTE, " GOOD."),
        (NOTE, " BAD. I have turned left."),
        ("The door is open", " and the door is red"),
        ("He said", ' "no"'),
        ("", "Action: x"),
        ("Action: go to", " the key"),
    ],
)
def test_a_continuation_stays_as_it_is(text, reply):
    assert continuation(text, reply) == reply


def open_chats(n):
    return [Chat.of(f"goal {i}", continued=TEXT) for i in range(n)]


def as_a_server(text):
    """Writes this up to a stop string, as a server does."""
    return lambda request: writes(text.split(*request.body.get("stop", ["\0"]))[0])(request)


@pytest.mark.parametrize(
    "text",
    [
        "Action: search[x]",
        "```\nsearch[x]\n```",
        "\n\nAction: search[x]",
        "<think>\nhm\n</think>\nAction: search[x]\nend",
    ],
)
def test_a_new_message_is_read_also_where_its_first_line_is_not_the_one(text, caplog):
    with Server(behaviour=as_a_server(text)) as server:
        ask = model(server, concurrency=1)
        replies = ask.complete(open_chats(3), GREEDY, "policy", stop=["\n"])
        assert [reply.text.strip() for reply in replies] == ["search[x]"] * 3 and all(r.ended for r in replies)
        assert len(server.requests) <= 4
    assert "begins new messages" not in caplog.text


@pytest.mark.parametrize("text", ["Sure! I would search for x.", "", "Observation: a page", "<think>hm"])
def test_replies_that_do_not_continue_are_reported_once(text, caplog):
    with Server(behaviour=as_a_server(text)) as server:
        ask = model(server)
        for _ in range(2):
            ask.complete(open_chats(5), GREEDY, "policy", stop=["\n"])
        assert len(server.requests) == 11
    (line,) = [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]
    assert "begins new messages where it should continue ours" in line and "--endpoint_tokenizer MODEL" in line


def test_an_empty_line_from_a_server_that_continues_is_not_requested_again(caplog):
    behave = lambda request: writes("" if request.asked.startswith("Goal") and request.number else " up")(request)
    with Server(behaviour=behave) as server:
        ask = model(server, concurrency=1)
        ask.complete(open_chats(2), GREEDY, "policy", stop=["\n"])
        assert len(server.requests) == 2
    assert not [row for row in caplog.records if row.levelname == "WARNING"]


@pytest.mark.parametrize(
    "extra, sent",
    [
        ("", {"continue_final_message": True, "add_generation_prompt": False}),
        ("continue_final_message=null", {"add_generation_prompt": False}),
        ("continue_final_message=null,add_generation_prompt=null", {}),
        ("add_generation_prompt=true", {"continue_final_message": True, "add_generation_prompt": True}),
    ],
)
def test_fields_of_ours_that_extra_leaves_out_or_changes(extra, sent):
    with Server() as server:
        model(server, extra=extra, concurrency=1).complete([*open_chats(1), Chat.of("goal")], GREEDY, "policy")
        opened, plain = (request.body for request in server.requests)
    names = {"continue_final_message", "add_generation_prompt"}
    assert {name: opened[name] for name in names & opened.keys()} == sent
    assert extra or not names & plain.keys()


@pytest.mark.parametrize("name", ["seed", "top_k", "top_p", "temperature", "max_tokens", "stop", "model", "n"])
def test_null_leaves_out_any_field(name):
    chats = [Chat.of("hi")] * 3
    with Server() as server:
        for extra in ("", f"{name}=null"):
            model(server, extra=extra).complete(chats, Sampling(20, 1.0, 5, 0.9), "policy", stop=["|"])
        assert len(server.requests) == (4 if name == "n" else 2)
        assert name in server.requests[0].body
        assert not any(name in request.body for request in server.requests[1:])
