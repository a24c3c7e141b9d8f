"""Several games in one run, through the scripts: metrics of each, resuming, evaluating."""

import json
import sys

import pytest

from nlrl_jax.run import results
from nlrl_jax.run.metrics import read_metrics, read_rows
from tests.launch.scripts import run, tiny_model

GAME = """
from nlrl_jax.types import HostGame, Outcome, Start
def game(name, letter, read_action=None):
    def step(states, actions):
        return [Outcome(t + 1, f"seen {t}", float(text.count(letter))) for t, text in zip(states, actions)]
    def reset(tasks):
        return [Start(0, "letters", f"task {seed}") for _, seed in tasks]
    return HostGame(name, f"Write {letter}.", (), 3, ("",), reset, step, score="letters", has_success=False,
                    read_action=read_action)
letter_e = game("letter_e", "e")
letter_o = game("letter_o", "o", lambda text: text or None)
"""
GAMES = ("pair:letter_e", "pair:letter_o")
NAME = ",".join(GAMES)
SMALL = (
    f"--game={NAME}", "--group_size=3", "--num_groups=3", "--sampling_temperature=0", "--temperature=1", "--top_k=0",
    "--max_tokens=8", "--max_turns=2", "--eval_turns=2", "--eval_episodes=4", "--learning_rate=0.02", "--lora_rank=2",
    "--checkpoint_every=1", "--cache_mb=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "pair.py").write_text(GAME)
    tiny_model(folder / "tiny", 256)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("pair", None)


def train(folder, run_dir, *args):
    run("train_ms_grpo", f"--run_dir={run_dir}", f"--model={folder / 'tiny'}", *SMALL, *args)


def test_a_mixture_is_trained_resumed_and_evaluated_with_results_by_game(folder, capsys):
    whole, resumed = folder / "whole", folder / "resumed"
    train(folder, whole, "--iterations=3")
    by_game = [f"env_return/{name}" for name in GAMES]
    rows, after = read_rows(whole), results.read(whole)["after"]
    assert set(by_game) <= read_metrics(whole).keys() and set(by_game) <= after.keys()
    for row in rows:  # of three groups one game has two
        shares = [(row[name], row["env_return"]) for name in by_game]
        assert any(2 / 3 * a[0] + 1 / 3 * b[0] == pytest.approx(a[1]) for a, b in (shares, shares[::-1]))
    assert after["env_return"] == pytest.approx(sum(after[name] for name in by_game) / 2)
    page = (whole / "report.html").read_text()
    assert "return of the game in pair:letter_e" in page and "The return in each game" in page
    train(folder, resumed, "--iterations=2")
    train(folder, resumed, "--iterations=3", "--resume")
    assert [row["loss"] for row in read_rows(resumed)] == [row["loss"] for row in rows]
    capsys.readouterr()
    run("evaluate", f"--run_dir={whole}", "--json")
    assert json.loads(capsys.readouterr().out) == {"game": NAME, **after}
    adapter = f"--adapter={whole / 'adapter'}"
    limits = ("--max_tokens=8", "--episodes=4", "--max_turns=2")
    run("evaluate", f"--model={folder / 'tiny'}", adapter, f"--game={NAME}", *limits, "--json")
    assert json.loads(capsys.readouterr().out) == {"game": NAME, **after}
