#!/usr/bin/env bash
# peft 0.21.2 with transformers 5.23.0 and torch 2.13.0 on Qwen3-MoE, Python 3.11.
# One would guess: target_modules="all-linear" adapts the linear layers, which in a mixture of experts are attention's
# (experts are plain parameters there), all with the rank that was asked for, and saves what it was given.
# What happens: the router and every expert are adapted, too. The saved config lists them as target_parameters, none of
# which was asked for, and gate_up_proj has twice the rank (rank_pattern). The one expert tensor of a layer grows with
# the number of experts. target_modules=["q_proj", "down_proj"] becomes ["q_proj"] with down_proj moved over in the same
# way, and ["gate_proj"] alone is refused, as it is one parameter with up_proj.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import json, pathlib, sys
import peft, torch, transformers
from safetensors import safe_open


def adapter(targets, experts):
    """(target_modules, target_parameters, rank_pattern, name -> shape) of a saved adapter of rank 2."""
    sizes = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_hidden_layers=1)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=16, **sizes
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets)).save_pretrained("adapter")
    saved = json.loads(pathlib.Path("adapter/adapter_config.json").read_text())
    with safe_open("adapter/adapter_model.safetensors", "np") as file:
        shapes = {name.split("layers.0.")[1]: file.get_slice(name).get_shape() for name in file.keys()}
    return sorted(saved["target_modules"]), sorted(saved["target_parameters"] or []), saved["rank_pattern"], shapes


for experts in (4, 8):
    modules, parameters, ranks, shapes = adapter("all-linear", experts)
    print(f"all-linear, {experts} experts: modules {modules}, parameters {parameters}, ranks {ranks}")
    of_experts = {name: shape for name, shape in shapes.items() if name.startswith("mlp")}
    print("   ", of_experts)
    as_described = (
        modules == ["k_proj", "o_proj", "q_proj", "v_proj"]
        and parameters == ["down_proj", "gate.weight", "gate_up_proj"]
        and list(ranks.values()) == [4]
        and of_experts["mlp.experts.base_layer.lora_A.weight"] == [4 * experts, 32]
    )
    if not as_described:
        sys.exit(1)
modules, parameters, *_ = adapter(["q_proj", "down_proj"], 4)
print(f"q_proj, down_proj: modules {modules}, parameters {parameters}")
try:
    adapter(["gate_proj"], 4)
    refused = ""
except ValueError as error:
    refused = str(error)
print(f"gate_proj: {refused}")
sys.exit(not ((modules, parameters) == (["q_proj"], ["down_proj"]) and "without also targeting up_proj" in refused))
PYTHON
