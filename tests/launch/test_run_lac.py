"""LAC and planners through the script, with the built-in model: in this process and on a server."""

import json
import re

import jax
import pytest

from nlrl_jax.envs.webshop import products
from nlrl_jax.launch import run_lac
from nlrl_jax.run import local_models, results
from nlrl_jax.run.host_games.prompts import FORM
from tests.backends.server import Server, status
from tests.launch.scripts import refusal, run
from tests.run.serving.running import running, serving

SCRIPT = "run_lac"
TINY = ("--missions=go to,open door", "--tasks=1", "--max_steps=2", "--candidates=2", "--depth=1", "--line_tokens=16")
SMALL = ("--model=nano_babyai", *TINY)
METHODS = "--methods=lac,react"


def plan(run_dir, *args):
    run(SCRIPT, f"--run_dir={run_dir}", *args)


def decisions(run_dir, method):
    episodes = json.loads((run_dir / "episodes" / f"{method}.json").read_text())["episodes"]
    return [(episode["task"], episode["steps"]) for episode in episodes]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "here"
    plan(folder, *SMALL, METHODS)
    return folder


def test_a_run_leaves_scores_episodes_and_a_page(here, capsys):
    scores = results.read(here)["scores"]
    assert list(scores) == ["lac", "react"]
    for one in scores.values():
        assert set(one["by_mission"]) == {"go to", "open door"}
        assert one["tokens"] > 0 and one["seconds"] > 0 and 0 <= one["success"] <= 1 and one["steps"] <= 2
    assert "LAC" in (here / "report.html").read_text()
    assert (here / "table.md").read_text().startswith("Model: nano_babyai\n")
    assert results.read(here)["model"] == "nano_babyai"
    before = (here / "usage.json").read_text()
    plan(here, "--resume")  # everything is on disk
    assert (here / "usage.json").read_text() == before
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("success: lac") and last.endswith(" (nano_babyai)")


def test_dtype_is_that_of_both_local_models(tmp_path, monkeypatch):
    made, local_model = [], local_models.local_model
    monkeypatch.setattr(
        local_models, "local_model", lambda *args, **options: made.append(local_model(*args, **options)) or made[-1]
    )
    both = ("--policy=nano_babyai", "--dtype=bfloat16", "--methods=react", "--max_steps=1")
    plan(tmp_path / "half", *SMALL, *both)
    assert [one.model.config.dtype for one in made] == ["bfloat16"] * 2
    assert {str(x.dtype) for one in made for x in jax.tree.leaves(one.variables)} == {"bfloat16"}


@pytest.mark.slow
def test_an_endpoint_decides_as_the_model_that_it_serves(here, tmp_path):
    local = local_models.local_model("nano_babyai", chat=False, cache_mb=50)
    given = ("--model=endpoint", "--endpoint_model=tiny", "--endpoint_tokenizer=nano_babyai", "--prompt=compact")
    with running(serving(local, "tiny")) as url:
        plan(tmp_path / "far", *given, f"--base_url={url}", "--context_tokens=320", *TINY, METHODS)
    for method in ("lac", "react"):
        assert decisions(tmp_path / "far", method) == decisions(here, method)


def test_a_dry_run_counts_and_writes_nothing(tmp_path, capsys):
    endpoint = ("--model=endpoint", "--endpoint_model=m", "--token_budget=400000")
    plan(tmp_path / "dry", "--dry_run", *TINY, *endpoint, METHODS)
    assert not (tmp_path / "dry").exists()
    said = capsys.readouterr().out
    assert "nothing is sent" in said and "success" not in said
    most = re.search(r"the largest below it is --tasks (\d+) \(([\d,]+) tokens at most", said)
    assert int(most[1]) > 1 and int(most[2].replace(",", "")) < 400000


def test_a_game_plays_with_nothing_but_its_name_by_its_expert(tmp_path, capsys):
    folder = tmp_path / "rooms"
    plan(folder, *TINY, METHODS, "--expert=prior=1,critic=0.9", "--max_steps=20")
    said = "not a language model: it is babyai's own expert, which knows the true state. Its actions are right"
    for text in (capsys.readouterr().out, (folder / "table.md").read_text(), results.read(folder)["about"]):
        assert said in text and "verdicts with 0.9" in text
    assert (
        said.replace("'", "&#39;") in (folder / "report.html").read_text()
        or said in (folder / "report.html").read_text()
    )
    assert results.read(folder)["model"] == "expert" and results.read(folder)["scores"]["react"]["success"] == 1


