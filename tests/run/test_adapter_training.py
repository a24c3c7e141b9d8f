"""Batches of a few examples over many steps."""

from collections import Counter

from nlrl_jax.algorithms.sft_examples import Example
from nlrl_jax.run import adapter_training


def test_a_pass_has_every_example_once_and_rows_few_lengths():
    examples = [Example([n] * n, 1) for n in range(2, 202, 10)]
    batch = adapter_training.batches(examples, 2, seed=0)
    made = [batch(step) for step in range(20)]
    firsts = [[int(row[0]) for one in part for row in one.tokens] for part in (made[:10], made[10:])]
    assert all(Counter(part) == Counter(n for n in range(2, 202, 10)) for part in firsts)
    assert firsts[0] != firsts[1]
    longer_ones = [32, 32, 64, 96, 96, 128, 160, 160, 192, 192]  # of neighbours by length, as multiples of 32
    for part in (made[:10], made[10:]):
        assert sorted(one.tokens.shape[1] for one in part) == longer_ones
        assert [one.tokens.shape[1] for one in part] != longer_ones
    uneven = adapter_training.batches(examples[:5], 2, seed=0)  # the third batch is of two passes
    firsts = [int(n) for step in range(5) for n in uneven(step).tokens[:, 0]]
    assert sorted(firsts[:5]) == sorted(firsts[5:]) == [2, 12, 22, 32, 42]
    assert (
        adapter_training.batches(examples, 2, seed=0)(13).tokens == made[13].tokens
    ).all()  # a resumed run goes on alike
    assert adapter_training.batches(examples[:1], 3, seed=0)(0).tokens[:, 0].tolist() == [2, 2, 2]
