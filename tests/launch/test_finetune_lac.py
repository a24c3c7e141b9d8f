"""Fine-tuning on trajectories through the script, with a tiny random model."""

import json

import pytest

from nlrl_jax.run import results
from nlrl_jax.run.host_games.prompts import FORM, PromptConfig
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.weights.load import load_model
from tests.launch.scripts import refusal, run, tiny_model

SCRIPT = "finetune_lac"
GOOD, BAD = "It helps. This step is GOOD.", "It does not. This step is BAD."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))[0]


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A person's own trajectories."""
    rows = [
        {
            "goal": "go to the red ball",
            "observation": "You see a wall 1 step forward",
            "steps": [
                ["turn left", "You see a red ball 1 step left", GOOD],
                ["drop", "You see a red ball 1 step left", BAD],
            ],
            "success": success,
        }
        for success in (True, False)
    ]
    path = tmp_path_factory.mktemp("mine") / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flags(tiny, mine):
    small = ("--prompt=compact", "--learning_rate=0.02", "--lora_rank=2", "--eval_every=2", "--checkpoint_every=2")
    return (f"--model={tiny}", f"--trajectories={mine}", f"--held_out={mine}", *small)


def tune(run_dir, *args):
    run(SCRIPT, f"--run_dir={run_dir}", *args)


def test_learns_resumes_and_leaves_a_model_that_plays(tiny, mine, tmp_path, capsys):
    copy = tmp_path / "copy.jsonl"
    copy.write_text(mine.read_text())
    tune(tmp_path / "tuned", *flags(tiny, copy), "--iterations=4", "--learn_actions")
    copy.unlink()  # the run has its own
    tune(tmp_path / "tuned", "--resume", "--iterations=6")
    tune(tmp_path / "once", *flags(tiny, mine), "--iterations=6", "--learn_actions")
    weights = lambda name: (tmp_path / name / "model" / "model.safetensors").read_bytes()
    assert weights("tuned") == weights("once")
    rows = read_rows(tmp_path / "tuned")
    assert [row["iteration"] for row in rows] == list(range(6))
    assert [row["iteration"] + 1 for row in rows if "eval/accuracy" in row] == [2, 4, 6]
    stored = results.read(tmp_path / "tuned")
    assert stored["script"] == SCRIPT and stored["counts"]["examples"] == 12  # 2 episodes of 2 steps, 3 lines each
    names = {"observation_loss", "reflection_loss", "action_loss", "accuracy", "accuracy_good", "accuracy_bad"}
    assert set(stored["before"]) == set(stored["after"]) == names
    assert stored["after"]["observation_loss"] < stored["before"]["observation_loss"]
    assert stored["after"]["action_loss"] < stored["before"]["action_loss"] - 0.1
    assert stored["after"]["observation_loss"] == pytest.approx(rows[-1]["eval/observation_loss"])
    assert (tmp_path / "tuned" / "learning_curve.png").is_file()
    assert "accuracy" in capsys.readouterr().out

    model = tmp_path / "tuned" / "model"
    assert load_model(str(model)).config.num_params == load_model(str(tiny)).config.num_params
    assert PromptConfig().form(str(model)) == ("compact", 0)
    assert PromptConfig("paper", 2).form(str(model)) == ("paper", 2)
    play = ("--missions=go to", "--tasks=1", "--max_steps=2", "--line_tokens=8", "--depth=1", "--cache_mb=0")
    run("run_lac", f"--model={model}", "--methods=react_return", f"--run_dir={tmp_path / 'play'}", *play)
    assert "decision transformer: success" in capsys.readouterr().out


@pytest.mark.parametrize("method", [pytest.param("actor_critic", marks=pytest.mark.slow), "decision_transformer"])
def test_policies_learn_by_the_same_script(tiny, mine, tmp_path, method):
    tune(tmp_path, *flags(tiny, mine), f"--method={method}", "--iterations=1", "--rows=episodes")
    stored = results.read(tmp_path)
    assert set(stored["after"]) == {"action_loss"} and stored["counts"]["examples"] == 2
    assert json.loads((tmp_path / "model" / FORM).read_text())["method"] == method


def test_a_dry_run_counts_and_writes_nothing(tiny, tmp_path, capsys):
    run(SCRIPT, f"--model={tiny}", "--prompt=compact", "--successes=6", "--failures=3", "--dry_run", "--iterations=10")
    out = capsys.readouterr().out
    assert "9 trajectories (6 successes) of" in out and "--rows pairs:" in out and "--rows episodes:" in out
    assert not list(tmp_path.iterdir())


def test_bad_input(tiny, mine, tmp_path):
    given = (f"--model={tiny}", f"--run_dir={tmp_path / 'run'}")
    assert "give a file: --trajectories FILE" in refusal(SCRIPT, *given, "--game=snake")
    line = refusal(SCRIPT, *given, "--game=webshop", "--successes=13")
    assert "webshop has 12 successes and 6 failures, not 13 and 6; give a file of your own" in line
    assert "there must be a trajectory" in refusal(SCRIPT, *given, "--successes=0", "--failures=0")
    assert "learn_actions is for --method lac" in refusal(SCRIPT, *given, "--method=policy_gradient", "--learn_actions")
    assert "choose one of lac, finetuned_policy" in refusal(SCRIPT, *given, "--method=ppo")
    row = json.loads(mine.read_text().splitlines()[0])
    (tmp_path / "bare.jsonl").write_text(json.dumps(row | {"steps": [["drop", "You see nothing"]]}))
    bare = f"--trajectories={tmp_path / 'bare.jsonl'}"
    line = refusal(SCRIPT, *given, bare, "--prompt=compact")
    assert "none of 1 trajectories has a reflection that ends GOOD or BAD" in line