def test_webshop_plays_with_lats(tmp_path, capsys):
    plan(tmp_path / "shop", "--game=webshop", "--tasks=2", "--lats_iterations=1", "--depth=1", "--max_steps=6")
    scores = results.read(tmp_path / "shop")["scores"]
    assert list(scores) == ["lac", "react_think", "react", "rap", "icpi", "rafa", "lats"]
    assert all(0 <= one["reward"] <= 1 and one["tokens"] > 0 for one in scores.values())
    assert "mean score" in (tmp_path / "shop" / "table.md").read_text()
    assert "score" in capsys.readouterr().out


def test_a_folder_of_webshops_own(tmp_path):
    products.main([str(tmp_path / "data")])
    given = ("--game=webshop", f"--data={tmp_path / 'data'}", "--methods=react", "--tasks=1")
    plan(tmp_path / "run", *given)
    assert list(results.read(tmp_path / "run")["scores"]) == ["react"]


def test_a_game_with_fewer_tasks_plays_each_once_and_says_so(tmp_path, capsys):
    products.main([str(tmp_path)])
    plan(tmp_path / "dry", "--game=webshop", f"--data={tmp_path}", "--tasks=400", "--methods=react", "--dry_run")
    lines = capsys.readouterr().out.splitlines()
    said = "--tasks is 400, but there are only 300 different ones; each is played once"
    assert said in lines and any(line.split()[:2] == ["react", "4,500"] for line in lines)  # 15 steps of 300


def test_bad_input(tmp_path):
    wrong = lambda *args: refusal(SCRIPT, f"--run_dir={tmp_path / 'no'}", *args)
    assert "babyai has no tasks 'swim'" in wrong("--missions=swim")
    assert "methods is 'magic'" in wrong("--methods=magic")
    assert "two different words" in wrong("--words=GOOD,GOOD")
    assert "--line_tokens is 200" in wrong("--model=nano_babyai", "--line_tokens=200")
    assert "alpha is 0" in wrong("--alpha=0")
    assert "frozen_lake has no expert" in wrong("--game=frozen_lake", "--model=expert")
    assert "frozen_lake has no expert to stand in for a language model; give one" in wrong("--game=frozen_lake")
    assert "sets luck; its rates are prior, critic, world" in wrong("--expert=luck=1")
    assert "--expert does nothing with --model nano_babyai" in wrong("--model=nano_babyai", "--expert=prior=1")
    assert "--policy needs two local models, and expert is not one" in wrong("--policy=nano_babyai")
    assert "--data is for --game alfworld or webshop" in wrong(f"--data={tmp_path}")
    assert "has no items_shuffle_1000.json" in wrong("--game=webshop", f"--data={tmp_path}")
    assert "--lats_iterations is 0" in wrong("--game=webshop", "--lats_iterations=0")
    cannot = wrong("--game=maze_double_t", "--model=nano_babyai", "--methods=react", "--prompt=paper")
    assert "--model nano_babyai cannot hold a prompt of maze_double_t" in cannot
    assert "--webshop_tagger is for --game webshop" in wrong("--webshop_tagger=en_core_web_sm")
    assert not (tmp_path / "no").exists()


def test_a_wrong_key_is_one_message_before_there_is_a_folder(tmp_path):
    with Server(behaviour=lambda request: status(401, "bad key")) as server:
        given = (
            "--model=endpoint",
            "--endpoint_model=m",
            f"--base_url={server.url}",
            "--critic=direct",
            "--methods=react",
        )
        line = refusal(SCRIPT, f"--run_dir={tmp_path / 'run'}", *given)
        assert "does not accept the key" in line and "\n" not in line and len(server.requests) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "names, turns, cure",
    [
        (["react"], "lines", "add --turns chat"),
        (["lac", "react"], "lines", "--methods react --turns chat plays as it learned"),
        (["react"], "chat", None),
    ],
)
def test_a_model_that_learned_in_chat_turns_is_told_that_it_writes_lines(tmp_path, names, turns, cure):
    (tmp_path / FORM).write_text(json.dumps({"turns": "chat"}))
    notes = run_lac.learned_in_chat(run_lac.LACRunConfig(model=str(tmp_path), turns=turns), names)
    assert [note.partition("; ")[2] for note in notes] == ([cure] if cure else [])
