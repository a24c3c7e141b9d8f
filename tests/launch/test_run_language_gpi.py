"""Table 1 by one command: the scripts' margins, what a run leaves, a kill, a server that talks nonsense."""

import contextlib
import json
from unittest import mock

import numpy as np
import pytest

from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.maze.rule_based import SCRIPTS
from nlrl_jax.launch import run_language_gpi as script
from nlrl_jax.run import models, results
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.run.reports.language_gpi import GPIMethod, summarize
from tests.backends.server import Server, says
from tests.launch.scripts import refusal, run

SMALL = ("--starts=3", "--seeds=2", "--rows=policy,1x1,2x1", "--mazes=medium", "--max_steps=30")


@pytest.mark.parametrize(("maze", "margin"), [("double_t", 1 - 11.19 / 27.29), ("medium", 1 - 12.23 / 27.05)])
def test_scripted_gpi_beats_the_policy_by_the_papers_margin_and_variations_help(maze, margin):
    config, model = script.GPIRunConfig(seed=7), ScriptedModel(SCRIPTS)
    mean = {}
    for name in ("policy", "1x3", "4x3", "8x3"):
        result = script.play(config, maze, GPIMethod.of(name), model)
        assert not result["problems"] and np.shape(result["returns"]) == (3, 30)
        mean[name] = summarize(result)["return"]
    assert 1 - mean["8x3"] / mean["policy"] >= margin, mean
    assert mean["1x3"] < mean["4x3"] < mean["8x3"], mean


def test_starts_are_all_cells_before_any_comes_twice():
    maze = script.mazes.maze("double_t")
    starts = script.draw_starts(maze, 30, seed=0)
    assert sorted(starts[:25]) == maze.starts.tolist() and len(set(starts[25:])) == 5
    assert starts != script.draw_starts(maze, 30, seed=1)


def test_calls_of_an_episode_are_those_of_the_paper():
    config = script.GPIRunConfig(starts=4, seeds=1)
    result = script.play(config, "medium", GPIMethod.of("3x2"), ScriptedModel(SCRIPTS))
    steps = np.sum(result["steps"])
    assert result["calls"] == {"value": 12 * steps, "aggregator": 4 * steps, "improver": steps}
    solved = np.array(result["solved"])
    np.testing.assert_array_equal(np.array(result["returns"])[solved], 1 - np.array(result["steps"])[solved])


def files_without_clock(run_dir):
    names = ["table.md", "metrics.jsonl", "return_against_k.png", *sorted(p.name for p in (run_dir / "rows").iterdir())]
    paths = [run_dir / name if (run_dir / name).exists() else run_dir / "rows" / name for name in names]
    return {path.name: path.read_bytes() for path in paths}


def test_killed_run_goes_on_with_the_next_row_and_leaves_the_same_files(tmp_path, capsys):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run("run_language_gpi", f"--run_dir={whole}", *SMALL)
    last = capsys.readouterr().out.splitlines()[-1]
    stop = mock.patch("nlrl_jax.algorithms.language_gpi.language_gpi", side_effect=KeyboardInterrupt)
    with stop, contextlib.suppress(SystemExit):
        run("run_language_gpi", f"--run_dir={killed}", *SMALL)
    assert [path.name for path in (killed / "rows").iterdir()] == ["medium_policy.json"]
    capsys.readouterr()
    run("run_language_gpi", f"--run_dir={killed}", "--resume")  # with the stored options
    out = capsys.readouterr().out
    assert "[2/3]" in out and "[1/3]" not in out and out.splitlines()[-1] == last
    assert files_without_clock(whole) == files_without_clock(killed)
    table = (whole / "table.md").read_text()
    before, after = (row["return"] for row in (read_rows(whole)[0], read_rows(whole)[2]))
    assert last == f"mean return (medium): {before:.2f} -> {after:.2f}" and f"{before:.2f}" in table
    page = (whole / "report.html").read_text()
    for word in ("Improvement:", "variation 2", "final_evaluation", "language policy alone", "data:image/png"):
        assert word in page, word
    roles = [row["role"] for row in json.loads((whole / "usage.json").read_text())]
    assert {f"medium_2x1/{role}" for role in ("value", "aggregator", "improver")} < set(roles)
    ended = results.read(whole)
    assert ended["before"]["medium/return"] == pytest.approx([before, before])
    assert np.mean(ended["after"]["medium/return"]) == pytest.approx(after) and len(ended["rows"]["medium"]) == 3
    assert ended["transcripts"]["after"][0]["turns"] and ended["script"] == "run_language_gpi"


