"""The file of trajectories: what is written is read, and what cannot be used is named."""

import json

import pytest

from nlrl_jax.algorithms.offline import Trajectory
from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.run import trajectories

STEPS = [["left", "a wall", "It is a wall. This step is BAD."], ["right", "a key", ""]]
ROW = {"goal": "find a key", "observation": "nothing", "note": "", "steps": STEPS, "success": True}


def test_a_file_is_read_as_it_was_written(tmp_path):
    given = [
        Trajectory(History("a", "é\u2028x\n second line", tuple(Step(*step) for step in STEPS)), True),
        Trajectory(History("b", "o", (Step("x", "y"),), "Begin. This step is UNKNOWN."), False),
    ]
    trajectories.write(tmp_path / "t.jsonl", given)
    assert trajectories.read(tmp_path / "t.jsonl") == given


def test_notes_may_be_left_out(tmp_path):
    row = {name: value for name, value in ROW.items() if name != "note"} | {"steps": [["left", "a wall"]]}
    (tmp_path / "t.jsonl").write_text(f"\n{json.dumps(row)}\n\n")
    (found,) = trajectories.read(tmp_path / "t.jsonl")
    assert found.history == History("find a key", "nothing", (Step("left", "a wall"),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"success": 1}, '"success" is 1; it must be true or false'),
        ({"goal": ""}, '"goal" is ""; it must be non-empty text'),
        ({"goal": "a\nb"}, '"goal" is "a\\\\nb"; it must be one line'),
        ({"steps": []}, r'"steps" is \[\]; it must be a list of \[action, observation, note\]'),
        ({"steps": [["left"]]}, r'"steps\[0\]" is \["left"\]; it must be \[action, observation, note\]'),
        ({"steps": [STEPS[0], ["up", 3]]}, r'"steps\[1\], observation" is 3'),
        ({"steps": [["a\nb", "o"]]}, r'"steps\[0\], action" .* one line'),
        ({"steps": [["a", "o", "Well done. GOOD"]]}, r'"steps\[0\], note" .* ends "This step is GOOD\."'),
        ({"steps": [["a", "o", "This step is GOOD. So it is."]]}, r'"steps\[0\], note"'),
        ({"note": None}, '"note" is null'),
        ({"goal": "a \ud83d key"}, r'"goal" is "a .ud83d key", with half of a character'),
        ({"steps": [["left", "\udc00"]]}, r'"steps\[0\], observation" .* half of a character'),
        ({"note": "\ud800. This step is BAD."}, '"note" .* half of a character'),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, change, says):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | change) + "\n")
    with pytest.raises(ValueError, match=f"t.jsonl, line 2: {says}"):
        trajectories.read(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no trajectory; it must hold a JSON object on each line"),
        ("[1]", r"line 1: it is \[1\]; a trajectory is a JSON object with goal, observation"),
        ("{", "line 1: it is not JSON"),
        ("[" * 100_000, "line 1: maximum recursion depth"),
        ('{"goal": "g"}', 'line 1: "observation" is missing'),
    ],
)
def test_a_file_of_something_else(tmp_path, text, says):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says):
        trajectories.read(tmp_path / "t.jsonl")
    with pytest.raises(ValueError, match="cannot be read from .*none.jsonl"):
        trajectories.read(tmp_path / "none.jsonl")
