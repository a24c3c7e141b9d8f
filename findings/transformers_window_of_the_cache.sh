#!/usr/bin/env bash
# A window in the config.json of a family that has none: transformers 5.23.0 with torch 2.13.0, Python 3.11.
#
# One would guess: a key that a model's code never reads ("sliding_window" or "attention_chunk_size" in a Llama or Gemma
# config, left over from another family or an edit) changes nothing.
# What happens: the masks ignore it, so a full pass, and with it training and perplexity, is bit for bit the one without
# the key. The cache obeys it: DynamicCache builds sliding layers from the config and drops older keys. generate() then
# writes other tokens with its cache (the default) than without: 39 of 40 here, with no error and no warning.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0
cd "$folder"
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import sys
import torch, transformers

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=16)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)


def model_of(family, **key):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **key)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def greedy(model, cached):
    prompt = torch.arange(1, 31)[None]
    options = dict(max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(prompt, use_cache=cached, **options)[0, 30:]


as_described = True
for family, key in (("Llama", "sliding_window"), ("Gemma", "sliding_window"), ("Llama", "attention_chunk_size")):
    model, plain, text = model_of(family, **{key: 8}), model_of(family), torch.arange(1, 71)[None]
    with torch.no_grad():
        same_pass = torch.equal(model(text, use_cache=False).logits, plain(text, use_cache=False).logits)
    others = int((greedy(model, True) != greedy(model, False)).sum())
    same_reply = bool((greedy(model, False) == greedy(plain, True)).all())
    print(f"{family}, {key}=8: full pass unchanged: {same_pass}; without a cache the reply is unchanged: {same_reply}; "
          f"with its cache {others} of 40 greedy tokens differ")
    as_described &= same_pass and same_reply and others > 20
sys.exit(not as_described)
PYTHON