def nonsense(request):
    """Prose as a value, half a JSON as an aggregation, always left as the action."""
    if "as a state value function" in request.asked:
        text = "It looks fine to me."
    else:
        text = (
            '{"thoughts": "walls all aro' if "Below is" in request.asked else '{"thoughts": "", "action": "move left"}'
        )

    def change(whole):
        for choice in whole["choices"]:
            choice["message"]["content"] = text
        whole["usage"] = {"prompt_tokens": 100, "completion_tokens": 10 * len(whole["choices"])}

    return says(change)


@pytest.fixture
def server():
    with Server(behaviour=nonsense) as server:
        yield server


def test_endpoint_is_asked_counted_and_not_asked_twice(tmp_path, server, capsys):
    args = (
        "--backend=endpoint", f"--base_url={server.url}", "--model=m", "--mazes=double_t", "--rows=policy,2x1",
        "--starts=2", "--seeds=1", "--max_steps=2", f"--run_dir={tmp_path}", "--max_tokens=40", "--history=5",
    )  # fmt: skip
    rows = lambda: json.loads((tmp_path / "usage.json").read_text())
    tokens = lambda: (sum(row["prompt_tokens"] + row["tokens"] for row in rows()), sum(row["paid"] for row in rows()))
    replies = lambda: sum(request.body.get("n", 1) for request in server.requests)
    # 2 states x 2 steps: 4 calls for the policy, then 2 x 8 + 8 + 2 = 26 a step; the budget ends the first one.
    line = refusal("run_language_gpi", *args, "--token_budget=700", "--concurrency=1")
    assert "1 of 2 rows are finished; --resume continues" in line
    paid = len(server.requests)
    assert tokens() == (100 * paid + 10 * replies(),) * 2
    run("run_language_gpi", *args, "--token_budget=0", "--concurrency=1", "--resume")
    assert tokens() == (100 * len(server.requests) + 10 * replies(),) * 2  # before and after the budget ended
    texts = [json.dumps([body["messages"], body.get("seed")]) for body in (one.body for one in server.requests)]
    assert len(set(texts)) == len(texts) > paid > 4  # nothing was paid for twice
    check, *asked = (request.body for request in server.requests)
    assert check["messages"] == [{"role": "user", "content": "Hi"}] and check["max_tokens"] == 16
    assert all(body["temperature"] == 0.7 and body["max_tokens"] == 40 for body in asked)
    problems = json.loads((tmp_path / "rows" / "double_t_2x1.json").read_text())["problems"]
    assert problems["value/nothing"] == 2 * 2 * 8 and problems["aggregator/cut"] == 2 * 2 * 4
    assert not any(name.startswith("improver") for name in problems)
    used = {row["role"].removeprefix("double_t_2x1/"): row for row in rows()}
    assert used["value"]["calls"] == 32 and used["value"]["cache_hits"] > 0 and used["improver"]["tokens"] > 0
    assert "unreadable double_t" in capsys.readouterr().out


def test_a_dry_run_counts_the_calls_that_rules_make_and_sends_nothing(capsys):
    args = "--starts=3", "--seeds=4", "--rows=q,2x1", "--mazes=medium", "--max_steps=30"
    with mock.patch.object(models, "large_model", side_effect=AssertionError):
        run("run_language_gpi", "--scale=paper", "--dry_run", *args, "--token_budget=1000")
    said = capsys.readouterr().out
    assert "--token_budget 1,000: too little even for --starts 1" in said
    lines = [line.split() for line in said.splitlines() if line.startswith("medium")]
    config = script.GPIRunConfig(starts=3, seeds=1, rows="q,2x1", mazes="medium", max_steps=30, history=100)
    for line, (maze, row) in zip(lines, config.jobs(), strict=True):
        result = script.play(config, maze, row, ScriptedModel(SCRIPTS))
        calls = 4 * sum(result["calls"].values())
        assert line[:2] == [maze, row.name] and line[2] == f"{calls:,}" and line[4] == f"{512 * calls:,}"
