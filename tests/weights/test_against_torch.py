"""Checkpoints of other sizes made on the spot by transformers and peft on PyTorch, both ways; needs torch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from nlrl_jax.lm.generate import compute_prefix, generate
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from nlrl_jax.weights import huggingface, layout, names, peft

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
    "qwen2-late-window": lambda: transformers.Qwen2Config(
        **COMMON, hidden_size=24, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=9, max_window_layers=1, rope_parameters=plain(1e4),
    ),
    "mistral": lambda: transformers.MistralConfig(
        **COMMON, hidden_size=52, intermediate_size=75, num_attention_heads=6, num_key_value_heads=3, head_dim=14,
        sliding_window=11, rope_parameters=plain(1e4),
    ),
    "mistral-v0.3": lambda: transformers.MistralConfig(
        **COMMON, hidden_size=48, intermediate_size=75, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=None, rope_parameters=plain(1e6), tie_word_embeddings=True,
    ),
    "gemma-2b": lambda: transformers.GemmaConfig(
        **COMMON, hidden_size=44, intermediate_size=90, num_attention_heads=3, num_key_value_heads=1, head_dim=20,
        hidden_act="gelu",
    ),
    "gemma-7b": lambda: transformers.GemmaConfig(
        **COMMON, hidden_size=30, intermediate_size=70, num_attention_heads=4, num_key_value_heads=4, head_dim=12,
        rms_norm_eps=1e-5,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **COMMON, hidden_size=36, intermediate_size=50, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
        query_pre_attn_scalar=7, sliding_window=13, sliding_window_pattern=2,
    ),
    "gemma3-linear": lambda: transformers.Gemma3TextConfig(
        **COMMON, hidden_size=40, intermediate_size=50, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        query_pre_attn_scalar=16, sliding_window=500, layer_types=["full_attention", *["sliding_attention"] * 2],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(  # sizes of which torch's grouped products take bfloat16, too
        **COMMON, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=10, num_experts=9,
        num_experts_per_tok=4, moe_intermediate_size=24, rope_parameters=plain(3e4),
    ),
    "qwen3_moe-some-dense": lambda: transformers.Qwen3MoeConfig(
        **COMMON | dict(num_hidden_layers=4), hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, intermediate_size=56, decoder_sparse_step=2,
        rope_parameters=plain(3e4), norm_topk_prob=True,
    ),
    "qwen3_5": lambda: transformers.Qwen3_5TextConfig(
        **COMMON | dict(num_hidden_layers=8), hidden_size=44, intermediate_size=60, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=10, rope_parameters={**plain(1e4), "partial_rotary_factor": 0.25}, rms_norm_eps=1e-3,
    ),
    "qwen3_5-irregular": lambda: transformers.Qwen3_5TextConfig(
        **COMMON | dict(num_hidden_layers=5), hidden_size=40, intermediate_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=16, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=9,
        linear_value_head_dim=7, linear_conv_kernel_dim=3, tie_word_embeddings=True,
        layer_types=["full_attention", *["linear_attention"] * 3, "full_attention"], rms_norm_eps=1e-3,
        rope_parameters={**plain(1e6), "partial_rotary_factor": 0.5},
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def reference(request):
    config = CASES[request.param]()
    config.dtype = "float32"
    return randomised(transformers.AutoModelForCausalLM.from_config(config).eval())


def randomised(model):
    """The model with weights large enough that every part moves its logits; Gemma's norms multiply by 1 + weight."""
    generator, family = torch.Generator().manual_seed(3), model.config.model_type
    centre = 0 if "gemma" in family or "qwen3_5" in family else 1
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "linear_attn.norm" in name or "A_log" in name:
            weight.data.copy_(1 + 0.2 * noise)
        else:
            weight.data.copy_(centre + 0.2 * noise if "norm" in name else 0.12 * noise)
    return model


def targets_of(model, *modules):
    """Names of modules to adapt, without the MLP's where it is a mixture: peft adapts experts as parameters."""
    linear = [name for path, name in names.LINEAR.items() if path[-1] in modules]
    is_mixture = "moe" in model.config.model_type
    return [name.split(".")[-1] for name in linear if not (is_mixture and name.startswith("mlp."))]


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
        r=5,
        lora_alpha=11,
        use_rslora=rslora,
        target_modules=targets_of(reference, "q", "v", "down"),
        task_type="CAUSAL_LM",
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


