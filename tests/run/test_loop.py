"""The shared loop: a run killed or stopped at random moments and resumed is the run that was not."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.run import loop
from nlrl_jax.run.directory import open_run
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.updates import keep_finite, over_seeds, seed_mesh, spread, stack
from nlrl_jax.weights.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60


@flax.struct.dataclass
class State:
    params: jax.Array
    x: jax.Array
    iteration: jax.Array

    def learned(self):
        return {"x": self.x, "iteration": self.iteration}


def initial():
    return State(jnp.ones(4), jnp.zeros(4), jnp.zeros((), jnp.int32))


def update(state, key):
    """A learner whose every iteration depends on all before it, and on its key."""
    x = 0.9 * state.x + state.params * jax.random.normal(key, (4,))
    return state.replace(x=x, iteration=state.iteration + 1), {"mean": x.mean(), "max": x.max()}


def train(run_dir, step=None, iterations=STEPS, seed=0, state=None, resume=True, **options):
    state = loop.restore(run_dir, state or initial())
    plan = loop.Schedule(seed, iterations, checkpoint_every=5, columns=("mean",), resume=resume)
    return loop.train(run_dir, step or jax.jit(update), state, plan, **options)


SCRIPT = """
import pathlib, sys, time
from tests.run import test_loop
from nlrl_jax.run.directory import open_run

run_dir = pathlib.Path(sys.argv[1])
open_run(run_dir, {"seed": 0}, resume=(run_dir / "config.json").exists())
step = test_loop.jax.jit(test_loop.update)
def slow(state, key):
    time.sleep(float(sys.argv[2]))
    print("step", flush=True)
    return step(state, key)
