"""LAC's rounds, an evaluation and replies by command line, with a tiny random folder of Qwen3.5."""

import json

import numpy as np
import pytest

from nlrl_jax.lm.families import FULL, LINEAR, DeltaNetSizes
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.weights import huggingface
from tests.launch.scripts import run, tiny_model

pytestmark = pytest.mark.slow
LAYERS = dict(
    num_layers=4, layer_types=(LINEAR, LINEAR, LINEAR, FULL), delta_net=DeltaNetSizes(1, 2, 4, 6, 4), qk_norm=True,
    norm_offset=True, gated_attention=True, partial_rotary_factor=0.25, architecture="Qwen3_5ForCausalLM",
)  # fmt: skip
LAC = (
    "--missions=go to", "--tasks=2", "--max_steps=2", "--candidates=2", "--depth=1", "--line_tokens=8",
    "--prompt=compact",
)  # fmt: skip
GAME = """
from nlrl_jax.types import HostGame, Outcome, Start
def reset(tasks):
    return [Start(0, "letters", f"task {seed % 5}") for _, seed in tasks]
def step(states, actions):
    return [Outcome(t + 1, f"seen {t}", float(text.count("e"))) for t, text in zip(states, actions)]
host_game = HostGame("letters", "Write.", (), 3, ("",), reset, step, score="letters")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "letters.py").write_text(GAME)
    tiny_model(folder / "tiny", 256, **LAYERS)
    assert huggingface.read_config(folder / "tiny").num_linear_layers == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def test_lac_teaches_its_prior_for_two_rounds(folder, tmp_path):
    learning = ("--epochs=1", "--batch_size=4", "--learning_rate=0.01", "--eval_tasks=1", "--cache_mb=10")
    run("iterate_lac", f"--run_dir={tmp_path}", f"--model={folder / 'tiny'}", "--rounds=2", *LAC, *learning)
    assert [np.isfinite(row["lesson/loss"]) for row in read_rows(tmp_path)[:2]] == [True, True]


def test_ms_grpo_in_transcripts_and_an_evaluation_of_what_it_trained(folder, tmp_path, capsys):
    sizes = (
        "--iterations=2",
        "--group_size=4",
        "--group_sample=2",
        "--num_groups=2",
        "--max_tokens=6",
        "--max_turns=3",
    )
    run("train_ms_grpo", f"--run_dir={tmp_path}", f"--model={folder / 'tiny'}", "--game=letters:host_game",
        "--prompt=compact", "--turns=lines", "--credit=state", "--lora_rank=2", "--eval_episodes=2", "--cache_mb=10",
        "--top_k=0", *sizes)  # fmt: skip
    rows = read_rows(tmp_path)
    assert len(rows) == 2 and all(np.isfinite(list(row.values())).all() for row in rows)
    capsys.readouterr()
    run("evaluate", f"--run_dir={tmp_path}", "--episodes=2", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 2


def test_a_folder_generates(folder, capsys):
    run("generate", f"--model={folder / 'tiny'}", "--prompt_ids=5,17,3", "--prompt_ids=9", "--max_tokens=8", "--json")
    assert len(json.loads(capsys.readouterr().out)["completions"]) == 2
