"""Runs compared on a page: parts and seeds of a run, labels, and files that are damaged."""

import json

import numpy as np
import pytest

from nlrl_jax.run import compared_runs
from nlrl_jax.run.directory import close_run, open_run
from nlrl_jax.run.reports import comparison
from nlrl_jax.run.results import write as write_results
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
    assert compared_runs.parts_of(matrix) == [matrix / "dqn", matrix / "snake"]
    runs = [compared_runs.read_run(part) for part in compared_runs.parts_of(matrix)]
    dqn, snake = comparison.table(runs)
    assert dqn["return"] == "4" and snake["return"] == "2 ± 13" and snake["snake, evaluated"] == "0.6 ± 1.3"
    assert snake["iterations done"] == 2 and "eval/lr=1" not in snake  # as far as both seeds are
    panels, _ = comparison.curves(runs)
    assert [line.label for line in panels["return"]] == ["dqn", "snake"]
    np.testing.assert_array_equal(panels["return"][1].ys, [[0, 1], [2, 3]])
    run("compare", matrix / "snake", f"--out={tmp_path / 'page.html'}")
    page = (tmp_path / "page.html").read_text()
    assert "2 ± 13" in page and "95 % interval of the mean (Student&#39;s t) over the seeds of a run" in page


@pytest.mark.parametrize(
    ("name", "title", "folders"),
    [
        ("t=a", "t", ["a"]),
        ("t=a,b", "t", ["a", "b"]),
        ("t=a,b,b=c", "t", ["a,b", "b=c"]),
        ("t=u=a", "t=u", ["a"]),
        ("t=b=c", "t", ["b=c"]),
        ("b=c", "b=c", ["b=c"]),
        ("t=a,b,c", "t", ["a,b", "c"]),
        ("t=gone,a,b", "t", ["gone", "a,b"]),
        ("t=gone", "t", ["gone"]),
        ("t=" + "x" * 300, "t", ["x" * 300]),
    ],
)
def test_commas_and_equals_signs_in_the_names_of_folders(tmp_path, monkeypatch, name, title, folders):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b", "c", "b=c", "a,b")[: 3 if name == "t=a,b" else 5]:
        (tmp_path / folder).mkdir()
    groups = compared_runs.groups_of([name])
    assert [(key, list(map(str, value))) for key, value in groups.items()] == [(title, folders)]


def test_seeds_in_folders_of_their_own_are_a_group(tmp_path):
    for seed, values in enumerate(([0.0, 1.0, 2.0], [2.0, 3.0])):
        write(make_run(tmp_path / str(seed), seed=seed), values)
        write_results(tmp_path / str(seed), script="x", before={"win": seed}, after={"win": 1.0})
    groups = compared_runs.groups_of([f"both={tmp_path / '0'},{tmp_path / '1'}", str(tmp_path / "0")])
    assert groups == {"both": [tmp_path / "0", tmp_path / "1"], str(tmp_path / "0"): [tmp_path / "0"]}
    both, alone = comparison.table([compared_runs.read_group(*group) for group in groups.items()])
    assert (
        both["run"] == "both" and both["return"] == "2 ± 13" and both["win (before → after)"].startswith("0.5 ± 6.4 →")
    )
    assert both["iterations done"] == 2 and both["seed"] == "" and alone["seed"] == 0


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
    found = comparison.labels(names)
    assert found == want if want else len(set(found)) == 3


EPISODE = {"success": True, "terminated": True, "env_return": 1.0, "final_board": "P G", "turns": []}


def test_results_of_any_script_are_read(tmp_path):
    """A part without metrics, and one whose evaluation before training is the first point of its curve."""
    folder = make_run(tmp_path / "run")
    write(folder / "a" / "seed_0", [0.5, 0.5], **{"eval/win": 0.5})
    write(folder / "a" / "seed_1", [0.5, 0.5], **{"eval/win": 0.75})
    write_results(
        folder / "a", script="x", before={"win": 0.25, "ties": 0}, after={"win": [0.5, 0.75], "ties": 0}, seeds=2
    )
    write_results(folder / "b", script="x", before={}, after={"win": 1.0}, transcripts={"after": [EPISODE]})
    assert compared_runs.parts_of(folder) == [folder / "a", folder / "b"]
    runs = [compared_runs.read_run(part) for part in compared_runs.parts_of(folder)]
    panels, flat = comparison.curves(runs)
    assert flat == ["return"] and list(panels) == ["win, evaluated"]
    np.testing.assert_array_equal(panels["win, evaluated"][0].x, [0, 1, 2])
    np.testing.assert_array_equal(panels["win, evaluated"][0].ys, [[0.25, 0.5, 0.5], [0.25, 0.75, 0.75]])
    a, b = comparison.summary(runs)[0]
    assert a["win (before → after)"] == "0.25 → 0.625 ± 1.6" and b["win (before → after)"] == "1"
    run("compare", folder)
    page = (folder / "comparison.html").read_text()
    for words in (
        "0.625 ± 1.6",
        "Constant in all runs, so not drawn: return.",
        "always 0: ties (before → after)",
        "success, return 1",
    ):
        assert words in page
    run("compare", folder / "b")  # no metrics at all: no picture
    assert not (folder / "b" / "comparison.png").exists()


def test_lines_are_running_means(tmp_path):
    write(make_run(tmp_path / "a"), [float(i % 2) for i in range(40)])
    panels, flat = comparison.curves([compared_runs.read_run(tmp_path / "a")])
    assert list(panels) == ["return"] and not flat
    np.testing.assert_allclose(panels["return"][0].ys[0, 1:], 0.5)  # two iterations wide


def test_a_wide_table_has_a_column_per_run(tmp_path):
    settings = {f"setting_{n}": n for n in range(9)}
    for name, shift in (("a", 0), ("b", 1)):
        write(make_run(tmp_path / name, **{key: n + shift for key, n in settings.items()}), [1.0])
    rows, _ = comparison.summary([compared_runs.read_run(tmp_path / name) for name in "ab"])
    assert {"": "setting_3", "a": 3, "b": 4} in rows and {"": "iterations done", "a": 1, "b": 1} in rows
    few, _ = comparison.summary([compared_runs.read_run(tmp_path / "a")])
    assert [row["run"] for row in few] == ["a"]


def test_damaged_results_and_a_run_without_metrics_are_named(tmp_path):
    folder = make_run(tmp_path / "run")
    assert "has no metrics yet" in refusal("compare", folder)
    write(folder, [1.0])
    (folder / "results.json").write_text("{")
    assert f"{folder / 'results.json'} is damaged" in refusal("compare", folder)


def test_what_does_not_learn_is_a_table_of_its_own(tmp_path):
    for seed in range(2):
        write(make_run(tmp_path / str(seed), seed=seed), [0.0, 1.0])
        beside = {"more pawns": {"accuracy": 0.8 + 0.1 * seed}, "one search": {"accuracy": 0.7}}
        write_results(tmp_path / str(seed), script="x", before={"accuracy": 0.5}, after={"accuracy": 1}, beside=beside)
    run_of = compared_runs.read_group("a", [tmp_path / "0", tmp_path / "1"])
    assert comparison.baselines([run_of, run_of._replace(name="b")]) == [
        {"beside": "a", "who": "more pawns", "accuracy": "0.85 ± 0.64"},
        {"beside": "a", "who": "one search", "accuracy": "0.7 (all equal)"},
    ]
