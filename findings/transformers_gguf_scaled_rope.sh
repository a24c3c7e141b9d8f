#!/usr/bin/env bash
# GGUF files of models with scaled rotary positions, read by transformers 5.24.0 (torch 2.13.0, gguf 0.19.0, Python 3.11).
#
# One would guess: from_pretrained(..., gguf_file=...) gives the model that the file was made of, and a file that
# it cannot read is refused.
# What happens: of all that a file says of rotary positions only the base is read. Llama 3.1 to 3.3 keep their scaling in
# a tensor, rope_freqs.weight; Gemma 3 from 4B on (linear, factor 8, in every sixth layer) and the 128K files of Qwen2.5
# and Qwen3 (YaRN) in rope.scaling.*. All three are dropped, with a line at the level INFO for the keys and none for the
# tensor, and the model plays on with plain positions. Llama 3.2's scaling shows in long prompts: the first ten positions
# differ by 0.02, so a short prompt looks fine.
# Code that reads the scaling exists for gpt-oss alone, and takes the first part of each entry for its value, which is the
# length of the key's name: no file of gpt-oss with YaRN can be read (TypeError), and with numpy 2.3.5, tried by hand,
# the factor is 27, the letters of "gpt-oss.rope.scaling.factor", before another error ends it.
# Small random models of these forms, the largest difference of a log-probability from the model that was written:
#   Llama, plain: 0.0000 at positions 0 to 9, 0.0000 at 500 to 599;  Llama 3.2's scaling: 0.0194 and 3.5069;
#   Qwen2 with YaRN: 1.6632 and 3.0708;  Gemma 3, plain: 0.0000 and 0.0000;  Gemma 3, linear: 0.1319 and 0.0651
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0 \
  numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import pathlib, sys

import gguf, numpy as np, torch
from gguf import RopeScalingType
from transformers import (
    AutoConfig, AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config,
    Qwen2ForCausalLM,
)

TENSORS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
GEMMA_TENSORS = TENSORS | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}
HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4, 2, 16, 61
SIZES = dict(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
    max_position_embeddings=131072, tie_word_embeddings=True, initializer_range=0.2,
)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path, model, architecture, positions):
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(VOCAB)
    names = GEMMA_TENSORS if architecture == "gemma3" else TENSORS
    for key, tensor in model.state_dict().items():
        array = tensor.numpy() + (architecture == "gemma3" and "norm" in key)
        if key == "lm_head.weight":
            continue
        if key.startswith("model.layers."):
            _, _, layer, leaf = key.split(".", 3)
            module, kind = leaf.rsplit(".", 1)
            if architecture == "llama" and module[-6:] in ("q_proj", "k_proj"):  # llama.cpp's order of a head's rows
                heads = HEADS if module.endswith("q_proj") else KV_HEADS
                array = array.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(array.shape)
            key = f"blk.{layer}.{names[module]}.{kind}"
        key = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(key, key)
        writer.add_tensor(key, np.ascontiguousarray(array))
    positions(writer)
    finish(writer)


def base(writer, theta=500000.0):
    writer.add_rope_freq_base(theta)


def llama3(writer, factor=32.0, low=1.0, high=4.0, original=8192):
    base(writer)
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / factor + smooth)).astype(np.float32))


def yarn(writer):
    base(writer)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32768)


def gemma(writer):
    base(writer, 1e6)
    writer.add_sliding_window(64)


def gemma_linear(writer):
    gemma(writer)
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def llama_model(**rope):
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, num_hidden_layers=2, head_dim=HEAD_DIM, rope_parameters={"rope_theta": 500000.0, **rope})
    )


def qwen_model(**rope):
    return Qwen2ForCausalLM(
        Qwen2Config(**SIZES, num_hidden_layers=2, rope_parameters={"rope_theta": 500000.0, **rope})
    )


def gemma_model(**rope):
    layers = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6, **rope}}
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, num_hidden_layers=6, head_dim=HEAD_DIM, sliding_window=64, rope_parameters=layers)
    )


def write_gpt_oss(path):
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_block_count(2)
    yarn(writer)
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, 64), np.float32))
    finish(writer)


PLAIN = dict(rope_type="default")
LLAMA3 = dict(
    rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
CASES = {
    "Llama, plain": (llama_model, PLAIN, "llama", base, False),
    "Llama 3.2's scaling": (llama_model, LLAMA3, "llama", llama3, True),
    "Qwen2 with YaRN": (qwen_model, YARN, "qwen2", yarn, True),
    "Gemma 3, plain": (gemma_model, PLAIN, "gemma3", gemma, False),
    "Gemma 3, linear": (gemma_model, dict(rope_type="linear", factor=8.0), "gemma3", gemma_linear, True),
}
tokens = torch.arange(600)[None] * 7 % VOCAB
differs = {}
for name, (make, rope, architecture, positions, _) in CASES.items():
    torch.manual_seed(0)
    written = make(**rope).eval()
    path = pathlib.Path(f"{len(differs)}.gguf")
    write(path, written, architecture, positions)
    read = AutoModelForCausalLM.from_pretrained(".", gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        ours, theirs = (m(tokens, use_cache=False).logits.log_softmax(-1)[0] for m in (written, read))
    gap = (ours - theirs).abs().amax(-1)
    differs[name] = gap[500:].max() > 0.01
    assert differs[name] or gap.max() < 1e-4, name
    print(f"{name}: {gap[:10].max():.4f} at positions 0 to 9, {gap[500:].max():.4f} at 500 to 599")
write_gpt_oss("gpt_oss.gguf")
try:
    AutoConfig.from_pretrained(".", gguf_file="gpt_oss.gguf")
    refused = False
except TypeError as error:
    print(f"gpt-oss: TypeError: {error}")
    refused = True
sys.exit(not refused or differs != {name: case[-1] for name, case in CASES.items()})
PYTHON
echo "as described"
