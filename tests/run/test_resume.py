"""Folder, metrics and checkpoints together: a run killed at random moments and resumed is the run that was not."""

import pathlib
import random
import subprocess
import sys
import time

import numpy as np

from nlrl_jax.weights.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60
TEMPLATE = {"x": np.zeros(4, np.float32), "iteration": np.int32(0)}

# A learner in numpy; each iteration depends on all before it.
TRAIN = f"""
import sys, time, numpy as np
from nlrl_jax.run.directory import open_run
from nlrl_jax.run.metrics import MetricsWriter
from nlrl_jax.weights.checkpoint import Checkpoints

run_dir = open_run(sys.argv[1], {{"seed": 0}}, resume=True)
checkpoints = Checkpoints(run_dir / "checkpoints")
state = {{"x": np.zeros(4, np.float32), "iteration": np.int32(0)}}
if checkpoints.latest_step() is not None:
    _, state, _ = checkpoints.restore(state)
print(int(state["iteration"]), flush=True)
with MetricsWriter(run_dir, resume_from=int(state["iteration"])) as writer:
    for i in range(int(state["iteration"]), {STEPS}):
        x = np.float32(0.9) * state["x"] + np.random.default_rng(i).normal(size=4).astype(np.float32)
        state = {{"x": x, "iteration": np.int32(i + 1)}}
        writer.write(i, {{"mean": x.mean(), "max": x.max()}}, seconds=0.0)
        time.sleep(float(sys.argv[2]))
        if (i + 1) % 5 == 0:
            checkpoints.save(i + 1, state)
checkpoints.close()
"""


def start(run_dir, pause):
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(run_dir), str(pause)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def finish(run_dir):
    process = start(run_dir, 0)
    process.communicate()
    assert process.returncode == 0
    _, tree, _ = Checkpoints(run_dir / "checkpoints").restore(TEMPLATE)
    return tree, (run_dir / "metrics.jsonl").read_bytes()


def test_killed_at_random_moments(tmp_path):
    expected, expected_lines = finish(tmp_path / "whole")
    chance = random.Random()
    for _ in range(2):
        process = start(tmp_path / "killed", 0.02)
        while not (line := process.stdout.readline()[:-1]).isdecimal():
            assert line, "the learner died"
        time.sleep(chance.uniform(0.1, 0.8))
        process.kill()
        process.communicate()
    tree, lines = finish(tmp_path / "killed")
    assert lines == expected_lines
    assert tree["iteration"] == expected["iteration"] == STEPS
    assert tree["x"].tobytes() == expected["x"].tobytes()
