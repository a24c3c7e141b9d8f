"""Scripts that work in stages, killed where they write a file: the resumed run leaves what an unbroken one leaves.

The kill is an exception that nobody catches, before or after the file takes its place."""

import json
import os

import pytest

from tests.launch import scripts
from tests.launch.test_iterate_lac import SMALL as LOOP
from tests.launch.test_nlrl_scripts import TD
from tests.launch.test_reproduce_ultra import SMALL as ULTRA
from tests.launch.test_run_lac import SMALL as LAC

RUNS = {
    "run_lac": (*LAC, "--methods=lac,react", "--cache_mb=0"),
    "iterate_lac": (*LOOP, "--rounds=1"),
    "train_language_td": (*TD, "--iterations=2"),
    "reproduce_ultra": (*ULTRA, "--cell=8", "--methods=PPO,RICE", "--checkpoint_every=1"),
}
# Where seconds, pictures or the history of saves stand.
OTHER = ("tensorboard", "checkpoints", "timings.jsonl", "report.html", "table.md", "moves", ".lock", ".png", ".gif")


class Killed(BaseException):
    pass


def run(name, folder, *args):
    scripts.run(name, f"--run_dir={folder}", *args)


def killed_at(patch, which, after):
    """Kills where the first file whose path ends so is put in its place."""
    real = os.replace

    def replace(source, target, **more):
        hit = str(target).endswith(which)
        if not hit or after:
            real(source, target, **more)
        if hit:
            raise Killed

    patch.setattr(os, "replace", replace)


def timeless(value):
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if not name.startswith("seconds")}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def left(folder):
    """What a run has left, by file."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if not any(part in name for part in OTHER) and name != "usage.json":
            found[name] = timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()
    return found


def spent(folder):
    return {row["role"]: row["calls"] for row in json.loads((folder / "usage.json").read_text())}


POINTS = {
    "run_lac": ("usage.json", "episodes/lac.json", "results.json"),
    "iterate_lac": ("usage.json", "rounds/1/learned.json", "metrics.jsonl"),
    "train_language_td": ("usage.json", "records/00001.json", "results.json"),
    "reproduce_ultra": ("usage.json", "guided/results.json", "PPO/results.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_kill_at_any_file_leaves_the_same_in_the_end(name, tmp_path, monkeypatch):
    given = RUNS[name]
    if name == "iterate_lac":
        given = (*given, "--model=nano_babyai")
    run(name, tmp_path / "whole", *given)
    for n, which in enumerate(POINTS[name]):
        folder = tmp_path / f"killed_{n}"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_at(patch, which, after=n % 2 == 0)
            run(name, folder, *given)
        run(name, folder, "--resume")
        whole, resumed = left(tmp_path / "whole"), left(folder)
        assert whole.keys() == resumed.keys()
        for path in whole:
            assert resumed[path] == whole[path], (which, path)
        calls = spent(tmp_path / "whole")
        assert all(spent(folder)[role] >= number for role, number in calls.items())  # no call is lost
