"""The families of decoders, one row each: Llama 2/3/3.1, Qwen2/2.5, Qwen3, Qwen3-MoE, Qwen3.5, Mistral, Gemma, Gemma 3.

A new family is a row of `FAMILIES`: what its models share, what a key means that a `config.json` lacks (both for
`ModelConfig`, by `lm.config_json`), and which keys would be refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

LARGEST = 2**31 - 1  # of a size or a position
# What mixes the tokens of a layer, and what each of them then goes through.
FULL, SLIDING, LINEAR = LAYER_TYPES = "full_attention", "sliding_attention", "linear_attention"
DENSE, SPARSE = MLP_TYPES = "dense", "sparse"


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama-3.1's scaling of the rotary frequencies (`rope_type: llama3`)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self):
        if not self.low_freq_factor < self.high_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"low_freq_factor is {low} and high_freq_factor {high}; the second must be larger")


@dataclasses.dataclass(frozen=True)
class LinearRopeScaling:
    """All rotary frequencies divided by a factor (`rope_type: linear`)."""

    factor: float


@dataclasses.dataclass(frozen=True)
class DeltaNetSizes:
    """Sizes of layers of Gated DeltaNet (`lm.delta_net`).

    num_key_heads, num_value_heads: the second is a multiple of the first.
    key_head_dim, value_head_dim: of one head. conv_width: taps of the causal convolution.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int = 4

    def __post_init__(self):
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"{self.num_value_heads} value heads of linear attention are not a multiple of its "
                f"{self.num_key_heads} key heads"
            )
        if self.conv_width < 2:
            raise ValueError(f"the convolution of linear attention has {self.conv_width} taps; it must have 2 or more")

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution goes over: queries, keys and values of all heads."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of models.

    architecture: the class of `transformers` that its files name.
    fields: of `ModelConfig`, what all its models share.
    defaults: what a key stands for that a file lacks: the default of the family's configuration class.
    supported: keys that would change the numbers, and their values that this decoder implements, the first preferred.
    written: those of `supported` that a config.json states.
    sliding: which layers see no further than `sliding_window`: "none" of them, "all", those from `max_window_layers`
      on if `use_sliding_window`, or all but every `sliding_window_pattern`-th.
    """

    architecture: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    supported: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    written: tuple[str, ...] = ("hidden_act", "attention_bias")
    sliding: str = "none"
    linear: bool = False


# Of every family: keys whose other values would change the numbers.
_COMMON = {
    "per_layer_config": ({},),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "attention_chunk_size": (None,),  # the cache of transformers keeps no more than these tokens
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    # of other families, whose models are sometimes saved under these names
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (None,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
}
# Feed-forward parts: SwiGLU, and GeGLU with the approximation of GELU by tanh.
_SILU = {**_COMMON, "hidden_act": ("silu", "swish"), "attention_bias": (False,)}
_GELU = {**_COMMON, "attention_bias": (False,), "hidden_activation": ("gelu_pytorch_tanh",)}
_LLAMA = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
_QWEN = {**_LLAMA, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
# Norms multiply by 1 + weight, and embeddings are scaled by sqrt(hidden_size).
_GEMMA = dict(activation="gelu_tanh", norm_offset=True, scale_embeddings=True)
FAMILIES = {  # by `model_type`
    "llama": Family(
        "LlamaForCausalLM",
        defaults=_LLAMA,
        supported={**_SILU, "mlp_bias": (False,), "use_sliding_window": (False,)},
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        fields=dict(qkv_bias=True),
        defaults=_QWEN,
        supported={**_SILU, "attention_bias": (False, True)},  # it has a rule of its own
        sliding="max_window_layers",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        fields=dict(qk_norm=True),
        defaults={**_QWEN, "head_dim": 128},  # whatever hidden_size / heads is
        supported=_SILU,
        sliding="max_window_layers",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        fields=dict(qk_norm=True),
        defaults=dict(
            vocab_size=151936,
            hidden_size=2048,
            intermediate_size=6144,
            num_hidden_layers=24,
            num_attention_heads=32,
            num_key_value_heads=4,
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            norm_topk_prob=False,
            use_sliding_window=False,
        ),
        supported={**_SILU, "use_sliding_window": (False,)},
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        fields=dict(qk_norm=True, norm_offset=True, gated_attention=True),
        defaults=dict(
            vocab_size=248320,
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=32,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=256,
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            partial_rotary_factor=0.25,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
            full_attention_interval=4,
        ),
        supported={**_SILU, "attn_output_gate": (True,), "mlp_only_layers": ([],)},
        linear=True,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        defaults=dict(
            vocab_size=32000,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=131072,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            sliding_window=4096,  # as the first release has it; later ones say null
        ),
        supported=_SILU,
        sliding="all",
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        fields=_GEMMA,
        defaults=dict(
            vocab_size=256000,
            hidden_size=3072,
            intermediate_size=24576,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=16,
            head_dim=256,
            max_position_embeddings=8192,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            tie_word_embeddings=True,
        ),
        # "gelu" in the first releases' files means the approximation by tanh, too.
        supported={**_GELU, "hidden_act": ("gelu_pytorch_tanh", "gelu")},
        written=("hidden_act", "hidden_activation", "attention_bias"),
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        fields=dict(qk_norm=True, sandwich_norms=True, **_GEMMA),
        defaults=dict(
            vocab_size=262208,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            max_position_embeddings=131072,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            rope_local_base_freq=10000.0,
            query_pre_attn_scalar=256,
            sliding_window=4096,
            sliding_window_pattern=6,
            tie_word_embeddings=True,
        ),
        supported=_GELU,
        written=("hidden_activation", "attention_bias"),
        sliding="sliding_window_pattern",
    ),
}
MODEL_TYPES = {kind: family.architecture for kind, family in FAMILIES.items()}
ARCHITECTURES = tuple(MODEL_TYPES.values())
# Models that see, too: `model_type` -> (architecture, `model_type` of their "text_config", which alone is read).
WITH_VISION = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text"),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
}
