"""LAC through a server that somebody has started (docs/endpoints.md): its address is in the environment."""

import os

import pytest

from nlrl_jax.run import directory, results
from tests.launch.scripts import run

URL, MODEL, TOKENIZER = (
    os.environ.get(f"NLRL_ENDPOINT{name}", default)
    for name, default in (("", ""), ("_MODEL", "model"), ("_TOKENIZER", ""))
)
pytestmark = [pytest.mark.server, pytest.mark.skipif(not URL, reason="NLRL_ENDPOINT has no address")]


@pytest.mark.parametrize("tokenizer", dict.fromkeys(["", TOKENIZER]))
def test_lac_plays_two_tasks(tokenizer, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        run(
            "run_lac", "--model=endpoint", f"--base_url={URL}", f"--endpoint_model={MODEL}", f"--run_dir={tmp_path}",
            f"--endpoint_tokenizer={tokenizer}", "--concurrency=1", "--timeout=300", "--missions=go to,pick up",
            "--tasks=1", "--max_steps=3", "--methods=lac,react", "--candidates=2", "--depth=1", "--draws=3",
            "--line_tokens=32",
        )  # fmt: skip
    finally:
        directory.close_run(tmp_path)
    said = capsys.readouterr().out
    assert "endpoint: prompts go" in said and "likeliest tokens" in said
    scores = results.read(tmp_path)["scores"]
    assert list(scores) == ["lac", "react"] and all(one["tokens"] > 0 for one in scores.values())
