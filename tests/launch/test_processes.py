"""Two processes of four devices each train as one process of eight does; a killed one ends the other."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from nlrl_jax.run import processes

TINY = (
    "--model=nano", "--preset=demo", "--group_size=8", "--group_sample=4", "--num_groups=2", "--max_turns=4",
    "--max_steps=8", "--micro_batch=8", "--eval_episodes=8", "--eval_turns=2", "--eval_every=0", "--checkpoint_every=1",
    "--mesh=2,2,2",
)  # fmt: skip


def start(run_dir, devices, *more):
    flags = os.environ.get("XLA_FLAGS", "")
    if "--process_id" not in str(more):  # nobody is lost: patience on a busy machine
        flags += " --xla_cpu_collective_call_terminate_timeout_seconds=300"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "launch.train_ms_grpo", *TINY, f"--run_dir={run_dir}", *more]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start_two(run_dir, *more):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"--coordinator_address=127.0.0.1:{probe.getsockname()[1]}"
    return [start(run_dir, 4, address, "--num_processes=2", f"--process_id={i}", *more) for i in range(2)]


def finish(running):
    texts = [one.communicate(timeout=600)[0] for one in running]
    assert not any(one.returncode for one in running), "\n".join(texts)
    return texts


def adapter(run_dir):
    return load_file(run_dir / "adapter" / "adapter_model.safetensors")


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two iterations in one process."""
    run_dir = tmp_path_factory.mktemp("processes") / "alone"
    finish([start(run_dir, 8, "--iterations=2")])
    return run_dir


def assert_same(run_dir, alone, tolerance=1e-6):
    one, other = adapter(alone), adapter(run_dir)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=tolerance, err_msg=name)
    assert [row["return"] for row in metrics(run_dir)] == [row["return"] for row in metrics(alone)]  # the same episodes


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, alone):
    texts = finish(start_two(tmp_path / "two", "--iterations=2"))
    assert_same(tmp_path / "two", alone)
    assert "report:" in texts[0] and "report:" not in texts[1]  # one speaks


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_signal_to_one_process_stops_both_after_the_iteration(tmp_path, stopped):
    run_dir = tmp_path / "stopped"
    running = start_two(run_dir, "--iterations=1000", "--checkpoint_every=1000")
    while not (run_dir / "metrics.jsonl").exists() or not metrics(run_dir):
        assert all(one.poll() is None for one in running), [one.communicate()[0] for one in running]
        time.sleep(0.2)
    running[stopped].send_signal(signal.SIGTERM)
    texts = finish(running)
    assert "saved after iteration" in texts[0]
    assert (run_dir / "checkpoints" / str(len(metrics(run_dir)))).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_and_the_run_goes_on(tmp_path, alone, killed):
    run_dir = tmp_path / "killed"
    running = start_two(run_dir, "--iterations=1000")
    while not (run_dir / "checkpoints" / "1").exists():
        assert all(one.poll() is None for one in running), [one.communicate()[0] for one in running]
        time.sleep(0.2)
    running[killed].send_signal(signal.SIGKILL)
    clock = time.monotonic()
    text = running[1 - killed].communicate(timeout=300)[0]
    assert running[1 - killed].returncode, text
    assert "lost another process" in text or "JAX distributed service" in text, (
        text
    )  # ours, or where the first died JAX's
    assert time.monotonic() - clock < 200
    done = max(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdecimal())
    whole = tmp_path / "whole"
    shutil.copytree(alone, whole)
    more = f"--iterations={done + 1}", "--resume"
    for folder in (whole, run_dir):
        finish([start(folder, 8, *more)])  # in one process
    assert_same(run_dir, whole, 1e-5 * done)


def test_half_a_description_is_refused():
    with pytest.raises(ValueError, match="'host:1', 2, -1"):
        processes.start("host:1", 2)
    with pytest.raises(ValueError, match="process_id is 2; with 2 processes"):
        processes.start("host:1", 2, 2)
