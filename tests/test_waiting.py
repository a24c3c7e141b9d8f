"""What `benchmarks.waiting` reads of a process, and its table."""

import argparse
import os
import pathlib

import pytest

from benchmarks import waiting
from benchmarks.waiting import Row

OPTIONS = argparse.Namespace(core=min(os.sched_getaffinity(0)), model="model.gguf")
LOG = "import sys; [print('Finished XLA compilation of jit(f) in 0.1 sec', file=sys.stderr) for _ in range(3)]"
WRITER = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[-2])  # behind --run_dir
path.mkdir()
while True:
    with (path / "metrics.jsonl").open("a") as file:
        file.write("{}\\n")
    time.sleep(0.05)
"""


def test_a_process_tells_its_time_its_programs_and_what_it_measured(tmp_path):
    row = Row(code=f"""{LOG}; sum(range(10**6)); print("a line"); print('{{{{"seconds": 2.5}}}}')""")
    measures = waiting.run_once(row, waiting.ROOT, tmp_path, OPTIONS)
    assert measures["programs"] == 3 and measures["seconds"] == 2.5
    # On Linux a child's peak begins at its parent's, here the tests' own; the benchmark itself is small.
    assert 0 < measures["CPU s"] < 10 and measures["peak MB"] > 1
    with pytest.raises(RuntimeError, match="no such thing"):
        waiting.run_once(Row(code="raise ValueError('no such thing')"), waiting.ROOT, tmp_path, OPTIONS)


def test_a_run_is_ended_after_its_iterations_and_one_that_ends_itself_before_them_has_failed(tmp_path, monkeypatch):
    def started(row, checkout, run_dir, model):
        return [waiting.sys.executable, "-c", row.script, "--run_dir", str(run_dir), "--overwrite"]

    monkeypatch.setattr(waiting, "command", started)
    measures = waiting.run_once(Row(WRITER, iterations=2), waiting.ROOT, tmp_path, OPTIONS)
    assert 0 <= measures["CPU s to iteration 1"] + measures["CPU s to iteration 2"] <= measures["CPU s"] + 0.02
    with pytest.raises(RuntimeError, match="disk full"):
        waiting.run_once(Row("raise OSError('disk full')", iterations=2), waiting.ROOT, tmp_path, OPTIONS)


def test_commands_of_this_checkout_and_of_an_older_one(tmp_path):
    (tmp_path / "pyproject.toml").write_text('nlrl-jax = "launch.__main__:main"\n')
    demo, run_dir = waiting.ROWS["demo"], pathlib.Path("run")
    new, old = (waiting.command(demo, path, run_dir, "")[1:] for path in (waiting.ROOT, tmp_path))
    assert new[:2] == ["-m", "nlrl_jax.launch.train_ms_grpo"] and old[:2] == ["-m", "launch.train_ms_grpo"]
    assert new[2:] == old[2:] and new[-3:] == ["--run_dir", "run", "--overwrite"]
    assert "model.gguf" in waiting.command(waiting.ROWS["iterations"], waiting.ROOT, run_dir, "model.gguf")


def test_ratios_are_of_pairs_that_ran_beside_each_other():
    """The machine was half as fast in the second pair: 0.5, 0.5 and 0.6."""
    ours = [{"CPU s": 1.0, "programs": 8.0}, {"CPU s": 2.0, "programs": 8.0}, {"CPU s": 6.0, "programs": 8.0}]
    others = [{"CPU s": 2.0, "programs": 0.0}, {"CPU s": 4.0, "programs": 0.0}, {"CPU s": 10.0, "programs": 0.0}]
    assert waiting.table({"this": ours, "before": others}) == [
        ("CPU s", "2.00", "4.00", "0.50"),
        ("programs", "8", "0", ""),
    ]
    assert waiting.table({"this": ours}) == [("CPU s", "2.00"), ("programs", "8")]
