"""Reading and writing config.json, and refusing by name what the decoder does not implement."""

import json
import pathlib

import pytest

from nlrl_jax.lm.config import LoraConfig, ModelConfig, RopeScaling
from nlrl_jax.weights.layout import shapes

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def read(name):
    return json.loads((GOLDENS / name / "config.json").read_text())


@pytest.mark.parametrize("name", ["llama", "llama31", "qwen2", "qwen2_tied", "qwen3"])
def test_written_config_reads_back(name):
    config = ModelConfig.from_hf(read(name))
    assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_families_differ_where_they_should():
    llama, llama31, qwen2, qwen3 = (ModelConfig.from_hf(read(n)) for n in ("llama", "llama31", "qwen2", "qwen3"))
    assert (llama.rope_theta, llama.head_dim, llama.num_kv_heads, llama.rope_scaling) == (31337.0, 8, 2, None)
    assert llama31.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 32)
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.tie_embeddings) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim, qwen3.tie_embeddings) == (False, True, 16, True)


def test_transformers_4_places_rope_at_the_top():
    config = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3})
    assert (config.rope_theta, config.rope_scaling) == (5e5, RopeScaling(32.0, 1.0, 4.0, 8192))


def test_transformers_5_places_rope_in_one_entry():
    config = ModelConfig.from_hf({**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    assert (config.rope_theta, config.rope_scaling) == (5e5, RopeScaling(32.0, 1.0, 4.0, 8192))


def test_defaults_of_a_short_config():
    config = ModelConfig.from_hf(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.tie_embeddings) == (4, 8, 1e4, False)


def test_model_type_stands_in_for_architectures():
    config = ModelConfig.from_hf({**LLAMA, "architectures": None, "model_type": "qwen2"})
    assert config.architecture == "Qwen2ForCausalLM"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'.*'silu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "'linear'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_heads=4.*num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7"),
    ],
)
def test_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**LLAMA, **change})


def test_lora_rank_must_be_positive():
    with pytest.raises(ValueError, match="rank is 0"):
        LoraConfig(rank=0)


@pytest.mark.parametrize("name", ["llama", "llama31", "qwen2", "qwen2_tied", "qwen3"])
def test_num_params_counts_the_arrays(name):
    config = ModelConfig.from_hf(read(name))
    total = 0
    for shape in shapes(config).values():
        size = 1
        for n in shape:
            size *= n
        total += size
    assert config.num_params == total
