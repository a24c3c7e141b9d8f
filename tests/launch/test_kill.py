"""The real training script, killed at random moments: what goes on is the same run, bit for bit."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from nlrl_jax.run.metrics import read_rows
from tests.launch.test_train import TINY

ROOT = pathlib.Path(__file__).parents[2]
LENGTH = ("--iterations=12", "--checkpoint_every=2")


def start(run_dir, *args):
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache" / "scripts"))
    command = [sys.executable, "-m", "nlrl_jax.launch.train_ms_grpo", *TINY, *LENGTH]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, f"--run_dir={run_dir}", *args], cwd=ROOT, env=env, **pipes)


def finish(process):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-2000:]


@pytest.mark.promises
def test_sigkill_at_random_moments_and_the_same_bits(tmp_path):
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    finish(start(whole))
    deaths, seen = 0, []
    for _ in range(4):
        process = start(killed, *(["--resume"] if deaths else []))
        deadline, aim = time.monotonic() + 400, len(seen) + rng.randint(1, 3)
        while process.poll() is None and time.monotonic() < deadline:
            rows = killed / "metrics.jsonl"
            seen = rows.read_text().splitlines() if rows.exists() else []
            if len(seen) >= aim:
                time.sleep(rng.random() * 0.3)
                process.send_signal(signal.SIGKILL)
                deaths += 1
                break
            time.sleep(0.02)
        process.communicate()
    assert deaths >= 3
    finish(start(killed, "--resume"))
    assert read_rows(killed) == read_rows(whole)
    weights = lambda run: next((run / "adapter").glob("*.safetensors")).read_bytes()
    assert weights(killed) == weights(whole)
