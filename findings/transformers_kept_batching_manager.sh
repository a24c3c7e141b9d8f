#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: generate_batch (continuous batching) with persistent_manager=True, called again
# after the weights have changed, or with another GenerationConfig. A training loop would keep the manager to save its
# start.
#
# One would guess: a finished request leaves nothing behind, so the next call reads the weights as they are; and each
# call samples as the GenerationConfig says that it is given.
# What happens: the keys and values of a prompt's full pages (256 tokens) stay, and are looked up by their tokens alone.
# After an update of the weights a prompt of 300 tokens that was read before is read with the old weights up to its
# 256th token and with the new ones from there on: other replies, and log-probabilities that belong to no policy.
# Prompts of under a page are right, so a test with a short prompt passes. And the first call's config stays: do_sample
# and temperature of later ones are ignored without a warning (a line at the level INFO says that the manager is used
# again); a later max_new_tokens takes effect.
# destroy_cached_continuous_batching_manager() before a call gives what one wanted; TRL 1.16 makes a new one each time.
# That prefix caches outlive updates is known of vLLM and SGLang, where an update or the trainer flushes them.
# Output seen: the largest differences between generate_batch's log-probabilities and those of a forward pass,
# "short prompt 0.0000, long prompt 0.0000, new weights: short prompt 0.0000, long prompt 0.55, new manager 0.0000";
# "sampled at temperature 2: 1 reply of 6 draws, new manager: 6".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 2> /dev/null
cat > "$folder/look.py" <<'PY'
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, head_dim=16, max_position_embeddings=1024, **sizes)).eval()
matrices = [weight for weight in model.parameters() if weight.dim() > 1]
for weight in matrices:
    weight.data.mul_(4)  # random weights as they are drawn hardly tell one prompt from another
SHORT, LONG = (torch.randint(1, 60, (length,)).tolist() for length in (100, 300))
GREEDY = dict(do_sample=False, max_new_tokens=8, eos_token_id=63, pad_token_id=0)


def batch(prompt, draws=1, **options):
    """Replies of generate_batch, whose manager is kept, with their tokens' log-probabilities."""
    outputs = model.generate_batch(
        [prompt] * draws,
        generation_config=GenerationConfig(**GREEDY | options),
        continuous_batching_config=ContinuousBatchingConfig(return_logprobs=True),
        persistent_manager=True,
    )
    return [(output.generated_tokens, torch.tensor(output.logprobs)) for output in outputs.values()]


def difference(prompt):
    """Between the log-probabilities of generate_batch's reply in it and in a forward pass with today's weights."""
    [(reply, log_probs)] = batch(prompt)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    return (logits.log_softmax(-1)[range(len(reply)), reply] - log_probs).abs().max().item()


before = difference(SHORT), difference(LONG)
sampled = len({str(reply) for reply, _ in batch(SHORT, 6, do_sample=True, temperature=2.0)})
for weight in matrices:
    weight.data.add_(0.3 * weight.data.std() * torch.randn_like(weight))
after = difference(SHORT), difference(LONG)
model.destroy_cached_continuous_batching_manager()
new_manager = difference(LONG)
model.destroy_cached_continuous_batching_manager()
sampled_anew = len({str(reply) for reply, _ in batch(SHORT, 6, do_sample=True, temperature=2.0)})
model.destroy_cached_continuous_batching_manager()

print("short prompt %.4f, long prompt %.4f" % before)
print("new weights: short prompt %.4f, long prompt %.4f, new manager %.4f" % (*after, new_manager))
print(f"sampled at temperature 2: {sampled} reply of 6 draws, new manager: {sampled_anew}")
assert max(*before, after[0], new_manager) < 1e-3 and after[1] > 0.1
assert sampled == 1 and sampled_anew > 1
PY
CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" "$folder/look.py" 2> /dev/null
