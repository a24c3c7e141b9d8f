"""A built-in model made anew."""

import pytest

from nlrl_jax.run.host_games.prompts import PromptConfig
from tests.launch.scripts import run


@pytest.mark.slow
def test_a_model_of_transcripts_plays_in_the_prompts_it_has_read(tmp_path, capsys):
    out = tmp_path / "model"
    run("pretrain_nano", "--games=babyai", "--episodes=200", "--steps=2", f"--out={out}")
    assert PromptConfig().form(str(out)) == ("compact", 0)
    run("run_lac", f"--model={out}", "--tasks=1", "--max_steps=1", "--methods=react", f"--run_dir={tmp_path / 'run'}")
    assert "success: react 0.000" in capsys.readouterr().out
