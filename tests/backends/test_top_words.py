"""Words judged by the likeliest tokens that a server lists, priors from drawn replies, and the forms of prompts."""

import json
import math

import numpy as np
import pytest

from nlrl_jax import returns
from nlrl_jax.algorithms import imagine, lac
from nlrl_jax.algorithms.imagine import Caller, PlanningConfig
from nlrl_jax.backends import prompt_forms, token_log_probs, top_words
from nlrl_jax.backends.endpoint_server import Abilities
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.responses import read_top
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.roles.dialogues import Dialogue, History
from nlrl_jax.run import models
from nlrl_jax.types import LEAST, Chat, LanguageModelError, Reply, Score
from tests.backends import server as s
from tests.backends.endpoints import GREEDY, HOT, model, render
from tests.backends.server import Server

OPEN = Chat.of("goal", continued="Observation: a wall\nCritic: This step is")
LN2 = math.log(2)


@pytest.mark.parametrize(
    "top, good, bad",
    [
        ([(" GOOD", -1.0), (" BAD", -2.0)], -1.0, -2.0),
        ([("GOOD", -LN2 * 2), (" good", -LN2 * 2), ("**Good**", -LN2 * 3), ("\u0120BAD", -3.0)], -LN2 * 0.678, -3.0),
        ([(" GO", -1.0), (" G", -9.0), ("\u2581B", -2.0), (" go", 0.0)], math.log(math.e**-1 + math.e**-9), -2.0),
        ([(" GOOD.", -1.0), (" GOODS", -0.5), (" BADLY", -0.5), (" BAD\n", -2.0)], -1.0, -2.0),
    ],
    ids=["words", "spellings", "first letters, in the word's own capitals", "marks, and longer words"],
)
def test_spellings_of_a_word_add_up(top, good, bad):
    scores = top_words.scores(top, [" GOOD", " BAD"])
    assert [score.log_prob for score in scores] == pytest.approx([good, bad], abs=1e-3)
    assert not any(score.bounded for score in scores)


def test_a_word_outside_the_list_is_bounded_by_its_last_place():
    top = [(" GOOD", -0.5), (" x", -3.0), (" y", -2.0), (" written", -9.0)]  # the written token comes in addition
    good, bad = top_words.scores(top, ["GOOD", "BAD"], 3)
    assert (good.bounded, bad.bounded, bad.log_prob) == (False, True, -3.0)
    assert [score.log_prob for score in top_words.scores([(" st", -1.0)], ["stop", "stay"])] == [-1.0, -1.0]  # of both
    assert top_words.scores([], ["GOOD", "BAD"])[0].log_prob == 0.0


def test_a_listed_word_is_a_lower_bound_that_is_marked_where_the_rest_may_weigh_as_much():
    flat = [(" GOOD", math.log(0.05)), *((f" {i}", math.log(0.02)) for i in range(19))]
    (good,) = top_words.scores(flat, ["GOOD"])
    # Of what is not listed, 0.57, sixteen spellings may have 0.02 each.
    assert (good.log_prob, good.bounded, good.partial) == (math.log(0.05), False, True)
    (good,) = top_words.scores([(" GOOD", math.log(0.5)), *flat[1:]], ["GOOD"])
    assert (good.bounded, good.partial) == (False, False)
    assert top_words.scores(flat[:5], ["GOOD"])[0].partial  # a server that lists fewer than it was asked for
    assert not top_words.scores([(" GOOD", math.log(0.3)), (" BAD", math.log(0.7))], ["GOOD"])[0].partial


def test_a_token_that_is_listed_twice_counts_once():
    top = [(" GOOD", math.log(0.4)), (" GOOD", math.log(0.4)), (" BAD", math.log(0.5))]
    good, bad = top_words.scores(top, ["GOOD", "BAD"])
    assert (good.log_prob, bad.log_prob) == pytest.approx((math.log(0.4), math.log(0.5)))


