"""TRL's GRPOTrainer for `benchmarks.transcripts`, in an environment of its own (torch, trl, peft).

    PYTHON benchmarks/peers/trl_grpo.py FOLDER '{"groups": 4, "group_size": 8, "max_tokens": 8, "iterations": 3, ...}'

`benchmarks.transcripts` starts it and plays the game, by lines of JSON; the last one is the result: CPU seconds and
seconds of each iteration, of which `rollout` in playing, replies and their tokens.

Lines of one open message are played by a `rollout_func`: {"reset": iteration} is answered with the episodes' first
prompts as tokens, {"step": [[episode, tokens], ...]} with [[tokens that come next, reward, done], ...]. Each turn is
one call of transformers' `generate` for all episodes that still run, which reads their whole transcripts, as TRL's own
loop of tool calls does; the environment's tokens are masked (`env_mask`).

Chats are TRL's own: `environment_factory` makes a `Game`, whose one tool takes a whole reply. TRL's loop has no other
way to play free replies, and none for an environment to end an episode, so that the model is asked once more after the
game is over; `said` reads that reply as one without a call.
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

OVER = "The game is over."
# Role tool as role user, and no list of tools, so that both trainers read the same tokens. (TRL asks for a template
# that shows calls. It renders them in inert messages alone: replies stay as they were sampled.)
CHAT_TEMPLATE = """{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def ask(**request):
    print(json.dumps(request), flush=True)
    return json.loads(sys.stdin.readline())


def clock() -> tuple[float, float]:
    """(CPU seconds of this process, seconds)."""
    return time.process_time(), time.perf_counter()


class Game:
    """One episode at a time of a game that is played in the other process."""

    number = 0

    def __init__(self):
        self._lane, Game.number = Game.number, Game.number + 1

    def reset(self, task: str, **columns) -> str:
        self._earned = 0.0
        return ask(begin=[self._lane, task])

    def act(self, reply: str) -> str:
        """Takes a turn.

        Args:
            reply: What the player says.

        Returns:
            What the game answers.
        """
        text, reward, done = ask(act=[self._lane, reply])
        self._earned += reward
        return f"{text}\n{OVER}" if done else text

    def get_reward(self) -> float:
        return self._earned


class CountedTrainer(GRPOTrainer):
    """Measures each iteration's rollouts, replies and their tokens."""

    def _generate(self, prompts):
        start = clock()
        self.replies.append([0, 0])
        out = super()._generate(prompts)
        self.rollouts.append([after - before for before, after in zip(start, clock())])
        return out

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        out = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        ask(check=prompt_ids)
        self.count(out[0])
        return out

    def count(self, replies: list[list[int]]):
        self.replies[-1][0] += len(replies)
        self.replies[-1][1] += sum(map(len, replies))


class Marks(TrainerCallback):
    """Clocks after each iteration."""

    def __init__(self):
        self.clocks = [clock()]

    def on_step_end(self, *_, **__):
        self.clocks.append(clock())


def in_lines(tokenizer, options: dict):
    """A `rollout_func` that plays all episodes in lockstep, one line a turn."""
    num_episodes = options["groups"] * options["group_size"]

    def rollout(prompts, trainer):
        texts = ask(reset=len(trainer.rollouts))
        assert len(texts) == len(prompts) == num_episodes
        first = [len(text) for text in texts]
        masks, returns, running = [[] for _ in texts], [0.0] * num_episodes, list(range(num_episodes))
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        for _ in range(options["max_turns"]):
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
            trainer.count([tokens for _, tokens in replies])
            answers = ask(step=replies)
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
        return {
            "prompt_ids": [text[:n] for text, n in zip(texts, first)],
            "completion_ids": [text[n : n + len(mask)] for text, n, mask in zip(texts, first, masks)],
            "logprobs": None,
            "env_mask": masks,
            "returns": returns,
        }

    return rollout


def chat_reader(tokenizer):
    """A tokenizer's `parse_response` to which a reply is a call of `Game.act`, unless the game was over before it."""

    def said(ids, prefix, tools):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        message = {"role": "assistant", "content": text}
        if OVER not in tokenizer.decode(prefix[-32:]):
            message["tool_calls"] = [{"type": "function", "function": {"name": "act", "arguments": {"reply": text}}}]
        return message

    return said


def main():
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    num_episodes, iterations = options["groups"] * options["group_size"], options["iterations"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tasks := options["tasks"]:
        tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, {}
        tokenizer.parse_response = chat_reader(tokenizer)
        system = [{"role": "system", "content": options["system"]}] if options["system"] else []
        prompts = [[*system, {"role": "user", "content": ""}]] * len(tasks)
        dataset, form = {"prompt": prompts, "task": tasks}, {"environment_factory": Game}
        limits = {"max_tool_calling_iterations": options["max_turns"] - 1}
        limits |= {"generation_kwargs": {"max_new_tokens": options["max_tokens"]}}
    else:
        dataset = {"prompt": [str(i) for i in range(options["groups"] * iterations)]}
        form = {
            "rollout_func": in_lines(tokenizer, options),
            "reward_funcs": lambda completions, returns, **_: returns,
        }
        limits = {}
    marks = Marks()
    trainer = CountedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=GRPOConfig(
            output_dir=options["output"], use_cpu=True, bf16=False, report_to="none", save_strategy="no",
            disable_tqdm=True, logging_strategy="no", max_steps=iterations, beta=0.0, temperature=1.0, top_k=0,
            per_device_train_batch_size=options["rows"], gradient_accumulation_steps=num_episodes // options["rows"],
            num_generations=options["group_size"], loss_type="grpo", shuffle_dataset=False,
            learning_rate=options["learning_rate"], lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
            max_completion_length=options["room"], gradient_checkpointing=False, dataloader_pin_memory=False, **limits,
        ),
        train_dataset=Dataset.from_dict(dataset),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[marks],
        **form,
    )  # fmt: skip
    trainer.rollouts, trainer.replies = [], []
    marks.clocks = [clock()]
    trainer.train()
    spans = [[b - a for a, b in zip(*pair)] for pair in zip(marks.clocks, marks.clocks[1:])]
    print(json.dumps({"result": {"whole": spans, "rollout": trainer.rollouts, "replies": trainer.replies}}), flush=True)


if __name__ == "__main__":
    main()
