"""One frozen description of a decoder; which layers and norms its family has is data (`lm.families`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nlrl_jax.config import check, option
from nlrl_jax.lm import config_json
from nlrl_jax.lm.families import (
    DENSE,
    FULL,
    LAYER_TYPES,
    LINEAR,
    MLP_TYPES,
    SLIDING,
    SPARSE,
    DeltaNetSizes,
    LinearRopeScaling,
    RopeScaling,
)

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
    gated_attention: the output of attention is multiplied by the sigmoid of a gate, which the layer "q" makes too.
    partial_rotary_factor: the part of each head that rotary embeddings turn, its first numbers.
    layer_types: "full_attention", "sliding_attention" or "linear_attention" of each layer; () if all are full.
    sliding_window: tokens that a query of a sliding layer sees, itself included.
    delta_net: sizes of linear layers, which are Gated DeltaNet's (`lm.delta_net`).
    mlp_types: "sparse" (experts) or "dense" of each layer; () if all have experts, or all have none.
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
    gated_attention: bool = False
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    delta_net: DeltaNetSizes | None = None
    mlp_types: tuple[str, ...] = ()
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
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            part = f" x {self.partial_rotary_factor:g}" if self.partial_rotary_factor != 1 else ""
            raise ValueError(f"head_dim={self.head_dim}{part}: rotary embeddings need an even part of a head")
        for name, choices in (("dtype", DTYPES), ("param_dtype", DTYPES), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        for name, choices in (("layer_types", LAYER_TYPES), ("mlp_types", MLP_TYPES)):
            types = getattr(self, name)
            if types and len(types) != self.num_layers:
                raise ValueError(f"{name} has {len(types)} entries for num_layers={self.num_layers}")
            for kind in set(types) - set(choices):
                raise ValueError(f"{name} holds {kind!r}; choose of {', '.join(choices)}")
        if LINEAR in self.layer_types and (self.delta_net is None or {*self.layer_types} == {LINEAR}):
            raise ValueError(f"layer_types holds {LINEAR}, which needs delta_net and a layer of attention")
        if SPARSE in self.mlp_types and not self.num_experts:
            raise ValueError(f"mlp_types holds {SPARSE}, which needs num_experts")
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError(f"layer_types holds {SLIDING}, which needs sliding_window")

        if not 0 <= self.experts_per_token <= self.num_experts or (self.num_experts and not self.experts_per_token):
            raise ValueError(f"experts_per_token={self.experts_per_token} of num_experts={self.num_experts}")

    @property
    def num_params(self) -> int:
        """Number of weights, adapters not counted."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        # q and o; k and v; biases; q and k norms.
        wide_q = q * (1 + self.gated_attention)
        attention = d * wide_q + 2 * d * kv + q * d + (wide_q + 2 * kv) * self.qkv_bias
        attention += 2 * self.head_dim * self.qk_norm
        linear = 0
        if n := self.delta_net:
            values = n.num_value_heads * n.value_head_dim
            # qkv; z and out; a and b; the convolution; A_log and dt_bias; the norm.
            linear = d * n.channels + 2 * d * values + 2 * d * n.num_value_heads + n.channels * n.conv_width
            linear += 2 * n.num_value_heads + n.value_head_dim
        # gate, up and down; or those of each expert, and the router.
        dense = 3 * d * self.intermediate_size
        sparse = self.num_experts * (3 * d * self.expert_size + d)
        # Two norms, or four.
        blocks = self.num_layers * (4 if self.sandwich_norms else 2) * d
        blocks += self.num_linear_layers * linear + self.num_attention_layers * attention
        num_sparse = self.mlp_types.count(SPARSE) if self.mlp_types else self.num_layers * (self.num_experts > 0)
        blocks += num_sparse * sparse + (self.num_layers - num_sparse) * dense
        embeddings = self.vocab_size * d * (1 if self.tie_embeddings else 2)
        return embeddings + blocks + d

    @property
    def kinds(self) -> tuple[tuple[bool, bool], ...]:
        """Of each layer of one `period`, whether it is linear, not attention, and whether it has experts, not one MLP.

        Layers of different kinds have different weights."""
        n = self.num_layers
        if LINEAR not in self.layer_types and not self.mlp_types:
            return ((False, self.num_experts > 0),)
        linear = [kind == LINEAR for kind in self.layer_types or (FULL,) * n]
        sparse = [kind == SPARSE for kind in self.mlp_types or (SPARSE if self.num_experts else DENSE,) * n]
        kinds = tuple(zip(linear, sparse, strict=True))
        return next(kinds[:p] for p in range(1, n + 1) if n % p == 0 and kinds == kinds[:p] * (n // p))

    @property
    def period(self) -> int:
        """Layers after which the kinds of layers repeat, a divisor of their number."""
        return len(self.kinds)

    @property
    def num_linear_layers(self) -> int:
        """Layers with a recurrent state in place of keys and values."""
        return self.layer_types.count(LINEAR)

    @property
    def num_attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.num_layers - self.num_linear_layers

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that rotary embeddings turn."""
        return int(self.head_dim * self.partial_rotary_factor)

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
