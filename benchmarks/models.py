"""Shapes of published models, for programs that need no weights, or random ones."""

from __future__ import annotations

from nlrl_jax.launch.reproduce_ms_grpo import QWEN25_3B
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.families import FAMILIES, FULL, LINEAR, SLIDING, DeltaNetSizes
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.weights.load import load_tokenizer

_BF16 = {"dtype": "bfloat16", "param_dtype": "bfloat16", "max_positions": 32768}
_QWEN2 = {"architecture": "Qwen2ForCausalLM", "qkv_bias": True, "rope_theta": 1e6, **_BF16}
_QWEN3 = {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "rope_theta": 1e6, **_BF16}
_QWEN3_MOE = {**_QWEN3, "architecture": "Qwen3MoeForCausalLM", "num_experts": 128, "experts_per_token": 8}
_QWEN3_MOE |= {"expert_size": 768, "renormalise_experts": True}
_GEMMA = {"architecture": "GemmaForCausalLM", "tie_embeddings": True, **FAMILIES["gemma"].fields, **_BF16}
_QWEN35 = {"architecture": "Qwen3_5ForCausalLM", "partial_rotary_factor": 0.25, "rope_theta": 1e7, **_BF16}
_QWEN35 |= {**FAMILIES["qwen3_5_text"].fields, "delta_net": DeltaNetSizes(16, 32, 128, 128)}
_QWEN35 |= {"layer_types": (LINEAR, LINEAR, LINEAR, FULL) * 8}
MODELS = {  # shapes of the published configurations
    "smollm2-135m": ModelConfig(49152, 576, 1536, 30, 9, 3, 64, tie_embeddings=True, rope_theta=1e5, **_BF16),
    "qwen2.5-0.5b": ModelConfig(151936, 896, 4864, 24, 14, 2, 64, tie_embeddings=True, **_QWEN2),
    "qwen2.5-3b": QWEN25_3B,
    "llama3.1-8b": ModelConfig(128256, 4096, 14336, 32, 32, 8, 128, rope_theta=5e5, **_BF16),
    "qwen3-8b": ModelConfig(151936, 4096, 12288, 36, 32, 8, 128, **_QWEN3),
    "qwen2.5-72b": ModelConfig(152064, 8192, 29568, 80, 64, 8, 128, **_QWEN2),
    "gemma-7b": ModelConfig(256000, 3072, 24576, 28, 16, 16, 256, **_GEMMA),
    "qwen3-30b-a3b": ModelConfig(151936, 2048, 6144, 48, 32, 4, 128, **_QWEN3_MOE),
    "qwen3.5-9b": ModelConfig(248320, 4096, 12288, 32, 16, 4, 256, **_QWEN35),
}

_SMALL = {"vocab_size": 49152, "hidden_size": 256, "intermediate_size": 1024, "num_layers": 4, "num_heads": 4}
_SMALL |= {"num_kv_heads": 2, "head_dim": 64, "max_positions": 2048}
_WINDOWS = {"sliding_window": 128, "layer_types": (SLIDING,) * 3 + (FULL,)}
_FIELDS = {  # by `model_type`: beyond what all models of the family share
    "llama": {},
    "mistral": {**_WINDOWS, "layer_types": (SLIDING,) * 4},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 16, "experts_per_token": 4, "expert_size": 256, "renormalise_experts": True},
    "gemma": {"tie_embeddings": True},
    "gemma3_text": {**_WINDOWS, "tie_embeddings": True, "local_rope_theta": 1e4, "query_pre_attn_scalar": 64.0},
    "qwen3_5_text": {
        "partial_rotary_factor": 0.25,
        "delta_net": DeltaNetSizes(4, 4, 64, 64),
        "layer_types": (LINEAR,) * 3 + (FULL,),
    },
}
TINY = {  # one model of each family with weights of its own; qwen3_moe has as many active weights as qwen3
    kind: ModelConfig(architecture=FAMILIES[kind].architecture, **{**_SMALL, **FAMILIES[kind].fields, **fields})
    for kind, fields in _FIELDS.items()
}


def prompts_of(model: str) -> tuple[Tokenizer, str]:
    """(tokenizer, prompt form): Qwen's and the paper's for the shapes above, else the model's own and compact.

    Qwen's vocabulary is in the wheel dashscope (`make install`).
    """
    if model not in MODELS:
        return load_tokenizer(model), "compact"
    from tests import tokenizers_from_wheels

    return tokenizers_from_wheels.qwen2(), "paper"
