#!/usr/bin/env bash
# TRL 1.16.0 (transformers 5.24.0), GRPOTrainer with `environment_factory`: an episode whose next tool result does not
# fit into `max_completion_length`, with mask_truncated_completions=True.
#
# One would guess: the episode is cut off there, so it counts as clipped and is left out of the loss, as a reply that
# is cut off in its middle is.
# What happens: the tool is called first, so the environment moves and its reward counts the move; then its result is
# dropped, and the episode ends with the call, whose last token is the policy's own end of turn. For the trainer that is
# a finished episode: `clipped_ratio` is 0 and it stays in the loss. So episodes are cut off by the budget with no metric
# that says so, and a policy is paid for a goal that it never saw; one that is cut off before the goal looks as if it had
# given up. The budget holds the environment's words, too, so long observations use it up.
# That an overlong result is dropped is TRL's decision (pull request 5521, which expects such an episode to be a
# failure); that the move stays, and that the episode counts as finished, was not found there.
# Output seen: "places [2, 0] roles assistant, tool, assistant clipped 0.0 tokens in the loss [76, 8] advantages
# [0.707, -0.707]" with a budget of 400 tokens, and "clipped 0.5 tokens in the loss [0, 8]" where a reply itself is cut.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 trl==1.16.0 2> /dev/null
cat > "$folder/look.py" <<'PY'
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

letters = Tokenizer(models.BPE({x: i for i, x in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
letters.decoder = decoders.ByteLevel()
special = dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=["<|im_start|>"])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, **special)
tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
tokenizer.chat_template = qwen3_chat_template
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=4096, **sizes))
WALK = '<tool_call>\n{"name": "walk", "arguments": {}}\n</tool_call><|im_end|>'
BUDGET = 400
ROW = {"prompt": [{"role": "user", "content": "Walk to 2. "}]}


class Corridor:
    def reset(self, **row):
        self.place = 0

    def walk(self) -> str:
        """Walks one step."""
        self.place += 1
        return f"You stand at {self.place}. " + "The corridor is long. " * 10

    def get_reward(self) -> float:
        return float(self.place == 2)


def play(first_reply):
    """Two episodes, by a script in the place of the model: one walks whenever it is asked, the other one stays."""
    with tempfile.TemporaryDirectory() as out:
        options = dict(mask_truncated_completions=True, max_completion_length=BUDGET, num_generations=2)
        options |= dict(per_device_train_batch_size=2, use_cpu=True, bf16=False, report_to=[])
        trainer = GRPOTrainer(
            model,
            args=GRPOConfig(out, **options),
            train_dataset=Dataset.from_list([ROW]),
            processing_class=tokenizer,
            environment_factory=Corridor,
        )

        def script(prompt_ids, *args, **kwargs):
            replies = [first_reply, "I stay.<|im_end|>"][: len(prompt_ids)]
            return [tokenizer(reply)["input_ids"][:BUDGET] for reply in replies], None

        trainer._generate_single_turn = script
        batch = trainer._generate_and_score_completions([ROW, ROW])
        places = [corridor.place for corridor in trainer.environments]
        roles = [message["role"] for message in trainer._logs["completion"][0]]
        clipped = trainer._metrics["train"]["completions/clipped_ratio"][-1]
        in_loss = (batch["completion_mask"] * batch["tool_mask"]).sum(1).tolist()
        advantages = [round(x, 3) for x in batch["advantages"].tolist()]
    print("places", places, "roles", ", ".join(roles), "clipped", clipped)
    print("  tokens in the loss", in_loss, "advantages", advantages)
    return places, roles, clipped, in_loss, advantages


places, roles, clipped, in_loss, advantages = play(WALK)
assert places == [2, 0] and roles == ["assistant", "tool", "assistant"]  # two steps were made, one was answered
assert clipped == 0 and in_loss[0] > 0 and advantages[0] > 0.7
_, _, clipped, in_loss, _ = play("I think. " * 100)
assert clipped == 0.5 and in_loss[0] == 0  # a reply that is cut off: counted, and left out
PY
CUDA_VISIBLE_DEVICES="" "$folder/venv/bin/python" "$folder/look.py" 2> /dev/null
