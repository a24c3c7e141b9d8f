"""What a set of training runs would take, without running them: memory, tokens, device hours."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp

from launch import setup, train_ms_grpo
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update
from nlrl_jax.algorithms.seeds import over_seeds
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.generate import Sampling
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.weights.load import load_config, load_tokenizer

GIB = 2**30
PLANNED_MODEL = "Qwen2.5-3B (sizes only, prompts in the built-in tokenizer's tokens)"
QWEN25_3B = ModelConfig(
    vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_layers=36, num_heads=16, num_kv_heads=2,
    head_dim=128, max_positions=32768, architecture="Qwen2ForCausalLM", rope_theta=1e6, tie_embeddings=True,
    qkv_bias=True, dtype="bfloat16", param_dtype="bfloat16",
)  # fmt: skip


def compile_update(policy: LanguageAgentPolicy, game: Any, learning: MSGRPOConfig, seeds: int = 1) -> Any:
    """One MS-GRPO iteration compiled for the devices at hand, from shapes alone: no weights are made.

    Args:
      seeds: how many are vectorised.
    """
    key = jax.random.key(0)
    params = jax.eval_shape(lambda: init_params(policy.model, key))
    state = jax.eval_shape(lambda params: init_state(policy.model, params, learning, key), params)
    update, keys = make_update(policy, game, learning), jax.eval_shape(lambda: key)
    if seeds > 1:
        stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), state.replace(params=None))
        state = stacked.replace(params=params)
        update, keys = over_seeds(update, vectorize=True), jax.eval_shape(lambda: jax.random.split(key, seeds))
    return jax.jit(update, donate_argnums=0).lower(state, keys).compile()


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one iteration at most, every episode played to its last turn and every reply written to its last token."""

    prompt_tokens: int
    reply_tokens: int
    learned_tokens: int
    flop: float


def work_of(policy: LanguageAgentPolicy, learning: MSGRPOConfig) -> Work:
    """Counts tokens, and two floating-point operations a weight and token (attention left out).

    Learned tokens are read by the model and the reference, and cost twice that again backwards.
    """
    episodes = learning.num_groups * learning.group_size
    kept = learning.num_groups * (learning.group_sample if learning.sampling_temperature else learning.group_size)
    prompt, reply = policy.template.max_length, policy.sampling.max_tokens
    prompts = len(policy.template.prefix) + episodes * learning.max_turns * prompt
    replies = episodes * learning.max_turns * reply
    learned = kept * learning.max_turns * (prompt + reply) * learning.updates_per_batch
    passes = prompts + replies + learned * (3 + (learning.beta > 0))
    return Work(prompts, replies, learned, 2.0 * policy.model.config.num_params * passes)


def matmul_rate(size: int = 2048) -> float:
    """Floating-point operations a second of a plain bfloat16 (on CPUs float32) matrix product on this device."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    x = jnp.ones((size, size), dtype)
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(5):
        clock = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - clock)
    return 2 * size**3 / best


def show(configs: dict[str, train_ms_grpo.TrainConfig], seeds: int, vectorize: bool, tflops: float = 0.0) -> None:
    """Prints the plan of several runs under `seeds` seeds each.

    Args:
      tflops: rate of the device in mind, in 1e12 floating-point operations a second; 0: measured on the one at hand.
    """
    rate = tflops * 1e12 or matmul_rate()
    device = "a device" if tflops else f"the device at hand, {jax.devices()[0].device_kind}, measured"
    print(f"{device}: {rate / 1e12:.3g} TFLOP/s in a plain matrix product")
    total = 0.0
    for name, config in configs.items():
        policy, game, learning = _policy_of(config)
        work = work_of(policy, learning)
        clock = time.monotonic()
        memory = compile_update(policy, game, learning, seeds if vectorize else 1).memory_analysis()
        peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        peak += memory.output_size_in_bytes - memory.alias_size_in_bytes
        hours = work.flop * config.iterations * seeds / rate / 3600
        total += hours
        print(
            f"\n{name}: {config.model}, {policy.model.config.num_params / 1e9:.3g}e9 weights, "
            f"{config.iterations} iterations, {seeds} seeds {'at once' if vectorize else 'one after the other'}\n"
            f"  prompt {len(policy.template.prefix)} shared + {policy.template.max_length} own tokens, "
            f"reply {config.max_tokens}, G={config.group_size}, G'={config.group_sample}, groups {config.num_groups}\n"
            f"  memory a device {peak / GIB:.2f} GiB: arguments {memory.argument_size_in_bytes / GIB:.2f}, temporaries "
            f"{memory.temp_size_in_bytes / GIB:.2f} (compiled in {time.monotonic() - clock:.0f} s)\n"
            f"  an iteration, at most: {work.prompt_tokens:,} prompt tokens, {work.reply_tokens:,} written, "
            f"{work.learned_tokens:,} learned from, {work.flop / 1e12:.4g} TFLOP\n"
            f"  all of it: {hours:.3g} hours of a device at the rate above"
        )
    print(
        f"\nin all {total:.3g} device hours at the rate of a plain matrix product. Writing replies is bound by memory "
        "and slower than that; episodes end early and replies are short, which is faster."
    )


def _policy_of(config: train_ms_grpo.TrainConfig):
    """(policy, game, learning) of a config, without the weights; without a model, Qwen2.5-3B with our tokenizer."""
    learning = train_ms_grpo.learning_of(config)
    prompt = setup.prompt_for(config.model, config.prompt)
    game = setup.make_game(config.game, prompt)
    overrides = {"dtype": config.dtype, "param_dtype": config.dtype} if config.dtype else {}
    lora = LoraConfig(config.lora_rank, config.lora_alpha)
    known = config.model != PLANNED_MODEL
    shape = load_config(config.model) if known else QWEN25_3B
    model = Transformer(dataclasses.replace(shape, lora=lora, **overrides))
    sampling = Sampling(config.max_tokens, config.temperature, config.top_k, config.top_p)
    tokenizer = load_tokenizer(config.model if known else "nano")
    return LanguageAgentPolicy.for_game(game, model, tokenizer, sampling, prompt), game, learning
