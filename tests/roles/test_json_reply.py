"""What can be read out of replies that should have been JSON."""

import json
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from nlrl_jax.roles.json_reply import PROBLEMS, read_json, read_number


@pytest.mark.parametrize(
    "text, fields, problem",
    [
        ('{"thought": "x", "best_move": 7}', {"thought": "x", "best_move": 7}, ""),
        (' ```json\n{"best_move": 7}\n``` ', {"best_move": 7}, ""),
        ('{"thought": "O | X\n-----", "best_move": 7}', {"thought": "O | X\n-----", "best_move": 7}, ""),
        ('Sure. {"best_move": 7} Good luck!', {"best_move": 7}, "prose"),
        ('{} then {"best_move": 7}', {"best_move": 7}, "prose"),
        ("", {}, "empty"),
        (" \n ", {}, "empty"),
        ("```json\n```", {}, "empty"),
        ("I would play 7.", {}, "nothing"),
        ("{", {}, "nothing"),
        ("{}", {}, "nothing"),
        ('{"thought": "well, maybe', {"thought": "well, maybe"}, "cut"),
        (
            '{"best_move": 7, "thought": {"Threat": "none", "Win prob',
            {"best_move": 7, "thought": {"Threat": "none"}},
            "cut",
        ),
        ('{"a": [1, 2, {"b": 3', {"a": [1, 2, {"b": 3}]}, "cut"),
        ('{"quote": "say \\"hi, you\\" and', {"quote": 'say "hi, you" and'}, "cut"),
        ('{"thought": "x" "best_move": 7}', {"thought": "x", "best_move": 7}, "repaired"),
        ('{thought: "x", best_move: 7}', {"thought": "x", "best_move": 7}, "repaired"),
        ('{"best_move": 7,}', {"best_move": 7}, "repaired"),
        ('{"best_move": seven}', {}, "nothing"),
        ('{"a": 1}]', {"a": 1}, "prose"),
        ('<think>{"best_move": 1} no</think>\n{"best_move": 5}', {"best_move": 5}, ""),
        ('<think>{"best_move": 1} or', {}, "empty"),
        ('perhaps {"best_move": 1}?</think>{"best_move": 5}', {"best_move": 5}, ""),
        ('{"a": [1, {"b": 2}, 3, {"c": 4, "d": ["e", ', {"a": [1, {"b": 2}, 3, {"c": 4, "d": ["e"]}]}, "cut"),
        ('{"thought": "see <think>", "best_move": 5}', {"thought": "see <think>", "best_move": 5}, ""),
        ('{"thought": "\\ud83d", "best_move": 5}', {"thought": "\ufffd", "best_move": 5}, ""),
        ('{"a": ["\\ude00"], "\\ud83d": {"b": "\\ud83d\\ude00"}}', {"a": ["\ufffd"], "\ufffd": {"b": "😀"}}, ""),
        ('{"thought": "\\ud83d', {"thought": "\ufffd"}, "cut"),
        ('{thought: "\ud83d", best_move: 5}', {"thought": "\ufffd", "best_move": 5}, "repaired"),
    ],
)
def test_what_is_read(text, fields, problem):
    assert read_json(text) == (fields, problem)


