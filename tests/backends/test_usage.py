"""The ledger of language models by role."""

import dataclasses
import time

import pytest

from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.backends.usage import BudgetExceeded, Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.types import Chat, Reply, Sampling, Score


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Gives the replies it was made with."""

    replies: tuple[Reply, ...] = ()
    can_score: bool = True

    def complete(self, chats, sampling, role, seed=0, stop=()):
        time.sleep(0.01)
        if not self.replies:
            raise RuntimeError("gone")
        return list(self.replies)

    def score(self, chats, continuations, role):
        return [
            [Score(-1.0, len(text), prompt_tokens=0 if i else 10) for i, text in enumerate(row)]
            for row in continuations
        ]


def test_calls_tokens_hits_cuts_and_refusals_are_summed_by_role():
    replies = (
        Reply("a", 10, 3),
        Reply("b", 0, 4, ended=False),
        Reply("c", 10, 9, cached=True),
        Reply("", ended=False, refused=True),
    )
    usage = Usage()
    model = metered(Fixed(replies), usage)
    chats = [Chat.of("x")] * 4
    assert model.complete(chats, Sampling(), "value") == list(replies)
    model.complete(chats, Sampling(), "value")
    model.complete(chats, Sampling(), "policy")
    policy, value = usage.rows()
    assert value.pop("seconds") >= 0.02
    counts = {"calls": 8, "prompt_tokens": 20, "tokens": 14, "cache_hits": 2, "cut": 2, "refused": 2}
    assert value == {"role": "value", **counts, "paid": 0, "retries": 0, "estimated": 0, "unanswered": 0}
    assert (policy["role"], policy["calls"]) == ("policy", 4)


def test_a_score_is_a_call_that_reads_its_tokens_and_once_its_prompt():
    usage = Usage()
    model = metered(Fixed(), usage)
    assert model.can_score
    scores = model.score([Chat.of("x"), Chat.of("y")], [["ab", "c"], ["def"]], "policy")
    assert [[score.tokens for score in row] for row in scores] == [[2, 1], [3]]
    (row,) = usage.rows()
    assert (row["calls"], row["prompt_tokens"], row["tokens"]) == (3, 26, 0)


def test_a_call_that_raises_still_costs_its_seconds():
    usage = Usage()
    with pytest.raises(RuntimeError, match="gone"):
        metered(Fixed(), usage).complete([Chat.of("x")], Sampling(), "value")
    (row,) = usage.rows()
    assert row["calls"] == 0 and row["seconds"] >= 0.01


def test_only_the_models_own_ledger_is_not_counted_twice():
    @dataclasses.dataclass(frozen=True)
    class Paid(Fixed):
        usage: Usage = dataclasses.field(default_factory=Usage)

        def complete(self, chats, sampling, role, seed=0, stop=()):
            self.usage.add(role, prompt_tokens=100, tokens=7, paid=107)
            return super().complete(chats, sampling, role, seed, stop)

    model, other = Paid((Reply("a", 100, 7),)), Usage()
    for usage in (model.usage, other):
        metered(model, usage).complete([Chat.of("x")], Sampling(), "value")
    own, others = model.usage.rows()[0], other.rows()[0]
    assert (own["prompt_tokens"], own["tokens"], own["paid"], own["calls"]) == (200, 14, 214, 1)
    assert (others["prompt_tokens"], others["tokens"], others["paid"], others["calls"]) == (100, 7, 0, 1)


def test_a_ledger_in_a_folder_is_on_disk_after_every_change_and_continues(tmp_path):
    usage = Usage(tmp_path)
    usage.add("policy", calls=3, seconds=0.5, paid=6)
    assert Usage(tmp_path).rows() == usage.rows()
    again = Usage(tmp_path)
    again.add("policy", calls=1, paid=1)
    again.add("value", calls=1, paid=2)
    assert [row["calls"] for row in Usage(tmp_path).rows()] == [4, 1]
    Usage(tmp_path).check_budget(0)
    Usage(tmp_path).check_budget(10)
    with pytest.raises(BudgetExceeded, match="9 tokens are spent and the limit is 9; raise --token_budget"):
        Usage(tmp_path).check_budget(9)


def test_a_request_under_way_is_on_disk_as_paid_without_an_answer(tmp_path, caplog):
    usage, row = Usage(tmp_path), lambda: Usage(tmp_path).rows()[0]
    usage.section = "lac/"
    usage.sent("policy", 50)
    usage.sent("policy", 70)
    assert usage.rows() == [] and usage.check_budget(1) is None  # what is under way stops nothing
    killed = row()
    assert (killed["role"], killed["paid"], killed["unanswered"], killed["estimated"]) == ("lac/policy", 120, 2, 2)
    usage.arrived("policy", 70, tokens=5, paid=15)
    usage.arrived("policy", 50, lost=True)
    assert (row()["paid"], row()["unanswered"], row()["tokens"]) == (65, 1, 5) and row() == usage.rows()[0]
    again = Usage(tmp_path)
    for _ in range(2):
        again.sent("policy", 1)
    assert caplog.text.count("requests that were sent and have no answer: 1 ") == 1


def test_a_request_that_was_refused_leaves_no_ledger(tmp_path):
    usage = Usage(tmp_path)
    usage.sent("policy", 50)
    usage.arrived("policy", 50)
    assert not (tmp_path / "usage.json").exists()


def test_sections_are_rows_of_their_own():
    usage = Usage()
    for usage.section in ("a/", "b/"):
        usage.add("value", calls=2, tokens=5, refused=1)
    assert [row["role"] for row in usage.rows()] == ["a/value", "b/value"]


def test_a_scripted_model_is_metered_and_stays_what_it_is():
    scripted = ScriptedModel({"policy": lambda context, random: f"{context['n']} {random.random()}"})
    model = metered(scripted, Usage())
    chats = [Chat.of("x", n=1), Chat.of("x", n=2)]
    assert model.complete(chats, Sampling(), "policy", 7) == scripted.complete(chats, Sampling(), "policy", 7)
    assert not model.can_score
    with pytest.raises(NotImplementedError):
        model.score(chats, [["a"], ["b"]], "policy")
