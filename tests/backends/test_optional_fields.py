"""Optional fields that a server refuses, in whatever form: each costs one attempt, and an outage stays an outage."""

import functools
import json
import logging

import pytest

from nlrl_jax.backends.optional_fields import OPTIONAL, named_fields
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.types import Chat, Sampling
from tests.backends import endpoints
from tests.backends import server as s
from tests.backends.server import Server

ALL = Sampling(20, 1.0, top_k=5, top_p=0.9)
OPEN = Chat.of("goal", continued="Action:")
PAIR = ("continue_final_message", "add_generation_prompt")
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


COMPLETION = b'{"choices": [{"finish_reason": "stop", "message": {"content": "x"}}]}'
FINAL = ("400", "405", "422", "501")
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
        with_n = 1 if form in FINAL else 2  # what may pass is repeated once
        assert sum("n" in request.body for request in server.requests) == with_n
        assert len(server.requests) == 6 + with_n and len({reply.text for reply in replies}) == 6
        ask.complete(questions(2, 3), ALL, "policy", 1)
        assert len(server.requests) == 12 + with_n
        assert all(request.body["top_k"] == 5 and "seed" in request.body for request in server.requests)
    assert [row.message.split("/v1/chat/completions ")[1] for row in caplog.records if row.levelno > logging.INFO] == [
        "does not take n (replies are requested one by one)"
    ]


def test_a_server_that_returns_too_few_choices_gets_single_requests_from_then_on():
    with Server(behaviour=lambda request: s.choices(1)) as server:
        ask = model(server)
        assert len(ask.complete(questions(2, 3), ALL, "policy")) == 6
        assert len(server.requests) == 6 and sum("n" in request.body for request in server.requests) == 1


NAMED = {
    "400": (400, "x " * 400 + "Unsupported parameter: 'FIELD'"),
    "422 with a place": (422, '{"detail": [{"loc": ["body", "FIELD"], "msg": "extra", "input": {"seed": 1, "n": 2}}]}'),
    "500": (500, "TypeError: create() got an unexpected keyword argument 'FIELD'"),
    "501": (501, "FIELD: not implemented"),
    "OpenAI": (400, "Unrecognized request argument supplied: FIELD"),
    "Groq": (400, "property 'FIELD' is unsupported, did you mean 'top_p'?"),
    "Mistral": (422, '{"detail": [{"type": "extra_forbidden", "loc": ["body", "FIELD"], "msg": "Extra inputs"}]}'),
    "Gemini": (400, 'Invalid JSON payload received. Unknown name \\"FIELD\\": Cannot find field.'),
    "serde": (422, "unknown field `FIELD`, expected one of `model`, `messages`, `n`, `stop`, `max_tokens`, `seed`"),
    "200": (200, '{"error": {"message": "unknown field; known are seed and stop", "param": "FIELD"}}'),
}


@pytest.mark.parametrize("field", [*"seed top_k min_p top_p stop max_tokens continue_final_message".split(), *PAIR[1:]])
@pytest.mark.parametrize("form", NAMED)
def test_a_named_field_costs_one_attempt_and_replies_stay_in_the_cache(field, form, tmp_path):
    code, text = NAMED[form]
    with Server(behaviour=refuses(s.status(code, text.replace("FIELD", field)), field)) as server:
        ask = model(server, cache=DiskCache(tmp_path))
        for seed in range(2):
            assert ask.complete([OPEN], ALL, "policy", seed, stop=["|"])[0].text
        last = server.requests[-1].body
        assert model(server, cache=DiskCache(tmp_path)).complete([OPEN], ALL, "policy", 1, stop=["|"])[0].cached
        assert len(server.requests) == 3
    missing = {"seed", "top_k", "min_p", "top_p", "stop", "max_tokens", *PAIR} - last.keys()
    assert missing == ({*PAIR} if field in PAIR else {field})
    assert last.get("max_completion_tokens") == (20 if field == "max_tokens" else None)


