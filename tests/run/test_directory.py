"""One folder, one run, one process."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from nlrl_jax.run import directory
from nlrl_jax.run.directory import close_run, open_run, read_config
from nlrl_jax.weights.load import load_tokenizer

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {"game": "frozen_lake", "iterations": 10, "model": "nano", "sizes": (1, 2), "rate": 1e-4}


def here(values, tmp_path):
    """The values with this test's folder in place of {here}."""
    return {name: x.format(here=tmp_path) if isinstance(x, str) else x for name, x in values.items()}


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "deep" / "run"
    yield path
    close_run(path)


def test_an_infinite_option_is_a_word_in_the_file_and_a_number_on_resume(run_dir, capsys):
    refuse = lambda constant: pytest.fail(f"{constant} is no JSON")
    for resume in (False, True):
        open_run(run_dir, CONFIG | {"alpha": float("inf")}, resume=resume)
        close_run(run_dir)
    assert json.loads((run_dir / "config.json").read_text(), parse_constant=refuse)["alpha"] == "inf"
    assert read_config(run_dir)["alpha"] == float("inf") and capsys.readouterr().out == ""


def test_second_run_is_refused_and_resume_goes_on(run_dir, capsys):
    open_run(run_dir, CONFIG | {"rate": -1.0})
    close_run(run_dir)
    path = open_run(run_dir, CONFIG)  # a command that left nothing but its config can be corrected
    assert path == run_dir and path.is_absolute() and read_config(run_dir) == CONFIG | {"sizes": [1, 2]}
    (run_dir / "metrics.jsonl").write_text("")
    close_run(run_dir)
    with pytest.raises(ValueError, match="already holds a run; pass --resume .* another --run_dir"):
        open_run(run_dir, CONFIG)
    open_run(run_dir, CONFIG, resume=True)  # the refusal gave the lock back
    assert capsys.readouterr().out == ""


def test_a_run_without_the_mark_goes_on_and_is_never_deleted(run_dir):
    """A run of an earlier version."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps({"game": "snake"}))
    (run_dir / "metrics.jsonl").write_text("old")
    with pytest.raises(ValueError, match="nothing was deleted"):
        open_run(run_dir, {"game": "snake"}, overwrite=True)
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        open_run(run_dir, {"game": "snake"})
    open_run(run_dir, {"game": "snake"}, resume=True)
    assert (run_dir / "metrics.jsonl").read_text() == "old" and directory.holds_run(run_dir)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("name", ["config.json", "notes.txt"])
def test_a_folder_that_is_no_run_is_left_alone(run_dir, name, options):
    """Such as a Hugging Face model's."""
    run_dir.mkdir(parents=True)
    (run_dir / name).write_text('{"model_type": "qwen2"}')
    (run_dir / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ValueError, match="holds no run|other options"):
        open_run(run_dir, CONFIG, **options)
    found = {path.name: path.read_text() for path in run_dir.iterdir() if path.name != ".lock"}
    assert found == {name: '{"model_type": "qwen2"}', "model.safetensors": "weights"}


DEFAULTS = {"defaults": {"new": 3, "rate": 1e-3}}


@pytest.mark.parametrize(
    "stored, changed, options, says",
    [
        ({}, {"iterations": 20}, {}, "iterations: 10 -> 20"),
        ({}, {"rate": 1e-3}, {"may_change": ("rate",)}, "rate: 0.0001 -> 0.001"),
        ({"model": "/old/place/Qwen"}, {"model": "/new/Qwen"}, {}, "/old/place/Qwen"),
        ({"model": "{here}/a/model"}, {"model": "{here}/b/../a/model"}, {}, "b/../a"),  # the same
        ({"model": "{here}/gone/model"}, {"model": "{here}/b/model"}, {}, "gone"),
        ({}, {"new": 3}, DEFAULTS, "resuming with a changed new: (absent) -> 3"),  # an earlier version lacked it
        ({"examples": -1}, {"examples": "auto"}, {"translate": lambda stored: stored | {"examples": "auto"}}, ""),
    ],
)
def test_some_options_may_change_and_that_is_said(run_dir, tmp_path, capsys, stored, changed, options, says):
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    open_run(run_dir, CONFIG | here(stored, tmp_path))
    close_run(run_dir)
    open_run(run_dir, CONFIG | here(changed, tmp_path), resume=True, **options)
    assert read_config(run_dir) == CONFIG | here(changed, tmp_path) | {"sizes": [1, 2]}
    out = capsys.readouterr().out
    assert says in out and bool(out) == bool(says)


@pytest.mark.parametrize(
    "stored, changed, options, says",
    [
        ({}, {"iterations": 30, "rate": 1e-3}, {}, "rate: 0.0001 -> 0.001"),
        ({"old": "x"}, {}, {}, 'old: "x" -> (absent)'),
        ({}, {"new": True}, {}, "new: (absent) -> true"),
        ({}, {"new": 4}, DEFAULTS, "new: (absent) -> 4"),
        ({}, {"new": 3, "rate": 1e-3}, DEFAULTS, "rate: 0.0001 -> 0.001"),
        ({"model": "/old/Qwen"}, {"model": "/new/Llama"}, {}, 'model: "/old/Qwen" -> "/new/Llama"'),
        ({"model": "{here}/a/model"}, {"model": "{here}/b/model"}, {}, "model: "),  # the old one is still there
        ({"source": "http://here/v1"}, {"source": "http://there/v1"}, {}, "source: "),
    ],
)
def test_other_options_are_refused_and_the_refusal_changes_nothing(run_dir, tmp_path, stored, changed, options, says):
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    open_run(run_dir, CONFIG | here(stored, tmp_path))
    close_run(run_dir)
    before = read_config(run_dir)
    with pytest.raises(ValueError, match="started with other options") as error:
        open_run(run_dir, CONFIG | here(changed, tmp_path), resume=True, **options)
    assert says in str(error.value) and "iterations" not in str(error.value).split("options", 1)[1]
    assert read_config(run_dir) == before


