"""Runs compared on a page: parts and seeds of a run, labels, and files that are damaged."""

import json

import numpy as np
import pytest

from launch import compare as report
from nlrl_jax.run.directory import close_run, open_run
from nlrl_jax.run.transcript import read_evaluation
from tests.launch.scripts import refusal, run


def make_run(folder, **config):
    open_run(folder, {"rate": 1, **config})
    close_run(folder)
    return folder


def write(folder, values, **more):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"iteration": i, "return": x, **more} for i, x in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def matrix(tmp_path):
    """What reproduce_ms_grpo leaves: seeds in parts, and a part without seeds."""
    folder = make_run(tmp_path / "matrix")
    write(folder / "snake" / "seed_0", [0.0, 1.0, 2.0], **{"eval/snake": 0.5, "eval/lr=1": 9.0})
    write(folder / "snake" / "seed_1", [2.0, 3.0], **{"eval/snake": 0.7, "eval/lr=1": 9.0})
    write(folder / "dqn", [4.0])
    return folder


def test_seeds_are_a_mean_and_a_band_and_parts_are_lines(matrix, tmp_path, capsys):
    assert report.parts_of(matrix) == [matrix / "dqn", matrix / "snake"]
    runs = [report.read_run(part) for part in report.parts_of(matrix)]
    dqn, snake = report.table(runs)
    assert dqn["return"] == 4.0 and snake["return"] == "2 ± 1.4" and snake["eval/snake"] == "0.6 ± 0.14"
    assert snake["iterations done"] == 2 and "eval/lr=1" not in snake  # as far as both seeds are
    panels = report.curves(runs)
    assert [line.label for line in panels["return"]] == ["dqn", "snake"]
    np.testing.assert_array_equal(panels["return"][1].ys, [[0, 1], [2, 3]])
    run("compare", matrix)
    assert "2 ± 1.4" in (matrix / "comparison.html").read_text()
    run("compare", matrix / "snake", f"--out={tmp_path / 'page.html'}")
    assert "2 ± 1.4" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "names, want",
    [
        (["x/demo"], ["demo"]),
        (["x/a", "x/b"], ["a", "b"]),
        (["x/demo", "y/demo"], ["x/demo", "y/demo"]),
        (["x/demo", "y/demo", "/deep/y/demo"], None),
        (["x/demo", "x/demo"], ["demo", "demo"]),
    ],
)
def test_labels_are_as_short_as_tells_runs_apart(names, want):
    found = report.labels(names)
    assert found == want if want else len(set(found)) == 3


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"summary": {}}', '{"summary": {"success": []}, "transcripts": []}',
             '{"summary": {}, "transcripts": [{"env_return": 1.0, "final_board": "", "turns": [{}]}]}'],
)  # fmt: skip
def test_a_damaged_evaluation_is_named(tmp_path, text):
    folder = make_run(tmp_path / "run")
    write(folder, [1.0])
    (folder / "before.json").write_text(text)
    assert f"{folder / 'before.json'} is damaged" in refusal("compare", folder)
    (folder / "before.json").write_text('{"summary": {"success": 0.5}, "transcripts": []}')
    assert read_evaluation(folder / "before.json")["summary"] == {"success": 0.5}


def test_a_run_that_has_done_nothing_yet(tmp_path):
    assert "has no metrics yet" in refusal("compare", make_run(tmp_path / "run"))
