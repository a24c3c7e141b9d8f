"""A Hugging Face `config.json` as the fields of `ModelConfig`, and back; `lm.families` says what a family's keys mean.

fields = read(json.load(file))
contents = write(config)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlrl_jax.lm.families import (
    ARCHITECTURES,
    DENSE,
    FAMILIES,
    FULL,
    LARGEST,
    LINEAR,
    MODEL_TYPES,
    SLIDING,
    SPARSE,
    WITH_VISION,
    DeltaNetSizes,
    Family,
    LinearRopeScaling,
    RopeScaling,
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
    layers, heads = (_size(hf, name, defaults.get(name)) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden = _size(hf, "hidden_size", defaults.get("hidden_size"))
    positions = _size(hf, "max_position_embeddings", defaults["max_position_embeddings"])
    if "head_dim" not in defaults and hidden % heads and hf.get("head_dim") is None:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    # A file that says null has as many key/value heads as query heads.
    kv_heads = heads if "num_key_value_heads" in hf else defaults.get("num_key_value_heads", heads)
    window = _window(hf, family)
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
        **_rope(hf, defaults, positions),
        norm_eps=_number(hf, "rms_norm_eps", defaults["rms_norm_eps"]),
        tie_embeddings=_flag(hf, "tie_word_embeddings", defaults.get("tie_word_embeddings", False)),
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
    scaling = _written_scaling(config.rope_scaling)
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
        _refuse_unread_window(hf, family)
        return None
    return _size(hf, "sliding_window", family.defaults["sliding_window"])


def _refuse_unread_window(hf: Mapping[str, Any], family: Family) -> None:
    """Of a family without windows: the masks of transformers have none either, but its cache keeps no more tokens."""
    if family.sliding != "none" or not _flag(hf, "use_sliding_window", family.defaults.get("use_sliding_window", True)):
        return
    window = hf.get("sliding_window")
    positions = _size(hf, "max_position_embeddings", family.defaults["max_position_embeddings"])
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
        first = _size({"max_window_layers": family.defaults["max_window_layers"], **hf}, "max_window_layers")
        is_full = [layer < first for layer in range(layers)]
    elif family.sliding == "sliding_window_pattern" or family.linear:
        # Every sixth layer, say, sees everything.
        name = "full_attention_interval" if family.linear else "sliding_window_pattern"
        interval = _size(hf, name, family.defaults[name])
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
    return {name: _number(hf, name, defaults[name])} if name in defaults else {}


def _experts(hf: Mapping[str, Any], defaults: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The fields of a mixture of experts, where the family is one. transformers 5 writes `num_local_experts`."""
    if "num_experts" not in defaults:
        return {}
    hf = {"num_experts": hf.get("num_local_experts"), **hf}
    return dict(
        num_experts=_size(hf, "num_experts", defaults["num_experts"]),
        experts_per_token=_size(hf, "num_experts_per_tok", defaults["num_experts_per_tok"]),
        expert_size=_size(hf, "moe_intermediate_size", defaults["moe_intermediate_size"]),
        renormalise_experts=_flag(hf, "norm_topk_prob", defaults["norm_topk_prob"]),
        mlp_types=_mlp_types(hf, layers),
    )


def _mlp_types(hf: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Which layers have experts: every `decoder_sparse_step`-th that is not listed; () where all have."""
    step, dense_layers = _size(hf, "decoder_sparse_step", 1), hf.get("mlp_only_layers") or []
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
    return dict(delta_net=DeltaNetSizes(**{name: _size(hf, key, defaults[key]) for name, key in _DELTA_NET.items()}))


def _rope(hf: Mapping[str, Any], defaults: Mapping[str, Any], max_positions: int) -> dict[str, Any]:
    """The fields of rotary embeddings: the same in all layers, or where the family has it, by type of layer.

    transformers 5 writes `rope_parameters`; `rope_scaling`, as older files have it, replaces that whole, or is added to
    what is said of full layers.
    """
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"{name} is {rope!r}; it must be an object")
    if "rope_local_base_freq" in defaults:
        return _rope_by_type(hf, defaults, name, max_positions)
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError(f"{name} for each type of layer ({', '.join(rope)}) is not implemented; one for all layers is")
    theta = _number({"rope_theta": defaults["rope_theta"], **hf, **rope}, "rope_theta")
    partial = {}
    if "partial_rotary_factor" in defaults:
        partial = dict(
            partial_rotary_factor=_number({**hf, **rope}, "partial_rotary_factor", defaults["partial_rotary_factor"])
        )
    else:
        _refuse_partial({**hf, **rope})
    return dict(rope_theta=theta, rope_scaling=_scaling(hf, name, rope, max_positions), **partial)


def _rope_by_type(hf: Mapping[str, Any], defaults: Mapping[str, Any], name: str, max_positions: int) -> dict[str, Any]:
    """`_rope` where full and sliding layers have their own."""
    by_type = hf.get("rope_parameters") or {}
    if any(kind not in (FULL, SLIDING) or not isinstance(rope, Mapping | None) for kind, rope in by_type.items()):
        raise ValueError(f"rope_parameters={by_type!r:.200} is not implemented; one for each of {FULL}, {SLIDING}")
    # An older file's scaling is added to what a newer one says of full layers; sliding layers have none.
    full = {**(by_type.get(FULL) or {}), **(hf.get("rope_scaling") or {})}
    local = by_type.get(SLIDING) or {}
    for rope in (full, local):
        _refuse_partial({**hf, **rope})
    if _scaling(hf, "rope_parameters", local, max_positions) is not None:
        raise ValueError(f"rope_parameters of {SLIDING} has a scaling, which is not implemented; {FULL} may have one")
    return dict(
        rope_theta=_number({"rope_theta": defaults["rope_theta"], **hf, **full}, "rope_theta"),
        rope_scaling=_scaling(hf, name, full, max_positions),
        local_rope_theta=_number(
            local, "rope_theta", _number(hf, "rope_local_base_freq", defaults["rope_local_base_freq"])
        ),
    )


def _refuse_partial(rope: Mapping[str, Any]) -> None:
    """Refuses rotary embeddings of a part of a head."""
    partial = rope.get("partial_rotary_factor")
    if partial not in (1.0, None):
        raise ValueError(f"partial_rotary_factor={partial!r} is not implemented; only full rotary embeddings are")


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
