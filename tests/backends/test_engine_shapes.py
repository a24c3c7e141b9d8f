"""The menu of shapes: every need is met, by few shapes, and none is much larger than needed."""

import pytest

from nlrl_jax.backends import engine_shapes as shapes


@pytest.mark.parametrize(
    "exact, counts, waste", [(False, [8, 24, 64, 192], 3.0), (True, [1, 2, 4, 8, 16, 32, 64, 128, 256], 2.0)]
)
def test_rows(exact, counts, waste):
    chosen = {n: shapes.row_count(n, 1000, exact) for n in range(1, 193)}
    assert sorted(set(chosen.values())) == counts
    assert all(n <= rows < max(9, waste * n) for n, rows in chosen.items())
    assert shapes.row_count(900, 50, exact) == 50
    few = {shapes.row_count(n, 32, exact) for n in range(1, 100)}
    assert few == ({1, 2, 4, 8, 16, 32} if exact else {8, 32})  # 24 rows would save less than a program costs


@pytest.mark.parametrize("grows, widths", [(False, [64, 128, 256, 512, 1024]), (True, [256, 1024])])
def test_slots_of_a_text(grows, widths):
    chosen = {n: shapes.text_slots(n, 1000, grows) for n in range(1, 1001)}
    assert sorted(set(chosen.values())) == widths and all(n <= slots for n, slots in chosen.items())
    assert shapes.text_slots(300, 320, grows) == 512  # not more than the model's room takes


@pytest.mark.parametrize("exact, fine", [(False, False), (True, False), (True, True)])
def test_chunks_cover_what_is_new_within_the_slots(exact, fine):
    for slots in (64, 256, 512, 1024):
        for new in range(1, slots + 1):
            _, size, chunks = shapes.block(5, new, slots, 64, exact, fine)
            assert new <= size * chunks <= slots and size * chunks < new + size


def test_a_fine_menu_reads_in_few_chunks_with_little_padding():
    for new in range(16, 1025):
        rows, size, chunks = shapes.block(5, new, 1024, 8, True, True)
        assert rows == 6 and chunks == -(-new // 256) and size * chunks <= 1.5 * new


def test_one_size_of_batches_has_one_size_of_chunks():
    assert {shapes.block(n, new, 256, 32, False, one=True)[:2] for n in (1, 20, 32) for new in (1, 9, 200)} == {
        (2, 32),
        (32, 32),
    }


def test_prefixes_are_powers_of_two():
    assert [shapes.prefix_length(n, True) for n in (31, 32, 100, 300)] == [0, 32, 64, 256]
    assert [shapes.prefix_length(n, False) for n in (31, 255, 256, 1000)] == [0, 0, 256, 512]


@pytest.mark.parametrize(
    "exact, new, texts",
    [
        (False, 5, {1: 8, 24: 8, 25: 64, 400: 64}),
        (False, 50, {1: 2, 24: 2, 25: 64, 400: 64}),
        (True, 50, {1: 1, 2: 1, 3: 8, 25: 64}),
    ],
)
def test_few_texts_are_read_in_small_blocks(exact, new, texts):
    assert {n: shapes.block(n, new, 256, 1000, exact)[0] for n in texts} == texts
    assert shapes.block(max(texts), new, 256, 4, exact)[0] == 4


@pytest.mark.parametrize(
    "exact, fine, sizes", [(True, True, [64, 16, 8, 6, 4, 2, 1]), (True, False, [64, 16, 4]), (False, False, [24, 8])]
)
def test_the_last_rows_go_on_in_smaller_batches(exact, fine, sizes):
    for rows, smaller in zip(sizes, [*sizes[1:], sizes[-1]]):
        assert shapes.smaller_row_count(rows, exact, fine) == smaller


def test_a_fine_menu_wastes_a_quarter_of_eight_rows_at_most():
    chosen = {n: shapes.row_count(n, 1000, True, True) for n in range(1, 33)}
    assert sorted(set(chosen.values())) == [1, 2, 4, 6, 8, 16, 32]
    assert all(n >= 0.75 * chosen[n] for n in range(1, 9)) and shapes.row_count(5, 5, True, True) == 5


def test_all_tokens_are_stored_in_few_sizes():
    for n in (0, 1, 128, 129, 512, 513, 5000):
        size, times = shapes.stored_tokens(n, False)
        assert size in shapes.STORED and times >= 1 and size * times >= n
        assert (size, times) == (128, max(1, -(-n // 128))) or n > 512
        whole, once = shapes.stored_tokens(n, True)
        assert once == 1 and whole >= max(n, 64)