@pytest.mark.parametrize("field", ["seed", "top_k", "stop", "continue_final_message"])
@pytest.mark.parametrize("form", ["400", "500", "closed"])
def test_where_a_field_is_not_named_all_that_have_not_worked_go_and_that_is_said_once(field, form, caplog):
    with Server(behaviour=refuses(FORMS[form], field)) as server:
        ask = model(server, concurrency=1)
        for seed in range(4):
            assert ask.complete([OPEN], ALL, "policy", seed, stop=["|"])[0].text
        refused = sum(field in request.body for request in server.requests)
        assert refused == (1 if form in FINAL else 3) and len(server.requests) == 4 + refused
        assert set(server.requests[-1].body) == {"model", "messages", "max_tokens"}
    (line,) = (row.message for row in caplog.records if row.levelno > logging.INFO)
    assert "refuses a field and does not say which; left out are top_k (" in line and f"{field} " in line


@pytest.mark.parametrize("form", ["400", "500"])
def test_a_field_that_has_worked_stays_where_another_is_refused_without_its_name(form):
    with Server(behaviour=refuses(FORMS[form], "stop")) as server:
        ask = model(server, concurrency=1)
        ask.complete(questions(1), ALL, "policy")
        assert ask.complete(questions(1), ALL, "policy", 1, stop=["|"])[0].text
        assert ask.known.refused == {"stop"} and server.requests[-1].body["top_k"] == 5


@pytest.mark.parametrize("form", ["500", "503", "closed", "an error in a 200"])
@pytest.mark.parametrize("times, retries", [(1, 3), (3, 3), (3, 0)])
def test_an_outage_ends_after_its_attempts(form, times, retries):
    with Server(behaviour=lambda request: FORMS[form]) as server:
        ask = model(server, max_retries=retries, concurrency=1)
        with pytest.raises(EndpointError, match=f"failed {retries + 1} times, the last time with"):
            ask.complete(questions(1, times), ALL, "policy")
        assert len(server.requests) == retries + 1 and not ask.known.refused


def test_a_longer_outage_costs_the_one_field_that_has_not_worked_nothing():
    with Server(*[s.status(500)] * 5) as server:
        ask = model(server, concurrency=1)
        ask.known.accepted.update(OPTIONAL.keys() - {"seed"})
        assert ask.complete(questions(1), ALL, "policy")[0].text and not ask.known.refused
        assert ["seed" in request.body for request in server.requests] == [True] * 3 + [False] * 2 + [True]


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


# What no limit is called.

OFF = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def test_what_is_not_limited_is_sent_since_servers_have_limits_of_their_own(tmp_path):
    """llama.cpp draws from top_k 40 and min_p 0.05, vLLM by the model's generation_config, where nothing is sent."""
    with Server() as server:
        ask = model(server, cache=DiskCache(tmp_path), concurrency=1)
        for seed, sampling in enumerate((Sampling(20, 1.0), Sampling(20, 1.0, top_k=5), Sampling(20, 0.0))):
            ask.complete(questions(1), sampling, "policy", seed)
        sent = [{name: body[name] for name in OFF if name in body} for body in (r.body for r in server.requests)]
    assert sent == [OFF, {**OFF, "top_k": 5}, {"repetition_penalty": 1.0}]
    with Server() as server:  # the user's own counts, also in the cache's key
        ask = model(server, cache=DiskCache(tmp_path), extra="min_p=0.1,top_k=null,repetition_penalty=1.0")
        ask.complete(questions(1), Sampling(20, 1.0), "policy")
        (body,) = (request.body for request in server.requests)
    assert (body["min_p"], body["repetition_penalty"], "top_k" in body) == (0.1, 1.0, False)


def test_a_server_that_refuses_them_is_served_without_them_for_the_run():
    def picky(request):
        bad = next((name for name in OFF if name in request.body), "")
        return s.status(400, f"Unrecognized request argument supplied: {bad}") if bad else s.well

    with Server(behaviour=picky) as server:
        ask = model(server)
        for seed in range(2):
            assert len(ask.complete(questions(3), Sampling(20, 1.0), "policy", seed)) == 3
        assert len(server.requests) == 3 + 6 and server.requests[-1].body["top_p"] == 1.0


def test_a_server_that_calls_no_limit_minus_one_gets_that():
    def sglang(request):
        if request.body.get("top_k") == 0:
            return s.status(400, '{"message": "top_k must be -1 (disable) or at least 1, got 0."}')
        return s.well

    with Server(behaviour=sglang) as server:
        ask = model(server, concurrency=1)
        for seed in range(2):
            ask.complete(questions(2), Sampling(20, 1.0), "policy", seed)
        assert [request.body["top_k"] for request in server.requests] == [0, -1, -1, -1, -1]


