"""Reading and writing config.json, and refusing by name what the decoder does not implement."""

import json
import math
import pathlib

import pytest

from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.families import FAMILIES as ROWS
from nlrl_jax.lm.families import FULL, SLIDING, DeltaNetSizes, LinearRopeScaling, RopeScaling
from nlrl_jax.lm.families import LINEAR as LINEAR_LAYER
from nlrl_jax.weights.layout import shapes

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
FAMILIES = ("llama", "llama31", "qwen2", "qwen2_tied", "qwen3", "qwen3_moe", "mistral", "gemma", "gemma3", "qwen3_5")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN3 = {"architectures": None, "model_type": "qwen3"}
MOE = {"architectures": None, "model_type": "qwen3_moe"}
QWEN35 = {"architectures": None, "model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 8}
QWEN35 |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
GEMMA3 = {"architectures": None, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 8}
LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def read(name):
    return json.loads((GOLDENS / name / "config.json").read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_written_config_reads_back(name):
    config = ModelConfig.from_hf(read(name))
    assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_families_differ_where_they_should():
    llama, llama31, qwen2, qwen3 = (ModelConfig.from_hf(read(n)) for n in ("llama", "llama31", "qwen2", "qwen3"))
    assert (llama.rope_theta, llama.head_dim, llama.num_kv_heads, llama.rope_scaling) == (31337.0, 8, 2, None)
    assert llama31.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 32)
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.tie_embeddings) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim, qwen3.tie_embeddings) == (False, True, 16, True)


def llama3(**changes):
    return {key: value for key, value in {**LLAMA3, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("entries", "theta", "original"),  # as transformers 5.23 reads them; a number: of LLAMA3
    [
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, 8192),  # transformers 4
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, 8192),  # transformers 5
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 777.0, 8192),
        ({"rope_scaling": {}, "rope_parameters": LLAMA3}, 777.0, 8192),
        ({"rope_scaling": llama3(rope_theta=42.0)}, 42.0, 8192),
        ({"rope_scaling": llama3(rope_type=None, type="llama3")}, 777.0, 8192),
        ({"rope_scaling": llama3(type="yarn")}, 777.0, 8192),
        ({"rope_scaling": llama3(original_max_position_embeddings=None)}, 777.0, 128),
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 64}, 777.0, 64),
        ({"rope_scaling": {"type": "linear", "factor": 1.0}}, 777.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 777.0, LinearRopeScaling(4.0)),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "yarn"}}, 777.0, None),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}}, 777.0, None),
    ],
)
def test_rope_comes_from_where_transformers_reads_it(entries, theta, original):
    config = ModelConfig.from_hf({**LLAMA, "rope_theta": 777.0, "max_position_embeddings": 128, **entries})
    scaling = RopeScaling(32.0, 1.0, 4.0, original) if isinstance(original, int) else original
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    "entries",
    [
        {"hidden_act": "swish"},
        {"architectures": "LlamaForCausalLM"},
        {"layer_types": ["full_attention"] * 2, "tie_word_embeddings": None},
        {"pretraining_tp": 2},
        {"architectures": ["Qwen2ForCausalLM"], "attention_bias": True},
        {"model_type": "qwen2", "architectures": None, "use_sliding_window": True, "max_window_layers": 2},
        {"model_type": "qwen3", "architectures": None, "use_sliding_window": True, "sliding_window": None},
        {"num_key_value_heads": None, "head_dim": None, "quantization_config": None},
        {"sliding_window": 2048},
        {"sliding_window": 9, "use_sliding_window": False},
        {**MOE, "num_key_value_heads": 4, "sliding_window": 9},
    ],
)
def test_what_changes_no_number_is_accepted(entries):
    assert ModelConfig.from_hf({**LLAMA, **entries}).num_kv_heads == 4


def test_defaults_of_a_short_config():
    config = ModelConfig.from_hf(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.tie_embeddings) == (4, 8, 1e4, False)


@pytest.mark.parametrize(
    ("entries", "window", "layers"),  # as the configuration classes of transformers 5.23 say
    [
        ({**MISTRAL, "max_position_embeddings": 8192}, 4096, (SLIDING, SLIDING)),
        ({**MISTRAL, "sliding_window": 7}, 7, (SLIDING, SLIDING)),
        ({**MISTRAL, "sliding_window": None}, None, ()),
        ({**QWEN3, "sliding_window": 7}, None, ()),
        ({**QWEN3, "use_sliding_window": True, "max_window_layers": 1}, 4096, (FULL, SLIDING)),
        ({**QWEN3, "use_sliding_window": True}, 4096, ()),  # from layer 28 on
        ({**QWEN3, "use_sliding_window": True, "layer_types": [SLIDING, FULL]}, 4096, (SLIDING, FULL)),
    ],
)
def test_which_layers_slide(entries, window, layers):
    config = ModelConfig.from_hf({**LLAMA, "num_key_value_heads": 2, **entries})
    assert (config.sliding_window, config.layer_types) == (window, layers)
    assert config.slides == tuple(kind == SLIDING for kind in layers or (FULL, FULL))
    assert ModelConfig.from_hf(config.to_hf()) == config


