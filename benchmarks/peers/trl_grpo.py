"""TRL's GRPOTrainer for `benchmarks.transcripts`, in an environment of its own (torch, trl, peft).

    PYTHON benchmarks/peers/trl_grpo.py FOLDER '{"groups": 4, "group_size": 8, "max_tokens": 8, "iterations": 3, ...}'

`benchmarks.transcripts` starts it and plays the game, by lines of JSON: {"reset": iteration} is answered with the
episodes' first prompts as tokens, {"step": [[episode, text], ...]} with [[tokens that come next, reward, done], ...].
Each turn is one call of transformers' `generate` for all episodes that still run, which reads their whole transcripts,
as TRL's own loop of tool calls does; the environment's tokens are masked (`env_mask`). The last line is the result:
CPU seconds and seconds of each iteration, of which `rollout` in `rollout_func`, and turns.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def ask(request: dict):
    print(json.dumps(request), flush=True)
    return json.loads(sys.stdin.readline())


def clock() -> tuple[float, float]:
    """(CPU seconds of this process, seconds)."""
    return time.process_time(), time.perf_counter()


def main():
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    lanes = options["groups"] * options["group_size"]
    marks, rollouts, turns = [], [], []
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def rollout(prompts, trainer):
        start, num_turns = clock(), 0
        texts = ask({"reset": len(rollouts)})
        assert len(texts) == len(prompts) == lanes
        first = [len(text) for text in texts]
        masks, returns, running = [[] for _ in texts], [0.0] * lanes, list(range(lanes))
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        for _ in range(options["max_turns"]):
            num_turns += len(running)
            longest = max(len(texts[i]) for i in running)
            ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(texts[i])) + texts[i] for i in running])
            mask = torch.tensor([[0] * (longest - len(texts[i])) + [1] * len(texts[i]) for i in running])
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=options["max_tokens"], do_sample=True,
                    temperature=1.0, top_k=0, top_p=1.0, eos_token_id=options["ends"],
                    pad_token_id=tokenizer.pad_token_id,
                )[:, longest:].tolist()  # fmt: skip
            replies = []
            for i, row in zip(running, out, strict=True):
                end = next((n for n, token in enumerate(row) if token in options["ends"]), len(row) - 1)
                texts[i] += row[: end + 1]
                masks[i] += [1] * (end + 1)
                replies.append([i, row[: end + 1]])
            answers = ask({"step": replies})
            for i, (tokens, reward, done) in zip(list(running), answers, strict=True):
                returns[i] += reward
                if done:
                    running.remove(i)
                else:
                    texts[i] += tokens
                    masks[i] += [0] * len(tokens)
            if not running:
                break
        model.train()
        turns.append(num_turns)
        rollouts.append([after - before for before, after in zip(start, clock())])
        return {
            "prompt_ids": [text[:n] for text, n in zip(texts, first)],
            "completion_ids": [text[n : n + len(mask)] for text, n, mask in zip(texts, first, masks)],
            "logprobs": None,
            "env_mask": masks,
            "returns": returns,
        }

    class Marks(TrainerCallback):
        def on_step_end(self, *_, **__):
            marks.append(clock())

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, returns, **_: returns,
        args=GRPOConfig(
            output_dir=options["output"], use_cpu=True, bf16=False, report_to="none", save_strategy="no",
            disable_tqdm=True, logging_strategy="no", max_steps=options["iterations"], beta=0.0, temperature=1.0,
            per_device_train_batch_size=options["rows"], gradient_accumulation_steps=lanes // options["rows"],
            num_generations=options["group_size"], loss_type="grpo",
            learning_rate=options["learning_rate"], lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
            max_completion_length=options["room"], gradient_checkpointing=False, dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(options["groups"] * options["iterations"])]}),
        processing_class=tokenizer,
        rollout_func=rollout,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Marks()],
    )  # fmt: skip
    marks.append(clock())
    trainer.train()
    spans = [[b - a for a, b in zip(*pair)] for pair in zip(marks, marks[1:])]
    print(json.dumps({"result": {"whole": spans, "rollout": rollouts, "turns": turns}}), flush=True)


if __name__ == "__main__":
    main()
