"""Optional fields that a server refuses, in whatever form: each costs one attempt, and an outage stays an outage."""

import functools
import json
import logging

import pytest

from nlrl_jax.backends.optional_fields import named_fields
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.types import Chat, Sampling
from tests.backends import endpoints
from tests.backends import server as s
from tests.backends.server import Server

ALL = Sampling(20, 1.0, top_k=5, top_p=0.9)
OPEN = Chat.of("goal", continued="Action:")
ERROR = {"error": {"message": "internal"}}
# How servers refuse without naming the field.
FORMS = {
    "400": s.status(400, "bad request"),
    "405": s.status(405, ""),
    "422": s.status(422, "unprocessable"),
    "500": s.status(500, '{"error": {"code": 500, "message": "Only one completion choice is allowed"}}'),
    "501": s.status(501, "not implemented"),
    "503": s.status(503, ""),
    "an error in a 200": s.raw(json.dumps(ERROR).encode()),
    "no choices": s.raw(b'{"choices": []}'),
    "null choices": s.raw(b'{"choices": null}'),
    "a page": s.raw(b"<html>error</html>"),
    "cut": s.cut,
    "closed": s.closed,
}


model = functools.partial(endpoints.model, max_retries=6)


def refuses(form, *names):
    """A server that refuses requests with one of these fields."""
    return lambda request: form if any(name in request.body for name in names) else s.well


def questions(n, times=1):
    return [Chat.of(f"question {i}") for i in range(n) for _ in range(times)]


@pytest.mark.parametrize("form", FORMS)
def test_a_server_that_refuses_n_in_any_form_gets_single_requests_from_then_on(form, caplog):
    with Server(behaviour=refuses(FORMS[form], "n")) as server:
        ask = model(server)
        replies = ask.complete(questions(2, 3), ALL, "policy")
        assert sum("n" in request.body for request in server.requests) == 1
        assert len(server.requests) == 7 and len({reply.text for reply in replies}) == 6
        ask.complete(questions(2, 3), ALL, "policy", 1)
        assert len(server.requests) == 13
        assert all(request.body["top_k"] == 5 and "seed" in request.body for request in server.requests)
    assert [row.message.split("/v1/chat/completions ")[1] for row in caplog.records if row.levelno > logging.INFO] == [
        "does not take n, left out: replies are requested one by one"
    ]


def test_a_server_that_returns_too_few_choices_gets_single_requests_from_then_on():
    with Server(behaviour=lambda request: s.choices(1)) as server:
        ask = model(server)
        assert len(ask.complete(questions(2, 3), ALL, "policy")) == 6
        assert len(server.requests) == 6 and sum("n" in request.body for request in server.requests) == 1


NAMED = {
    "400": (400, "Unsupported parameter: 'FIELD'"),
    "422 with a place": (422, '{"detail": [{"loc": ["body", "FIELD"], "msg": "extra", "input": {"seed": 1, "n": 2}}]}'),
    "500": (500, "TypeError: create() got an unexpected keyword argument 'FIELD'"),
    "501": (501, "FIELD: not implemented"),
    "200": (200, '{"error": {"message": "unknown field; known are seed and stop", "param": "FIELD"}}'),
}


@pytest.mark.parametrize("field", ["seed", "top_k", "top_p", "stop", "continue_final_message", "add_generation_prompt"])
@pytest.mark.parametrize("form", NAMED)
def test_a_named_field_costs_one_attempt(field, form):
    code, text = NAMED[form]
    with Server(behaviour=refuses(s.status(code, text.replace("FIELD", field)), field)) as server:
        ask = model(server)
        for seed in range(2):
            assert ask.complete([OPEN], ALL, "policy", seed, stop=["|"])[0].text
        assert len(server.requests) == 3
        last = server.requests[-1].body
    pair = {"continue_final_message", "add_generation_prompt"}
    assert {"seed", "top_k", "top_p", "stop", *pair} - last.keys() == (pair if field in pair else {field})


