"""The ledger of language models by role."""

import pytest

from nlrl_jax.backends.usage import BudgetExceeded, Usage


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
