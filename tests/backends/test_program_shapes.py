"""Programs are larger than needed only as long as that is cheaper than another one; groups are cut where that helps."""

import numpy as np
import pytest

from nlrl_jax.backends import program_shapes, token_tree
from nlrl_jax.backends.program_shapes import COMPILING, MORE, STEPS, Shapes
from nlrl_jax.lm.config import ModelConfig

CONFIG = ModelConfig(512, 128, 384, 4, 4, 4, 32, 640)
SMALL, LARGE = (64, 1, 64, 64, 64, 64, 1), (128, 1, 64, 128, 128, 256, 1)


@pytest.fixture
def tight(monkeypatch):
    """New programs are no larger than needed."""
    monkeypatch.setattr(program_shapes, "MORE", 0.0)


def test_a_larger_program_is_used_until_it_has_wasted_a_compilation(tight):
    known = Shapes(CONFIG)
    assert known.choose("reply", [LARGE]) == (0, LARGE)
    extra = (known.cost("reply", LARGE) - known.cost("reply", SMALL)) * STEPS["reply"]
    chosen = [known.choose("reply", [SMALL])[1] for _ in range(int(COMPILING / extra) + 2)]
    assert chosen.count(LARGE) == int(COMPILING / extra) > 1 and chosen[-1] == SMALL
    assert known.choose("read", [SMALL])[1] == SMALL  # another program


def test_of_alternatives_the_one_that_is_compiled_or_else_the_cheapest(tight):
    known = Shapes(CONFIG)
    assert known.choose("read", [LARGE, SMALL]) == (1, SMALL)
    other = (64, 32, 64, 2, 64, 64, 1)
    assert known.choose("read", [other, SMALL]) == (1, SMALL)


def test_a_new_program_does_an_older_ones_work_where_that_costs_little(tight, monkeypatch):
    wide, long = (64, 1, 64, 64, 64, 64, 1), (64, 1, 128, 64, 56, 64, 1)
    known = Shapes(CONFIG)
    known.choose("reply", [wide])
    assert known.choose("reply", [long])[1] == tuple(map(max, wide, long))
    monkeypatch.setattr(program_shapes, "FACTOR", 1.0)
    strict = Shapes(CONFIG)
    strict.choose("reply", [wide])
    assert strict.choose("reply", [long])[1] == long


def test_a_new_program_has_room_where_that_costs_next_to_nothing():
    known = Shapes(CONFIG)
    which, shape = known.choose("read", [SMALL])
    assert which == 0 and shape != SMALL and all(have >= want for have, want in zip(shape, SMALL))
    assert known.cost("read", shape) <= known.cost("read", SMALL) + MORE * COMPILING
    larger = (SMALL[0], *(min(2 * want, have) for have, want in zip(shape[1:], SMALL[1:])))
    assert known.choose("read", [larger])[1] == shape  # a text that grows meets no other program


def test_a_large_model_pads_little_and_a_small_one_to_few_numbers():
    numbers = (4, 13, 20, 33)
    large = Shapes(ModelConfig(512, 896, 4864, 24, 14, 2, 64, 640))
    assert [Shapes(CONFIG).queries("reply", n) for n in numbers] == [4, 16, 32, 64]
    assert [large.queries("reply", n) for n in numbers] == [4, 16, 20, 36]
    assert [large.queries("read", n) for n in (31, 305)] == [32, 320]
    assert [large.keys(n) for n in (1, 65, 192, 193, 257, 600)] == [64, 128, 192, 256, 384, 768]
    assert Shapes(CONFIG).keys(257) == 320


def test_compiling_a_large_model_takes_longer():
    large = Shapes(ModelConfig(512, 896, 4864, 24, 14, 2, 64, 640))
    assert Shapes(CONFIG).compiling["read"] == COMPILING
    assert COMPILING < large.compiling["read"] < large.compiling["reply"]


def test_a_large_group_takes_several_rows():
    """Each query finds its own place, and in it the keys of its path."""
    level = token_tree.Level([np.array([5, 6, 7]), np.array([9])], np.array([0, 1, -1]), np.array([2, 2, 2]))
    path, sees = np.array([0, 0, 1, 0, 2, -1, 0, 0]), np.array([5, 3, 3, 4, 4, 0, 2, 5])
    counts = level.counts(path)
    assert counts.tolist() == [5, 1]
    rows = token_tree.rows_of(counts, 2)
    assert rows.tolist() == [3, 1]
    slots = token_tree.table(level, rows, 6, 4)
    who, visible, place = token_tree.members(level, path, sees, 6, 2)
    assert place.tolist()[4:6] == [-1, -1] and len({p for p in place.tolist() if p >= 0}) == 6
    for query, (own, seen) in enumerate(zip(path, sees)):
        if place[query] >= 0:
            row, column = divmod(int(place[query]), 2)
            assert who[row, column] == query
            part = level.parts[own]
            assert visible[row, column] == min(max(seen - 2, 0), len(part))
            assert slots[row, : len(part)].tolist() == part.tolist()