LISTED = [{"token": " GOOD", "logprob": -0.1, "bytes": None}, {"token": " BAD", "logprob": -2.5, "bytes": None}]
MAPPED = {" GOOD": -0.1, " BAD": -2.5}
WRITTEN = {"token": " GOOD", "logprob": -0.1}


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [WRITTEN | {"top_logprobs": LISTED}], "refusal": None},
        {"content": [WRITTEN | {"top_logprobs": MAPPED}]},
        {"tokens": [" GOOD"], "token_logprobs": [-0.1], "top_logprobs": [MAPPED]},
        {"content": None, "tokens": [" GOOD"], "token_logprobs": [-0.1], "top_logprobs": [MAPPED]},
        {"tokens": [" GOOD"], "token_logprobs": [-0.1], "top_logprobs": [LISTED]},
        {"tokens": [" GOOD"], "token_logprobs": [-0.1], "top_logprobs": MAPPED},
    ],
)
def test_the_likeliest_tokens_are_read_in_all_their_forms(logprobs):
    assert read_top({"choices": [{"logprobs": logprobs, "finish_reason": "length"}]}) == [*MAPPED.items()]


def test_a_word_of_letters_over_several_tokens_is_begun_by_its_bytes():
    top = [(token_log_probs.spelt("\ufffd", [0xE5, 0xA5]), -0.5), (token_log_probs.spelt("bytes:\\xe5\\x9d"), -2.0)]
    good, bad = top_words.scores(top, [" \u597d", " \u574f"])
    assert (good.log_prob, bad.log_prob, good.bounded, bad.bounded) == (-0.5, -2.0, False, False)


def lists(top, text="ok", tokens=()):
    """A server that lists these tokens first, in the form of its path; its replies have these tokens."""

    def behave(handler, request):
        whole = s.answer(request)
        for choice in whole["choices"]:
            choice["message"]["content"] = text
            found = [{"token": token, "logprob": log_prob, "top_logprobs": []} for token, log_prob in tokens or top[:1]]
            found[0]["top_logprobs"] = [{"token": token, "logprob": log_prob} for token, log_prob in top]
            choice["logprobs"] = {"content": found}
            if request.path.endswith("/v1/completions"):
                choice["text"] = choice.pop("message")["content"]
                choice["logprobs"] = {"tokens": [t for t, _ in tokens], "token_logprobs": [p for _, p in tokens]}
                choice["logprobs"]["top_logprobs"] = [dict(top)]
        s.send(handler, whole)

    return behave


TOP = [(" GOOD", -0.5), (" fine", -1.5), (" x", -3.0)]


@pytest.mark.parametrize("form", prompt_forms.FORMS)
def test_both_words_are_read_from_one_request_in_each_form(form, tmp_path):
    with Server(behaviour=lambda request: lists(TOP)) as server:
        ask = model(server, cache=DiskCache(tmp_path), render=render, abilities=Abilities(form, top=3))
        ask = metered(ask, ask.usage)
        first, again = (ask.score([OPEN, OPEN], [[" GOOD", " BAD"]] * 2, "critic") for _ in range(2))
        (request,) = server.requests
    assert [(score.log_prob, score.bounded, score.cached) for score in first[0]] == [(-0.5, 0, 0), (-3.0, 1, 0)]
    assert all(score.cached for row in again for score in row) and not ask.can_score and ask.can_judge
    body = request.body
    assert body["max_tokens"] == 1 and body["temperature"] == 0
    if form == prompt_forms.TEXT:
        assert (body["prompt"], body["logprobs"]) == (render(OPEN.messages), 3)
        return
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    assert ("continue_final_message" in body) == (form == prompt_forms.CONTINUED)
    if form == prompt_forms.ASKED:
        (message,) = body["messages"]
        assert message["role"] == "user" and message["content"].startswith("goal\n\n")
        assert message["content"].endswith("GOOD or BAD? Reply with that word alone.")
    with pytest.raises(NotImplementedError, match="does not score texts"):
        ask.score([OPEN], [[" turn left"]], "policy")


def capable(*, continues=True, top=20, echo=False):
    """A server that can do what is said, and refuses the rest."""

    def behaviour(request):
        body = request.body
        number = body.get("top_logprobs", 0) if "messages" in body else body.get("logprobs", 0)
        if body.get("echo") or number > top or not echo and request.path.endswith("/v1/completions"):
            return s.status(400, "not here")
        is_open = body.get("messages", [{}])[-1].get("role") == "assistant"
        return lists(TOP, " 10, 11" if continues and is_open else "Good morning")

    return behaviour


