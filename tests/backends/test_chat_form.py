"""Whether a server goes on from the last message of a chat, whatever its model likes to say, and what then arrives."""

import re

import pytest

from nlrl_jax.backends import endpoint_checks
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.prompt_forms import ASKED, CONTINUED, PARTIAL, PREFIX
from nlrl_jax.types import Chat
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, model
from tests.backends.server import Server

NEW = "Good morning! Shall I go on?"


def talks(continues, says=", everyone", returns=False, new=NEW, counts=True, template=5):
    """A server whose replies go on from the last message where `continues(body)`, with the text sent in front or not,
    and are `new` else; a message counts as its words, and `template` tokens more where it is closed."""

    def behave(handler, request):
        messages = request.body["messages"]
        is_open = messages[-1]["role"] == "assistant" and continues(request.body)
        text = (messages[-1]["content"] if returns else "") + says if is_open else new
        whole = s.answer(request)
        whole["choices"][0] |= {"message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        words = sum(len(re.findall(r" ?\w+|\W", message["content"])) + template for message in messages)
        whole["usage"] = {"prompt_tokens": words + (0 if is_open else template), "completion_tokens": 3}
        s.send(handler, whole if counts else {"choices": whole["choices"]})

    return lambda request: behave


def refuses(error, unless):
    """Answers status 400 to a chat that ends in the assistant's message."""

    def behaviour(request):
        last = request.body["messages"][-1]
        if last["role"] == "assistant" and not unless(request.body):
            return s.status(400, error)
        return talks(unless, returns=True)(request)

    return behaviour


always, never = (lambda body: True), (lambda body: False)
marked = lambda name: lambda body: body["messages"][-1].get(name) is True
LAST = "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."
SERVERS = {
    "llama.cpp of 2026": (talks(always, returns=True), CONTINUED),
    "llama.cpp of 2025": (talks(always), CONTINUED),
    "a capital": (talks(always, says="Zebras"), CONTINUED),  # told by the number of tokens alone
    "a capital behind the text sent": (talks(always, says="Zebras", returns=True, counts=False), CONTINUED),
    "a blank in front of new messages": (talks(never, new=" Sure, here it is: 10"), ASKED),
    "a blank in front of new messages, counting": (talks(never, new=" 1, 2, 3, 4, 5, 6", counts=False), ASKED),
    "without counts": (talks(always, says=" 10", counts=False), CONTINUED),
    "vLLM": (talks(lambda body: body.get("continue_final_message", False)), CONTINUED),
    "Mistral": (refuses(LAST, marked("prefix")), PREFIX),
    "DeepSeek": (talks(marked("prefix")), PREFIX),
    "Kimi": (talks(marked("partial")), PARTIAL),
    "OpenAI": (talks(never), ASKED),
    "OpenAI, counting on": (talks(never, new="10, 11, 12"), ASKED),
    "OpenAI, once more": (talks(never, new=endpoint_checks.COUNTED[:32]), ASKED),
    "counts of the contents alone": (talks(never, template=0), ASKED),
    "no counts": (talks(never, counts=False), ASKED),
    "Anthropic": (refuses(NO_PREFILL, never), ASKED),
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_form_is_told_by_what_the_server_does_and_not_by_what_the_model_says(name):
    behaviour, form = SERVERS[name]
    with Server(behaviour=behaviour) as server:
        ask = model(server)
        assert endpoint_checks.abilities(ask, False) == Abilities(form)
        assert len(server.requests) <= 7


def test_one_failure_in_passing_changes_nothing():
    fails = iter([s.status(500, "no")])
    with Server(behaviour=lambda request: next(fails, None) or talks(always)(request)) as server:
        assert endpoint_checks.abilities(model(server), False) == Abilities(CONTINUED)


@pytest.mark.parametrize("form", [CONTINUED, PREFIX, PARTIAL])
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    "sent, says, text",
    [
        ("Good morn", "ing, all", "ing, all"),
        ("Good morn", ", everyone", ", everyone"),
        ("Goal: x\nObservation: a wall\nAction:", " turn left", " turn left"),
        ("Goal: x\nObservation: a wall\nAction: turn", " left", " left"),
        ("Observation: a | b\nAction:", " go", " go"),
        ("It is 1", "2 o'clock", "2 o'clock"),
        (" \n Good morning \n ", " all", " all"),
        ("Action: up\nAction:", " up", " up"),
        ("Good morn", "", ""),
    ],
)
def test_the_text_that_was_sent_is_never_part_of_the_reply(form, returns, sent, says, text):
    with Server(behaviour=talks(always, says, returns)) as server:
        (reply,) = model(server, abilities=Abilities(form)).complete([Chat.of("goal", continued=sent)], GREEDY, "r")
        (request,) = server.requests
    assert reply.text == text
    assert request.body["messages"][-1]["content"] == sent
    assert set(request.body["messages"][-1]) == {"role", "content"} | ({form} - {CONTINUED})