@pytest.mark.parametrize("field", ["seed", "top_k", "stop", "continue_final_message"])
@pytest.mark.parametrize("form", ["400", "500", "closed"])
def test_a_field_that_is_not_named_is_found_and_the_others_come_back(field, form):
    with Server(behaviour=refuses(FORMS[form], field)) as server:
        ask = model(server, concurrency=1)
        for seed in range(8):
            assert ask.complete([OPEN], ALL, "policy", seed, stop=["|"])[0].text
        refused = sum(field in request.body for request in server.requests)
        last = server.requests[-1].body
    assert refused <= {"400": 2, "500": 4, "closed": 4}[form] and len(server.requests) == 8 + refused
    assert ({"seed", "top_k", "stop", "continue_final_message"} - last.keys()) == {field}


@pytest.mark.parametrize("form", ["500", "503", "closed", "an error in a 200"])
@pytest.mark.parametrize("times", [1, 3])
def test_an_outage_ends_after_its_attempts(form, times):
    with Server(behaviour=lambda request: FORMS[form]) as server:
        with pytest.raises(EndpointError, match="failed 4 times, the last time with"):
            model(server, max_retries=3, concurrency=1).complete(questions(1, times), ALL, "policy")
        assert len(server.requests) == 4


def test_a_field_that_has_worked_is_not_blamed_for_a_passing_failure():
    with Server(s.well, s.status(500), s.status(500, "seed"), s.closed) as server:
        ask = model(server, concurrency=1)
        for seed in range(3):
            assert len(ask.complete(questions(1, 3), ALL, "policy", seed)) == 3
        assert len(server.requests) == 6 and all(request.body["n"] == 3 for request in server.requests)


def test_refusals_of_needed_fields_and_of_extra_ones_come_with_advice_after_one_attempt():
    for code in (400, 500):
        for field, extra, advice in (
            ("temperature", "", "This run needs temperature; --extra temperature=null leaves it out"),
            ("min_p", "min_p=0.1", "--extra sets min_p; leave that out there"),
            ("response_format", 'response_format={"type": "json_object"}', "--extra sets response_format"),
            ("seed", "seed=3", "--extra sets seed"),
        ):
            with Server(behaviour=refuses(s.status(code, f"'{field}' is not supported"), field)) as server:
                with pytest.raises(EndpointError, match=advice):
                    model(server, extra=extra).complete(questions(1), Sampling(20, 0.5), "policy")
                assert len(server.requests) == 1


def test_a_temperature_of_1_is_left_out_and_another_one_is_not():
    with Server(behaviour=refuses(s.status(400, "temperature is not supported"), "temperature")) as server:
        ask = model(server)
        assert ask.complete(questions(1), Sampling(20, 1.0), "policy")
        with pytest.raises(EndpointError, match="This run needs temperature"):
            ask.complete(questions(1), Sampling(20, 0.0), "policy")


def test_a_key_a_rate_limit_or_a_redirect_is_about_no_field():
    for code in (401, 403, 404, 307):
        with Server(behaviour=lambda request, code=code: s.status(code, "seed")) as server:
            with pytest.raises(EndpointError, match=f"status {code}"):
                model(server).complete(questions(1, 3), ALL, "policy")
            assert len(server.requests) == 1
    with Server(s.status(429, "seed"), s.status(429, "n")) as server:
        model(server).complete(questions(1, 3), ALL, "policy")
        assert [request.body["n"] for request in server.requests] == [3, 3, 3]


def test_the_fields_that_an_error_names():
    body = {"model": "m", "n": 2, "seed": 1, "user": "u"}
    assert named_fields("I cannot; n must be 1 for this model\nseeds", body) == []
    assert named_fields('{"param": "n"}', body) == ["n"]
    assert named_fields('{"message": "seed is not allowed with this model", "param": null}', body) == ["seed"]
    assert named_fields("{'loc': ('body', 'user'), 'input': {'seed': 1}}", body) == ["user"]