@pytest.mark.parametrize(
    "server_is, form, top",
    [
        ({}, prompt_forms.CONTINUED, 3),
        ({"continues": False}, prompt_forms.ASKED, 3),
        ({"top": 5}, prompt_forms.CONTINUED, 3),
        ({"echo": True}, prompt_forms.TEXT, 3),
    ],
)
def test_what_a_server_can_do_is_found_out_once_and_said(server_is, form, top, tmp_path, capsys):
    with Server(behaviour=capable(**server_is)) as server:
        text = {"render": render} if form == prompt_forms.TEXT else {}
        ask = model(server, cache=DiskCache(tmp_path), **text)
        abilities = [models.prepared(ask, models.Scores(True, False, "")).abilities for _ in range(2)]
        sent = len(server.requests)
        assert sent <= 4 and abilities == [Abilities(form, top=top)] * 2
        with pytest.raises(LanguageModelError, match="does not score texts"):
            models.prepared(ask, models.Scores(True, True, "choose other methods"))
    said = capsys.readouterr().out
    assert said.count("endpoint: prompts go") == 1 and prompt_forms.FORMS[form] in said


def test_a_probe_that_breaks_off_is_sent_again(tmp_path):
    broken = s.raw(b'{"choices": [{"message": {"content": "Good"}, "finish_reason": "error"}]}')
    able = capable()
    first = lambda request: broken if request.number in (0, 2) else able(request)
    with Server(behaviour=first) as server:
        abilities = models.prepared(model(server, cache=DiskCache(tmp_path)), models.Scores(True, False, "")).abilities
    assert (abilities.form, abilities.top) == (prompt_forms.CONTINUED, 3)
    with Server(behaviour=lambda request: broken) as server:
        with pytest.raises(LanguageModelError, match='failed 4 times.*not whole: {"finish_reason": "error"}'):
            models.prepared(model(server), models.Scores(True, False, ""))


def test_without_top_logprobs_only_the_form_is_used():
    with Server(behaviour=capable(top=0, continues=False)) as server:
        assert models.prepared(model(server), models.Scores(False, False, "")).abilities == Abilities(
            prompt_forms.ASKED
        )
        with pytest.raises(LanguageModelError, match="lists no likeliest tokens.*or choose --critic direct"):
            models.prepared(model(server), models.Scores(True, False, "choose --critic direct"))


def test_an_asked_line_comes_without_its_label():
    with Server(behaviour=s.writes("Action: turn left\nObservation: x")) as server:
        ask = model(server, abilities=Abilities(prompt_forms.ASKED))
        (reply,) = ask.complete([Chat.of("goal", continued="Observation: a wall\nAction:")], GREEDY, "r", stop=["\n"])
        (request,) = server.requests
    assert reply.text == " turn left" and reply.log_probs == ()
    assert request.asked.endswith('Write the line that begins with "Action:", and nothing else.')


DRAWN = [("Action", -7.0), (":", -7.0), (" turn", -1.0), (" left", -0.5), ("\n", -3.0), ("Obs", -9.0)]


def test_drawn_candidates_have_the_probabilities_of_their_own_tokens(tmp_path):
    drawn = lists(TOP, "Action: turn left\nObs", DRAWN)
    with Server(behaviour=lambda request: drawn) as server:
        ask = model(server, cache=DiskCache(tmp_path), abilities=Abilities(prompt_forms.CONTINUED, top=3))
        for _ in range(2):  # from the server, then from the cache
            replies = ask.complete([Chat.of("goal", continued="Action:")] * 3, HOT, "policy", stop=["\n"])
            assert [reply.log_probs for reply in replies] == [(-1.0, -0.5)] * 3 and replies[0].text == " turn left"
        for prior, wanted in (("sum", -1.5), ("mean", -0.75)):
            caller = Caller(ask, Dialogue.of("rules"), PlanningConfig(prior=prior, draws=3), 0)
            (found,) = imagine.propose(caller, [History("goal", "a wall")], ["turn left", "turn right"])
            assert (found.actions, found.log_prior) == (("turn left",), (wanted,))
        assert {request.body["logprobs"] for request in server.requests} == {True}


def judged(content, logprobs=None, **more):
    choice = {"index": 0, "message": {"content": content}, "logprobs": logprobs, "finish_reason": "stop", **more}
    return s.raw(json.dumps({"choices": [choice]}).encode())


