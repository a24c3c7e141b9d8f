"""What the endpoint backend sends, in which order, and how it counts choices, against a real HTTP server."""

import time

import pytest

from nlrl_jax.backends import endpoint
from nlrl_jax.backends.endpoint_options import EndpointOptions
from nlrl_jax.backends.optional_fields import DOUBTFUL
from nlrl_jax.types import Chat, Reply, Sampling
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, HOT, KEY, chats, model, nowhere, questions, spent, texts
from tests.backends.server import Server

# What is sent.


def test_a_request_has_the_sampling_the_key_and_the_messages_but_not_the_context():
    with Server() as server:
        sampling = Sampling(max_tokens=7, temperature=0.5, top_k=40, top_p=0.9)
        chat = Chat.of("hi", system="rules", secret_board=1)
        (reply,) = model(server, extra='stop=["\\n"],top_p=null').complete([chat], sampling, "policy", 3)
        (request,) = server.requests
    seed = request.body.pop("seed")
    assert 0 <= seed < 2**31
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 40,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": ["\n"],
    }
    assert reply == Reply(f"re: hi [{seed}/0]", 10, 5, True, False)


def test_no_key_is_sent_where_there_is_none(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with Server() as server:
        model(server).complete(chats(1), HOT, "policy")
        (request,) = server.requests
    assert "Authorization" not in request.headers


def test_duplicates_are_one_request_for_n_choices_and_their_tokens_add_up():
    with Server() as server:
        batch = [chats(2)[i] for i in (0, 1, 0, 0)]
        replies = model(server).complete(batch, HOT, "policy")
        assert sorted((r.asked, r.body.get("n")) for r in server.requests) == [("question 0", 3), ("question 1", None)]
    first = [replies[i] for i in (0, 2, 3)]
    assert [text[-3:] for text in texts(first)] == ["/0]", "/1]", "/2]"]
    assert [r.prompt_tokens for r in first] == [10, 0, 0] and [r.tokens for r in first] == [5, 5, 5]


def test_at_temperature_0_duplicates_are_requested_once_without_a_seed():
    with Server() as server:
        replies = model(server).complete(chats(1) * 4, GREEDY, "policy", 5)
        (request,) = server.requests
    assert "n" not in request.body and "seed" not in request.body
    assert len(set(texts(replies))) == 1 and [r.tokens for r in replies] == [5, 0, 0, 0]


def test_a_large_group_is_split_and_seeds_differ_between_its_requests_and_between_chats(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_CHOICES", 2)
    with Server() as server:
        replies = model(server).complete(chats(1) * 5 + chats(2)[1:], HOT, "policy")
        assert sorted(r.body.get("n", 1) for r in server.requests) == [1, 1, 2, 2]
        assert len({r.body["seed"] for r in server.requests}) == 4
    assert len(set(texts(replies))) == 6


def test_no_chats_need_no_server():
    assert nowhere().complete([], HOT, "policy") == []


# Order and concurrency.


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_replies_are_in_order_and_never_more_than_concurrency_are_open(concurrency):
    def together(handler, request):
        """Each waits for `concurrency` others, and for a while for one too many."""
        deadline = time.monotonic() + 10
        while len(server.requests) < concurrency and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05 * (request.number < concurrency) + 0.01 * (int(request.asked.split()[1]) * 7 % 3))
        s.well(handler, request)

    with Server(behaviour=lambda request: together) as server:
        ask = model(server, concurrency=concurrency, timeout=20.0)
        ask.known.accepted.update(DOUBTFUL)  # so that none goes first, alone
        replies = ask.complete(chats(20), HOT, "policy", 1)
        assert server.most_at_once == concurrency
        seeds = {r.asked: r.body["seed"] for r in server.requests}
    assert texts(replies) == [f"re: {q} [{seeds[q]}/0]" for q in questions(20)]
    assert seeds["question 7"] == 609281663  # the same at any concurrency, in any process


def test_independent_of_the_rest_of_the_batch():
    with Server() as server:
        alone = model(server).complete(chats(3)[2:], HOT, "policy", 1)
        among = model(server, concurrency=2).complete(chats(3), HOT, "value", 1)
        other = model(server).complete(chats(3)[2:], HOT, "policy", 2)
    assert texts(alone) == texts(among)[2:] != texts(other)


# Wrong numbers of choices.


@pytest.mark.parametrize("number", [0, 1, 3])
def test_missing_choices_are_requested_one_by_one(number):
    with Server(s.choices(number)) as server:
        replies = model(server).complete(chats(1) * 4, HOT, "policy")
        # None at all may pass, and is asked for once more.
        left = [1] * (4 - number) if number else [4]
        assert [r.body.get("n", 1) for r in server.requests] == [4, *left]
        seeds = [r.body["seed"] for r in server.requests[1:]]
    assert len(set(texts(replies))) == 4 and len(set(seeds)) == len(left)
    assert sum(r.tokens for r in replies) == 20


def test_extra_choices_are_ignored_but_paid_for():
    with Server(s.choices(4)) as server:
        ask = model(server)
        replies = ask.complete(chats(1), HOT, "policy")
        assert len(server.requests) == 1
    assert len(replies) == 1 and replies[0].tokens == 5 and spent(ask)["tokens"] == 20


@pytest.mark.parametrize(
    "change, sent, places",
    [
        (lambda whole: whole["choices"][1]["message"].update(content=None), [3, 1], ["0]", "2]", "0]"]),
        (lambda whole: whole["choices"].reverse(), [3], ["0]", "1]", "2]"]),
    ],
    ids=["a null choice is requested again", "choices go by their index"],
)
def test_odd_choices(change, sent, places):
    with Server(s.says(change)) as server:
        replies = model(server).complete(chats(1) * 3, HOT, "policy")
        assert [r.body.get("n", 1) for r in server.requests] == sent
    assert [text.split("/")[1] for text in texts(replies)] == places


# Options.


@pytest.mark.parametrize(
    "options, message",
    [
        ({"base_url": ""}, "--base_url http"),
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'"),
        ({"base_url": "http://host:8000/v1/chat/completions"}, "leave out /chat/completions: http://host:8000/v1"),
        ({"base_url": "http://host/v1/models/"}, "leave out /models: http://host/v1"),
        ({"base_url": "http://host:port/v1"}, "it must look like http://localhost:8000/v1"),
        ({"base_url": "http://host:99999/v1"}, "it must look like"),
        ({"base_url": "http://ho st/v1"}, "it must look like"),
        ({"base_url": "ftp://host/v1"}, "it must look like"),
        ({"base_url": "//host/v1"}, "it must look like"),
        ({"base_url": "http://me:pass@host/v1"}, "no user, password"),
        ({"base_url": "http://host/v1?key=1"}, "query"),
        ({"extra": "n=3"}, "extra sets n"),
        ({"extra": "top_p"}, "extra is 'top_p'; it must be field=value"),
        ({"extra": "a b=1"}, "field=value"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 100_000}, "concurrency is 100000"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"token_budget": -1}, "token_budget is -1"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_sent(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        nowhere(**options)
    assert "pass@" not in str(caught.value)


def test_extra_fields_are_json_where_they_parse():
    text = 'effort=low, seed=null,stop=["a,b=c", "d"],kw={"x": false},top_p=0.5,name=1a,word="1",empty='
    assert EndpointOptions(extra=text).extra_fields() == {
        "effort": "low",
        "seed": None,
        "stop": ["a,b=c", "d"],
        "kw": {"x": False},
        "top_p": 0.5,
        "name": "1a",
        "word": "1",
        "empty": "",
    }
