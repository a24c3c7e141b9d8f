"""What `config.json` says of a decoder, one row a family: Llama 2/3/3.1, Qwen2/2.5, Qwen3, Mistral, Gemma and Gemma 3.

    fields = read(json.load(file))  # of `ModelConfig`
    contents = write(config)

A new family is a row of `FAMILIES`: what its models share, what a missing key means, and what would be refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

LARGEST = 2**31 - 1  # of a size or a position
FULL, SLIDING = LAYER_TYPES = "full_attention", "sliding_attention"


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


# Of every family: keys whose other values would change the numbers.
_COMMON = {
    "per_layer_config": ({},),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
}
_SILU = {**_COMMON, "hidden_act": ("silu", "swish"), "attention_bias": (False,)}
_GELU = {**_COMMON, "attention_bias": (False,), "hidden_activation": ("gelu_pytorch_tanh",)}
_LLAMA = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
_QWEN = {**_LLAMA, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
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
            sliding_window=4096,
        ),
        supported=_SILU,
        sliding="all",
    ),
}
MODEL_TYPES = {kind: family.architecture for kind, family in FAMILIES.items()}
ARCHITECTURES = tuple(MODEL_TYPES.values())


def read(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelConfig` from the contents of a Hugging Face `config.json` (transformers 4 or 5).

    Raises:
      ValueError: an architecture or option that this decoder does not implement, by name.
    """
    family = FAMILIES[_model_type(hf)]
    defaults = family.defaults
    _refuse_unsupported(hf, family)
    layers, heads = (_size(hf, name, defaults.get(name)) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden = _size(hf, "hidden_size", defaults.get("hidden_size"))
    positions = _size(hf, "max_position_embeddings", defaults["max_position_embeddings"])
    if "head_dim" not in defaults and hidden % heads and hf.get("head_dim") is None:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    # A file that says null has as many key/value heads as query heads.
    kv_heads = heads if "num_key_value_heads" in hf else defaults.get("num_key_value_heads", heads)
    window = _window(hf, family)
    rope_theta, rope_scaling = _rope(hf, defaults["rope_theta"], positions)
    return dict(
        vocab_size=_size(hf, "vocab_size", defaults.get("vocab_size")),
        hidden_size=hidden,
        intermediate_size=_size(hf, "intermediate_size", defaults.get("intermediate_size")),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_size(hf, "num_key_value_heads", kv_heads),
        head_dim=_size(hf, "head_dim", defaults.get("head_dim", hidden // heads)),
        max_positions=positions,
        architecture=family.architecture,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        norm_eps=_number(hf, "rms_norm_eps", defaults["rms_norm_eps"]),
        tie_embeddings=_flag(hf, "tie_word_embeddings", defaults.get("tie_word_embeddings", False)),
        sliding_window=window,
        layer_types=_layer_types(hf, family, layers, window),
        **family.fields,
    )


def write(config: Any) -> dict[str, Any]:
    """The contents of a `config.json` that `transformers` loads, of a `ModelConfig`."""
    model_type = next(kind for kind, architecture in MODEL_TYPES.items() if architecture == config.architecture)
    family = FAMILIES[model_type]
    scaling = _written_scaling(config.rope_scaling)
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default", **(scaling or {})}
    contents = {
        "architectures": [config.architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        **{name: family.supported[name][0] for name in family.written},
        "rope_theta": config.rope_theta,  # transformers 4 reads these two,
        "rope_scaling": scaling,
        "rope_parameters": rope,  # transformers 5 this one
        "torch_dtype": config.param_dtype,
    }
    if family.sliding != "none":
        contents["sliding_window"] = config.sliding_window
    if family.sliding == "max_window_layers":
        contents |= {"use_sliding_window": config.sliding_window is not None}
    if family.sliding not in ("none", "all") and config.layer_types:
        contents["layer_types"] = list(config.layer_types)
    return contents


def _written_scaling(scaling: RopeScaling | LinearRopeScaling | None) -> dict[str, Any] | None:
    """`rope_scaling` as a file has it."""
    if isinstance(scaling, LinearRopeScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    return scaling and {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }


def _model_type(hf: Mapping[str, Any]) -> str:
    """`transformers` goes by `model_type`; `architectures` says more, and must not contradict it."""
    kind, listed = hf.get("model_type"), hf.get("architectures") or [None]
    listed = listed if isinstance(listed, str) else listed[0]
    architecture = listed if kind is None else MODEL_TYPES.get(kind if isinstance(kind, str) else None)
    if architecture not in ARCHITECTURES or listed not in (None, architecture):
        raise ValueError(
            f"architecture {listed!r} (model_type {kind!r}) is not implemented; "
            f"this decoder implements {', '.join(ARCHITECTURES)} (model_type {', '.join(MODEL_TYPES)})"
        )
    return next(kind for kind, name in MODEL_TYPES.items() if name == architecture)


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


def _flag(hf: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false; the default where it is not there."""
    value = hf.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} is {value!r}; it must be true or false")
    return default if value is None else value


def _refuse_unsupported(hf: Mapping[str, Any], family: Family) -> None:
    """Refuses what would change the numbers."""
    for name, values in family.supported.items():
        if hf.get(name) not in (*values, None):
            raise ValueError(f"{name}={hf[name]!r} is not implemented; this decoder has {name}={values[0]!r}")
    if hf.get("quantization_config") is not None:
        raise ValueError("quantization_config is not implemented; give unquantised weights")


def _window(hf: Mapping[str, Any], family: Family) -> int | None:
    """`sliding_window`, where the family reads it: a missing one is the family's default, null is none."""
    used = family.sliding != "max_window_layers" or _flag(hf, "use_sliding_window", False)
    if family.sliding == "none" or not used or hf.get("sliding_window", 0) is None:
        return None
    return _size(hf, "sliding_window", family.defaults["sliding_window"])


def _layer_types(hf: Mapping[str, Any], family: Family, layers: int, window: int | None) -> tuple[str, ...]:
    """The kind of each layer; () where all layers see everything."""
    slides = [False] * layers
    if family.sliding == "all":
        slides = [window is not None] * layers
    elif family.sliding == "max_window_layers" and window is not None:
        first = _size({"max_window_layers": family.defaults["max_window_layers"], **hf}, "max_window_layers")
        slides = [layer >= first for layer in range(layers)]
    elif family.sliding == "sliding_window_pattern":
        # Every sixth layer sees everything.
        pattern = _size(hf, "sliding_window_pattern", family.defaults["sliding_window_pattern"])
        slides = [(layer + 1) % pattern > 0 for layer in range(layers)]
    types = [SLIDING if slide else FULL for slide in slides]
    listed = hf.get("layer_types") or types
    # Families whose layers are all alike do not read the list, so that it must say what they do.
    alike = family.sliding in ("none", "all")
    if not isinstance(listed, list) or len(listed) != layers or not {*listed} <= {*(types if alike else LAYER_TYPES)}:
        choice = f"only {types[0]}" if alike else " or ".join(LAYER_TYPES)
        raise ValueError(f"layer_types={listed!r:.200} is not implemented; {choice} in all {layers} is")
    return tuple(listed) if SLIDING in listed else ()


def _rope(
    hf: Mapping[str, Any], default_theta: float, max_positions: int
) -> tuple[float, RopeScaling | LinearRopeScaling | None]:
    """transformers 5 writes `rope_parameters`; `rope_scaling`, as older files have it, replaces that whole."""
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"{name} is {rope!r}; it must be an object")
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError(f"{name} for each type of layer ({', '.join(rope)}) is not implemented; one for all layers is")
    theta = _number({"rope_theta": default_theta, **hf, **rope}, "rope_theta")
    partial = {**hf, **rope}.get("partial_rotary_factor")
    if partial not in (1.0, None):
        raise ValueError(f"partial_rotary_factor={partial!r} is not implemented; only full rotary embeddings are")
    return theta, _scaling(hf, name, rope, max_positions)


def _scaling(
    hf: Mapping[str, Any], name: str, rope: Mapping[str, Any], max_positions: int
) -> RopeScaling | LinearRopeScaling | None:
    """What the object under the key `name` does to the rotary frequencies."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default" or (kind == "linear" and rope.get("factor") == 1):
        return None
    if kind == "linear":
        return LinearRopeScaling(_number(rope, "factor"))
    if kind != "llama3":
        raise ValueError(
            f"{name} has rope_type {kind!r}, which is not implemented; this decoder implements 'default', 'linear' "
            "and 'llama3'"
        )
    return RopeScaling(
        _number(rope, "factor"),
        _number(rope, "low_freq_factor"),
        _number(rope, "high_freq_factor"),
        _size({**rope, **hf}, "original_max_position_embeddings", max_positions),
    )
