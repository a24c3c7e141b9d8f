"""Which rows a session holds, and which slots they share."""

import numpy as np
import pytest

from nlrl_jax.backends import session as sessions
from nlrl_jax.backends.session import Session, common_length
from nlrl_jax.lm.config import ModelConfig

CONFIG = ModelConfig(512, 16, 24, 2, 4, 2, 8, 640)  # 256 bytes a token


def session(tokens):
    return Session(CONFIG, tokens * 256 / 1e6)


def add(rows, text):
    return rows.add(text, rows.find(text))


@pytest.mark.parametrize(
    "one, other, length",
    [
        ((), (), 0),
        ((), (1,), 0),
        ((2,), (1,), 0),
        ((1, 2), (1, 2), 2),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3, 4), (1, 2, 5, 4), 2),
    ],
)
def test_what_texts_begin_with(one, other, length):
    assert common_length(one, other) == common_length(other, one) == length


def test_the_longest_beginning_is_found_among_many_texts():
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist()) for _ in range(200)]
    rows = session(2000)
    rows.tick()
    for text in texts[:100]:
        add(rows, text)
    for text in texts[100:]:
        assert len(rows.find(text)) == max(common_length(text, other) for other in texts[:100])


def test_rows_share_the_slots_of_their_beginnings():
    rows = session(20)
    rows.tick()
    first, other = add(rows, (1, 2, 3, 4)), add(rows, (1, 2, 5))
    assert rows.num_tokens == 5 and first[:2].tolist() == other[:2].tolist() and not set(first[2:]) & set(other[2:])
    longer = add(rows, (1, 2, 3, 4, 6))
    assert rows.num_tokens == 6 and longer[:4].tolist() == first.tolist()
    assert add(rows, (1, 2, 3, 4, 6)).tolist() == longer.tolist() and rows.num_tokens == 6


def test_the_oldest_rows_make_room_and_those_of_this_tick_stay():
    rows = session(10)
    for text in ((1, 2, 3, 4), (5, 6, 7, 8)):
        rows.tick()
        add(rows, text)
    for _ in range(2):
        rows.tick()
    assert len(rows.find((1, 2, 3, 4))) == 4  # used: the other one is the oldest
    rows.tick()
    add(rows, (9,) * 5)
    assert len(rows.find((5, 6, 7, 8))) == 0 and len(rows.find((1, 2, 3, 4))) == 4 and rows.num_tokens == 9
    assert add(rows, (7,) * 6) is None  # the row of this tick leaves less
    assert len(rows.find((9,) * 5)) == 5


def test_a_row_that_makes_room_leaves_what_the_new_one_shares_with_it():
    rows = session(6)
    rows.tick()
    slots = add(rows, (1, 2, 3, 4, 5, 6))
    rows.tick()
    assert add(rows, (1, 2, 7, 8))[:2].tolist() == slots[:2].tolist() and rows.num_tokens == 4


def test_rows_that_no_call_uses_are_dropped():
    weights = object()
    rows = session(100)
    rows.begin_call(weights)
    add(rows, (1, 2, 3))
    for _ in range(sessions.CALLS + 1):
        assert len(rows.find((4, 5))) == 0
        rows.begin_call(weights)
    assert len(rows.find((1, 2, 3))) == 0
    rows.begin_call(weights)
    add(rows, (1, 2, 3))
    rows.begin_call(object())
    assert rows.num_tokens == 0


@pytest.mark.parametrize("megabytes", [0, -1, float("nan")])
def test_a_session_without_memory_is_refused(megabytes):
    with pytest.raises(ValueError, match="above 0"):
        Session(CONFIG, megabytes)