FILTERED = {
    "status 400": s.status(400, '{"error": {"code": "content_filter"}}'),
    "error in a 200": s.raw(b'{"error": {"code": "content_filter"}}'),
    "null log-probabilities": judged("", finish_reason="content_filter"),
    "null text": judged(None, finish_reason="content_filter"),
    "a text": judged("GO", {"content": None}, finish_reason="content_filter"),
    "results": judged(None, content_filter_results={"hate": {"filtered": True}}),
    "no choices": s.raw(b'{"choices": [], "promptFeedback": {"blockReason": "SAFETY"}}'),
    "refusal": s.raw(b'{"choices": [{"message": {"content": null, "refusal": "No."}, "finish_reason": "stop"}]}'),
    "null text and no reason": judged(None),
    "no text and no reason": judged(""),
    "no choice and no reason": s.raw(b'{"choices": []}'),
}


@pytest.mark.parametrize("name", FILTERED)
def test_a_judgement_that_a_filter_stops_makes_no_difference_and_is_met_once(name, tmp_path):
    cache = DiskCache(tmp_path)
    with Server(behaviour=lambda request: FILTERED[name]) as server:
        for _ in range(2):
            ask = model(server, cache=cache, abilities=Abilities(prompt_forms.ASKED, top=3))
            ((good, bad),) = ask.score([OPEN], [[" GOOD", " BAD"]], "critic")
            assert good == bad and good.bounded
            assert len(server.requests) == (4 if "no reason" in name else 1)


def test_a_judgement_with_a_text_and_no_log_probabilities_is_an_error():
    with (
        Server(behaviour=lambda request: judged("GOOD")) as server,
        pytest.raises(LanguageModelError, match="logprobs"),
    ):
        model(server, abilities=Abilities(prompt_forms.ASKED, top=3)).score([OPEN], [[" GOOD", " BAD"]], "critic")


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf, "-inf", -9999.0, -3.4e38])
@pytest.mark.parametrize("form", [prompt_forms.ASKED, prompt_forms.TEXT])
def test_an_unlikely_word_has_a_finite_q_that_is_counted(missing, form):
    with Server(behaviour=lambda request: lists([(" GOOD", -0.5), (" BAD", missing)])) as server:
        ask = model(server, abilities=Abilities(form, top=2), render=render)
        for alpha in (0.5, 1e-30):
            caller = Caller(ask, Dialogue.of("rules"), PlanningConfig(), 0)
            ((q, *words),) = lac.critic(caller, [OPEN], lac.LACConfig())
            assert (q, words) == (-0.5 - LEAST, [-0.5, LEAST]) and caller.problems == {"critic/" + imagine.UNLIKELY: 1}
            improved = returns.kl_improved_policy(np.log([0.5, 0.5]), np.array([q, -q]), alpha)
            assert np.exp(improved).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("number", [math.nan, 0.4])
def test_a_model_that_gives_no_log_probabilities_is_refused(number):
    class Wrong:
        can_score = True

        def complete(self, chats, sampling, role, seed=0, stop=()):
            return [Reply("turn left", log_probs=(-1.0, number)) for _ in chats]

        def score(self, chats, continuations, role):
            return [[Score(number, 1) for _ in row] for row in continuations]

    caller = Caller(Wrong(), Dialogue.of("rules"), PlanningConfig(), 0)
    with pytest.raises(ValueError, match=f"gives {number} as a log-probability .critic."):
        lac.critic(caller, [OPEN], lac.LACConfig())
    Wrong.can_score = False
    with pytest.raises(ValueError, match=f"gives {number} as a log-probability .policy."):
        imagine.propose(caller, [History("goal", "a wall")], ["turn left", "turn right"])


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_a_drawn_token_without_a_number_is_unlikely_and_counted(missing):
    drawn = lists(TOP, "Action: turn left\nObs", [*DRAWN[:2], (" turn", missing), *DRAWN[3:]])
    with Server(behaviour=lambda request: drawn) as server:
        ask = model(server, abilities=Abilities(prompt_forms.CONTINUED, top=3))
        caller = Caller(ask, Dialogue.of("rules"), PlanningConfig(draws=3), 0)
        (found,) = imagine.propose(caller, [History("goal", "a wall")], ["turn left", "turn right"])
    assert found.log_prior == (LEAST - 0.5,) and caller.problems["policy/" + imagine.UNLIKELY] == 3
