"""metrics.jsonl survives kills; TensorBoard, metrics.csv and wandb repeat it."""

import csv
import errno
import json
import math
import sys
import threading
import types

import numpy as np
import pytest

from nlrl_jax.run import directory, metric_sinks
from nlrl_jax.run.metrics import MetricsWriter, read_metrics, read_rows


def metrics_of(i):
    sparse = {"eval/success": 0.5 + i} if i % 4 == 3 else {}
    return {"return": np.float32(math.sin(i)), "loss": 0.1 * i, **sparse}


def write(run_dir, start, stop, resume_from=None):
    with MetricsWriter(run_dir, resume_from) as writer:
        for i in range(start, stop):
            writer.write(i, metrics_of(i), seconds=0.5)


def scalars(run_dir):
    """{metric: [(step, value)]} as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_lines_and_columns(tmp_path):
    write(tmp_path, 0, 8)
    rows = read_rows(tmp_path)
    assert rows[3] == {"iteration": 3, "return": float(np.float32(math.sin(3))), "loss": 0.1 * 3, "eval/success": 3.5}
    columns = read_metrics(tmp_path)
    assert columns["iteration"].dtype == np.int64 and columns["iteration"].tolist() == list(range(8))
    assert np.isnan(columns["eval/success"][:3]).all() and columns["eval/success"][3] == 3.5
    assert "seconds" not in (tmp_path / "metrics.jsonl").read_text()
    assert read_metrics(tmp_path, "timings.jsonl")["seconds"].tolist() == [0.5] * 8


def test_the_same_table_as_csv_where_later_metrics_add_columns(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for i in range(4):
            writer.write(i, metrics_of(i) | {"never, ended": math.nan})
        with open(tmp_path / "metrics.csv", newline="") as file:  # each line is there at once
            rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["iteration", "return", "loss", "never, ended", "eval/success"]
    assert [row["eval/success"] for row in rows] == ["", "", "", "3.5"] and rows[1]["never, ended"] == "nan"
    assert [float(row["loss"]) for row in rows] == read_metrics(tmp_path)["loss"].tolist()


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package: {run id: {"rows": {step: row}, "asked": what `init` got}}."""
    kept = {}

    class Run:
        def __init__(self, **asked):
            self.rows = kept.setdefault(asked["id"], {"rows": {}})["rows"]
            kept[asked["id"]]["asked"] = asked
            self.step = max(self.rows, default=-1) + 1

        def log(self, row, step):
            assert step not in self.rows and step >= max(self.rows, default=0)
            self.rows[step] = row

        def finish(self):
            pass

    class Error(Exception):
        pass

    def login():
        raise Error("no key")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Run, login=login, Error=Error))
    return kept


def test_wandb_shows_the_same_numbers_and_a_resumed_run_continues(tmp_path, wandb):
    run_dir = tmp_path / "lake"
    directory.open_run(run_dir, {"script": "test", "game": "lake"})
    (run_dir / "seed_1").mkdir()
    write(run_dir / "seed_1", 0, 3)  # before anybody asked for wandb
    metric_sinks.use_wandb(run_dir, "project")
    write(run_dir / "seed_1", 3, 7, resume_from=3)
    metric_sinks.use_wandb(run_dir, "project")  # --wandb once more with --resume
    write(run_dir / "seed_1", 5, 9, resume_from=5)
    ((number, run),) = wandb.items()
    assert number.endswith("seed_1") and number.replace("-", "").replace("_", "").isalnum()
    assert run["asked"]["project"] == "project" and run["asked"]["config"]["game"] == "lake"
    assert (run["asked"]["name"], run["asked"]["group"]) == ("lake/seed_1", "lake")
    assert run["rows"] == {row.pop("iteration"): row for row in read_rows(run_dir / "seed_1")}
    write(run_dir, 0, 1)
    assert len(wandb) == 2 and list(wandb.values())[1]["asked"]["name"] == "lake"
    directory.close_run(run_dir)


def test_wandb_is_checked_before_work_starts(wandb, monkeypatch):
    with pytest.raises(ValueError, match=r"no key.*wandb login.*WANDB_MODE=offline"):
        metric_sinks.check_wandb("project")
    with pytest.raises(ValueError, match="none of /"):
        metric_sinks.check_wandb("mine/project")
    monkeypatch.setenv("WANDB_MODE", "offline")
    metric_sinks.check_wandb("project")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError):
        metric_sinks.check_wandb("project")


@pytest.mark.parametrize("torn", [b"", b'{"iteration": 7, "re', b'{"iteration": 7, "return": 1.0}'])
@pytest.mark.parametrize("resume_from", [0, 5, 7])
def test_resumed_file_equals_uninterrupted(tmp_path, torn, resume_from):
    write(tmp_path / "whole", 0, 12)
    write(tmp_path / "killed", 0, 7)
    with open(tmp_path / "killed" / "metrics.jsonl", "ab") as file:
        file.write(torn)
    assert len(read_rows(tmp_path / "killed")) == 7
    write(tmp_path / "killed", resume_from, 12, resume_from=resume_from)
    for name in ("metrics.jsonl", "timings.jsonl", "metrics.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    if resume_from == 5:
        assert scalars(tmp_path / "killed") == scalars(tmp_path / "whole")


def test_tensorboard_shows_the_same_numbers(tmp_path):
    write(tmp_path, 0, 8)
    columns, shown = read_metrics(tmp_path), scalars(tmp_path)
    assert set(shown) == set(columns) - {"iteration"}
    for name, points in shown.items():
        there = ~np.isnan(columns[name])
        assert [step for step, _ in points] == columns["iteration"][there].tolist()
        np.testing.assert_array_equal(np.float32([v for _, v in points]), columns[name][there].astype(np.float32))


def test_a_full_disk_is_one_error_where_the_metrics_are_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    threads = threading.active_count()
    writer = MetricsWriter(tmp_path)
    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.flush", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(0, {"a": 1.0})
    assert threading.active_count() == threads


def test_names_that_tensorboard_refuses(tmp_path, caplog):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"never ended": 1.0, "eval/lr=1": 2.0})
    assert not caplog.records and set(scalars(tmp_path)) == {"never_ended", "eval/lr_1"}
    assert "never ended" in read_metrics(tmp_path)


def test_non_finite_numbers_are_valid_json(tmp_path):
    def refuse(word):
        raise AssertionError(word)

    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"a": math.nan, "b": math.inf, "c": -math.inf})
    line = (tmp_path / "metrics.jsonl").read_text()
    json.loads(line, parse_constant=refuse)
    row = read_rows(tmp_path)[0]
    assert math.isnan(row["a"]) and row["b"] == math.inf and row["c"] == -math.inf


def test_refusals(tmp_path):
    write(tmp_path, 0, 3)
    with pytest.raises(ValueError, match="already holds a run's metrics"):
        MetricsWriter(tmp_path)
    with MetricsWriter(tmp_path, 3) as writer, pytest.raises(ValueError, match="iteration"):
        writer.write(3, {"iteration": 1.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "garbage", lines[2]]) + "\n")
    with pytest.raises(ValueError, match="line 2, is damaged"):
        read_rows(tmp_path)
    assert read_rows(tmp_path / "nowhere") == []
