"""What servers say when a prompt or a reply is too long for them."""

import pathlib
import re

import pytest

from nlrl_jax.backends import context_limits

BODY = {"max_tokens": 5000}
ROWS = pathlib.Path(__file__).with_name("context_limits.txt").read_text().splitlines()[1:]
REPLY = [
    "max_tokens must be at most 4096",
    "Input validation error: `max_new_tokens` must be <= 4096. Given: 5000",
    "max_tokens is too large: 5000. This model supports at most 4096 completion tokens, whereas you provided 5000.",
    "max_tokens: 5000 > 4096, which is the maximum allowed number of output tokens for the model",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
    "`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than "
    "the context_window",
]
# About something else.
OTHERS = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "max_tokens too small",
    "temperature must be at most 2",
    "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 500 instead.",
    "Field 'n': Value must be between 1 <= value <= 4, but got 5",
    "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9001",
    "request_too_large: Request exceeds the maximum allowed number of bytes",
    "Only no echo is supported",
    "System role not supported",
    "stop: list should have at most 4 items",
    "the prompt was flagged",
    '{"message": "The request took too long to process"}',
    "list of stop strings too long",
    "",
]


@pytest.mark.parametrize("row", ROWS)
def test_a_context_that_is_too_short_is_named_with_both_numbers(row):
    _, limit, needed, error = row.split(" | ", 3)
    advice = context_limits.advice(error, BODY)
    assert "--context_tokens" in advice
    assert {int(number) for number in re.findall(r"\b\d+\b", advice)} == {5000, int(limit), int(needed)} - {0}


@pytest.mark.parametrize("error", REPLY)
def test_a_limit_of_the_reply_alone_is_no_matter_of_the_context(error):
    advice = context_limits.advice(error, BODY)
    assert "more than 4096 tokens in one reply" in advice and "--context_tokens" not in advice


@pytest.mark.parametrize("error", OTHERS)
def test_other_refusals_are_not_about_lengths(error):
    assert context_limits.advice(error, BODY) == ""