def test_a_window_over_all_positions_is_none():
    config = ModelConfig.from_hf(
        {**LLAMA, **MISTRAL, "num_key_value_heads": 2, "sliding_window": 9, "max_position_embeddings": 10}
    )
    assert config.window == 9
    config = ModelConfig.from_hf(
        {**LLAMA, **MISTRAL, "num_key_value_heads": 2, "sliding_window": 10, "max_position_embeddings": 10}
    )
    assert config.window is None and not any(config.slides)


@pytest.mark.parametrize(
    ("entries", "theta", "scaling", "local"),  # as transformers 5.23 reads them
    [
        ({}, 1e6, None, 1e4),
        ({"rope_theta": 5.0, "rope_local_base_freq": 3.0}, 5.0, None, 3.0),  # transformers 4
        ({"rope_theta": 5.0, "rope_scaling": LINEAR}, 5.0, LinearRopeScaling(8.0), 1e4),
        ({"rope_parameters": {FULL: {"rope_theta": 5.0, **LINEAR}, SLIDING: {}}}, 5.0, LinearRopeScaling(8.0), 1e4),
        ({"rope_parameters": {SLIDING: {"rope_theta": 3.0, "rope_type": "default"}, FULL: None}}, 1e6, None, 3.0),
    ],
)
def test_full_and_sliding_layers_have_their_own_rope(entries, theta, scaling, local):
    config = ModelConfig.from_hf({**LLAMA, **GEMMA3, **entries})
    assert (config.rope_theta, config.rope_scaling, config.local_rope_theta) == (theta, scaling, local)
    assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_gemma_3_from_next_to_nothing():
    """As the files of the 4B model: what they leave out is the default of its configuration class."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"model_type": "gemma3_text", "rope_scaling": LINEAR}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    config = ModelConfig.from_hf({**whole, "vision_config": {"hidden_size": 7}, "tie_word_embeddings": None})
    assert config.architecture == "Gemma3ForCausalLM" and config.tie_embeddings and config.qk_norm
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert (config.window, config.local_rope_theta, config.query_pre_attn_scalar) == (1024, 1e4, 256)
    assert [i for i, kind in enumerate(config.layer_types) if kind == FULL] == [5, 11, 17, 23, 29]
    assert config.num_params == pytest.approx(3.88e9, rel=0.01)  # as its model card says, without the vision tower


def test_gemma_from_next_to_nothing():
    config = ModelConfig.from_hf({"model_type": "gemma", "hidden_act": "gelu"})
    assert config.num_params == pytest.approx(8.54e9, rel=0.01) and config.tie_embeddings
    assert (config.activation, config.norm_offset, config.scale_embeddings) == ("gelu_tanh", True, True)
    assert (config.sandwich_norms, config.qk_norm, config.window) == (False, False, None)


def test_layers_that_differ_repeat():
    dense = {**LLAMA, **MOE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    some = ModelConfig.from_hf({**dense, "num_hidden_layers": 6, "decoder_sparse_step": 3, "mlp_only_layers": [2]})
    assert some.mlp_types == ("dense",) * 5 + ("sparse",) and some.period == 6
    some = ModelConfig.from_hf({**dense, "num_hidden_layers": 6, "decoder_sparse_step": 3})
    assert some.kinds == ((False, False), (False, False), (False, True))
    assert some.to_hf()["mlp_only_layers"] == [0, 1, 3, 4]
    assert ModelConfig.from_hf(some.to_hf()) == some
    assert ModelConfig.from_hf({**LLAMA, **MOE, "num_hidden_layers": 4}).period == 1
    mixed = ModelConfig.from_hf({**LLAMA, **QWEN35, "num_hidden_layers": 8})
    assert mixed.layer_types == ((LINEAR_LAYER,) * 3 + (FULL,)) * 2 and mixed.period == 4
    assert (mixed.num_linear_layers, mixed.num_attention_layers, mixed.rotary_dim) == (6, 2, 2)


def test_qwen3_5_is_read_as_the_text_part():
    text = {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    rope = {"mrope_section": [11, 11, 10], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 1e7}
    rope["partial_rotary_factor"] = 0.25
    text |= {"attn_output_gate": True, "mtp_num_hidden_layers": 1, "rope_parameters": rope}
    config = ModelConfig.from_hf({"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True})
    assert (config.architecture, config.rope_theta, config.rotary_dim) == ("Qwen3_5ForCausalLM", 1e7, 64)
    assert config.tie_embeddings and config.delta_net == DeltaNetSizes(16, 32, 128, 128, 4)
    assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_every_size_of_mistral_has_a_default():
    config = ModelConfig.from_hf(MISTRAL)
    assert (config.vocab_size, config.num_kv_heads, config.head_dim) == (32000, 8, 128)
    assert (config.max_positions, config.window, config.norm_eps, config.rope_theta) == (131072, 4096, 1e-6, 1e4)
    assert ModelConfig.from_hf({**MISTRAL, "num_key_value_heads": None}).num_kv_heads == 32
    assert all(
        {"rms_norm_eps", "max_position_embeddings", "rope_theta"} <= row.defaults.keys() for row in ROWS.values()
    )


def test_model_type_stands_in_for_architectures():
    config = ModelConfig.from_hf({**LLAMA, "architectures": None, "model_type": "qwen2"})
    assert config.architecture == "Qwen2ForCausalLM"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({**MOE, "decoder_sparse_step": 9}, "decoder_sparse_step=9.*none of 2 layers"),
        ({**MOE, "mlp_only_layers": 1}, "mlp_only_layers is 1"),
        ({**QWEN35, "linear_num_value_heads": 3}, "3 value heads.*2 key heads"),
        ({**QWEN35, "layer_types": ["linear_attention"] * 4}, "a layer of attention"),
        ({**QWEN35, "layer_types": ["sliding_attention", *["full_attention"] * 3]}, "sliding_attention"),
        ({**QWEN35, "attn_output_gate": False}, "attn_output_gate=False"),
        ({**QWEN35, "partial_rotary_factor": 0.4}, "head_dim=8 x 0.4"),
        ({**MOE, "use_sliding_window": True}, "use_sliding_window=True"),
        ({**MOE, "num_experts": 5, "num_experts_per_tok": 6}, "experts_per_token=6 of num_experts=5"),
        ({**MOE, "moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'.*'silu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}}, "'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": None}}, "rope_type None"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_scaling": {**LLAMA3, "factor": "8"}}, "factor is '8'; it must be a number"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each type of layer.*full_attention"),
        ({"rope_theta": None}, "rope_theta is None"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"model_type": "mistral"}, "model_type 'mistral'"),
        ({"model_type": "qwen2"}, "architecture 'LlamaForCausalLM' .model_type 'qwen2'"),
        ({"per_layer_config": {"0": {"head_dim": 16}}}, "per_layer_config"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; it must be true or false"),
        ({"layer_types": "full_attention"}, "layer_types='full_attention'.*only full_attention in all 2"),
        ({"layer_types": ["full_attention"]}, "only full_attention in all 2"),
        ({**MISTRAL, "layer_types": ["full_attention"] * 2}, "only sliding_attention in all 2"),
        ({**QWEN3, "layer_types": ["sliding_attention"] * 2}, "sliding_attention, which needs sliding_window"),
        ({**QWEN3, "layer_types": ["full_attention", "linear_attention"]}, "linear_attention.*full_attention or sl"),
        ({**MISTRAL, "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; .* from 1 to 100000"),
        ({**MISTRAL, "layer_types": ["sliding_attention"]}, "only sliding_attention in all 2"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0; it must be a whole number"),
        ({**MISTRAL, "hidden_act": "gelu"}, "hidden_act='gelu'.*'silu'"),
        ({"is_causal": False}, "is_causal=False"),
        ({"architectures": 7}, "architecture 7 .*is not implemented"),
        ({"attention_chunk_size": 9}, "attention_chunk_size=9"),
        ({"sliding_window": 9}, "sliding_window=9 is not implemented for LlamaForCausalLM.*max_position_embeddings"),
        ({"sliding_window": "wide"}, "sliding_window='wide' is not implemented"),
        (
            {"model_type": "gemma", "architectures": None, "hidden_act": "silu"},
            "hidden_act='silu'.*'gelu_pytorch_tanh'",
        ),
        ({"model_type": "gemma", "architectures": None, "attention_bias": True}, "attention_bias=True"),
        ({**GEMMA3, "hidden_activation": "gelu"}, "hidden_activation='gelu'.*'gelu_pytorch_tanh'"),
        ({**GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({**GEMMA3, "sliding_window": None, "sliding_window_pattern": 2}, "which needs sliding_window"),
        ({**GEMMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "one for each of full_attention"),
        ({**GEMMA3, "rope_parameters": {SLIDING: LINEAR}}, "rope_parameters of sliding_attention has a scaling"),
        ({**GEMMA3, "rope_parameters": {FULL: {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor=0.5"),
        ({**GEMMA3, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"model_type": "gemma3", "architectures": None, "text_config": {"model_type": "llama"}}, "text_config is"),
        ({"model_type": "gemma3", "architectures": None, "quantization_config": {}}, "quantization_config"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        ({"residual_multiplier": 0.22}, "residual_multiplier=0.22"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor is 4.0 and high_freq_factor 4.0"),
        ({"model_type": ["llama"]}, "model_type ..llama.*is not implemented"),
        ({"num_key_value_heads": 3}, "num_heads=4.*num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
    ],
)
def test_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**LLAMA, **change})
    with pytest.raises(ValueError, match="rank is 0"):
        LoraConfig(rank=0)


@pytest.mark.parametrize("name", ["dtype", "param_dtype"])
def test_types_of_numbers_are_those_of_checkpoints(name):
    with pytest.raises(ValueError, match=f"^{name} is 'float17'; choose one of float32, bfloat16, float16"):
        ModelConfig.from_hf(LLAMA, **{name: "float17"})


@pytest.mark.parametrize("name", FAMILIES)
def test_num_params_counts_the_arrays(name):
    config = ModelConfig.from_hf(read(name))
    total = sum(math.prod(shape) for shape in shapes(config).values())
    assert config.num_params == total
