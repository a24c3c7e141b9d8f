"""Transcripts and LAC's planner through the scripts, with a tiny random model of each family."""

import jax
import numpy as np
import pytest

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FULL, LINEAR, SLIDING
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run import results
from nlrl_jax.run.metrics import read_rows
from nlrl_jax.weights import huggingface
from nlrl_jax.weights.load import load_tokenizer
from tests.launch.scripts import run

SIZES = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    max_position_embeddings=2048,
)  # fmt: skip
FAMILIES = {
    "mistral": dict(sliding_window=9),
    "gemma": {},
    "gemma3_text": dict(sliding_window=9, layer_types=[SLIDING, FULL]),
    "qwen3_5_text": dict(
        num_hidden_layers=4, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4,
        linear_value_head_dim=6, linear_conv_kernel_dim=4, partial_rotary_factor=0.25,
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
    ),
    "qwen3_moe": dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12),
}  # fmt: skip
PLAY = ("--game=babyai", "--missions=go to", "--prompt=compact")


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path):
    """A folder with a random model of the family, which has the tokenizer of the built-in one."""
    tokenizer = load_tokenizer("nano_babyai")
    contents = {"model_type": request.param, "vocab_size": tokenizer.vocab_size, **SIZES, **FAMILIES[request.param]}
    network = Transformer(ModelConfig.from_hf(contents))
    huggingface.save(tmp_path / "model", network.config, init_params(network, jax.random.key(0)), tokenizer)
    return tmp_path / "model"


@pytest.mark.slow
def test_two_iterations_of_ms_grpo_in_transcripts(model, tmp_path):
    small = ("--group_size=4", "--group_sample=2", "--num_groups=1", "--max_turns=2", "--eval_turns=1", "--top_k=0")
    sizes = ("--eval_episodes=2", "--max_tokens=4", "--lora_rank=2", "--temperature=1", "--sampling_temperature=1")
    folder = f"--run_dir={tmp_path / 'run'}"
    run("train_ms_grpo", f"--model={model}", *PLAY, *small, *sizes, "--iterations=1", "--checkpoint_every=1", folder)
    run("train_ms_grpo", folder, "--resume", "--iterations=2")
    losses = [row["loss"] for row in read_rows(tmp_path / "run") if "loss" in row]
    assert len(losses) == 2 and np.isfinite(losses).all()


@pytest.mark.slow
def test_lac_and_react_play_the_same_task(model, tmp_path):
    small = ("--tasks=1", "--max_steps=2", "--candidates=2", "--depth=1", "--line_tokens=6")
    run("run_lac", f"--model={model}", *PLAY, *small, "--methods=lac,react", f"--run_dir={tmp_path / 'run'}")
    assert list(results.read(tmp_path / "run")["scores"]) == ["lac", "react"]
