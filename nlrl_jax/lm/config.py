"""One frozen description of a decoder; which layers and norms its family has is data (`lm.families`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nlrl_jax.config import check, option
from nlrl_jax.lm import config_json
from nlrl_jax.lm.families import FULL, LAYER_TYPES, SLIDING, LinearRopeScaling, RopeScaling

DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on every linear layer inside the blocks: the update is `alpha / rank * x A B`."""

    rank: int = option(16, "rank of the adapters on all linear layers", least=1)
    alpha: float = option(32.0, "the adapter's update is scaled by alpha / rank", above=0)

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and options of a decoder.

    `dtype` is what activations are computed in, `param_dtype` what weights are stored in; norms,
    rotary embeddings, softmax and log-probabilities are always float32.

    activation: of the gate of the MLP: SwiGLU has "silu", GeGLU "gelu_tanh".
    norm_offset: norms multiply by 1 + weight, in float32; else by the weight, in `dtype`.
    sandwich_norms: outputs of attention and MLP are normed before they are added, too.
    scale_embeddings: the embeddings of tokens are multiplied by sqrt(hidden_size), rounded to `dtype`.
    query_pre_attn_scalar: queries are divided by its square root; by that of head_dim if None.
    layer_types: "full_attention" or "sliding_attention" of each layer; () if all are full.
    sliding_window: tokens that a query of a sliding layer sees, itself included.
    num_experts: MLPs of a layer, of width `expert_size`; each token goes through `experts_per_token` of them
      (`lm.experts`). 0: one MLP for all tokens.
    renormalise_experts: the router's weights of a token's experts sum to 1.
    local_rope_theta: `rope_theta` of sliding layers, without `rope_scaling`; None: they do as full layers do.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    architecture: str = "LlamaForCausalLM"
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | LinearRopeScaling | None = None
    local_rope_theta: float | None = None
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    norm_offset: bool = False
    sandwich_norms: bool = False
    scale_embeddings: bool = False
    query_pre_attn_scalar: float | None = None
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    renormalise_experts: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    lora: LoraConfig = LoraConfig()

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even size")
        for name, choices in (("dtype", DTYPES), ("param_dtype", DTYPES), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if self.layer_types and len(self.layer_types) != self.num_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for num_layers={self.num_layers}")
        for kind in set(self.layer_types) - set(LAYER_TYPES):
            raise ValueError(f"layer_types holds {kind!r}; choose of {', '.join(LAYER_TYPES)}")
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError(f"layer_types holds {SLIDING}, which needs sliding_window")

        if not 0 <= self.experts_per_token <= self.num_experts or (self.num_experts and not self.experts_per_token):
            raise ValueError(f"experts_per_token={self.experts_per_token} of num_experts={self.num_experts}")

    @property
    def num_params(self) -> int:
        """Number of weights, adapters not counted."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        # q and o; k and v; biases; q and k norms.
        attention = d * q + 2 * d * kv + q * d + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        # gate, up and down; or those of each expert, and the router.
        mlp = 3 * d * self.intermediate_size
        if self.num_experts:
            mlp = self.num_experts * (3 * d * self.expert_size + d)
        # Two norms, or four.
        block = attention + mlp + (4 if self.sandwich_norms else 2) * d
        embeddings = self.vocab_size * d * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + d

    @property
    def window(self) -> int | None:
        """Tokens that a query of a sliding layer sees at most, itself included; None if that is all there are."""
        return self.sliding_window if SLIDING in self.layer_types and self.sliding_window < self.max_positions else None

    @property
    def slides(self) -> tuple[bool, ...]:
        """Whether each layer differs from a layer that sees everything, by its window or its rotary angles."""
        differs = self.window is not None or self.local_rope_theta is not None
        return tuple(differs and kind == SLIDING for kind in self.layer_types or (FULL,) * self.num_layers)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
        """Reads the contents of a Hugging Face `config.json`. Errors: see `config_json.read`."""
        return cls(**{**config_json.read(hf), **overrides})

    def to_hf(self) -> dict[str, Any]:
        """The contents of a `config.json` that `transformers` loads."""
        return config_json.write(self)
