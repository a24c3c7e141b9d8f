"""JSON files hold what every reader of JSON reads."""

import json
import math

import pytest

from nlrl_jax.files import dump_json, write_json


@pytest.mark.parametrize(
    "value, place",
    [
        (
            {"episodes": [{"thinking": [{"log_prior": [-1.0, math.nan]}]}]},
            r"episodes\[0\].thinking\[0\].log_prior\[1\]",
        ),
        ([0.5, math.inf], r"it\[1\]"),
        ({"a": {"b": (1, -math.inf)}}, r"a.b\[1\]"),
        (math.nan, "it"),
    ],
)
def test_numbers_that_json_has_no_word_for_are_refused_with_their_place(value, place, tmp_path):
    path = tmp_path / "lac.json"
    with pytest.raises(ValueError, match=rf"lac.json cannot be written: {place} is -?(nan|inf), and JSON holds finite"):
        write_json(path, value)
    assert not list(tmp_path.iterdir())


def test_what_json_holds_is_written_whole(tmp_path):
    write_json(tmp_path / "x.json", {"a": [1, 2.5, None, "nan"]}, indent=1)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1, 2.5, None, "nan"]}
    with pytest.raises(TypeError, match="set"):
        dump_json({1, 2}, "x")
