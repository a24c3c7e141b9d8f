"""Makes the built-in model "nano_board": a tokenizer for board games and a configuration. It has no weights of its own.

    python -m launch.make_nano_board --out nlrl_jax/assets/nano_board

The weights are drawn from a fixed seed when the model is loaded (`weights/load.py`); a run teaches it the form of its
replies first. Its tokenizer, trained on prompts and replies of tic-tac-toe and breakthrough, spells their fixed parts
in half the tokens that nano's takes.
"""

from __future__ import annotations

import json
import pathlib
import random

from absl import flags

from envs.breakthrough import board_game as breakthrough
from envs.prompts import breakthrough as breakthrough_prompts
from envs.prompts import tic_tac_toe as tic_tac_toe_prompts
from envs.scripted import breakthrough as breakthrough_scripts
from envs.scripted import tic_tac_toe as tic_tac_toe_scripts
from envs.tic_tac_toe import board_game as tic_tac_toe
from launch import setup
from launch.nano_tokenizer import train_tokenizer
from launch.random_views import random_views
from nlrl_jax.lm.config import ModelConfig

VOCAB_SIZE = 384


def corpus(positions: int) -> list[str]:
    """Compact prompts and replies of both games at positions of random games."""
    rng = random.Random(0)
    texts = ["system\n", "user\n", "assistant\n"] * positions
    ask, tell = tic_tac_toe_prompts.roles("compact"), tic_tac_toe_scripts
    for view in random_views(tic_tac_toe(), positions, 0):
        action = rng.choice(view.legal)
        texts += [ask.policy(view).messages[-1]["content"], ask.value(view, action).messages[-1]["content"]]
        texts += [tell.blind_policy({"view": view}, rng), tell.blind_value({"view": view}, rng)]
    ask, tell = breakthrough_prompts.roles("compact"), breakthrough_scripts
    for view in random_views(breakthrough(), positions, 0):
        texts += [ask.value(view).messages[-1]["content"], tell.blind({"view": view}, rng)]
    return texts


def main(argv: list[str]) -> None:
    del argv
    out = pathlib.Path(flags.FLAGS.out)
    tokenizer = train_tokenizer(corpus(1000), out, VOCAB_SIZE)
    config = ModelConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4, num_kv_heads=4,
        head_dim=32, max_positions=4096, tie_embeddings=True,
    )  # fmt: skip
    (out / "config.json").write_text(json.dumps(config.to_hf(), indent=2) + "\n")
    print(f"wrote {out}: {tokenizer.vocab_size} tokens, {config.num_params} weights when it is loaded")


def define_flags() -> None:
    flags.DEFINE_string("out", "nlrl_jax/assets/nano_board", "folder to write to")


if __name__ == "__main__":
    define_flags()
    setup.run(main)
