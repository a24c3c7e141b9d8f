"""Accounts of language models by role."""

import dataclasses
import time

import pytest

from nlrl_jax.backends.budget import Account
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import Metered, Usage
from nlrl_jax.types import Chat, Reply, Sampling, Score


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Gives the replies it was made with."""

    replies: tuple[Reply, ...] = ()
    can_score: bool = True

    def complete(self, chats, sampling, role, seed=0):
        time.sleep(0.01)
        if not self.replies:
            raise RuntimeError("gone")
        return list(self.replies)

    def score(self, chats, continuations, role):
        return [[Score(-1.0, len(text)) for text in row] for row in continuations]


def test_calls_tokens_hits_and_cuts_are_summed_by_role():
    replies = (Reply("a", 10, 3), Reply("b", 0, 4, ended=False), Reply("c", 10, 9, cached=True))
    usage = Usage()
    model = Metered(Fixed(replies), usage)
    chats = [Chat.of("x")] * 3
    assert model.complete(chats, Sampling(), "value") == list(replies)
    model.complete(chats, Sampling(), "value")
    model.complete(chats, Sampling(), "policy")
    policy, value = usage.rows()
    assert value.pop("seconds") >= 0.02
    assert value == {"role": "value", "calls": 6, "prompt_tokens": 20, "tokens": 14, "cache_hits": 2, "cut": 2}
    assert (policy["role"], policy["calls"]) == ("policy", 3)
    metrics = usage.metrics()
    assert metrics["value/tokens"] == 14.0 and metrics["policy/cut"] == 1.0 and len(metrics) == 12
    assert all(type(number) is float for number in metrics.values())


def test_a_score_is_a_call_that_reads_its_tokens():
    usage = Usage()
    model = Metered(Fixed(), usage)
    assert model.can_score
    scores = model.score([Chat.of("x"), Chat.of("y")], [["ab", "c"], ["def"]], "policy")
    assert [[score.tokens for score in row] for row in scores] == [[2, 1], [3]]
    (row,) = usage.rows()
    assert (row["calls"], row["prompt_tokens"], row["tokens"]) == (3, 6, 0)


def test_a_call_that_raises_still_costs_its_seconds():
    usage = Usage()
    with pytest.raises(RuntimeError, match="gone"):
        Metered(Fixed(), usage).complete([Chat.of("x")], Sampling(), "value")
    (row,) = usage.rows()
    assert row["calls"] == 0 and row["seconds"] >= 0.01


def test_a_call_that_raises_costs_what_the_account_says():
    @dataclasses.dataclass(frozen=True)
    class Paid(Fixed):
        account: Account = dataclasses.field(default_factory=lambda: Account(prompt_tokens=5))

        def complete(self, chats, sampling, role, seed=0):
            self.account.add(prompt_tokens=100, tokens=7)
            return super().complete(chats, sampling, role, seed)

    usage = Usage()
    with pytest.raises(RuntimeError, match="gone"):
        Metered(Paid(), usage).complete([Chat.of("x")], Sampling(), "value")
    (row,) = usage.rows()
    assert (row["prompt_tokens"], row["tokens"], row["calls"]) == (100, 7, 0)


def test_a_scripted_model_is_metered_and_stays_what_it_is():
    scripted = ScriptedModel({"policy": lambda context, random: f"{context['n']} {random.random()}"})
    metered = Metered(scripted, Usage())
    chats = [Chat.of("x", n=1), Chat.of("x", n=2)]
    assert metered.complete(chats, Sampling(), "policy", 7) == scripted.complete(chats, Sampling(), "policy", 7)
    assert not metered.can_score
    with pytest.raises(NotImplementedError):
        metered.score(chats, [["a"], ["b"]], "policy")
