"""Checkpoints of other sizes made on the spot by transformers and peft on PyTorch, both ways; needs torch."""

import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.weights import huggingface, peft

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

COMMON = dict(vocab_size=97, num_hidden_layers=3, max_position_embeddings=256)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10007.0,
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


CASES = {
    "llama": lambda: transformers.LlamaConfig(
        **COMMON, hidden_size=60, intermediate_size=77, num_attention_heads=6, num_key_value_heads=2,
        rope_parameters=plain(1234.5), rms_norm_eps=1e-3,
    ),
    "llama-mha": lambda: transformers.LlamaConfig(
        **COMMON, hidden_size=48, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=20,
        tie_word_embeddings=True, rope_parameters=plain(5e5),
    ),
    "llama32": lambda: transformers.LlamaConfig(
        **COMMON, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=1,
        tie_word_embeddings=True, rope_parameters=LLAMA3,
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        **COMMON, hidden_size=56, intermediate_size=88, num_attention_heads=7, num_key_value_heads=1,
        rope_parameters=plain(1e6),
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        **COMMON, hidden_size=40, intermediate_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=24,
        rope_parameters=plain(2e6),
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def reference(request):
    config = CASES[request.param]()
    config.dtype = "float32"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(1 + 0.2 * noise if "norm" in name else 0.12 * noise)
    return model


TOKENS = np.random.default_rng(0).integers(0, COMMON["vocab_size"], (2, 150))


def theirs(model):
    with torch.no_grad():
        return model(torch.as_tensor(TOKENS)).logits.float().numpy()


def ours(config, variables):
    model = Transformer(config)
    positions = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)
    hidden, _ = model.apply(variables, TOKENS, positions)
    return np.asarray(model.apply(variables, hidden, method="unembed"))


def test_what_transformers_saves(reference, tmp_path):
    reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    config, params = huggingface.load(tmp_path)
    np.testing.assert_allclose(ours(config, {"params": params}), theirs(reference), atol=3e-5, rtol=0)


def test_what_transformers_loads(reference, tmp_path):
    reference.save_pretrained(tmp_path / "theirs")
    config, params = huggingface.load(tmp_path / "theirs")
    huggingface.save(tmp_path / "ours", config, params, eos_ids=(2, 5), max_shard_bytes=60_000)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.generation_config.eos_token_id == [2, 5]
    assert loaded.dtype == torch.float32
    np.testing.assert_array_equal(theirs(loaded.eval()), theirs(reference))


def test_bfloat16_both_ways(reference, tmp_path):
    reference.to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    config, params = huggingface.load(tmp_path / "theirs")
    assert config.param_dtype == "bfloat16"
    huggingface.save(tmp_path / "ours", config, params)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype="auto")
    np.testing.assert_array_equal(theirs(loaded.eval()), theirs(again.eval()))


@pytest.mark.parametrize("rslora", [False, True])
def test_adapters_both_ways(reference, tmp_path, rslora):
    library = pytest.importorskip("peft")
    reference.save_pretrained(tmp_path / "base")
    options = library.LoraConfig(
        r=5, lora_alpha=11, use_rslora=rslora, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    adapted = library.get_peft_model(reference, options).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.2)
    adapted.save_pretrained(tmp_path / "theirs")
    config, params = huggingface.load(tmp_path / "base")
    config, lora = peft.load(tmp_path / "theirs", config)
    want = theirs(adapted)
    np.testing.assert_allclose(ours(config, {"params": params, "lora": lora}), want, atol=1e-4, rtol=0)

    peft.save(tmp_path / "ours", config, lora, base_model=str(tmp_path / "base"))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    np.testing.assert_allclose(
        theirs(library.PeftModel.from_pretrained(base, tmp_path / "ours").eval()), want, atol=1e-5, rtol=0
    )
    huggingface.save(tmp_path / "merged", config, params, lora=lora)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    np.testing.assert_allclose(theirs(merged), want, atol=1e-4, rtol=0)