test_loop.train(run_dir, slow)
"""


def start(run_dir):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run_dir), "0.02"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    while "step" not in process.stdout.readline():  # importing and compiling are over
        assert process.poll() is None
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    return run_dir, train(run_dir)


def same(run_dir, whole):
    x, (expected_dir, expected) = Checkpoints(run_dir / "checkpoints").restore(initial().learned())[1]["x"], whole
    np.testing.assert_array_equal(x, expected.x)
    return (run_dir / "metrics.jsonl").read_bytes() == (expected_dir / "metrics.jsonl").read_bytes()


def test_killed_at_random_moments(tmp_path, whole):
    chance = random.Random()
    for _ in range(3):
        process = start(tmp_path)
        time.sleep(chance.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    train(tmp_path)
    assert same(tmp_path, whole)


def test_sigterm_saves_and_ends_with_status_0(tmp_path, whole):
    process = start(tmp_path)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    done = Checkpoints(tmp_path / "checkpoints").latest_step()
    assert 1 <= done < STEPS and len(read_rows(tmp_path)) == done
    assert f"SIGTERM: saved after iteration {done} of {STEPS}; continue with --resume" in out
    train(tmp_path)
    assert same(tmp_path, whole)


def test_a_signal_in_the_last_iteration_ends_the_process_too(tmp_path, capsys):
    """What a script does after this loop must not begin."""
    evaluate = lambda done, state: signal.raise_signal(signal.SIGTERM) or {} if done == 6 else {}
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, iterations=6, evaluate=evaluate)
    assert stop.value.code == 0 and Checkpoints(tmp_path / "checkpoints").latest_step() == 6
    assert "SIGTERM: saved after iteration 6 of 6" in capsys.readouterr().out
    assert train(tmp_path, iterations=6).iteration == 6


def test_a_signal_that_comes_while_processes_agree_counts_after_the_next_iteration(tmp_path, monkeypatch):
    """Else one of them would stop alone, and the others wait for it."""
    asked = []

    def agree(flag):
        asked.append(flag)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGTERM)
        return flag

    monkeypatch.setattr(loop.processes, "any_of", agree)
    with pytest.raises(SystemExit):
        train(tmp_path, iterations=6)
    assert asked == [False, False, False, True] and Checkpoints(tmp_path / "checkpoints").latest_step() == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_what_a_finished_run_leaves(tmp_path, number):
    """SIGTERM does not: the process may be killed at any moment."""
    left = []
    evaluate = lambda done, state: signal.raise_signal(number) or {} if done == 3 else {}
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, iterations=6, evaluate=evaluate, finish=lambda state: left.append(int(state.iteration)))
    assert stop.value.code == 0 and Checkpoints(tmp_path / "checkpoints").latest_step() == 3
    assert left == ([3] if number == signal.SIGINT else [])
    state = train(tmp_path, iterations=6, finish=lambda state: left.append(int(state.iteration)))
    assert left[-1] == state.iteration == 6


def test_a_second_signal_while_python_is_busy_ends_the_process(monkeypatch):
    """Two that come before Python runs a handler are one to it, and two to the operating system."""
    ended, codes, before = threading.Event(), [], signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(loop.os, "_exit", lambda code: codes.append(code) or ended.set())
    with loop.stop_signals() as signals:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.01)
        assert signals == ["SIGINT"] and not codes
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert ended.wait(5) and codes == [130] and signals == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is before


def test_fewer_iterations_than_are_done_are_refused(tmp_path):
    train(tmp_path, iterations=5)
    with pytest.raises(ValueError, match="--iterations is 4, but .* has done 5 already"):
        train(tmp_path, iterations=4)


def test_a_truncated_checkpoint_is_refused_and_the_one_before_is_used(tmp_path, whole):
    train(tmp_path, iterations=20)
    for path in (tmp_path / "checkpoints" / "20").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match="20 is refused"):
        train(tmp_path)
    assert same(tmp_path, whole)


def test_a_run_that_is_not_finite_keeps_the_last_good_state(tmp_path):
    def breaks(state, key):
        new, metrics = update(state, key)
        fine = state.iteration < 7
        keep = lambda a, b: jnp.where(fine, a, b)
        return jax.tree.map(keep, new, state), {**metrics, "loss": jnp.where(fine, 0.0, jnp.nan), "finite": fine}

    with pytest.raises(ValueError, match=r"7 is not finite \(loss nan\).*--resume and a lower --learning_rate"):
        train(tmp_path, jax.jit(breaks))
    step, learned, metadata = Checkpoints(tmp_path / "checkpoints").restore(initial().learned())
    np.testing.assert_array_equal(learned["x"], train(tmp_path / "whole", jax.jit(breaks), iterations=7).x)
    assert step == 7 and metadata["stopped"] == "non-finite" and len(read_rows(tmp_path)) == 7


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_that_was_not_finite_once_goes_on(tmp_path, kept):
    """With other random numbers in that iteration, the same ones after any kill, and as before in all others."""
    draws = {}

    def breaks(state, key):
        draws[int(state.iteration)] = drawn = float(jax.random.normal(key))
        new, metrics = update(state, key)
        good = drawn != unlucky
        return (new if good or not kept else state), {**metrics, "finite": good}

    unlucky = None
    train(tmp_path / "whole", breaks)
    usual, unlucky = dict(draws), draws[7]
    with pytest.raises(ValueError, match="Continue with --resume"):
        train(tmp_path / "run", breaks)
    assert json.loads((tmp_path / "run" / "redrawn.json").read_text()) == {"7": 1}
    draws.clear()
    train(tmp_path / "run", breaks)
    assert min(draws) == (7 if kept else 5) and [i for i in draws if draws[i] != usual[i]] == [7]
    assert [row["iteration"] for row in read_rows(tmp_path / "run")] == list(range(STEPS))
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # from the start on, the same
    rows = read_rows(tmp_path / "run")
    train(tmp_path / "run", breaks)
    assert read_rows(tmp_path / "run") == rows


def test_a_reward_that_is_not_finite_is_the_games_fault(tmp_path):
    def breaks(state, key):
        new, metrics = update(state, key)
        bad = jnp.where(state.iteration == 7, 2, 0)
        return new, {**metrics, "return": jnp.where(bad, jnp.nan, 1.0), "bad_reward_turn": bad, "finite": bad == 0}

    with pytest.raises(ValueError, match=r"iteration 7 is not finite \(return nan\).*The game paid a reward in turn 2"):
        train(tmp_path, jax.jit(keep_finite(breaks)))
    assert "bad_reward_turn" not in read_rows(tmp_path)[0]


@pytest.mark.parametrize("kept", [False, True])
def test_a_bad_state_never_replaces_a_good_checkpoint(tmp_path, kept):
    """A stack of seeds of which one breaks, with an update that keeps what was good and with one that does not."""

    def breaks(state, key):
        new, metrics = update(state, key)
        bad = (state.iteration == 7) & (key == jax.random.fold_in(jax.random.key(5), 8))
        x = jnp.where(bad, jnp.nan, new.x)
        return new.replace(x=x), {**metrics, "finite": jnp.isfinite(x).all()}

    many = over_seeds(breaks, vectorize=True)
    states = stack([initial(), initial()])
    with pytest.raises(ValueError, match=rf"iteration 7 is not finite.*last good state is in .*/{7 if kept else 5}\."):
        train(tmp_path, jax.jit(keep_finite(many) if kept else many), seed=[3, 5], state=states)
    step, learned, _ = Checkpoints(tmp_path / "checkpoints").restore(states.learned())
    assert step == (7 if kept else 5) and learned["iteration"].tolist() == [step, step]
    assert np.isfinite(learned["x"]).all()


def test_a_checkpoint_of_another_run_is_refused_and_the_one_before_is_used(tmp_path):
    for name, rate in (("ours", 1), ("theirs", 2)):
        open_run(tmp_path / name, {"rate": rate})
        train(tmp_path / name, iterations=10, seed=rate)
    ours, theirs = (tmp_path / name / "checkpoints" for name in ("ours", "theirs"))
    shutil.rmtree(ours / "10")
    shutil.copytree(theirs / "10", ours / "10")
    with pytest.warns(UserWarning, match="10 is refused: it was written by a run with another configuration"):
        assert loop.restore(tmp_path / "ours", initial()).iteration == 5
    shutil.move(tmp_path / "theirs", tmp_path / "moved")
    assert loop.restore(tmp_path / "moved", initial()).iteration == 10


def test_a_disk_without_room_for_a_checkpoint_is_found_before_the_first_iteration(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.shutil, "disk_usage", lambda path: SimpleNamespace(free=19))
    with pytest.raises(ValueError, match="a checkpoint takes 0.0 MB, but the disk of .* has 0.0 MB left"):
        train(tmp_path)
    assert not list(tmp_path.iterdir())


def test_lost_metrics_are_named(tmp_path):
    train(tmp_path, iterations=10)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:7]))
    with pytest.raises(ValueError, match=r"metrics.jsonl holds 7 of the 10 iterations that checkpoint .*/10 has"):
        train(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "10")
    train(tmp_path)


@pytest.mark.parametrize("vectorize, devices", [(False, 1), (True, 1), (False, 2), (True, 2)])
def test_seeds_together_are_the_runs_apart(tmp_path, vectorize, devices):
    mesh = seed_mesh(2) if devices == 2 else None
    many, states = jax.jit(over_seeds(update, vectorize, mesh)), stack([initial(), initial()])
    if mesh is not None:
        assert mesh.devices.size == devices
        states = spread(states, mesh)
        assert states.x.addressable_shards[1].data.shape == (1, 4) and states.params.is_fully_replicated
    assert states.params.shape == (4,) and states.x.shape == (2, 4)
    state = train(tmp_path / "both", many, 12, [3, 5], states)
    for n, seed in enumerate((3, 5)):
        alone = train(tmp_path / str(seed), iterations=12, seed=seed)
        np.testing.assert_allclose(state.x[n], alone.x, rtol=1e-6)
        rows = [read_rows(folder) for folder in (tmp_path / "both" / f"seed_{seed}", tmp_path / str(seed))]
        for one, other in zip(*rows):
            assert one == pytest.approx(other, rel=1e-5)
    assert many._cache_size() == 1


def test_evaluations_stand_beside_the_metrics(tmp_path):
    train(tmp_path, iterations=6, evaluate=lambda done, state: {"eval/x": float(done)} if done % 3 == 0 else {})
    rows = read_rows(tmp_path)
    assert [row.get("eval/x") for row in rows] == [None, None, 3.0, None, None, 6.0]
    assert json.loads((tmp_path / "timings.jsonl").read_text().splitlines()[0])["seconds"] > 0


def test_a_learner_is_evaluated_before_every_few_iterations_and_at_the_end(tmp_path):
    plan, shown = loop.Schedule(0, 5, checkpoint_every=5, eval_every=2), []
    evaluate = lambda state: {"n": float(state.iteration)}
    finish = lambda state: shown.append(loop.results.read(tmp_path)["after"] == {"n": float(state.iteration)})
    stored = loop.learn(tmp_path, "x", jax.jit(update), initial(), plan, evaluate, finish, seeds=[3])
    assert (stored["before"], stored["after"], stored["iterations"]) == ({"n": 0.0}, {"n": 5.0}, 5)
    assert stored["seeds"] == [3]
    assert [row.get("eval/n") for row in read_rows(tmp_path)] == [None, 2.0, None, 4.0, 5.0] and shown == [True]
