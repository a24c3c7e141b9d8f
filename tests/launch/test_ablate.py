"""Studies as command lines: what they run, what they share, and the page at the end."""

import json
import pathlib
import shlex
import types

import pytest

from nlrl_jax.config import flat
from nlrl_jax.launch import ablate
from nlrl_jax.run.directory import open_run
from nlrl_jax.run.results import write as write_results
from tests.launch.scripts import loaded, refusal, run

RUNS = pathlib.Path("runs")


def planned(study, options="", **more):
    return [*ablate.planned(ablate.AblationConfig(study=study, options=options, **more), RUNS)]


def option(run, name):
    """Its value on the command line, None if it is not there."""
    return ablate.read_options(shlex.join(run.command[1:])).get(name)


@pytest.mark.parametrize("study", ablate.STUDIES)
def test_every_command_line_is_one_that_its_script_takes(study):
    first = planned(study)[0]
    with loaded(first.command[0]) as module:
        ablate.flags.FLAGS([*first.command, "--run_dir=x"])
        config = module.parse_config() if hasattr(module, "parse_config") else module.COMMAND.parse()
    for name, value in ablate.read_options(shlex.join(first.command[1:])).items():
        if name != "preset":
            assert str(flat(config)[name]).lower() == str(value).lower() or float(value) == flat(config)[name]


def test_seeds_and_given_options_reach_every_run_and_equal_settings_are_one():
    studies = "epochs,k,buffer,games,top_m,mask"
    runs = planned(studies, "--iterations=3 --opponent first_move --nocorrect", seeds=2, seed=7)
    assert {option(run, "iterations") for run in runs} == {"3"} and "--nocorrect" in runs[0].command
    assert [option(run, "seed") for run in runs[:2]] == ["7", "8"]
    places = [run.folder.parent.name for run in runs if run.folder.name == "seed_7"]
    assert places.count("base") == 6 and len(set(places)) == len(places) - 5 and "k_2" in places
    assert all(run.command == runs[4].command for run in runs if run.folder == runs[4].folder)
    (first, *others) = planned("alpha", "--game=pong")
    assert option(first, "game") == "pong" and option(first, "base") is None
    assert {option(run, "base") for run in others} == {str(first.folder)}  # all refine the same agents
    assert option(planned("k", "--aggregator=endpoint")[0], "cache_dir") == "runs/cache"
    assert option(planned("credit", "--model=/a/model")[0], "preset") is None
    assert option(planned("credit", "--iterations=40")[0], "decay_steps") == "50"
    assert option(planned("td", seeds=2)[1], "positions_dir") == "runs/positions/seed_1"


def test_bad_studies_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--study is 'aaw,epochs'; choose one or more of one script: train_ms_grpo"):
        ablate.AblationConfig(study="aaw,epochs")
    with pytest.raises(ValueError, match="unexpected argument 'x'"):
        planned("k", "x")
    assert "say what is varied" in refusal("ablate", f"--run_dir={tmp_path / 'no'}")
    assert "credit prompts none" in refusal("ablate", "--study=credit", "--dry_run")


def test_options_of_the_runs_are_gathered():
    with loaded("ablate") as module:
        words = ["--study=k", "--games", "8", "--seeds", "3", "--noresume", "--nomask", "--iterations=2"]
        ours = ["--study=k", "--seeds", "3", "--noresume", "--options=--games 8 --nomask --iterations=2"]
        assert module.gathered(words) == ours
        assert module.gathered(["--help"]) == ["--help"]


@pytest.fixture
def script(monkeypatch):
    """Stands for the scripts: a run that leaves metrics, seed by seed better; those with a seed in `fails` fail."""
    calls, fails = [], set()

    def call(words):
        calls.append(words[3:])
        given = ablate.read_options(shlex.join(words[4:]))
        if "dry_run" not in given and given["seed"] not in fails:
            folder, seed = pathlib.Path(given["run_dir"]), int(given["seed"])
            open_run(folder, {"credit": given.get("credit", "episode"), "seed": seed}, resume="resume" in given)
            rows = [{"iteration": i, "eval/success": 0.1 * i + seed} for i in range(3)]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            seconds = [{"iteration": i, "seconds": 2.0} for i in range(3)]
            (folder / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in seconds))
            write_results(folder, script="x", before={"success": 0.0}, after={"success": 0.2 + seed})
        return types.SimpleNamespace(returncode=int(given.get("seed") in fails))

    monkeypatch.setattr("subprocess.run", call)
    return calls, fails


def test_a_study_that_stopped_goes_on_and_leaves_a_page(tmp_path, script, capsys):
    (calls, fails), args = script, ("--study=credit", f"--run_dir={tmp_path / 'run'}")
    fails.add("1")
    assert "stopped: nlrl-jax train_ms_grpo" in refusal("ablate", *args, "--seeds=2")
    fails.clear()
    run("ablate", *args, "--resume")
    assert [line[0] for line in calls] == ["train_ms_grpo"] * 5  # of four runs one was tried twice
    assert not any("--resume" in line for line in calls)
    table = (tmp_path / "run" / "table.md").read_text()
    assert "return-to-go" in table and "± is the half-width of the 95 % interval" in table
    assert "0 (all equal) → 0.7 ± 6.4" in table and table in capsys.readouterr().out
    page = (tmp_path / "run" / "credit.html").read_text()
    assert "credit: what each choice changes" in page and (tmp_path / "run" / "credit.png").stat().st_size > 0


@pytest.mark.parametrize("study, name", [("k", "train_language_actor_critic"), ("alpha", "reproduce_ultra")])
def test_a_dry_run_counts_every_setting_once(script, capsys, study, name):
    run("ablate", f"--study={study}", "--options=--aggregator=endpoint", "--seeds=3", "--dry_run")
    assert [line[0] for line in script[0]] == [name] * 3
    assert all(line[-1] == "--dry_run" for line in script[0]) and capsys.readouterr().out.count("3 times:") == 3


@pytest.mark.slow
def test_a_study_of_real_runs(tmp_path):
    small = "--iterations=1 --games=4 --eval_games=4 --opponent=first_move"
    run("ablate", "--study=mask", f"--options={small}", f"--run_dir={tmp_path / 'run'}")
    base = tmp_path / "run" / "train_language_actor_critic" / "base" / "seed_0"
    trained = (base / "first_move" / "actor-critic" / "metrics.jsonl").stat().st_mtime_ns
    run("ablate", "--study=mask,buffer", "--resume", f"--run_dir={tmp_path / 'run'}")
    assert (base / "first_move" / "actor-critic" / "metrics.jsonl").stat().st_mtime_ns == trained
    assert sorted(path.name for path in base.parents[1].iterdir()) == ["base", "buffer_1", "buffer_2", "mask_False"]
    table = (tmp_path / "run" / "table.md").read_text()
    assert "K_buffer = 3" in table and "without" in table
