"""LAC's loop through the script, with a tiny random model."""

import json
import shutil

import jax
import numpy as np
import pytest

from nlrl_jax.run import results
from nlrl_jax.run.host_games.prompts import PromptConfig
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.weights.load import load_model
from tests.launch.scripts import refusal, run, tiny_model

SCRIPT = "iterate_lac"
SMALL = (
    "--missions=go to", "--tasks=2", "--eval_tasks=2", "--max_steps=2", "--candidates=2", "--depth=1",
    "--line_tokens=8", "--epochs=1", "--batch_size=4", "--learning_rate=0.01", "--cache_mb=0",
    "--prompt=compact",
)  # fmt: skip


def loop(run_dir, *args):
    run(SCRIPT, f"--run_dir={run_dir}", *args)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A finished run of one round."""
    folder = tmp_path_factory.mktemp("loop")
    tiny_model(folder / "tiny")
    loop(folder / "run", f"--model={folder / 'tiny'}", "--rounds=1", *SMALL)
    return folder


def adapter(run_dir, k):
    return (run_dir / "rounds" / str(k) / "adapter" / "adapter_model.safetensors").read_bytes()


def test_a_run_leaves_rounds_a_model_and_a_page(here):
    run_dir = here / "run"
    stored = results.read(run_dir)
    assert set(stored["before"]) == set(stored["after"]) == {"teacher/success", "lac_no_critic/success"}
    rows = read_rows(run_dir)
    assert [row["iteration"] for row in rows] == [0, 1] and "lesson/loss" in rows[0] and "lesson/loss" not in rows[1]
    lesson = json.loads((run_dir / "rounds" / "1" / "learned.json").read_text())
    assert rows[1]["tokens_before"] == rows[0]["played_tokens"] + lesson["tokens"] > 0
    tasks = lambda name: {
        tuple(e["task"]) for e in json.loads((run_dir / "episodes" / f"{name}.json").read_text())["episodes"]
    }
    played = [tasks("round_0"), tasks("round_1"), tasks("after_0_lac_no_critic")]
    assert all(map(len, played)) and len(set.union(*played)) == sum(map(len, played))  # no task twice
    assert played[2] == tasks("after_1_lac_no_critic") == {("go to", 0), ("go to", 1)}  # those of run_lac
    model, start = load_model(str(run_dir / "model")), load_model(str(here / "tiny"))
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), model.params, start.params)
    assert changed["blocks"]["attention"]["q"]["kernel"] and not changed["embedding"]
    assert PromptConfig().form(str(run_dir / "model"))[0] == "compact"
    assert "LAC teaches its prior" in (run_dir / "report.html").read_text()


def test_a_resumed_run_goes_on_and_repeats_nothing(here, capsys):
    run_dir, first = here / "longer", adapter(here / "run", 1)
    shutil.copytree(here / "run", run_dir)
    loop(run_dir, "--resume", "--rounds=2", "--eval_every=2")
    used, second = (run_dir / "usage.json").read_text(), adapter(run_dir, 2)
    assert adapter(run_dir, 1) == first != second
    shutil.rmtree(run_dir / "rounds" / "2")  # as if killed while it learned
    for name in ("round_2", "after_2_lac_no_critic"):
        (run_dir / "episodes" / f"{name}.json").unlink()  # their moves are on disk
    loop(run_dir, "--resume")
    assert adapter(run_dir, 2) == second and (run_dir / "usage.json").read_text() == used
    rows = read_rows(run_dir)
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert ["lac_no_critic/success" in row for row in rows] == [True, False, True]
    assert all("teacher/success" in row for row in rows)
    assert capsys.readouterr().out.splitlines()[-1].startswith("LAC without critic 0.")


def test_bad_input(tmp_path):
    wrong = lambda *args: refusal(SCRIPT, f"--run_dir={tmp_path / 'no'}", *args)
    assert "methods is 'magic'" in wrong("--evaluate=magic")
    assert "are 6000 of each mission; a seed has 5000" in wrong("--tasks=1500")
    assert "teacher is 'react'" in wrong("--teacher=react")
    few = wrong("--game=webshop", "--tasks=60", "--model=nano_babyai")
    assert "webshop has 240 tasks of a kind, but 20 held-out ones and those of 3 rounds and a last one are 260" in few
    assert not (tmp_path / "no").exists()
