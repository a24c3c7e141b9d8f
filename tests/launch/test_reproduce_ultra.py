"""ULTRA from the command line, as small as can be: tables and pictures, resumed runs, refusals."""

import dataclasses
import functools
import json
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from nlrl_jax.algorithms.analyst import load
from nlrl_jax.algorithms.refiners import methods
from nlrl_jax.backends.scripted import ScriptedModel
from nlrl_jax.envs.pong import env as pong
from nlrl_jax.envs.pong import rule_based as scripted
from nlrl_jax.run import local_models, results
from nlrl_jax.run.compared_runs import parts_of, read_run
from nlrl_jax.run.metrics import read_metrics
from nlrl_jax.run.ultra.stages import SCORES
from tests.backends.server import Server, says
from tests.launch import scripts

SMALL = [
    "--seeds=2", "--iterations=2", "--episodes=4", "--episode_steps=60", "--eval_episodes=8", "--curve_episodes=4",
    "--eval_every=1",
]  # fmt: skip


def run(folder, *args, start=scripts.run):
    given = lambda option: any(arg.startswith(f"--{option}=") for arg in args)
    fitting = ["--cell=8"] * (not given("game")) + ["--base_iterations=2"] * (not given("base"))
    if not given("methods") or re.search("--methods=.*(RICE|MASK-R)", " ".join(args)):
        fitting.append("--mask_iterations=1")
    return start("reproduce_ultra", *SMALL, *fitting, f"--run_dir={folder}", *args)


def refusal(folder, *args):
    return run(folder, *args, start=scripts.refusal)


def outcomes(folder):
    """What every method's results.json says: {method: {"before": ..., "after": ...}}."""
    stored = {path.parent.name: results.read(path.parent) for path in sorted(folder.glob("**/results.json"))}
    return {name: {when: one[when] for when in ("before", "after")} for name, one in stored.items()}


def control_game(**options):
    """A user's own game, as `--game` takes it."""
    return pong.control_game(cell=8, **options)


def bare_game(**options):
    """One without an analyst's prompts and without pictures."""
    return dataclasses.replace(control_game(**options), roles=None, scripts={}, draw=None, draw_case=None)


BARE = "--game=tests.launch.test_reproduce_ultra:bare_game"


@pytest.mark.slow
def test_a_game_without_prompts_and_pictures_is_refined_without_an_analyst(tmp_path, capsys):
    run(tmp_path / "run", BARE, "--methods=PPO", "--seeds=1")
    said = capsys.readouterr().out
    assert "\nPPO: " in said and "report: " in said and "analyst:" not in said and "guided" not in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The game has no prompts for an analyst, so none was asked." in page
    assert not (tmp_path / "run" / "film.png").exists()


def test_methods_that_ask_an_analyst_need_its_prompts(tmp_path, capsys):
    assert methods.known("all", bare_game()) == ["PPO", "RICE", "LIR", "HLC"]
    refused = refusal(tmp_path / "run", BARE, "--methods=PPO,ULTRA-RA")
    assert "ULTRA-RA asks an analyst, but pong has no prompts for one (ControlGame.roles); choose among" in refused
    run(tmp_path / "run", "--dry_run", BARE, "--methods=PPO")
    assert "no analyst: the game has no prompts for one" in capsys.readouterr().out


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ultra") / "run"
    run(folder, "--methods=PPO,ULTRA-RA")
    return folder


def test_it_leaves_tables_curves_and_pictures(done):
    stored = outcomes(done)
    guided = stored.pop("guided")
    assert set(stored) == {"PPO", "ULTRA-RA"}
    for kind in SCORES:
        assert all(len(x["after"][kind]) == 2 for x in stored.values())
        assert {x["before"][kind] for x in stored.values()} == {guided["before"][kind]}  # the base agent's
    assert set(guided["after"]) == set(SCORES)  # with the table
    assert {done / "PPO", done / "ULTRA-RA"} <= set(parts_of(done)) and len(read_run(done / "PPO").metrics) == 2
    assert "ULTRA-RA" in (done / "tables.md").read_text()
    for name in ("curves.png", "case_0.png", "film.png"):
        assert min(Image.open(done / name).size) > 100
    assert Image.open(done / "before.gif").n_frames > 1
    page = (done / "report.html").read_text()
    assert "timeslot" in page and "why it is critical" in page and "http" not in page.split("<body>")[1]
    assert page.count("data:image/gif") == 2  # before and after
    assert "guided" in page and "trategies of refinement" in page
    for text in (page, (done / "tables.md").read_text()):
        assert "most likely action" in text and "sampled action" in text and "over PPO" in text


def test_every_seed_leaves_its_curve(done):
    for seed in (0, 1):
        metrics = read_metrics(done / "ULTRA-RA" / f"seed_{seed}")
        assert np.isfinite([metrics[f"eval/{kind}"] for kind in SCORES]).all() and len(metrics["iteration"]) == 2
        assert (metrics["critical"] > 0).any() and (metrics["replaced"] <= metrics["critical"]).all()