def test_greedy_replies_and_their_scores(reference, tmp_path):
    """In a cache, after a shared prefix of 20 tokens and without one."""
    reference.save_pretrained(tmp_path)
    config, params = huggingface.load(tmp_path)
    model, variables, prompts = Transformer(config), {"params": params}, TOKENS[:, :30].copy()
    prompts[1, :20] = prompts[0, :20]
    options = dict(max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        want = reference.generate(torch.as_tensor(prompts), attention_mask=torch.ones(2, 30), **options)[:, 30:]
        logits = reference(torch.cat([torch.as_tensor(prompts), want], dim=1)).logits
        log_probs = torch.log_softmax(logits.float(), -1)[:, 29:-1].gather(-1, want[..., None])[..., 0].numpy()
    tokens, lengths = jnp.asarray(prompts), jnp.full(2, 30)

    @functools.partial(jax.jit, static_argnums=1)
    def run(variables, P):
        prefix = compute_prefix(model, variables, tokens[0, :P])
        after = tokens[:, P:], lengths - P
        said = generate(model, variables, *after, jax.random.key(0), Sampling(25, 0.0), (-1,), prefix)
        return said.tokens, said.log_probs, score(model, variables, *after, jnp.asarray(want.numpy()), prefix)

    for P in (0, 20):
        said, said_log_probs, scored = run(variables, P)
        np.testing.assert_array_equal(said, want)
        np.testing.assert_allclose(said_log_probs, log_probs, atol=1e-4, rtol=0)
        np.testing.assert_allclose(scored, log_probs, atol=1e-4, rtol=0)


def test_gradients_of_adapters(reference, tmp_path):
    library = pytest.importorskip("peft")
    reference.save_pretrained(tmp_path / "base")
    targets = targets_of(reference, *(path[-1] for path in names.LINEAR))
    adapted = library.get_peft_model(reference, library.LoraConfig(r=3, lora_alpha=7, target_modules=targets))
    torch.manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    tokens = torch.as_tensor(TOKENS[:, :60])
    adapted(tokens, labels=tokens).loss.backward()
    config, params = huggingface.load(tmp_path / "base")
    config, lora = peft.load(tmp_path / "adapter", config)
    model = Transformer(config, remat=True)

    @jax.jit
    def gradient(lora):
        def loss(lora):
            variables, first = {"params": params, "lora": lora}, jnp.full(2, 1)
            return -jnp.mean(score(model, variables, TOKENS[:, :1], first, TOKENS[:, 1:60]))

        return jax.grad(loss)(lora)

    theirs = {name.replace(".default", ""): weight.grad for name, weight in adapted.named_parameters()}
    for path, stack in flatten_dict(gradient(lora)).items():
        for layer, ours in enumerate(stack):
            want = theirs[peft._tensor_name(*layout.of_layer(config, path, (layer,)))].numpy().T
            np.testing.assert_allclose(ours, want, rtol=0, atol=2e-4 * np.abs(want).max(), err_msg=str(path))


def test_bfloat16_logits_are_no_further_from_float32_than_theirs(reference, tmp_path):
    reference.to(torch.bfloat16).save_pretrained(tmp_path)
    config, params = huggingface.load(tmp_path)
    got, half = ours(config, {"params": params}), theirs(reference)
    exact = theirs(reference.float())
    assert np.abs(got - exact).mean() < 1.3 * np.abs(half - exact).mean()


@pytest.fixture
def seeing():
    """A random model that sees, too."""
    text = dict(COMMON, hidden_size=36, intermediate_size=50, num_attention_heads=6, num_key_value_heads=2, head_dim=10)
    text |= dict(sliding_window=13, sliding_window_pattern=2)
    vision = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28)
    config = transformers.Gemma3Config(
        text_config=text, vision_config=dict(vision, patch_size=14), mm_tokens_per_image=4
    )
    config.dtype = "float32"
    return randomised(transformers.Gemma3ForConditionalGeneration(config).eval())


@pytest.mark.parametrize("renamed", [True, False])
def test_the_text_part_of_a_model_that_sees(seeing, tmp_path, renamed):
    """`renamed`: the names that the files on the Hub have."""
    seeing.save_pretrained(tmp_path, save_original_format=renamed)
    with pytest.warns(UserWarning, match=r"\d+ tensors for images or MTP are skipped; the text part is loaded"):
        config, params = huggingface.load(tmp_path)
    np.testing.assert_allclose(ours(config, {"params": params}), theirs(seeing), atol=1e-4, rtol=0)
    huggingface.save(tmp_path / "text", config, params)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    np.testing.assert_allclose(theirs(alone), theirs(seeing), atol=1e-5, rtol=0)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj", "up_proj"], ".*language_model.*(k|o|gate|down)_proj"])
@pytest.mark.filterwarnings("ignore:.*tensors for images or MTP are skipped")
def test_adapters_of_a_model_that_sees(seeing, tmp_path, targets):
    library = pytest.importorskip("peft")
    seeing.save_pretrained(tmp_path / "base")
    adapted = library.get_peft_model(seeing, library.LoraConfig(r=3, lora_alpha=7, target_modules=targets)).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    config, params = huggingface.load(tmp_path / "base")
    config, lora = peft.load(tmp_path / "adapter", config)
    got = ours(config, {"params": params, "lora": lora})
    np.testing.assert_allclose(got, theirs(adapted), atol=1e-4, rtol=0)
    assert np.abs(got - ours(config, {"params": params})).max() > 0.1
