"""What files call the decoder's parameters: one table for Hugging Face's names and GGUF's."""

from __future__ import annotations

from nlrl_jax.weights.layout import Path, stacked

# Where a module sits in the tree -> its name in a Hugging Face checkpoint and in a GGUF file. Those of a block follow
# the layer's own prefix.
_OUTSIDE = {
    ("embedding",): ("model.embed_tokens", "token_embd"),
    ("final_norm",): ("model.norm", "output_norm"),
    ("lm_head",): ("lm_head", "output"),
}
_NORMS = {
    ("attention_norm",): ("input_layernorm", "attn_norm"),
    ("mlp_norm",): ("post_attention_layernorm", "ffn_norm"),
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
_PREFIXES = "model.layers", "blk"
LINEAR = {path: names[0] for path, names in _LINEAR.items()}  # the linear layers of a block, as Hugging Face names them


def hugging_face(path: Path, layer: int | None) -> str:
    """The name in a Hugging Face checkpoint of the parameter at `path` (of one layer)."""
    return _name(path, layer, 0)


def gguf(path: Path, layer: int | None) -> str:
    """The name in a GGUF file of the parameter at `path` (of one layer)."""
    return _name(path, layer, 1)


def _name(path: Path, layer: int | None, form: int) -> str:
    kind = "bias" if path[-1] == "bias" else "weight"
    module = path[:1] if not stacked(path) else path[1:-1]
    if not stacked(path):
        return f"{_OUTSIDE[module][form]}.{kind}"
    return f"{_PREFIXES[form]}.{layer}.{(_NORMS | _LINEAR)[module][form]}.{kind}"