MOVE = {"thought": "x", "best_move": 7}
LOOSE = [
    ("{「thought」: 「x」，「best_move」： 7}", MOVE),
    ("｛“thought”：“x，y”，“best_move”：7｝", {"thought": "x，y", "best_move": 7}),
    ("{'a': 0,85, 'b': [1,2,]}", {"a": "0,85", "b": [1, 2]}),
    ("{'thought': 'x', 'best_move': 7}", MOVE),
    ("{“thought”: “x”, “best_move”: 7}", MOVE),
    ("{‘thought’: ‘x’, ‘best_move’: 7}", MOVE),
    ("{'thought': \"x\", 'best_move': 7}", MOVE),
    ("{'thought': 'it's O's turn', 'best_move': 7}", {"thought": "it's O's turn", "best_move": 7}),
    ('{"thought": "O plays "5" next", "best_move": 7}', {"thought": 'O plays "5" next', "best_move": 7}),
    ('{"thought": "x", "best_move": 7,}', MOVE),
    ('{"thought": "x", // note\n "best_move": 7}', MOVE),
    ('{"thought": "x", # note\n "best_move": 7 /* ok */}', MOVE),
    ("{'a': True, 'b': None, 'c': False}", {"a": True, "b": None, "c": False}),
    ('Sure:\n```json\n{"thought": "x", "best_move": 7}\n```\nBye', MOVE),
    ("```python\n{'thought': 'x', 'best_move': 7}\n```", MOVE),
    ("Here: {'thought': 'x', 'best_move': 7}. Done", MOVE),
    ("<think>{\"best_move\": 1}</think>{'thought': 'x', \"best_move\": 7}", MOVE),
    ('{"thought": "x"}\n{"best_move": 7}', MOVE),
    ('First {"best_move": 1}. Final answer: {"thought": "x", "best_move": 7}', MOVE),
    ('{"best_move": 7, "thought": "x"}\nIt is your turn. {"best_move": 3}', MOVE),
    ("{'thought': 'x', 'best_move': 7", MOVE),
    ("{'best_move': 7, 'thought': 'well, may", {"best_move": 7, "thought": "well, may"}),
    ('{"thought": "x" "best_move": 7}', MOVE),
    ('{thought: "x", best_move: 7}', MOVE),
    ('{"thought": "x"; "best_move": 7}', MOVE),
    ('{"thought": "x", "best_move": "7"}', {"thought": "x", "best_move": "7"}),
    ('{"best_move": 5 (centre)}', {"best_move": "5 (centre)"}),
    ('{"v": 1/2}', {"v": "1/2"}),
    ('{"v": .5}', {"v": 0.5}),
    ('{"v": +0.5}', {"v": 0.5}),
    ("{'a': ['x', 'y'], 'b': {'c': 'd'}}", {"a": ["x", "y"], "b": {"c": "d"}}),
    ('{{"thought": "x", "best_move": 7}}', MOVE),
    ('{\\"thought\\": \\"x\\", \\"best_move\\": 7}', MOVE),
    ('"thought": "x", "best_move": 7', MOVE),
    ("The set {1, 2} is free. {'thought': 'x', 'best_move': 7}", MOVE),
    ('{"thought": """x""", "best_move": 7}', MOVE),
    ('{"thought": "line\nbreak", \'best_move\': 7}', {"thought": "line\nbreak", "best_move": 7}),
    ("{'thought': 'say \\'hi\\'', 'best_move': 7}", {"thought": "say 'hi'", "best_move": 7}),
    ('{"thought" : “x” , "best_move" : 7 }', MOVE),
    ('{"thought"="x", "best_move"=7}', MOVE),
    (
        "{'thought': 'the cells 'a', 'b' are free', 'best_move': 7}",
        {"thought": "the cells 'a', 'b' are free", "best_move": 7},
    ),
    ('[{"thought": "x", "best_move": 7}]', MOVE),
    ('{"best_move": seven}', {}),
    ("{'thoughts': 'x', 'final_evaluation': 'it’s good'}", {"thoughts": "x", "final_evaluation": "it’s good"}),
    ("{\"final evaluation\": 'good'}", {"final evaluation": "good"}),
    ("{'thought': 'x',, 'best_move': 7}", MOVE),
    ('json\n{"thought": "x", "best_move": 7}', MOVE),
    ('{ }\n{"thought": "x", "best_move": 7}', MOVE),
    ('{"thought": ["a", "b",], "best_move": 7}', {"thought": ["a", "b"], "best_move": 7}),
    ("{'t': (1, 2)}", {"t": [1, 2]}),
    ('{"a": NaN2, "best_move": 7}', {"best_move": 7}),
    ("{'a': 'x'}}", {"a": "x"}),
    ('{"thought": "x". "best_move": 7}', MOVE),
    ("{'a': 'don't', 'b': 'can't'}", {"a": "don't", "b": "can't"}),
    ("no json here", {}),
    ("{'a': 'b, c: d', 'e': 1}", {"a": "b, c: d", "e": 1}),
]


@pytest.mark.parametrize("text, fields", LOOSE)
def test_what_a_person_reads(text, fields):
    assert read_json(text).fields == fields


@pytest.mark.parametrize(
    "text, problem",
    [("{'a': 1}", "repaired"), ("so {'a': 1} it is", "repaired"), ("{'a': 1, 'b", "cut"), ("'a': 1", "repaired")],
)
def test_a_reply_that_is_no_json_is_counted(text, problem):
    assert read_json(text) == ({"a": 1}, problem)


@hypothesis.given(st.text())
def test_any_text_is_read_without_an_error(text):
    fields, problem = read_json("{" + text)
    assert isinstance(fields, dict) and problem in ("", *PROBLEMS)


@pytest.mark.parametrize(
    "text",
    ['{"best_move": ' + "1" * 50_000 + "x", '{"best_move": ' + "a" * 50_000, "```" + " " * 50_000 + "x{}"]
    + ['{"a" "b": ' + "1." * 25_000, "{" + '"a" : ' * 20_000, "{" + "a" + " " * 50_000]
    + ["{'a': 'x'. " * 4000, "{'" * 20_000, "{'a': '" + "' " * 20_000, "{" * 50_000, "{," * 20_000, "{a=/*" * 9000],
    ids="digits letters fence points names blanks strings quotes apostrophes brackets commas comments".split(),
)
def test_long_runs_are_read_in_no_time(text):
    clock = time.monotonic()
    read_json(text)
    assert time.monotonic() - clock < 1  # a pattern that tries every length takes ten seconds and more


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@hypothesis.given(st.dictionaries(st.text(), nested, min_size=1), st.data())
def test_a_whole_object_is_itself_and_a_cut_one_never_invents_a_field(value, data):
    text = json.dumps(value)
    assert read_json(text) == (value, "")
    fields, problem = read_json(text[: data.draw(st.integers(0, len(text) - 1))])
    assert problem in PROBLEMS
    if problem == "cut":
        assert len(fields) <= len(value)


@pytest.mark.parametrize(
    "value, number",
    [(7, 7.0), (-0.5, -0.5), ("7", 7.0), ("move 7.", 7.0), ("-0.9", -0.9), (True, None), (None, None), ("none", None)]
    + [([7], None), ({}, None), (float("nan"), None), (float("inf"), None), ("1e999", None), (10**400, None)],
)
def test_numbers(value, number):
    assert read_number(value) == number
