"""One frozen description of a decoder: Llama 2/3/3.1, Qwen2/2.5 and Qwen3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nlrl_jax.config import check, option

DTYPES = ("float32", "bfloat16", "float16")
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LARGEST = 2**31 - 1  # of a size or a position
MODEL_TYPES = {"llama": ARCHITECTURES[0], "qwen2": ARCHITECTURES[1], "qwen3": ARCHITECTURES[2]}


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
        for name in ("dtype", "param_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(DTYPES)}")

    @property
    def num_params(self) -> int:
        """Number of weights, adapters not counted."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        # q and o; k and v; biases; q and k norms.
        attention = d * q + 2 * d * kv + q * d + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        # gate, up and down; two norms.
        block = attention + 3 * d * self.intermediate_size + 2 * d
        embeddings = self.vocab_size * d * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + d

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
        """Reads the contents of a Hugging Face `config.json` (transformers 4 or 5).

        Raises:
          ValueError: an architecture or option that this decoder does not implement, by name.
        """
        architecture = _architecture(hf)
        heads, qwen = _size(hf, "num_attention_heads"), architecture != "LlamaForCausalLM"
        _refuse_unsupported(hf, architecture)
        # Defaults are those of the families' configuration classes.
        positions = _size(hf, "max_position_embeddings", 32768 if qwen else 2048)
        rope_theta, rope_scaling = _rope(hf, positions)
        own_head_dim, rest = divmod(_size(hf, "hidden_size"), heads)
        if architecture == "Qwen3ForCausalLM":
            # Qwen3's default, whatever hidden_size / heads is.
            own_head_dim = 128
        elif rest and hf.get("head_dim") is None:
            raise ValueError(f"hidden_size {hf['hidden_size']} is not a multiple of num_attention_heads {heads}")
        fields = dict(
            vocab_size=_size(hf, "vocab_size"),
            hidden_size=_size(hf, "hidden_size"),
            intermediate_size=_size(hf, "intermediate_size"),
            num_layers=_size(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(hf, "num_key_value_heads", heads),
            head_dim=_size(hf, "head_dim", own_head_dim),
            max_positions=positions,
            architecture=architecture,
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            norm_eps=_number(hf, "rms_norm_eps", 1e-6),
            tie_embeddings=_flag(hf, "tie_word_embeddings"),
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
            "model_type": {v: k for k, v in MODEL_TYPES.items()}[self.architecture],
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


def _architecture(hf: Mapping[str, Any]) -> str:
    """`transformers` goes by `model_type`; `architectures` says more, and must not contradict it."""
    kind, listed = hf.get("model_type"), hf.get("architectures") or [None]
    listed = listed if isinstance(listed, str) else listed[0]
    architecture = listed if kind is None else MODEL_TYPES.get(kind if isinstance(kind, str) else None)
    if architecture not in ARCHITECTURES or listed not in (None, architecture):
        raise ValueError(
            f"architecture {listed!r} (model_type {kind!r}) is not implemented; "
            f"this decoder implements {', '.join(ARCHITECTURES)} (model_type {', '.join(MODEL_TYPES)})"
        )
    return architecture


def _size(hf: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive whole number; without a default it must be there."""
    value = hf[name] if default is None else hf.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ValueError(f"{name} is {value!r:.60}; it must be a whole number from 1 to {LARGEST}")
    return value


def _number(hf: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; without a default it must be there."""
    value = hf[name] if default is None else hf.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r:.60}; it must be a number above 0")
    return float(value)


def _flag(hf: Mapping[str, Any], name: str) -> bool:
    """True or false; false where it is not there."""
    value = hf.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} is {value!r}; it must be true or false")
    return bool(value)


def _refuse_unsupported(hf: Mapping[str, Any], architecture: str) -> None:
    """Refuses what would change the numbers. Qwen2 and Qwen3 can use a sliding window from some layer on."""
    qwen = architecture != "LlamaForCausalLM"
    layers, first = _size(hf, "num_hidden_layers"), hf.get("max_window_layers", 28 if qwen else 0)
    no_layer_slides = hf.get("sliding_window", 4096) is None or (isinstance(first, int) and first >= layers)
    supported = {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False, True) if architecture == "Qwen2ForCausalLM" else (False,),  # Qwen2 has its own rule
        "mlp_bias": (False, True) if qwen else (False,),  # it is Llama's alone
        "use_sliding_window": (False, True) if qwen and no_layer_slides else (False,),
        "per_layer_config": ({},),
    }
    for name, values in supported.items():
        if hf.get(name) not in (*values, None):
            raise ValueError(f"{name}={hf[name]!r} is not implemented; this decoder has {name}={values[0]!r}")
    if types := hf.get("layer_types"):
        if not isinstance(types, list) or len(types) != layers or any(kind != "full_attention" for kind in types):
            raise ValueError(f"layer_types={types!r:.200} is not implemented; only full_attention in all {layers} is")
    if hf.get("quantization_config") is not None:
        raise ValueError("quantization_config is not implemented; give unquantised weights")


def _rope(hf: Mapping[str, Any], max_positions: int) -> tuple[float, RopeScaling | None]:
    """transformers 5 writes `rope_parameters`; `rope_scaling`, as older files have it, replaces that whole."""
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"{name} is {rope!r}; it must be an object")
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError(f"{name} for each type of layer ({', '.join(rope)}) is not implemented; one for all layers is")
    theta = _number({"rope_theta": 10000.0, **hf, **rope}, "rope_theta")
    partial = {**hf, **rope}.get("partial_rotary_factor")
    if partial not in (1.0, None):
        raise ValueError(f"partial_rotary_factor={partial!r} is not implemented; only full rotary embeddings are")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default" or (kind == "linear" and rope.get("factor") == 1):
        return theta, None
    if kind != "llama3":
        raise ValueError(
            f"{name} has rope_type {kind!r}, which is not implemented; this decoder implements 'default' and 'llama3'"
        )
    return theta, RopeScaling(
        _number(rope, "factor"),
        _number(rope, "low_freq_factor"),
        _number(rope, "high_freq_factor"),
        _size({**rope, **hf}, "original_max_position_embeddings", max_positions),
    )
