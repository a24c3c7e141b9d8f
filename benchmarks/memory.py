"""What an update needs in memory, read off the compiled program; nothing runs and no weights are needed.

    python -m benchmarks.memory --what update       # Qwen2.5-3B with LoRA at the paper's settings
    python -m benchmarks.memory --what log_probs    # log-probabilities, whole and in chunks

For devices that are not here: benchmarks/aot.py.

The program is compiled ahead of time for the devices at hand from shapes alone, and its memory
analysis is printed: arguments (weights, adapter, optimizer), temporaries (activations, caches), outputs.
On a CPU, XLA computes bfloat16 products in float32 and keeps converted copies: its temporaries bound
those of a GPU from above. The Qwen2.5 vocabulary comes from the wheel dashscope (`make install`).
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp

import envs
from launch.reproduce_ms_grpo import QWEN25_3B
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run.cost import GIB, bytes_of, compile_update
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import Sampling


def report(name: str, compiled, seconds: float) -> None:
    parts = ", ".join(f"{part} {n / GIB:.2f} GiB" for part, n in bytes_of(compiled).items())
    print(f"{name}: {parts} (compiled in {seconds:.0f} s)", flush=True)


def update(config: ModelConfig, learning: MSGRPOConfig, game_name: str, num_layers: int) -> None:
    """Compiles one whole MS-GRPO iteration from shapes."""
    from tests import tokenizers_from_wheels

    config = dataclasses.replace(config, num_layers=num_layers or config.num_layers)
    model = Transformer(config)
    game = envs.make(game_name)
    policy = LanguageAgentPolicy.for_game(
        game, model, tokenizers_from_wheels.qwen2(), Sampling(max_tokens=200, temperature=1.5, top_k=3)
    )
    start = time.perf_counter()
    compiled = compile_update(policy, game, learning)
    print(
        f"{config.num_params / 1e9:.2f}e9 weights in {config.param_dtype}, {game_name}, prompt "
        f"{len(policy.template.prefix)} + {policy.template.max_length} tokens, G={learning.group_size}, "
        f"G'={learning.group_sample}, {learning.max_turns} turns, "
        f"micro-batch {learning.micro_batch}, remat {learning.remat}"
    )
    report("update", compiled, time.perf_counter() - start)


def log_probs(batch: int = 8, length: int = 256, vocab: int = 49152, hidden: int = 576) -> None:
    """Gradient of reply log-probabilities with respect to the hidden states, for SmolLM2's sizes."""
    config = ModelConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=8, max_positions=length, tie_embeddings=True,
    )  # fmt: skip
    model = Transformer(config)
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    shapes = (
        jax.ShapeDtypeStruct((batch, length, hidden), jnp.float32),
        jax.ShapeDtypeStruct((batch, length), "int32"),
    )
    for name, chunk in (("whole [B, L, V]", batch * length), ("in chunks", None)):
        loss = lambda h, t, p, chunk=chunk: token_log_probs(model, {"params": p}, h, t, chunk=chunk).sum()
        start = time.perf_counter()
        compiled = jax.jit(jax.grad(loss)).lower(*shapes, params).compile()
        report(
            f"log-probabilities of {batch}x{length} tokens, V={vocab}, {name}", compiled, time.perf_counter() - start
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("update", "log_probs"), default="log_probs")
    parser.add_argument("--game", default="frozen_lake")
    parser.add_argument("--micro_batch", type=int, default=5)
    parser.add_argument("--num_layers", type=int, default=0, help="fewer layers, to see how memory grows with depth")
    args = parser.parse_args()
    print(f"jax {version('jax')}, Python {platform.python_version()}, compiled for {jax.devices()[0].device_kind}")
    if args.what == "update":
        learning = MSGRPOConfig(micro_batch=args.micro_batch, remat=True)
        update(QWEN25_3B, learning, args.game, args.num_layers)
    else:
        log_probs()


if __name__ == "__main__":
    main()
