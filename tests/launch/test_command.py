"""`nlrl-jax`: every script from any folder, and a folder of the user's own that is named like ours."""

import pathlib
import subprocess
import sys

from nlrl_jax.launch import __main__ as launcher

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
    meant = {
        "Train_MS_GRPO": "mean train_ms_grpo?",
        "launch/train-ms-grpo.py": "mean train_ms_grpo?",
        "eval": "mean evaluate?",
        "grpo": "mean reproduce_ms_grpo, train_ms_grpo?",
        "train": "mean train_dqn, train_language_actor_critic, ",
        "sft": "mean warm_start?",
        "xyz": "there are ablate, ",
    }
    for name, answer in meant.items():
        assert answer in launcher.nearest(name, sorted(launcher.scripts())), name


FORKED = """
import gc, importlib, os, runpy, sys
# All imports once; a child runs its script's own lines again, as `python -m` does.
for script in {line.partition(" ")[0] for line in sys.argv[2:]}:
    importlib.import_module(script)
    del sys.modules[script]
gc.freeze()  # or each child's end walks through every object of JAX
for i, line in enumerate(sys.argv[2:]):
    if not (child := os.fork()):
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[1]}/{i}.{name}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv = line.split(" ")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


STAND_INS = """
from nlrl_jax.run import stand_ins
stand_ins.install()
"""


def several(folder, *lines, first=""):
    """(exit code, stdout, stderr) of `python -m LINE` for each line, in children of one process that runs `first`."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", first + FORKED, str(folder), *lines]
    codes = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(codes) == len(lines)
    texts = [[(folder / f"{i}.{name}").read_text() for name in ("out", "err")] for i in range(len(lines))]
    return [(int(code), *text) for code, text in zip(codes, texts)]


def test_help_lists_the_scripts_own_options_and_is_the_same_without_the_libraries(tmp_path):
    scripts = [launcher.FILES.get(name, name) for name in launcher.scripts()]
    lines = [f"nlrl_jax.launch.{script} --help" for script in scripts]
    with_libraries = several(tmp_path / "whole", *lines)
    with_stand_ins = several(tmp_path / "quick", *lines, first=STAND_INS)
    for script, helped, quick in zip(scripts, with_libraries, with_stand_ins, strict=True):
        code, out, _ = helped
        assert code == 0, script
        assert "\n  --" in out and f"nlrl-jax {script.removesuffix('_model')}" in out
        assert "--logtostderr" not in out and "orbax" not in out.replace("--helpfull", "")
        assert quick == helped, script


def test_help_imports_no_jax():
    ended = "import sys; print(*(name for name in ('jaxlib._jax', 'flax.linen.module') if name in sys.modules))"
    code = f"import os; os._exit = lambda code: sys.exit(code)\n{COMMAND}"
    command = [sys.executable, "-c", f"import atexit; atexit.register(lambda: exec({ended!r}))\n{code}"]
    helped = subprocess.run([*command, "train_dqn", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert helped.returncode == 0 and helped.stdout.endswith("of the libraries.\n\n"), helped.stderr


def test_a_flag_that_cannot_be_is_one_line(tmp_path):
    options = ("--episodes=-1", "--max_turns=0", "--no_such_flag=1", "--seed=x")
    for option, (code, _, err) in zip(
        options, several(tmp_path, *(f"nlrl_jax.launch.evaluate {option}" for option in options))
    ):
        assert code == 1 and err.count("\n") == 1, option
        assert err.startswith("error: ") and option[2:].partition("=")[0] in err


def test_the_versions(tmp_path):
    shown = command(tmp_path, "--version").stdout.split("\n")
    assert [line.split()[0] for line in shown[:2]] == ["nlrl_jax", "jax"] and shown[-2].startswith("Python 3.")


def test_an_interrupt_during_imports_is_one_line():
    code = "import launch; raise KeyboardInterrupt"
    interrupted = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert interrupted.stderr.split("\n") == ["", "interrupted", ""] and interrupted.returncode != 0


HABITS = {  # what people type who come from TRL, Tunix, verl or Gymnasium, and what helps them
    "train_ms_grpo": {
        "--num_generations=8": "--group_size",
        "--output_dir=x": "--run_dir",
        "--lr=1e-5": "--learning_rate",
        "--model_name_or_path=x": "--model",
        "--bf16": "--dtype bfloat16",
        "--config=x.yaml": "--preset NAME",
        "--env=x": "--game",
        "--max-tokens=5": "--max_tokens is written with underscores",
        "--per_device_train_batch_size=8": "--micro_batch",
        "--max_completion_length=100": "--max_tokens",
        "--gradient_checkpointing": "--remat",
        "--report_to=wandb": "--wandb",
        "--save_steps=5": "--checkpoint_every",
        "--kl_coef=0.1": "--beta",
        "--epsilon=0.2": "--clip_low",
        "--num_iterations=2": "--updates_per_batch",
        "--num_train_steps=5": "--iterations",
        "--iterations=1.5": "must be a whole number",
        "--iterations=many": "--iterations=many: it must be a whole number",
        "--iterations=1k": "it must be a whole number",
        "--iterations --resume": "its value is missing; it must be a whole number",
        "--temperature=hot": "--temperature=hot: it must be a number",
        "--learning_rate --resume": "its value is missing; it must be a number",
        "--nonsense=1": "there is no option --nonsense; --help lists",
        "--batch_size=8": "--num_groups",
        "--num-env-runners=8": "--num_groups",
        "--rollout.n=8": "--group_size",
        "--stop-iters=8": "--iterations",
        "--eval_strategy=steps": "--eval_every",
        "--run_name=x": "--run_dir",
        "--gpus=2": "--mesh",
        "--device=cuda": "JAX_PLATFORMS",
        "--gamma=0.9": "there is no option --gamma; --help lists",
        "--num_group=2": "the nearest is --num_groups",
        "--verbose": "there is no option --verbose; --help lists",  # nothing of absl or JAX
    },
    "run_lac": {
        "--n_ctx=5": "--context_tokens",
        "--api_base=x": "--base_url",
        "--max_new_tokens=5": "--line_tokens",
        "--num_episodes=5": "--tasks",
        "--algo=lac": "--methods",
        "--webshop_data=x": "--data",
        "--lr=1": "there is no option --lr; --help lists",  # nothing is learned there
    },
}


def test_options_of_other_libraries_are_answered_with_ours(tmp_path):
    lines = [
        (f"nlrl_jax.launch.{script} {line}", answer)
        for script, cases in HABITS.items()
        for line, answer in cases.items()
    ]
    for (line, answer), (code, _, error) in zip(lines, several(tmp_path, *(line for line, _ in lines)), strict=True):
        assert code == 1 and error.startswith("error: ") and answer in error, (line, error)
        assert error.count("\n") == 1, line


def test_whole_numbers_may_be_written_as_floats(tmp_path):
    lines = (
        "nlrl_jax.launch.evaluate --episodes 1e3 --max_turns 2.0 --model no",
        "nlrl_jax.launch.run_lac --tasks 1e1 --seed 1e9",
    )
    evaluated, played = several(tmp_path, *lines)
    assert "no model at 'no'" in evaluated[2], evaluated
    assert "--seed is 1000000000; it must be" in played[2], played
