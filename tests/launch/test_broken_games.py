"""Classes of a user's in training: episodes that break off, runs that stop for it, and kills, through the scripts."""

import importlib
import json
import sys

import pytest

from nlrl_jax.run import results
from nlrl_jax.run.metrics import read_rows
from tests.launch.moments import Moments
from tests.launch.scripts import refusal, run, tiny_model

SMALL = (
    "--game=letters:Letters", "--group_size=3", "--num_groups=2", "--sampling_temperature=0", "--temperature=1",
    "--top_k=0", "--max_tokens=8", "--max_turns=2", "--eval_turns=2", "--eval_episodes=3", "--learning_rate=0.02",
    "--lora_rank=2", "--checkpoint_every=1", "--cache_mb=10",
)  # fmt: skip
GAME = '''
import random
def is_broken(seed):
    return False
class Letters:
    """Each letter e of a reply is worth 1."""
    max_steps = 4
    def reset(self, seed=0):
        random.seed(seed)
        self.seed, self.task = seed, random.randint(0, 9)
        return f"task {self.task}", {}
    def step(self, action):
        if is_broken(self.seed):
            raise OSError("the engine is gone")
        return f"roll {random.randint(0, 9)}", action.count("e") + random.random(), False, False, {}
'''
FIRST_TRAINED = 5000  # seeds below are evaluated on


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "letters.py").write_text(GAME)
    tiny_model(folder / "tiny", 256)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("letters", None)


@pytest.fixture
def breaking(folder, monkeypatch):
    """(which seeds break) -> None."""
    module = importlib.import_module("letters")
    return lambda is_broken: monkeypatch.setattr(module, "is_broken", is_broken)


def arguments(folder, run_dir, *args):
    return "train_ms_grpo", f"--run_dir={run_dir}", f"--model={folder / 'tiny'}", *SMALL, *args


def test_episodes_that_break_off_are_counted_and_told_once(folder, breaking, capsys):
    breaking(lambda seed: seed == 1 or seed > FIRST_TRAINED and seed % 2)
    run(*arguments(folder, folder / "some", "--iterations=2", "--num_groups=6"))
    rows, stored = read_rows(folder / "some"), results.read(folder / "some")
    assert all(0 < row["broke_off"] < 1 for row in rows)
    assert stored["before"]["broke_off"] == stored["after"]["broke_off"] == pytest.approx(1 / 3)
    said = capsys.readouterr().err
    assert said.count("broke off") == 1
    assert "an episode of letters:Letters broke off: OSError: the engine is gone (" in said
    assert "letters.py, line 14)" in said and "its task is ('', 1), its actions [" in said


def test_a_run_whose_episodes_break_off_stops_and_goes_on_once_they_do_not(folder, breaking, capsys):
    breaking(lambda seed: seed >= FIRST_TRAINED)
    line = refusal(*arguments(folder, folder / "stopped", "--iterations=5"))
    assert "stopped after iteration 3 of 5, which is saved: 100% or more of the episodes broke off" in line
    assert "continue with --resume" in line and "the engine is gone" in capsys.readouterr().err
    breaking(lambda seed: False)
    run(*arguments(folder, folder / "stopped", "--iterations=5", "--resume"))
    assert [row["broke_off"] for row in read_rows(folder / "stopped")] == [1, 1, 1, 0, 0]


def test_episodes_that_break_off_before_training_refuse_the_run(folder, breaking):
    breaking(lambda seed: 0 < seed < FIRST_TRAINED)
    line = refusal(*arguments(folder, folder / "refused", "--iterations=5"))
    assert "67% of the 3 episodes of letters:Letters before training broke off" in line
    assert not (folder / "refused" / "results.json").exists()


def test_evaluate_names_faults(folder, breaking, capsys):
    options = "evaluate", f"--model={folder / 'tiny'}", "--game=letters:Letters", "--max_tokens=8", "--seed=1"
    breaking(lambda seed: seed == 10_001)
    run(*options, "--episodes=4", "--max_turns=2", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out)["broke_off"] == 0.25 and "its task is ('', 10001)" in said.err
    breaking(lambda seed: False)
    breaking(lambda seed: seed >= 10_000)
    assert "all 4 episodes of letters:Letters broke off" in refusal(*options, "--episodes=4", "--max_turns=2")


def test_a_run_on_a_class_that_is_killed_at_any_moment_leaves_the_same_in_the_end(folder, tmp_path):
    """Though the class draws from Python's global generator while it is played."""
    wanted = ("metrics.jsonl#1", "checkpoints/2.orbax-checkpoint-tmp/tree#1", "metrics.jsonl#3")
    moments = Moments(tmp_path / "whole", wanted, tmp_path)
    with moments.watch():
        run(*arguments(folder, tmp_path / "whole", "--iterations=3"))
    assert set(moments.copies) == set(wanted), moments.seen

    def left(run_dir):
        return read_rows(run_dir), (run_dir / "adapter" / "adapter_model.safetensors").read_bytes()

    for copy in moments.copies.values():
        run(*arguments(folder, copy, "--iterations=3", "--resume"))
        assert left(copy) == left(tmp_path / "whole")
