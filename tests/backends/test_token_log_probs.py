"""Tokens with their log-probabilities: numbers that are none, and letters that several tokens share."""

import pytest

from nlrl_jax.backends.token_log_probs import log_probs_of, read_log_prob, spelt, tail_length
from nlrl_jax.backends.transport import EndpointError
from nlrl_jax.types import LEAST

INF, NAN = float("inf"), float("nan")


def test_a_text_is_sought_behind_the_thoughts():
    tokens = [
        ("<think>", -1),
        (" turn", -5),
        (" left", -5),
        ("?", -1),
        ("</think>", -1),
        (" turn", -0.25),
        (" left", -2),
    ]
    assert log_probs_of(tokens, "turn left", " turn left") == log_probs_of(tokens[1:], "turn left", " turn left")
    assert log_probs_of(tokens, "turn left", " turn left") == (-0.25, -2)
    repeated = [(" up", -1), ("\n", -2), (" up", -3)]
    assert log_probs_of(repeated, "up", " up\n up") == (-1,)  # the first line of the reply
    assert log_probs_of(repeated, "up", "something else") == (-1,)


@pytest.mark.parametrize(
    "value", [None, NAN, -INF, "-inf", "-Infinity", "NaN", "n/a", -9999, -1e4, -3.4e38, 3.4e38, INF, [], {}]
)
def test_what_stands_for_no_number_is_unlikely(value):
    assert read_log_prob(value, "x") == LEAST


@pytest.mark.parametrize("value, wanted", [(-0.5, -0.5), (0, 0.0), (1e-6, 0.0), (-100, -100.0), ("-1.5", -1.5)])
def test_numbers_stay_and_rounding_above_0_is_0(value, wanted):
    assert read_log_prob(value, "x") == wanted


@pytest.mark.parametrize("value", [0.3, 1.0, 50, "0.9", True])
def test_above_0_is_refused(value):
    with pytest.raises(EndpointError, match="' x' the log-probability .*none is above 0"):
        read_log_prob(value, " x")


# "caf\u00e9 \U0001f600!", with the letters outside ASCII cut within: by bytes, escapes, or what a decoder writes.
TEXT = "caf\u00e9 \U0001f600!"
CUT = [
    [("caf", [99, 97, 102]), ("\ufffd", [0xC3]), ("\ufffd", [0xA9]), (" \ufffd", [32, 0xF0, 0x9F]),
     ("\ufffd", [0x98, 0x80]), ("!", [33])],
    [("caf", None), ("\ufffd", None), ("\ufffd", None), (" \ufffd", None), ("\ufffd", None), ("!", None)],
    [("caf", None), ("bytes:\\xc3", None), ("bytes:\\xa9", None), ("bytes: \\xf0\\x9f", None),
     ("bytes:\\x98\\x80", None), ("!", None)],
    [("caf", None), ("\\xc3", None), ("\\xa9", None), (" ", None), ("\\xf0\\x9f\\x98\\x80", None), ("!", None)],
    [("\u2581caf", None), ("<0xC3>", None), ("<0xA9>", None), ("\u2581", None), ("\U0001f600", None), ("!", None)],
    [("caf", None), ("\u00c3\u00a9", None), ("\u0120", None), ("\u00f0\u0141", None), ("\u013a\u0122", None),
     ("!", None)],
    [("caf", [99, 97, 102]), ("\u00c3\u00a9", [0xC3, 0x83, 0xC2, 0xA9]), ("\u0120", [0xC4, 0xA0]),
     ("\u00f0\u0141", [0xC3, 0xB0, 0xC5, 0x81]), ("\u013a\u0122", [0xC4, 0xBA, 0xC4, 0xA2]), ("!", [33])],
    [("caf", None), ("\ud83d", None), ("", None), (" ", []), ("\U0001f600", []), ("!", None)],
]  # fmt: skip


@pytest.mark.parametrize(
    "cut", CUT, ids=["bytes", "U+FFFD", "bytes:", "escapes", "sentencepiece", "GPT-2", "LMDeploy", "half a pair"]
)
def test_letters_over_several_tokens_are_found_by_their_bytes(cut):
    tokens = [("Action:", -7.0), *((spelt(token, listed), -1.0) for token, listed in cut), ("\nObs", -9.0)]
    assert log_probs_of(tokens, f" {TEXT}") == (-1.0,) * 6
    assert tail_length([token for token, _ in tokens[:-1]], TEXT) == (6 if cut in [*CUT[:4], CUT[-1]] else 0)


def test_a_text_that_no_tokens_spell_has_no_log_probabilities():
    assert log_probs_of([("turn", -1.0), (" left", -1.0)], "turn right") == ()
    assert log_probs_of([("x", -1.0)], " ") == () == log_probs_of([], "x")
