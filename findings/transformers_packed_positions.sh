#!/usr/bin/env bash
# Sequences packed in a row with position_ids that begin again at 0: transformers 5.23.0, torch 2.13.0, Python 3.11.
#
# One would guess: the model separates them in every call, as in training with a packing collator, and a mask of ones
# says what no mask says.
# What happens: they are separated only with use_cache=False and without an attention_mask. In a plain call, which
# builds a cache by default, in train mode and under no_grad, too, the second sequence reads the first: its logits
# differ by 2 to 4, and are 2 to 4 at most. A mask of ones does the same with use_cache=False. In models with
# recurrent layers (Qwen3.5, Falcon-H1, Granite 4) the state runs on even then. No warning in any case.
# Whoever computes log-probabilities of packed rollouts gets other numbers than in training, and other gradients.
# Known upstream: the mask (transformers pull request 46634, not merged) and Qwen3.5 (issue 46851); that the default
# call is enough was not found.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 2> /dev/null
cat > "$folder/look.py" <<'PY'
import torch
import transformers

torch.set_num_threads(1)
SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
MODELS = {
    "Llama": {},
    "Qwen3": {},
    "Gemma3Text": {},
    "Qwen3_5Text": DELTA | dict(layer_types=["linear_attention", "full_attention"]),
    "FalconH1": MAMBA | dict(mamba_d_ssm=128, mamba_n_groups=1),
    "GraniteMoeHybrid": MAMBA
    | dict(layer_types=["mamba", "attention"], mamba_expand=2, num_local_experts=0, shared_intermediate_size=96),
}
draws = torch.Generator().manual_seed(1)
first, second = (torch.randint(3, 97, (1, length), generator=draws) for length in (12, 20))
row = torch.cat([first, second], 1)
positions = torch.cat([torch.arange(12), torch.arange(20)])[None]
ones = torch.ones_like(row)
CALLS = {
    "plain call": {},
    "use_cache=False": dict(use_cache=False),
    "use_cache=False, mask of ones": dict(use_cache=False, attention_mask=ones),
}

print(f"transformers {transformers.__version__}, torch {torch.__version__}: how far the logits of the second of two")
print("packed sequences are from its own, at most")
as_seen = True
for family, sizes in MODELS.items():
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.1)
        alone = model(second).logits[0]
        seen = {}
        for call, options in CALLS.items():
            packed = model(row, position_ids=positions, **options).logits[0, 12:]
            seen[call] = (packed - alone).abs().max().item()
    numbers = ", ".join(f"{call} {distance:.2g}" for call, distance in seen.items())
    print(f"{family}, logits within {alone.abs().max():.1f}: {numbers}")
    separated = not sizes  # by attention alone
    as_seen &= seen["plain call"] > 0.1 and seen["use_cache=False, mask of ones"] > 0.1
    as_seen &= seen["use_cache=False"] < 1e-4 if separated else seen["use_cache=False"] > 0.1
raise SystemExit(not as_seen)
PY
"$folder/venv/bin/python" "$folder/look.py" 2> /dev/null
