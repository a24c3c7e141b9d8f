"""One frozen description of a decoder: Llama 2/3/3.1, Qwen2/2.5 and Qwen3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nlrl_jax.config import check, option

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_MODEL_TYPES = {"llama": ARCHITECTURES[0], "qwen2": ARCHITECTURES[1], "qwen3": ARCHITECTURES[2]}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama-3.1's scaling of the rotary frequencies (`rope_type: llama3`)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


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
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    lora: LoraConfig = LoraConfig()

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even size")

    @property
    def num_params(self) -> int:
        """Number of weights, adapters not counted."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = d * q + 2 * d * kv + q * d + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        block = attention + 3 * d * self.intermediate_size + 2 * d
        embeddings = self.vocab_size * d * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + d

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
        """Reads the contents of a Hugging Face `config.json` (transformers 4 or 5).

        Raises:
          ValueError: an architecture or option that this decoder does not implement, by name.
        """
        architecture = (hf.get("architectures") or [_MODEL_TYPES.get(hf.get("model_type", ""), "?")])[0]
        if architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture {architecture!r} (model_type {hf.get('model_type')!r}) is not implemented; "
                f"this decoder implements {', '.join(ARCHITECTURES)}"
            )
        _refuse_unsupported(hf)
        heads = hf["num_attention_heads"]
        rope_theta, rope_scaling = _rope(hf)
        fields = dict(
            vocab_size=hf["vocab_size"],
            hidden_size=hf["hidden_size"],
            intermediate_size=hf["intermediate_size"],
            num_layers=hf["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=hf.get("num_key_value_heads") or heads,
            head_dim=hf.get("head_dim") or (128 if "Qwen3" in architecture else hf["hidden_size"] // heads),
            max_positions=hf.get("max_position_embeddings", 2048),
            architecture=architecture,
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            norm_eps=hf.get("rms_norm_eps", 1e-6),
            tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
        )
        return cls(**{**fields, **overrides})

    def to_hf(self) -> dict[str, Any]:
        """The contents of a `config.json` that `transformers` loads."""
        rope: dict[str, Any] = {"rope_theta": self.rope_theta, "rope_type": "default"}
        if self.rope_scaling is not None:
            s = self.rope_scaling
            rope |= {
                "rope_type": "llama3",
                "factor": s.factor,
                "low_freq_factor": s.low_freq_factor,
                "high_freq_factor": s.high_freq_factor,
                "original_max_position_embeddings": s.original_max_positions,
            }
        scaling = None if self.rope_scaling is None else {k: v for k, v in rope.items() if k != "rope_theta"}
        return {
            "architectures": [self.architecture],
            "model_type": {v: k for k, v in _MODEL_TYPES.items()}[self.architecture],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tie_embeddings,
            "hidden_act": "silu",
            "attention_bias": False,
            "rope_theta": self.rope_theta,  # transformers 4 reads these two,
            "rope_scaling": scaling,
            "rope_parameters": rope,  # transformers 5 this one
            "torch_dtype": self.param_dtype,
        }


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    wanted = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
    for name, value in wanted.items():
        if hf.get(name, value) not in (value, None):
            raise ValueError(f"{name}={hf[name]!r} is not implemented; this decoder has {name}={value!r}")
    if any(kind != "full_attention" for kind in hf.get("layer_types") or ()):
        raise ValueError(f"layer_types={sorted(set(hf['layer_types']))} is not implemented; only full_attention is")
    if hf.get("quantization_config"):
        raise ValueError("quantization_config is not implemented; give unquantised weights")


def _rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """transformers 5 writes `rope_parameters`; older files have `rope_theta` and `rope_scaling` at the top."""
    rope = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta", hf.get("rope_theta", 10000.0)))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if hf.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise ValueError("partial_rotary_factor is not implemented; only full rotary embeddings are")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not implemented; this decoder implements 'default' and 'llama3'")
    return theta, RopeScaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )
