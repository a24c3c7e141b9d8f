"""The number that a person reads in a value."""

import time

import pytest

from nlrl_jax.roles.written_numbers import read_field, read_number, read_share

VALUES = [
    ("The value is 1/2.", 0.5),
    ("1", 1),
    ("0", 0),
    (" 0.7", 0.7),
    ("8/10", 0.8),
    ("85%", 0.85),
    (".5", 0.5),
    ("1e-3", 0.001),
    ("0,85", 0.85),
    ("3 out of 5", 0.6),
    ("-0.2", -0.2),
    ("**0.7**", 0.7),
    ("Score: 0.7 (out of 1)", 0.7),
    ("7 (out of 10)", 0.7),
    ("Score: 8/10", 0.8),
    ("0.6-0.8", None),
    ("0.6 to 0.8", None),
    ("between 0.6 and 0.8", None),
    ("30%-50%", None),
    ("$12", None),
    ("\\boxed{0.5}", 0.5),
    ("$\\frac{1}{2}$", 0.5),
    ("½", 0.5),
    ("¾ of it", 0.75),
    ("85 percent", 0.85),
    ("85 %", 0.85),
    ("about 70%.", 0.7),
    ("~0.7", 0.7),
    ("\u2248 0.7", 0.7),
    ("Probability: **85%**", 0.85),
    ("0.85 (85%)", 0.85),
    ("The probability is 0.85, since 2 doors are open.", 0.85),
    ("0.7 because 2 of 3 keys were found", 0.7),
    ("I see 2 apples and 3 boxes.", None),
    ("2 steps left", None),
    ("1 step left to the goal", None),
    ("The value is 0.5 because 1 of 2 sub-goals is done.", 0.5),
    ("1 of 2 sub-goals have been achieved. The value is 1/2.", 0.5),
    ("1/0", None),
    ("1/2/3", None),
    ("0.7.1", None),
    ("1e999", None),
    ("nan", None),
    ("The value is unknown.", None),
    ("\u22120.2", -0.2),
    ("< 0.1", None),
    ("at least 0.7", None),
    ("0.7 ± 0.1", 0.7),
    ("0.7 or 0.8", None),
    ("100%", 1),
    ("110%", 1.1),
    ("85", 85),
    ("On a scale of 0 to 10: 7", 0.7),
    ("Score (0-10): 7", 0.7),
    ("7/10.", 0.7),
    ("7 / 10", 0.7),
    ("Rating: 4 out of 5 stars", 0.8),
    ("4 stars out of 5", 0.8),
    ("The value is zero.", 0),
    ("The value is one half.", 0.5),
    ("two thirds", 2 / 3),
    ("The value is 0.2. No, the value is 0.9.", 0.9),
    ("I'd say 0.7", 0.7),
    ("So the answer is 0.25", 0.25),
    ("<value>0.7</value>", 0.7),
    ("`0.7`", 0.7),
    ('"0.7"', 0.7),
    ("(0.7)", 0.7),
    ("[0.7]", 0.7),
    ("Value = .75", 0.75),
    ("P(goal) = 0.3", 0.3),
    ("<think>0.9</think>0.4", 0.4),
    ("10^-3", None),
    ("5 x 10^-1", 0.5),
    ("1,000", 1000),
    ("0.70000", 0.7),
    ("The score is 0.7/1.0", 0.7),
    ("Reward: 1", 1),
    ("the 2nd room", None),
    ("key1", None),
    ("At step 3 I opened it. The value is 2/4.", 0.5),
    ("0.8: nearly done", 0.8),
    ("Sub-goals: 1 of 2. Remaining: 1. The value is 1/2.", 0.5),
    ("12:30", None),
    ("I would give it 0.35.", 0.35),
    ("0.35 out of 1.0", 0.35),
    ("+0.5", 0.5),
    ("0.5.", 0.5),
    ("50/100", 0.5),
    ("1 / 2", 0.5),
    ("3 of 5", 0.6),
    ("1 1/2", 1.5),
    ("There is a 70% chance that the goal is reached.", 0.7),
    ("a 1 in 4 chance", None),
    ("The value is 3/4 now", 0.75),
    ("high", None),
    ("", None),
    ("The probability that the goal is reached is 0.9.", 0.9),
    ("It went from 0.2 to 0.7", None),
    ("The value is now 3/22.", 3 / 22),
    ("I found a key. 1/2", 0.5),
    ("- 0.7", 0.7),
    ("0.7\n", 0.7),
    ("Value: 0.7\nReason: 2 doors", 0.7),
    ("The value is 5.", 5),
    ("No progress: 0", 0),
    ("8", 8),
    ("value: ½", 0.5),
    ("50 : 50", None),
    ("100 percent", 1),
    ("0%", 0),
    ("Completed 3/4 subgoals (75%).", 0.75),
    ("0.9 (very likely)", 0.9),
    ("Confidence level 0.8", 0.8),
    ("2/3 of the sub-goals", 2 / 3),
    ("a value of 0.4", 0.4),
    ("The value is not 1.", None),
    ("The value is 1/2, not 1.", 0.5),
]
FIELDS = [
    ("7", 7),
    ("move 7.", 7),
    ("7 (center)", 7),
    ("7 or 3", None),
    ("-0.9", -0.9),
    ("\u22120.5", -0.5),
    ("8/10", 0.8),
    ("1e999", None),
    ("O is winning: 1", 1),
    ("0,85", 0.85),
    ("position 7", 7),
    ("between 0 and 1", None),
    ("7, because 3 is blocked", 7),
    ("50%", 0.5),
    ("none", None),
    ("3 and 7", None),
    ("#5", 5),
    ("5th", None),
    ("square 5 (not 3)", None),
    ("\\boxed{5}", 5),
]


@pytest.mark.parametrize("text, number", VALUES)
def test_what_a_person_reads(text, number):
    assert read_number(text) == (None if number is None else pytest.approx(number))


@pytest.mark.parametrize("text", ["8", "85", "110%", "-0.2", "The value is 5.", "1,000", "3/2"])
def test_a_value_outside_0_to_1_is_no_success(text):
    assert read_number(text) is not None and read_share(text) is None


@pytest.mark.parametrize("text, number", FIELDS)
def test_the_number_of_a_field(text, number):
    assert read_field(text) == number


@pytest.mark.parametrize("piece", ["1", "1.", "1 ", "value ", "1/", "is ", "1,000", "$1", "(", "1 of ", "1 a b out "])
def test_long_lines_are_read_in_no_time(piece):
    clock = time.process_time()
    read_number(piece * 20_000), read_field(piece * 20_000)
    assert time.process_time() - clock < 2