def test_a_run_that_has_done_more_is_not_continued_with_less(tmp_path):
    (tmp_path / "checkpoints" / "12").mkdir(parents=True)
    (tmp_path / "checkpoints" / "13.tmp").mkdir()
    directory.check_done(tmp_path, 12)
    directory.check_done(tmp_path / "new", 1)
    with pytest.raises(ValueError, match="--iterations is 11, but .* has done 12 already; give 12 or more"):
        directory.check_done(tmp_path, 11)


def test_overwriting_what_the_run_is_to_read_is_refused(tmp_path, monkeypatch):
    run_dir = tmp_path / "format"
    (run_dir / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for values in ({"model": f"{run_dir}/model"}, {"base": "elsewhere/run,./format/model"}):
        with pytest.raises(
            ValueError, match=f"--overwrite would delete --{next(iter(values))} .*model; choose another"
        ):
            directory.check_inputs(run_dir, values)
    (run_dir / "with,comma" / "adapter").mkdir(parents=True)
    with pytest.raises(ValueError, match="--overwrite would delete --adapter .*with,comma/adapter; choose another"):
        directory.check_inputs(run_dir, {"adapter": f"{run_dir}/with,comma/adapter"})
    directory.check_inputs(run_dir, {"prompt": "a long word " * 100, "model": "x" * 300})
    directory.check_inputs(run_dir, {"model": f"{run_dir}/gone", "game": "format", "seed": 3})
    directory.check_inputs(tmp_path / "other", {"model": f"{run_dir}/model"})


def test_a_folder_for_output_is_new_empty_or_an_earlier_output(tmp_path):
    new, full = tmp_path / "deep" / "new", tmp_path / "full"
    assert directory.output_folder("out", str(new)) == new and not new.exists()
    full.mkdir()
    assert directory.output_folder("out", str(full)) == full
    (full / "mark.json").write_text("{}")
    assert directory.output_folder("out", str(full), "mark.json") == full
    for mark, path in (("", full), ("other.json", full), ("mark.json", full / "mark.json")):
        with pytest.raises(ValueError, match=f"--out {path} is not an empty folder"):
            directory.output_folder("out", str(path), mark)


def test_what_holds_no_run_is_not_resumed(run_dir):
    with pytest.raises(ValueError, match=f"{run_dir} holds no run"):
        open_run(run_dir, CONFIG, resume=True)
    assert not directory.holds_run(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_text('{"game": ')
    with pytest.raises(ValueError, match="config.json is damaged"):
        open_run(run_dir, CONFIG, resume=True)
    with pytest.raises(ValueError, match="holds no run"):
        read_config(run_dir.parent)


def test_overwrite_deletes_runs_only(run_dir):
    open_run(run_dir, CONFIG)
    close_run(run_dir)
    (run_dir / "checkpoints").mkdir()
    (run_dir / "metrics.jsonl").write_text("old")
    open_run(run_dir, CONFIG | {"game": "snake"}, overwrite=True)
    assert sorted(p.name for p in run_dir.iterdir()) == [".lock", "config.json"]
    assert read_config(run_dir)["game"] == "snake"
    close_run(run_dir)
    (run_dir / "config.json").unlink()
    (run_dir / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="holds no run .* nothing was deleted"):
        open_run(run_dir, CONFIG, overwrite=True)
    assert (run_dir / "thesis.tex").read_text() == "precious"


def test_unwritable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written: Not a directory"):
        open_run(tmp_path / "file" / "run", CONFIG)

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(directory.tempfile, "TemporaryFile", full)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        open_run(tmp_path / "run", CONFIG)
    assert not (tmp_path / "run" / "config.json").exists()


def test_two_processes(run_dir):
    code = "import sys, time; from nlrl_jax.run.directory import open_run; open_run(sys.argv[1], {'a': 1}); "
    code += "print('open', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, str(run_dir)], stdout=subprocess.PIPE, cwd=ROOT)
    assert other.stdout.readline() == b"open\n"
    for options in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(ValueError, match=rf"another run is writing to .*process {other.pid}"):
            open_run(run_dir, {"a": 1}, **options)
    other.send_signal(signal.SIGKILL)
    other.wait()
    open_run(run_dir, {"a": 1}, resume=True)
    assert read_config(run_dir) == {"a": 1}


@pytest.mark.parametrize("name", ["a\\b", "[a]", "a[b/c]d", "gs:", "xgs:/run", "\udcff", "x" * 256])
def test_names_that_cannot_hold_checkpoints_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="Orbax does not find checkpoints again|--run_dir .*: File name too long"):
        open_run(tmp_path / name, {})
    assert not any(tmp_path.iterdir())


def test_a_name_that_begins_as_somebodys_home_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_run("~nobody-of-this-name", {"a": 1})
    close_run("~nobody-of-this-name")
    assert read_config("~nobody-of-this-name") == {"a": 1}
    with pytest.raises(FileNotFoundError, match="no model at '~nobody-of-another'"):
        load_tokenizer("~nobody-of-another")
