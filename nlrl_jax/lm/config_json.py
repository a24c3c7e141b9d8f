"""A Hugging Face `config.json` as the fields of `ModelConfig`, and back; `lm.families` says what a family's keys mean.

fields = read(json.load(file))
contents = write(config)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlrl_jax.lm.config_rope import rope_fields, written_scaling
from nlrl_jax.lm.config_values import flag, number, size
from nlrl_jax.lm.families import (
    ARCHITECTURES,
    DENSE,
    FAMILIES,
    FULL,
    LINEAR,
    MODEL_TYPES,
    SLIDING,
    SPARSE,
    WITH_VISION,
    DeltaNetSizes,
    Family,
)

MOST_LAYERS = 100_000


def read(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelConfig` from the contents of a Hugging Face `config.json` (transformers 4 or 5).

    Raises:
      ValueError: an architecture or option that this decoder does not implement, by name.
    """
    hf = _text_config(hf)
    family = FAMILIES[_model_type(hf)]
    defaults = family.defaults
    _refuse_unsupported(hf, family)
    layers, heads = (size(hf, name, defaults.get(name)) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden = size(hf, "hidden_size", defaults.get("hidden_size"))
    positions = size(hf, "max_position_embeddings", defaults["max_position_embeddings"])
    if "head_dim" not in defaults and hidden % heads and hf.get("head_dim") is None:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    # A file that says null has as many key/value heads as query heads.
    kv_heads = heads if "num_key_value_heads" in hf else defaults.get("num_key_value_heads", heads)
    window = _window(hf, family)
    return dict(
        vocab_size=size(hf, "vocab_size", defaults.get("vocab_size")),
        hidden_size=hidden,
        intermediate_size=size(hf, "intermediate_size", defaults.get("intermediate_size")),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=size(hf, "num_key_value_heads", kv_heads),
        head_dim=size(hf, "head_dim", defaults.get("head_dim", hidden // heads)),
        max_positions=positions,
        architecture=family.architecture,
        **rope_fields(hf, defaults, positions),
        norm_eps=number(hf, "rms_norm_eps", defaults["rms_norm_eps"]),
        tie_embeddings=flag(hf, "tie_word_embeddings", defaults.get("tie_word_embeddings", False)),
        sliding_window=window,
        layer_types=_layer_types(hf, family, layers, window),
        **_query_scalar(hf, defaults),
        **_experts(hf, defaults, layers),
        **_delta_net(hf, defaults),
        **family.fields,
    )


def write(config: Any) -> dict[str, Any]:
    """The contents of a `config.json` that `transformers` loads, of a `ModelConfig`."""
    model_type = next(kind for kind, architecture in MODEL_TYPES.items() if architecture == config.architecture)
    family = FAMILIES[model_type]
    scaling = written_scaling(config.rope_scaling)
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default", **(scaling or {})}
    if "partial_rotary_factor" in family.defaults:
        rope["partial_rotary_factor"] = config.partial_rotary_factor
    if config.local_rope_theta is not None:
        # One for each type of layer; a scaling is that of full layers.
        rope = {FULL: rope, SLIDING: {"rope_theta": config.local_rope_theta, "rope_type": "default"}}
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
    if config.local_rope_theta is not None:
        contents["rope_local_base_freq"] = config.local_rope_theta
    if config.query_pre_attn_scalar is not None:
        scalar = config.query_pre_attn_scalar
        contents["query_pre_attn_scalar"] = int(scalar) if scalar == int(scalar) else scalar
    if config.num_experts:
        contents |= {
            "num_experts": config.num_experts,
            "num_experts_per_tok": config.experts_per_token,
            "moe_intermediate_size": config.expert_size,
            "norm_topk_prob": config.renormalise_experts,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [layer for layer, kind in enumerate(config.mlp_types) if kind == DENSE],
        }
    if config.delta_net is not None:
        sizes = config.delta_net
        contents |= {key: getattr(sizes, name) for name, key in _DELTA_NET.items()}
    if family.sliding != "none":
        contents["sliding_window"] = config.sliding_window
    if family.sliding == "max_window_layers":
        contents |= {"use_sliding_window": config.sliding_window is not None}
    if family.sliding not in ("none", "all") or family.linear:
        contents["layer_types"] = list(config.layer_types or (FULL,) * config.num_layers)
    return contents


def _text_config(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of the text part of a model that sees, too; other contents as they are."""
    kind, listed = hf.get("model_type"), _listed_architecture(hf)
    for model_type, (architecture, text_type) in WITH_VISION.items():
        if (kind, listed) in ((model_type, architecture), (model_type, None), (None, architecture)):
            text = hf.get("text_config") or {}
            if not isinstance(text, Mapping) or text.get("model_type", text_type) != text_type:
                raise ValueError(f"text_config is {text!r:.200}; an object of model_type {text_type} is implemented")
            # Of the whole model, not of the part.
            tied, quantization = hf.get("tie_word_embeddings"), hf.get("quantization_config")
            whole = {
                "tie_word_embeddings": tied,
                **({} if quantization is None else {"quantization_config": quantization}),
            }
            return {**text, **whole, "model_type": text_type, "architectures": None}
    return hf


def _listed_architecture(hf: Mapping[str, Any]) -> Any:
    """The first of `architectures`; None where there is none."""
    listed = hf.get("architectures") or [None]
    return listed[0] if isinstance(listed, list) else listed


def _model_type(hf: Mapping[str, Any]) -> str:
    """`transformers` goes by `model_type`; `architectures` says more, and must not contradict it."""
    kind, listed = hf.get("model_type"), _listed_architecture(hf)
    architecture = listed if kind is None else MODEL_TYPES.get(kind if isinstance(kind, str) else None)
    if architecture not in ARCHITECTURES or listed not in (None, architecture):
        whole = ", ".join(name for name, _ in WITH_VISION.values())
        raise ValueError(
            f"architecture {listed!r} (model_type {kind!r}) is not implemented; this decoder implements "
            f"{', '.join(ARCHITECTURES)} (model_type {', '.join(MODEL_TYPES)}) and the text part of {whole} "
            f"(model_type {', '.join(WITH_VISION)})"
        )
    return next(kind for kind, name in MODEL_TYPES.items() if name == architecture)


def _refuse_unsupported(hf: Mapping[str, Any], family: Family) -> None:
    """Refuses what would change the numbers."""
    for name, values in family.supported.items():
        if hf.get(name) not in (*values, None):
            raise ValueError(f"{name}={hf[name]!r} is not implemented; this decoder has {name}={values[0]!r}")
    if hf.get("quantization_config") is not None:
        raise ValueError("quantization_config is not implemented; give unquantised weights")


def _window(hf: Mapping[str, Any], family: Family) -> int | None:
    """`sliding_window`, where the family reads it: a missing one is the family's default, null is none."""
    used = family.sliding != "max_window_layers" or flag(hf, "use_sliding_window", False)
    if family.sliding == "none" or not used or hf.get("sliding_window", 0) is None:
        _refuse_unread_window(hf, family)
        return None
    return size(hf, "sliding_window", family.defaults["sliding_window"])


def _refuse_unread_window(hf: Mapping[str, Any], family: Family) -> None:
    """Of a family without windows: the masks of transformers have none either, but its cache keeps no more tokens."""
    if family.sliding != "none" or not flag(hf, "use_sliding_window", family.defaults.get("use_sliding_window", True)):
        return
    window = hf.get("sliding_window")
    positions = size(hf, "max_position_embeddings", family.defaults["max_position_embeddings"])
    if window is not None and not (isinstance(window, int) and window >= positions):
        raise ValueError(
            f"sliding_window={window!r:.60} is not implemented for {family.architecture}, whose layers see everything; "
            "null, or max_position_embeddings or more, is"
        )


def _layer_types(hf: Mapping[str, Any], family: Family, layers: int, window: int | None) -> tuple[str, ...]:
    """The kind of each layer; () where all layers see everything."""
    all_slide = family.sliding == "all" and window is not None
    # Families whose layers are all alike do not read the list, so that it must say what they do.
    is_alike = family.sliding in ("none", "all") and not family.linear
    choices = (SLIDING if all_slide else FULL,) if is_alike else (FULL, LINEAR if family.linear else SLIDING)
    if listed := hf.get("layer_types"):
        if not isinstance(listed, list) or len(listed) != layers or not {*listed} <= {*choices}:
            choice = f"only {choices[0]}" if is_alike else " or ".join(choices)
            raise ValueError(f"layer_types={listed!r:.200} is not implemented; {choice} in all {layers} is")
        return tuple(listed) if {*listed} != {FULL} else ()
    if is_alike and not all_slide or family.sliding == "max_window_layers" and window is None:
        return ()
    _check_listable(layers)
    if family.sliding == "max_window_layers":
        first = size({"max_window_layers": family.defaults["max_window_layers"], **hf}, "max_window_layers")
        is_full = [layer < first for layer in range(layers)]
    elif family.sliding == "sliding_window_pattern" or family.linear:
        # Every sixth layer, say, sees everything.
        name = "full_attention_interval" if family.linear else "sliding_window_pattern"
        interval = size(hf, name, family.defaults[name])
        is_full = [(layer + 1) % interval == 0 for layer in range(layers)]
    else:
        is_full = [False] * layers
    return () if all(is_full) else tuple(FULL if full else choices[-1] for full in is_full)


def _check_listable(layers: int) -> None:
    if layers > MOST_LAYERS:  # of a damaged file: no list of so many is made
        raise ValueError(f"num_hidden_layers is {layers}; it must be a whole number from 1 to {MOST_LAYERS}")


def _query_scalar(hf: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, float]:
    """`query_pre_attn_scalar`, where the family has it."""
    name = "query_pre_attn_scalar"
    return {name: number(hf, name, defaults[name])} if name in defaults else {}


def _experts(hf: Mapping[str, Any], defaults: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The fields of a mixture of experts, where the family is one. transformers 5 writes `num_local_experts`."""
    if "num_experts" not in defaults:
        return {}
    hf = {"num_experts": hf.get("num_local_experts"), **hf}
    return dict(
        num_experts=size(hf, "num_experts", defaults["num_experts"]),
        experts_per_token=size(hf, "num_experts_per_tok", defaults["num_experts_per_tok"]),
        expert_size=size(hf, "moe_intermediate_size", defaults["moe_intermediate_size"]),
        renormalise_experts=flag(hf, "norm_topk_prob", defaults["norm_topk_prob"]),
        mlp_types=_mlp_types(hf, layers),
    )


def _mlp_types(hf: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Which layers have experts: every `decoder_sparse_step`-th that is not listed; () where all have."""
    step, dense_layers = size(hf, "decoder_sparse_step", 1), hf.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(layer) is int for layer in dense_layers):
        raise ValueError(f"mlp_only_layers is {dense_layers!r:.200}; it must be a list of layers' numbers")
    if step == 1 and not dense_layers:
        return ()
    _check_listable(layers)
    is_sparse = [layer not in dense_layers and (layer + 1) % step == 0 for layer in range(layers)]
    if not any(is_sparse):
        raise ValueError(f"decoder_sparse_step={step} and mlp_only_layers leave none of {layers} layers with experts")
    return () if all(is_sparse) else tuple(SPARSE if sparse else DENSE for sparse in is_sparse)


_DELTA_NET = {  # field of `DeltaNetSizes` -> key
    "num_key_heads": "linear_num_key_heads",
    "num_value_heads": "linear_num_value_heads",
    "key_head_dim": "linear_key_head_dim",
    "value_head_dim": "linear_value_head_dim",
    "conv_width": "linear_conv_kernel_dim",
}


def _delta_net(hf: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of linear layers, where the family has them."""
    if "linear_num_key_heads" not in defaults:
        return {}
    return dict(delta_net=DeltaNetSizes(**{name: size(hf, key, defaults[key]) for name, key in _DELTA_NET.items()}))
