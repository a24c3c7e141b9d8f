"""What a dry run proposes."""

import pytest

from nlrl_jax.run.dry_run import calls_table, tokens_of, within_budget

ROWS = [
    {"role": "a", "calls": 2, "prompt_tokens": 900_000, "tokens": 100_000},
    {"role": "b", "calls": 1, "prompt_tokens": 500_000, "tokens": 0},
]


def test_a_table_adds_up():
    assert tokens_of(ROWS) == 1_500_000
    table = calls_table(ROWS, 2)
    assert [line.split() for line in table.splitlines()[1:3]] == [
        ["a", "4", "1,800,000", "200,000"],
        ["b", "2", "1,000,000", "0"],
    ]
    assert table.splitlines()[3].startswith("3.0 million tokens at most")


@pytest.mark.parametrize(
    "budget, value, fixed, each, says",
    [
        (0, 20, 0, 100, ""),
        (1000, 20, 0, 100, "--tasks 20 (2,000 tokens at most) is too much; the largest below it is --tasks 9 (900 "),
        (1001, 20, 0, 100, "the largest below it is --tasks 10 (1,000 tokens at most)"),
        (1000, 20, 350, 100, "the largest below it is --tasks 6 (950 tokens at most)"),
        (5000, 20, 0, 100, "--tasks 20 (2,000 tokens at most) is within it; the largest below it is --tasks 49"),
        (100, 20, 0, 100, "--token_budget 100: too little even for --tasks 1 (100 tokens at most)"),
        (100, 20, 200, 100, "too little even for --tasks 1 (300 tokens at most)"),
    ],
)
def test_the_largest_setting_below_a_budget(budget, value, fixed, each, says):
    assert says in within_budget(budget, "tasks", value, fixed, each)
