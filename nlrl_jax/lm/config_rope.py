"""Rotary embeddings as a `config.json` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlrl_jax.lm.config_values import number, size
from nlrl_jax.lm.families import FULL, SLIDING, LinearRopeScaling, RopeScaling


def rope_fields(hf: Mapping[str, Any], defaults: Mapping[str, Any], max_positions: int) -> dict[str, Any]:
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
    theta = number({"rope_theta": defaults["rope_theta"], **hf, **rope}, "rope_theta")
    partial = {}
    if "partial_rotary_factor" in defaults:
        partial = dict(
            partial_rotary_factor=number({**hf, **rope}, "partial_rotary_factor", defaults["partial_rotary_factor"])
        )
    else:
        _refuse_partial({**hf, **rope})
    return dict(rope_theta=theta, rope_scaling=_scaling(hf, name, rope, max_positions), **partial)


def _rope_by_type(hf: Mapping[str, Any], defaults: Mapping[str, Any], name: str, max_positions: int) -> dict[str, Any]:
    """`rope_fields` where full and sliding layers have their own."""
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
        rope_theta=number({"rope_theta": defaults["rope_theta"], **hf, **full}, "rope_theta"),
        rope_scaling=_scaling(hf, name, full, max_positions),
        local_rope_theta=number(
            local, "rope_theta", number(hf, "rope_local_base_freq", defaults["rope_local_base_freq"])
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
        return LinearRopeScaling(number(rope, "factor"))
    if kind != "llama3":
        raise ValueError(
            f"{name} has rope_type {kind!r}, which is not implemented; this decoder implements 'default', 'linear' "
            "and 'llama3'"
        )
    return RopeScaling(
        number(rope, "factor"),
        number(rope, "low_freq_factor"),
        number(rope, "high_freq_factor"),
        size({**rope, **hf}, "original_max_position_embeddings", max_positions),
    )


def written_scaling(scaling: RopeScaling | LinearRopeScaling | None) -> dict[str, Any] | None:
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
