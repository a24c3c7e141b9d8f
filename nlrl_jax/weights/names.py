"""What files call the decoder's parameters: one table for Hugging Face's names and GGUF's."""

from __future__ import annotations

import re

from nlrl_jax.lm.families import MODEL_TYPES, WITH_VISION
from nlrl_jax.weights.layout import Path, Place

# Where a module sits in the tree -> its name in a Hugging Face checkpoint and in a GGUF file. Those of a block follow
# the layer's own prefix.
_OUTSIDE = {
    ("embedding",): ("model.embed_tokens", "token_embd"),
    ("final_norm",): ("model.norm", "output_norm"),
    ("lm_head",): ("lm_head", "output"),
}
_NORMS = {
    ("attention_norm",): ("input_layernorm", "attn_norm"),
    ("attention_out_norm",): ("post_attention_layernorm", "post_attention_norm"),
    ("mlp_norm",): ("post_attention_layernorm", "ffn_norm"),
    ("mlp_out_norm",): ("post_feedforward_layernorm", "post_ffw_norm"),
    ("attention", "q_norm"): ("self_attn.q_norm", "attn_q_norm"),
    ("attention", "k_norm"): ("self_attn.k_norm", "attn_k_norm"),
}
_LINEAR = {
    ("attention", "q"): ("self_attn.q_proj", "attn_q"),
    ("attention", "k"): ("self_attn.k_proj", "attn_k"),
    ("attention", "v"): ("self_attn.v_proj", "attn_v"),
    ("attention", "o"): ("self_attn.o_proj", "attn_output"),
    ("gate",): ("mlp.gate_proj", "ffn_gate"),
    ("up",): ("mlp.up_proj", "ffn_up"),
    ("down",): ("mlp.down_proj", "ffn_down"),
}
_EXPERTS = {  # all of a layer are one tensor in a GGUF file
    ("experts", "router"): ("mlp.gate", "ffn_gate_inp"),
    ("experts", "gates"): ("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
    ("experts", "ups"): ("mlp.experts.{}.up_proj", "ffn_up_exps"),
    ("experts", "downs"): ("mlp.experts.{}.down_proj", "ffn_down_exps"),
}
_DELTA_NET = {
    ("delta", "in_qkv"): ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("delta", "in_z"): ("linear_attn.in_proj_z", "attn_gate"),
    ("delta", "in_b"): ("linear_attn.in_proj_b", "ssm_beta"),
    ("delta", "in_a"): ("linear_attn.in_proj_a", "ssm_alpha"),
    ("delta", "out"): ("linear_attn.out_proj", "ssm_out"),
}
_WHOLE = {  # of whole parameters, with what else names end in
    ("delta", "conv"): ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("delta", "A_log"): ("linear_attn.A_log", "ssm_a"),
    ("delta", "dt_bias"): ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("delta", "norm"): ("linear_attn.norm.weight", "ssm_norm.weight"),
}
# Where outputs are normed too, "post_attention_layernorm" is the norm of attention's.
_SANDWICH = {("mlp_norm",): ("pre_feedforward_layernorm", "ffn_norm")}
_PREFIXES = "model.layers", "blk"
# Models that see, too: what stands before the names of their text part, and before those of the rest.
_TEXT_PART = re.compile(r"(?:language_model\.(model\.|lm_head\.)|(model\.)language_model\.)")
TEXT_PARTS = {MODEL_TYPES[text_type] for _, text_type in WITH_VISION.values()}  # architectures
_VISION = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector|visual)\.|mtp\.")
LINEAR = {
    path: names[0] for path, names in (_LINEAR | _DELTA_NET).items()
}  # the linear layers of a block, as Hugging Face names them


def hugging_face(path: Path, place: Place = (), sandwich_norms: bool = False) -> str:
    """The name in a Hugging Face checkpoint of the parameter at `path` (of one layer, or of its expert).

    Args:
      sandwich_norms: see `ModelConfig`.
    """
    return _name(path, place, 0, sandwich_norms)


def of_text_part(name: str) -> str | None:
    """The name, in a checkpoint of text alone, of a tensor of a model that sees, too; None if it is for seeing, or for
    predicting several tokens at once (MTP)."""
    if _VISION.match(name):
        return None
    return _TEXT_PART.sub(lambda match: match[1] or match[2], name, count=1) if _TEXT_PART.match(name) else name


def gguf(path: Path, place: Place = (), with_linear_layers: bool = False) -> str:
    """The name in a GGUF file of the parameter at `path` (of one layer)."""
    name = _name(path, place, 1)
    # Files of models with linear layers have Hugging Face's name for the second norm of all layers.
    return name.replace("ffn_norm", "post_attention_norm") if with_linear_layers else name


def _name(path: Path, place: Place, form: int, sandwich_norms: bool = False) -> str:
    kind = "bias" if path[-1] == "bias" else "weight"
    if not place:
        return f"{_OUTSIDE[path[:1]][form]}.{kind}"
    if path[1:] in _WHOLE:
        return f"{_PREFIXES[form]}.{place[0]}.{_WHOLE[path[1:]][form]}"
    modules = _NORMS | _LINEAR | _DELTA_NET | (_SANDWICH if sandwich_norms else {})
    names = _EXPERTS.get(path[1:]) or modules[path[1:-1]]
    return f"{_PREFIXES[form]}.{place[0]}.{names[form].format(*place[1:])}.{kind}"
