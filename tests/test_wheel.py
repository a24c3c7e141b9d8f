"""The wheel in an environment of its own, used in a folder of a person's own code: what it brings, and its commands."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

pytestmark = pytest.mark.promises
ROOT = pathlib.Path(__file__).parents[1]
GAME = """
from nlrl_jax import envs

def pond(prompt="paper", max_steps=0):
    return envs.make("frozen_lake", prompt)
"""


def run(*command, cwd):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The programs of an environment with the wheel, and after it the packages that this one has."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns(".*", "build", "runs", "shared", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=unwanted, symlinks=True)
    try:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, folder / "source", cwd=folder)
    except AssertionError as error:
        if "No matching distribution found for setuptools" in str(error):
            pytest.skip("what builds a wheel cannot be loaded")
        raise
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python, wheel = folder / "venv" / "bin" / "python", next(folder.glob("nlrl_jax-*.whl"))
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (pathlib.Path(packages) / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a game, and code whose names are ours too."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "pond.py").write_text(GAME)
    for name in ("envs", "launch", "tests", "config", "files", "text", "run"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('mine, not yours')\n")
    return folder


IMPORTING = """
import importlib, pathlib, pkgutil, sys
import nlrl_jax
from nlrl_jax import envs, launch
from nlrl_jax.weights.load import BUILT_IN, load_model

ours = nlrl_jax, envs, launch
home = pathlib.Path(nlrl_jax.__file__).parents[1]
assert pathlib.Path(sys.prefix) in home.parents
homes = [pathlib.Path(package.__file__).parent for package in (envs, launch)]
assert homes == [home / "nlrl_jax" / "envs", home / "nlrl_jax" / "launch"]
assert not {"tests", "docs", "benchmarks", "envs", "launch"} & {path.name for path in home.iterdir()}
for package in ours:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] not in ("nlrl_jax", "tests"), (module.name, error)
assert all(load_model(name).params for name in BUILT_IN)
"""


def test_it_has_all_that_it_imports_and_reads(programs, mine):
    run(programs / "python", "-I", "-c", IMPORTING, cwd=mine)


def test_its_commands_work_in_a_folder_of_a_persons_own_code(programs, mine):
    command = lambda *args: run(programs / "nlrl-jax", *args, cwd=mine)
    names = {path.stem for path in (ROOT / "launch").glob("*.py") if not path.stem.startswith("_")}
    names = names - {"inspect_model"} | {"inspect"}  # its file's name must not be that of Python's own module
    assert names <= set(command("--help").split())
    assert "--run_dir" in command("train_ms_grpo", "--help")
    small = (
        "--group_size=4", "--group_sample=2", "--num_groups=1", "--max_turns=2", "--eval_episodes=2", "--eval_turns=6",
        "--max_tokens=8", "--iterations=1", "--lora_rank=2",
    )  # fmt: skip
    assert "report: " in command("train_ms_grpo", "--model=nano", "--game=pond:pond", *small, "--run_dir=trained")
    expert = ("--methods=react", "--missions=go to", "--tasks=1", "--max_steps=4")
    assert "success: react" in command("run_lac", *expert, "--run_dir=played")
    assert "trained" in command("compare", "trained")
    command("export", "--run_dir=trained", "--out=exported")
    assert (mine / "exported" / "config.json").is_file()


OTHERS_GAME = """
from envs.pond_maker import prompt
from nlrl_jax import envs

def pond(prompt=prompt, max_steps=0):
    return envs.make("frozen_lake", prompt)
"""


@pytest.mark.parametrize("layout", ["package", "folder", "module"])
def test_a_project_has_its_own_envs_and_launch(programs, tmp_path, layout):
    """`envs` is the commonest name of a folder in such projects; `launch.py` that of a script."""
    (tmp_path / "launch.py").write_text("raise ImportError('mine, not yours')\n")
    game = OTHERS_GAME if layout != "module" else OTHERS_GAME.replace("envs.pond_maker", "envs")
    if layout == "module":
        (tmp_path / "envs.py").write_text("prompt = 'paper'\n")
    else:
        (tmp_path / "envs").mkdir()
        (tmp_path / "envs" / "pond_maker.py").write_text("prompt = 'paper'\n")
    if layout == "package":
        (tmp_path / "envs" / "__init__.py").write_text("")
    (tmp_path / "mygame.py").write_text(game)
    small = "--model=nano", "--episodes=2", "--max_turns=2", "--max_tokens=4"
    assert "return" in run(programs / "nlrl-jax", "evaluate", *small, "--game=mygame:pond", cwd=tmp_path)
    where = "import mygame, envs; print(envs.__file__ or list(envs.__path__))"
    assert str(tmp_path) in run(programs / "python", "-c", where, cwd=tmp_path)
