"""results.json: one format for every script, whole or refused."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.run import results

EPISODE = {"success": True, "terminated": True, "env_return": 1.0, "final_board": "", "turns": []}


def test_written_and_read(tmp_path):
    path = results.write(
        tmp_path / "part",
        script="train_dqn",
        before={"success": np.float32(0.25), "loss": float("nan")},
        after={"success": jnp.array([0.5, 1.0])},
        seeds=[3, 4],
        transcripts={"after": [EPISODE]},
        worst=-np.inf,
    )
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    stored = results.read(tmp_path / "part")
    assert stored["after"] == {"success": [0.5, 1.0]}
    assert stored["before"]["success"] == 0.25 and math.isnan(stored["before"]["loss"])
    assert stored["seeds"] == [3, 4] and stored["transcripts"] == {"before": [], "after": [EPISODE]}
    assert stored["worst"] == "-inf"


NUMBERS = {
    "int": 4, "float": 4.0, "tiny": 5e-324, "sum": 0.1 + 0.2, "large": 10**20, "zero": -0.0, "yes": True,
    "nan": float("nan"), "inf": -np.inf, "half": np.float32(0.1), "seeds": [1, 2.0, float("inf")], "b": jnp.int32(3),
}  # fmt: skip


def test_what_is_read_is_written_as_it_was(tmp_path):
    more = {"transcripts": {"before": [EPISODE], "after": []}, "z": (1, 2.0), "a": None}
    path = results.write(tmp_path, script="x", before=NUMBERS, after=NUMBERS, seeds=[2, 1], **more)
    first = path.read_bytes()
    results.write(tmp_path, **results.read(tmp_path))
    assert path.read_bytes() == first


@pytest.mark.parametrize("bad", [{"success": "many"}, {"success": {"a": 1.0}}, {"success": []}, 3.0])
def test_only_numbers_are_metrics(tmp_path, bad):
    with pytest.raises(ValueError, match='"after" must hold a number per metric'):
        results.write(tmp_path, script="x", before={}, after=bad)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"script": "x", "before": {"a": "b"}, "after": {}, "seeds": 1}',
             '{"script": "x", "before": {}, "after": {}, "seeds": 1, "transcripts": {"after": [{"turns": [{}]}]}}'],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=r"results\.json is damaged .* delete it"):
        results.read(tmp_path)


def test_no_results_yet(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"results\.json"):
        results.read(tmp_path)
