"""What a dry run counts, and the largest setting within a budget that it proposes."""

import pytest

from nlrl_jax.run.dry_run import CallPlan
from nlrl_jax.types import Chat, Sampling


def asked(model, role, calls, tokens=100, characters=1200):
    """Prompts of 300 tokens each."""
    model.complete([Chat.of("x" * characters)] * calls, Sampling(tokens), role)


def test_a_small_run_is_multiplied_role_by_role():
    plan = CallPlan({"judge": lambda context, rng: "yes", "sum": lambda context, rng: "it is"}, can_score=True)
    own, large = plan.model(10, "{} (own)", is_paid=False), plan.model(2, once={"sum": 3})
    asked(own, "judge", 4)
    asked(large, "judge", 5)
    asked(large, "sum", 1)
    large.score([Chat.of("x" * 400)], [["yes", "no"]], "score")
    asked(plan.model(1), "judge", 1)  # further calls of a role add up
    assert plan.rows() == {
        "judge (own)": {"calls": 40, "prompt_tokens": 12_000, "tokens": 4000},
        "judge": {"calls": 11, "prompt_tokens": 3300, "tokens": 1100},
        "sum": {"calls": 3, "prompt_tokens": 900, "tokens": 300},
        "score": {"calls": 4, "prompt_tokens": 404, "tokens": 0},
    }
    assert plan.paid() == (1200, 3300 + 1100 + 404)
    lines = plan.table().splitlines()
    assert lines[1].split() == ["judge", "(own)", "40", "12,000", "4,000"] and len(lines) == 6
    assert lines[-1].startswith("0.0 million tokens at most")


@pytest.mark.parametrize(
    "budget, fixed, says",
    [
        (0, 0, ""),
        (1000, 0, "--tasks 20 (2,000 tokens at most) is too much; the largest below it is --tasks 9 (900 "),
        (1001, 0, "the largest below it is --tasks 10 (1,000 tokens at most)"),
        (1000, 350, "the largest below it is --tasks 6 (950 tokens at most)"),
        (5000, 0, "--tasks 20 (2,000 tokens at most) is within it; the largest below it is --tasks 49"),
        (100, 0, "--token_budget 100: too little even for --tasks 1 (100 tokens at most)"),
        (100, 200, "too little even for --tasks 1 (300 tokens at most)"),
    ],
)
def test_the_largest_setting_below_a_budget(budget, fixed, says):
    plan = CallPlan(dict.fromkeys(("each", "once"), lambda context, rng: ""))
    model = plan.model(20, once={"once": 1})
    asked(model, "each", 1, tokens=60, characters=160)
    if fixed:
        asked(model, "once", 1, tokens=fixed, characters=0)
    table = plan.table(budget, "tasks", 20)
    assert says in table and ("--token_budget" in table) == bool(budget)
    assert "--token_budget" not in CallPlan({}).table(budget, "tasks", 20)
