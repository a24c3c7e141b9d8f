"""Meters, caches, routes and padding around the door of a language model."""

import json
import pathlib
import time

import pytest

from nlrl_jax import multihost
from nlrl_jax.backends import wrappers
from nlrl_jax.backends.reply_cache import DiskCache
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import CHARACTERS, at_full_length, by_role, cached, first_process_asks, metered
from nlrl_jax.envs.breakthrough.prompts import read_advantage
from nlrl_jax.envs.maze import env as mazes
from nlrl_jax.envs.maze.prompts import MazeRoles
from nlrl_jax.envs.tic_tac_toe.prompts import read_move, read_value
from nlrl_jax.types import Chat, Facts, LanguageModel, Reply, Sampling, Score, ScoreTexts, Write, as_model

GREEDY = Sampling(8, 0.0)
KEY = "039e419d73950b06044265080b9b845a005f50936f08be36dcdaf6c6b13f57fd"  # of the chat "a"


class Echo(LanguageModel):
    """Repeats what it is told, scores by length, notes its requests in `asked`, and dies at the word "die"."""

    def __init__(self, name="re", facts=None):
        self.name, self.asked = name, []
        self.facts = facts or Facts(scores_texts=True, scores_words=True)

    def answer(self, requests):
        asked, answers = [], []
        for request in requests:
            text = request.chat.messages[-1]["content"]
            if "die" in (text, *getattr(request, "texts", ())):
                raise KeyboardInterrupt
            if isinstance(request, Write):
                asked.append(text)
                answers.append(Reply(f"{self.name}: {text}", 3, 2, text != "cut"))
            else:
                asked.append((text, *request.texts))
                answers.append([Score(-float(len(text)), 2) for text in request.texts])
        self.asked.append(asked)
        return answers


class Fixed(LanguageModel):
    """Gives the answers it was made with."""

    def __init__(self, *answers, usage=None):
        self.answers, self.facts = answers, Facts(usage=usage)

    def answer(self, requests):
        time.sleep(0.01)
        if not self.answers:
            raise RuntimeError("gone")
        return list(self.answers)


def test_calls_tokens_hits_cuts_and_refusals_are_summed_by_role():
    replies = [
        Reply("a", 10, 3),
        Reply("b", 0, 4, ended=False),
        Reply("c", 10, 9, cached=True),
        Reply("", ended=False, refused=True),
    ]
    usage, chats = Usage(), [Chat.of("x")] * 4
    model = metered(Fixed(*replies), usage)
    assert model.complete(chats, Sampling(), "value") == replies
    model.complete(chats, Sampling(), "value")
    model.complete(chats, Sampling(), "policy")
    policy, value = usage.rows()
    assert value.pop("seconds") >= 0.02
    counts = {"calls": 8, "prompt_tokens": 20, "tokens": 14, "cache_hits": 2, "cut": 2, "refused": 2}
    assert value == {"role": "value", **counts, "paid": 0, "retries": 0, "estimated": 0, "unanswered": 0}
    assert (policy["role"], policy["calls"]) == ("policy", 4)


def test_a_score_is_a_call_that_reads_its_tokens_and_once_its_prompt():
    usage = Usage()
    rows = [[Score(-1.0, 2, prompt_tokens=10), Score(-1.0, 1)], [Score(-1.0, 3, prompt_tokens=10)]]
    assert metered(Fixed(*rows), usage).score([Chat.of("x"), Chat.of("y")], [["ab", "c"], ["def"]], "policy") == rows
    (row,) = usage.rows()
    assert (row["calls"], row["prompt_tokens"], row["tokens"]) == (3, 26, 0)


def test_a_call_that_raises_still_costs_its_seconds():
    usage = Usage()
    with pytest.raises(RuntimeError, match="gone"):
        metered(Fixed(), usage).complete([Chat.of("x")], Sampling(), "value")
    (row,) = usage.rows()
    assert row["calls"] == 0 and row["seconds"] >= 0.01


@pytest.mark.parametrize("wrapped", [lambda model: model, first_process_asks], ids=["as it is", "of several processes"])
def test_tokens_that_a_model_counts_itself_are_not_counted_twice(wrapped):
    ledger, other = Usage(), Usage()
    model = wrapped(Fixed(Reply("a", 100, 7), usage=ledger))
    for usage in (ledger, other):
        metered(model, usage).complete([Chat.of("x")], Sampling(), "value")
    counts = [(row["prompt_tokens"], row["tokens"], row["calls"]) for row in ledger.rows() + other.rows()]
    assert counts == [(0, 0, 1), (100, 7, 1)]


def test_requests_go_where_their_role_says_and_answers_keep_their_order():
    main, policy, usage = Echo("main"), Echo("policy", Facts(room=7)), Usage()
    model = metered(by_role(main, {"policy": policy}), usage)
    chats = [Chat.of(text) for text in "abc"]
    requests = [Write(chats[0], GREEDY, "policy"), ScoreTexts(chats[1], ("x", "yy"), "critic")]
    requests += [Write(chats[2], GREEDY, "value"), Write(chats[1], GREEDY, "policy")]
    answers = model.answer(requests)
    assert [answers[i].text for i in (0, 2, 3)] == ["policy: a", "main: c", "policy: b"]
    assert [score.log_prob for score in answers[1]] == [-1.0, -2.0]
    assert policy.asked == [["a", "b"]] and main.asked == [[("b", "x", "yy"), "c"]]
    assert {row["role"]: row["calls"] for row in usage.rows()} == {"critic": 2, "policy": 2, "value": 1}
    assert not model.can_score and not model.can_judge and model.facts.room == 0  # the main model's room