def test_resume_runs_only_the_missing_stages(done, capsys):
    before = outcomes(done)
    findings = (done / "findings.json").stat().st_mtime_ns
    run(done, "--methods=ULTRA-R", "--resume")
    after = outcomes(done)
    assert {name: after[name] for name in before} == before and "ULTRA-R" in after  # nothing is lost
    page = (done / "report.html").read_text()
    assert ">identify</td>" in page  # the analyst's calls in the first run
    for text in (page, (done / "tables.md").read_text()):  # also the methods that ran before
        assert all(f"{name}<" in text or f"| {name} |" in text for name in ("PPO", "ULTRA-RA", "ULTRA-R"))
    run(done, "--methods=PPO,ULTRA-RA,ULTRA-R", "--resume")
    out = capsys.readouterr().out
    assert "ULTRA-R: 2 seeds of 2 updates" in out and "PPO: 2 seeds" not in out and "base agent: 2 updates" not in out
    assert outcomes(done) == after
    assert (done / "findings.json").stat().st_mtime_ns == findings
    assert out.strip().splitlines()[-1].startswith("ULTRA-RA over PPO: ")


def test_resume_alone_takes_the_stored_config(done, capsys):
    before, config = outcomes(done), (done / "config.json").read_text()
    scripts.run("reproduce_ultra", f"--run_dir={done}", "--resume")
    assert outcomes(done) == before and (done / "config.json").read_text() == config
    assert "changed" not in capsys.readouterr().out


