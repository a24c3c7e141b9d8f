"""The packing of rows, against its definition."""

from nlrl_jax.backends import batching


def test_buckets_are_few_and_hold_what_they_must():
    assert sorted({batching.bucket(n) for n in range(1, 1025)}) == [16, 32, 64, 128, 256, 512, 1024]
    assert [batching.bucket(n) for n in (1, 16, 17, 32, 33, 64, 65)] == [16, 16, 32, 32, 64, 64, 128]
    assert [batching.bucket(n, 4) for n in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, 16]


def test_distinct_items_keep_their_order():
    assert batching.distinct(["b", "a", "b", "c", "a"]) == (["b", "a", "c"], [0, 1, 0, 2, 1])


def test_prompts_of_a_bucket_run_together_and_small_buckets_join_the_next_longer():
    lengths = [10, 300, 20, 20, 90, 12, 310]
    assert batching.plan(lengths, [1] * 7, rows=2) == [(16, (0, 5)), (32, (2, 3)), (512, (1, 4, 6))]
    assert batching.plan(lengths, [1] * 7, rows=3) == [(32, (0, 2, 3, 5)), (512, (1, 4, 6))]
    assert batching.plan(lengths, [1] * 7, rows=64) == [(512, tuple(range(7)))]
    assert batching.plan([10, 20], [5, 1], rows=4) == [(16, (0,)), (32, (1,))]  # duplicates fill rows
