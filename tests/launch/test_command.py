"""`nlrl-jax`: every script from any folder, and a folder of the user's own that is named like ours."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = f"import sys; sys.path.append({str(ROOT)!r}); from launch.__main__ import main; main()"


def command(folder, *args):
    """What the console entry point does, in a folder that has packages `envs` and `launch` of its own."""
    for name in ("envs", "launch"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    code = f"import sys; del sys.path[0]; {COMMAND}"  # of a script, path[0] is the folder it lies in
    return subprocess.run([sys.executable, "-c", code, *args], cwd=folder, capture_output=True, text=True)


def test_scripts_are_listed_and_run_from_any_folder(tmp_path):
    listed = command(tmp_path)
    assert listed.returncode == 0 and "train_ms_grpo" in listed.stdout and "by MS-GRPO." in listed.stdout
    helped = command(tmp_path, "evaluate", "--help")
    assert helped.returncode == 0 and "--episodes" in helped.stdout, helped.stderr


def test_an_unknown_script_is_named(tmp_path):
    refused = command(tmp_path, "train_ms_gpro")
    assert refused.returncode == 1 and "did you mean train_ms_grpo?" in refused.stderr


def test_a_package_that_shadows_ours_is_named(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").touch()
    code = f"import sys; sys.path.append({str(ROOT)!r}); import launch.evaluate"
    refused = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"error: {tmp_path / 'envs' / '__init__.py'} hides nlrl_jax's own package" in refused.stderr


@pytest.mark.parametrize("script", ["train_ms_grpo", "train_dqn", "warm_start", "finetune_lac", "generate"])
def test_help_lists_the_scripts_own_options_and_ends_well(script):
    done = subprocess.run(
        [sys.executable, "-m", f"launch.{script}", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--seed" in done.stdout and f"python -m launch.{script}" in done.stdout
    assert "--logtostderr" not in done.stdout and "orbax" not in done.stdout.replace("--helpfull", "")


@pytest.mark.parametrize("flag", ["--episodes=-1", "--max_turns=0", "--no_such_flag=1", "--seed=x"])
def test_a_flag_that_cannot_be_is_one_line(flag):
    command = [sys.executable, "-m", "launch.evaluate", flag]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("error: ") and flag[2:].partition("=")[0] in refused.stderr
