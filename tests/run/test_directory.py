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


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "deep" / "run"
    yield path
    close_run(path)


def test_new_run(run_dir):
    path = open_run(run_dir, CONFIG)
    assert path == run_dir and path.is_absolute()
    assert read_config(run_dir) == CONFIG | {"sizes": [1, 2]}


def test_an_infinite_option_is_a_word_in_the_file_and_a_number_on_resume(run_dir, capsys):
    refuse = lambda constant: pytest.fail(f"{constant} is no JSON")
    for resume in (False, True):
        open_run(run_dir, CONFIG | {"alpha": float("inf")}, resume=resume)
        close_run(run_dir)
    assert json.loads((run_dir / "config.json").read_text(), parse_constant=refuse)["alpha"] == "inf"
    assert read_config(run_dir)["alpha"] == float("inf") and capsys.readouterr().out == ""


def test_a_stored_value_is_read_in_todays_words(run_dir, capsys):
    close_run(open_run(run_dir, CONFIG | {"examples": -1}))
    today = lambda stored: stored | {"examples": "auto"}
    open_run(run_dir, CONFIG | {"examples": "auto"}, resume=True, translate=today)
    assert read_config(run_dir)["examples"] == "auto" and capsys.readouterr().out == ""


def test_second_run_is_refused_and_resume_goes_on(run_dir, capsys):
    open_run(run_dir, CONFIG)
    (run_dir / "metrics.jsonl").write_text("")
    close_run(run_dir)
    with pytest.raises(ValueError, match="already holds a run; pass --resume .* another --run_dir"):
        open_run(run_dir, CONFIG)
    open_run(run_dir, CONFIG, resume=True)  # the refusal gave the lock back
    assert capsys.readouterr().out == ""


def test_a_command_that_left_nothing_but_its_config_can_be_corrected(run_dir):
    open_run(run_dir, CONFIG | {"rate": -1.0})
    close_run(run_dir)
    open_run(run_dir, CONFIG)
    assert read_config(run_dir)["rate"] == 1e-4


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


def test_changed_config(run_dir, capsys):
    open_run(run_dir, CONFIG)
    close_run(run_dir)
    open_run(run_dir, CONFIG | {"iterations": 20}, resume=True)
    assert "iterations: 10 -> 20" in capsys.readouterr().out
    assert read_config(run_dir)["iterations"] == 20
    close_run(run_dir)
    changed = {**CONFIG, "iterations": 30, "rate": 1e-3, "new": True}
    del changed["game"]
    with pytest.raises(ValueError) as error:
        open_run(run_dir, changed, resume=True)
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert {'game: "frozen_lake" -> (absent)', "rate: 0.0001 -> 0.001", "new: (absent) -> true"} <= set(lines)
    assert not any("iterations" in line for line in lines)
    assert read_config(run_dir)["rate"] == 1e-4  # the refusal changed nothing
    open_run(run_dir, CONFIG | {"rate": 1e-3, "iterations": 20}, resume=True, may_change=("rate",))


def test_an_option_that_an_earlier_version_lacked_may_have_its_default(run_dir, capsys):
    open_run(run_dir, CONFIG)
    close_run(run_dir)
    for changed in ({"new": 4}, {"new": 3, "rate": 1e-3}):
        with pytest.raises(ValueError, match="started with other options"):
            open_run(run_dir, CONFIG | changed, resume=True, defaults={"new": 3, "rate": 1e-3})
    open_run(run_dir, CONFIG | {"new": 3}, resume=True, defaults={"new": 3, "rate": 1e-3})
    assert "resuming with a changed new: (absent) -> 3" in capsys.readouterr().out


def test_paths_may_change(run_dir, capsys):
    config = {"model": "/old/place/Qwen", "data_dir": "/a"}
    open_run(run_dir, config)
    close_run(run_dir)
    open_run(run_dir, {"model": "/new/Qwen", "data_dir": "/b"}, resume=True)
    assert "/old/place/Qwen" in capsys.readouterr().out
    close_run(run_dir)
    with pytest.raises(ValueError, match='model: "/new/Qwen" -> "/new/Llama"'):
        open_run(run_dir, {"model": "/new/Llama", "data_dir": "/b"}, resume=True)


def test_a_path_that_is_still_there_may_be_written_differently_only(run_dir, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    config = {"model": str(tmp_path / "a" / "model"), "source": "http://here/v1"}
    open_run(run_dir, config)
    close_run(run_dir)
    for changed in ({"model": str(tmp_path / "b" / "model")}, {"source": "http://there/v1"}):
        with pytest.raises(ValueError, match="started with other options"):
            open_run(run_dir, config | changed, resume=True)
    open_run(run_dir, config | {"model": f"{tmp_path}/b/../a/model"}, resume=True)
    close_run(run_dir)
    (tmp_path / "a" / "model").rmdir()
    open_run(run_dir, config | {"model": str(tmp_path / "b" / "model")}, resume=True)


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


def test_resume_without_a_run_is_refused(run_dir):
    with pytest.raises(ValueError, match=f"{run_dir} holds no run"):
        open_run(run_dir, CONFIG, resume=True)
    assert not directory.holds_run(run_dir)


def test_damaged_config(run_dir):
    run_dir.mkdir(parents=True)
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