def copied(done, folder, keep=True, **config):
    """Another run with the base agent of `done`, or without one."""
    shutil.copytree(done / "base", folder / "base") if keep else (folder / "base").mkdir(parents=True)
    config = json.loads((done / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_the_base_agent_of_another_run_is_copied_once_and_refined(done, tmp_path, capsys):
    other = copied(done, tmp_path / "other")
    args = ("--methods=PPO", "--iterations=1", f"--base={other}")
    run(tmp_path / "run", *args)
    stored = outcomes(tmp_path / "run")
    assert stored["PPO"]["before"] == outcomes(done)["PPO"]["before"]
    line = refusal(tmp_path / "more", *args, "--bases=2")
    assert "names 1 base agent; --bases must be at most that" in line
    assert "updates of PPO" not in capsys.readouterr().out
    shutil.rmtree(other)  # or it goes on training
    run(tmp_path / "run", *args, "--resume")
    assert outcomes(tmp_path / "run") == stored


@pytest.mark.parametrize(
    "other, says",
    [
        ({"base_iterations": 5}, "its agent has 2 of 5 iterations; finish it first"),
        ({"game": "hopper", "keep": False}, "is an agent of 'hopper', not of 'pong'"),
        ({"keep": False}, "no checkpoint of its base agent"),
    ],
)
def test_a_base_agent_that_cannot_be_refined_is_refused(done, tmp_path, other, says):
    assert says in refusal(tmp_path / "run", f"--base={copied(done, tmp_path / 'other', **other)}")
    assert not (tmp_path / "run").exists()


def analyst(request):
    """What an endpoint answers to each of the three roles."""
    slots = [int(slot) for slot in re.findall(r"^timeslot (\d+):", request.asked, re.MULTILINE)]
    if "Find the critical timeslots" in request.asked:
        reply = ", ".join(f"{{timeslot {t}, <{'not ' * bool(t % 9)}critical>, <none>, <x>}}" for t in slots)
    else:
        reply = "{reward = 0.5, analysis: x}" if "Give a reward" in request.asked else "Failures: none"

    def change(whole):
        whole["choices"][0]["message"]["content"] = reply

    return says(change)


@pytest.mark.slow
def test_a_budget_that_ends_is_raised_and_nothing_is_asked_twice(done, tmp_path):
    with Server(behaviour=analyst) as server:
        args = ("--methods=PPO", "--iterations=1", f"--base={done}", "--analyst=endpoint", "--endpoint_model=m")
        line = refusal(tmp_path, *args, f"--base_url={server.url}", "--token_budget=300", "--concurrency=1")
        assert "raise --token_budget" in line
        paid = len(server.requests)
        run(tmp_path, *args, f"--base_url={server.url}/", "--token_budget=100000", "--concurrency=2", "--resume")
    check, *asked = server.asked()
    assert check == "Hi"
    assert len(set(asked)) == len(asked) > paid > 12  # it was at the rewards
    counts = load(tmp_path / "findings.json").counts
    assert len(asked) == sum(counts[f"{role}/calls"] for role in ("identify", "analyse", "reward", "strategies"))


@pytest.mark.slow
def test_a_local_analyst_and_the_mask_network_are_not_run_twice(done, tmp_path, monkeypatch, capsys):
    answered, fails = Counter(), [True]

    def local_model(name, **options):
        answered["loaded"] += 1

        def counted(role, context, rng):
            if role == "reward" and fails:
                raise ValueError("killed")
            answered[role] += 1
            return scripted.SCRIPTS[role](context, rng)

        return ScriptedModel({role: functools.partial(counted, role) for role in scripted.SCRIPTS})

    monkeypatch.setattr(local_models, "local_model", local_model)
    args = ("--methods=MASK-R", "--iterations=1", f"--base={done}", "--analyst=mine")
    assert "killed" in refusal(tmp_path, *args)
    before, _ = answered.copy(), fails.clear()
    run(tmp_path, *args, "--resume")
    assert answered["identify"] == before["identify"] > 0 and answered["loaded"] == 2
    assert "mask network: 1 update\n" in capsys.readouterr().out
    assert answered["strategies"] == 1  # of the analyst's own cases, not of MASK-R's
    after, stored = answered.copy(), outcomes(tmp_path)
    (tmp_path / "mask_findings.json").unlink()
    run(tmp_path, *args, "--resume")
    assert "mask network" not in capsys.readouterr().out  # the same timeslots again
    assert answered - after == Counter(loaded=1)
    assert outcomes(tmp_path) == stored


@pytest.mark.parametrize("game", ["pong", "hopper", "ant"])
@pytest.mark.parametrize("scale", ["", "quick", "paper"])
def test_a_scale_means_for_each_game_what_fits_it(game, scale):
    args = [f"--game={game}"] * (game != "pong") + [f"--scale={scale}"] * bool(scale)
    with scripts.loaded("reproduce_ultra") as module:
        scripts.flags.FLAGS(["prog", *args, "--eval_every=7"])
        config, text = module.flat(module.parse_config()), scripts.flags.FLAGS["scale"].help
        scripts.flags.FLAGS(["prog", *args, "--alpha=0.7"])
        assert module.parse_config().refining.guidance.alpha == 0.7
    is_pong, is_paper = game == "pong", scale == "paper"
    assert (config["alpha"], config["floor"]) == ((0.5, 3.0) if is_pong else (0.1, -np.inf))
    assert config["eval_every"] == 7 and config["seeds"] == (5 if is_paper else 3)
    assert config["base_iterations"] == (500 if is_paper else 60 if is_pong else 300)
    assert (config["learning_rate"], config["rice_learning_rate"]) == (1e-4, 1e-5)
    assert config["episodes"] == (100 if is_paper else 3000 if is_pong else 60)
    assert config["curve_episodes"] == (200 if is_pong else 20)
    assert "Other games also: quick: alpha=0.1" in text and "paper: seeds=5" in text


def test_a_dry_run_counts_calls_and_steps_and_leaves_nothing(tmp_path, capsys):
    """Also of a user's own game, which has no preset."""
    game = "--game=tests.launch.test_reproduce_ultra:control_game"
    run(tmp_path / "run", "--dry_run", "--methods=PPO,MASK-R,ULTRA-RA", "--episodes=32", game)
    out = capsys.readouterr().out
    short, long = (
        {line[:20].strip(): [int(word.replace(",", "")) for word in line[20:].split()] for line in lines}
        for lines in (out.splitlines()[2:8], out.splitlines()[12:18])
    )
    assert "Episodes of 60 steps" in out and long["identify"][0] == 32 * -(-60 // 40)  # 40 timeslots a prompt
    assert long["reward"][0] > short["reward"][0] and long["strategies"][0] == 1
    calls = short
    assert calls["analyse"][0] == calls["analyse (MASK-R)"][0] == 32
    assert calls["reward"][0] > calls["reward (MASK-R)"][0] > calls["identify"][0] >= 32
    assert calls["reward"][1] > 1024 * calls["reward"][0]  # each prompt quotes an analysis of full length
    assert "3 methods x 2 seeds: 24,576 environment steps" in out and "mask network: 2,048" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("game", [(), ("--game=ant", "--alpha=0.1", "--physics=c", "--contact_forces")])
def test_every_method_runs(tmp_path, game):
    run(tmp_path / "run", *game)
    assert len(outcomes(tmp_path / "run")) == 10  # nine, and the guided base agent


@pytest.mark.slow
def test_several_base_agents_are_refined_and_compared(tmp_path, done):
    """The first is that of a run with one base agent; the interval is over the agents."""
    args = ("--bases=2", "--methods=PPO,ULTRA-RA", "--iterations=1")
    run(tmp_path / "run", *args)
    found = [outcomes(tmp_path / "run" / f"base_{n}") for n in range(2)]
    assert found[0]["PPO"]["before"] == outcomes(done)["PPO"]["before"] != found[1]["PPO"]["before"]
    ours, ppo = (np.array([one[name]["after"]["sampled"] for one in found]) for name in ("ULTRA-RA", "PPO"))
    each = (ours - ppo).mean(axis=1)
    tables = (tmp_path / "run" / "tables.md").read_text()
    assert f"{each.mean():+.3f}" in tables and "over 2 base agents, each the mean" in tables
    assert sorted(path.name for path in (tmp_path / "run/base_1/PPO").glob("seed_*")) == ["seed_2", "seed_3"]
    run(tmp_path / "copied", *args, f"--base={tmp_path / 'run'}")
    assert [outcomes(tmp_path / "copied" / f"base_{n}") for n in range(2)] == found