def test_facts_pass_through_wrappers(tmp_path):
    facts = Facts(False, True, tokenizer="t", room=9, address="http://a", local="weights")
    model = first_process_asks(metered(cached(Echo(facts=facts), DiskCache(tmp_path)), Usage()))
    assert model.facts == facts and model.can_judge and not model.can_score
    assert at_full_length(model, scores=True).can_score
    other = model.rewrap(lambda echo: Echo(echo.name * 2))
    assert other.complete([Chat.of("a")], GREEDY, "r")[0].text == "rere: a" and other.can_score


def test_answers_reach_other_processes_as_they_are(monkeypatch):
    monkeypatch.setattr(multihost, "from_first", lambda make: json.loads(json.dumps(make())))
    reply = Reply("a", 1, 2, log_probs=(-0.5, -1.0))
    model = first_process_asks(Fixed(reply, [Score(-1.0, 2, bounded=True)]))
    requests = [Write(Chat.of("x"), GREEDY, "r"), ScoreTexts(Chat.of("x"), ("y",), "r")]
    assert model.answer(requests) == [reply, [Score(-1.0, 2, bounded=True)]]


def test_a_class_with_complete_and_score_is_a_model_and_one_without_is_refused():
    class Old:
        can_score = True

        def complete(self, chats, sampling, role, seed=0, stop=()):
            return [Reply(f"{role} {seed} {len(chats)} {list(stop)}") for _ in chats]

        def score(self, chats, continuations, role):
            return [[Score(-1.0, len(row)) for _ in row] for row in continuations]

    model = metered(Old(), Usage())
    texts = [reply.text for reply in model.complete([Chat.of("x")] * 2, GREEDY, "r", 3, ["\n"])]
    assert texts == [r"r 3 2 ['\n']"] * 2 and as_model(Old()).can_judge
    assert model.score([Chat.of("x")], [["a", "b"]], "r") == [[Score(-1.0, 2)] * 2]
    with pytest.raises(TypeError, match=r"int is no language model: .* define answer\(self, requests\)"):
        metered(3, Usage())


def test_every_chat_is_requested_once_and_a_kill_loses_one_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(wrappers, "CACHED_AT_ONCE", 2)
    model = Echo()
    chats = [Chat.of(text) for text in ("a", "cut", "a", "b", "die", "c")]
    with pytest.raises(KeyboardInterrupt):
        cached(model, DiskCache(tmp_path)).complete(chats, GREEDY, "role")
    assert model.asked == [["a", "cut"]]
    ask = cached(model, DiskCache(tmp_path))
    replies = ask.complete(chats[:4], GREEDY, "role")
    assert model.asked == [["a", "cut"], ["b"]]
    assert [reply.text for reply in replies] == ["re: a", "re: cut", "re: a", "re: b"]
    assert [reply.ended for reply in replies] == [True, False, True, True]
    assert [(reply.cached, reply.tokens) for reply in replies] == [(True, 0)] * 3 + [(False, 2)]
    ask.complete(chats[:1], Sampling(9, 0.0), "role")
    ask.complete([Chat.of("a", "system")], GREEDY, "role")
    assert len(model.asked) == 4  # something else was asked
    with pytest.raises(ValueError, match="only replies at temperature 0"):
        ask.complete(chats[:1], Sampling(8, 0.5), "role")
    mixed = [ScoreTexts(chats[0], ("x", "yy"), "role"), Write(chats[3], GREEDY, "role")]
    scores, reply = ask.answer(mixed)  # scores are computed anew
    assert scores == [Score(-1.0, 2), Score(-2.0, 2)] and reply.cached and model.asked[4] == [("a", "x", "yy")]


def test_stop_strings_are_part_of_the_key_and_old_entries_stay_valid(tmp_path):
    model = Echo()
    ask = cached(model, DiskCache(tmp_path))
    ask.complete([Chat.of("a")], GREEDY, "role")
    # Written before there were stop strings.
    assert (pathlib.Path(tmp_path) / KEY[:2] / f"{KEY}.json").exists()
    for stop in (("\n",), ("\n",), ("\n", "."), ()):
        ask.complete([Chat.of("a")], GREEDY, "role", stop=stop)
    assert len(model.asked) == 3


def counting(scripts):
    return at_full_length(ScriptedModel(scripts))


@pytest.mark.parametrize(
    "text, read, value",
    [
        ('{"thought": "O, or X?", "best_move": 5}', lambda text: read_move(text, "45"), ("5", "")),
        ('{"thought": "even", "final_evaluation": -0.4}', read_value, -0.4),
        ("*Suggested Moves*: a2a3\n*Advantage*: <white>", read_advantage, "white"),
        ('{"thoughts": "", "action": "move up"}', MazeRoles(mazes.maze("medium")).read_action, (0, "")),
        ("prose", len, CHARACTERS * 64),
    ],
)
def test_padded_replies_are_read(text, read, value):
    usage, chat = Usage(), Chat.of("x" * 40, "y" * 40)
    (reply,) = metered(counting({"role": lambda *_: text}), usage).complete([chat], Sampling(64), "role")
    assert read(reply.text) == value and len(reply.text) == CHARACTERS * 64
    assert "".join(reply.text.split()) == "".join(text.split())
    (row,) = usage.rows()
    assert (row["calls"], row["prompt_tokens"], row["tokens"]) == (1, 80 // CHARACTERS, 64)


def test_an_evaluation_that_a_reader_writes_anew_keeps_its_length():
    text = '{"thoughts": "far away", "final_evaluation": "poor, about 9 steps to go."}'
    (reply,) = counting({"value": lambda *_: text}).complete([Chat.of("")], Sampling(128), "value")
    evaluation, problem = MazeRoles(mazes.maze("medium")).read_evaluation(reply.text)
    assert not problem and len(evaluation) == CHARACTERS * 128