# How many replies at once.


@pytest.mark.parametrize(
    "text, code",
    [
        ("Field 'n': Value must be between 1 <= value <= 4, but got {}", 400),  # llama.cpp of 2026
        ('{{"message": "Expected a value <= 4, but got {} instead.", "param": "n"}}', 400),  # OpenAI
        ('{{"detail": [{{"loc": ["body", "n"], "msg": "Input should be less than or equal to 4"}}]}}', 422),
    ],
)
def test_a_server_that_takes_up_to_four_gets_four(text, code):
    def slots(request):
        n = request.body.get("n", 1)
        return s.well if n <= 4 else s.status(code, text.format(n))

    with Server(behaviour=slots) as server:
        ask = model(server, concurrency=1)
        replies = ask.complete(questions(1, 10), Sampling(20, 1.0), "policy")
        assert len({reply.text for reply in replies}) == 10
        assert [request.body.get("n", 1) for request in server.requests] == [10, 4, 4, 2]


def test_a_number_that_was_answered_stays_where_a_greater_one_is_refused():
    slots = lambda request: s.well if request.body.get("n", 1) <= 4 else s.status(400, "increase -np")
    with Server(behaviour=slots) as server:
        ask = model(server, concurrency=1)
        for seed, number in enumerate((4, 9, 9)):
            assert len(ask.complete(questions(1, number), Sampling(20, 1.0), "policy", seed)) == number
        assert [request.body.get("n", 1) for request in server.requests] == [4, 9, 1, 4, 4, 4, 4, 1]


# Failures that pass.


@pytest.mark.parametrize("failure", ["500", "503", "closed", "an error in a 200", "names"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_failure_in_passing_costs_no_field(failure, at):
    with Server(*[s.well] * at, FORMS.get(failure, s.status(500, "worker died at seed 7, stop"))) as server:
        ask = model(server, concurrency=1)
        for seed in range(3):
            assert len(ask.complete(questions(1, 3), ALL, "policy", seed, stop=["|"])) == 3
        assert not ask.known.refused and len(server.requests) == 4
        assert all(request.body["n"] == 3 and "seed" in request.body for request in server.requests)


@pytest.mark.parametrize(
    "code, error",
    [
        (502, "<html>Bad Gateway</html>"),
        (504, ""),
        (520, ""),
        (529, ""),
        (503, "Loading model"),
        (500, "overloaded"),
        (200, '{"error": "model is busy"}'),
    ],
)
def test_a_server_that_is_about_to_be_there_refuses_no_field(code, error):
    with Server(*[s.status(code, error)] * 3) as server:
        ask = model(server, concurrency=1)
        ask.complete(questions(1, 3), ALL, "policy", stop=["|"])
        assert not ask.known.refused
        assert [request.body.get("n") for request in server.requests] == [3] * 4


@pytest.mark.parametrize("damaged", [s.half, lambda handler, request: s.send(handler, b":\n" + COMPLETION)])
def test_a_damaged_reply_that_names_fields_costs_none(damaged):
    with Server(*[damaged] * 2) as server:
        ask = model(server, concurrency=1)
        ask.complete(questions(1), Sampling(20, 1.0), "policy", stop=["|"])
        assert "stop" not in ask.known.refused and len(server.requests) == 3


# Contexts that are too short (tests/backends/test_context_limits.py has their wordings).


@pytest.mark.parametrize("code", [400, 422, 500])
def test_a_context_that_is_too_short_is_no_unsupported_field(code):
    too_large = (
        "'max_tokens' or 'max_completion_tokens' is too large: 20. This model's maximum context length is 4096 "
        "tokens and your request has 4090 input tokens (20 > 4096 - 4090)."
    )
    with Server(behaviour=lambda request: s.status(code, too_large)) as server:
        ask = model(server)
        with pytest.raises(EndpointError, match="holds 4096 tokens, .* at least 4110. Give .*--context_tokens 4096"):
            ask.complete(questions(1, 3), ALL, "policy")
        assert len(server.requests) == 1 and not ask.known.refused
