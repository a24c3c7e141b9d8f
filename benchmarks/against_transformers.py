"""A GGUF file by this library and by transformers: greedy tokens and log-probabilities after prompts of many lengths.

    python -m benchmarks.against_transformers gemma-3-270m-q4_k_m.gguf

Needs torch and an architecture whose GGUF files transformers reads; it drops rotary scaling (5.24,
findings/transformers_gguf_scaled_rope.sh), so files with it are refused here. Both dequantise to float32.
The prompts are parts of Python's standard library. Prints the largest difference of the 20 likeliest
tokens' log-probabilities.
"""

from __future__ import annotations

import argparse
import inspect
import pathlib
import statistics
import textwrap

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling
from nlrl_jax.weights import gguf

LENGTHS = (1, 2, 3, 5, 9, 17, 33, 65, 129, 200, 300, 400, 511, 512, 513, 600, 700, 900, 1200, 1500)
BUCKETS = (64, 512, 1536)  # prompts are padded on the left to one of these
TOP = 20


def theirs(file: pathlib.Path, new_tokens: int) -> list[tuple[list[int], list[int], np.ndarray, np.ndarray]]:
    """(prompt, greedy tokens, ids of the likeliest first tokens [TOP], their log-probabilities [TOP]) of each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "".join(inspect.getsource(module) for module in (textwrap, statistics, argparse))
    options = dict(max_new_tokens=new_tokens, do_sample=False, eos_token_id=[], pad_token_id=0)
    results = []
    for i, length in enumerate(LENGTHS):
        prompt = tokenizer(text[1000 * i :]).input_ids[:length]
        with torch.no_grad():
            tokens = torch.tensor([prompt])
            top = torch.log_softmax(model(tokens).logits[0, -1].float(), -1).topk(TOP)
            reply = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[0, length:]
        results.append((prompt, reply.tolist(), top.indices.numpy(), top.values.numpy()))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--new_tokens", type=int, default=16)
    args = parser.parse_args()
    if (scaling := gguf.read_config(args.file).rope_scaling) is not None:
        parser.error(f"{args.file} has {scaling}, which transformers would drop; take a file without it")
    config, params = gguf.load(args.file)
    model = Transformer(config)
    sampling = Sampling(max_tokens=args.new_tokens, temperature=0.0)

    @jax.jit
    def run(tokens, lengths):
        S = tokens.shape[1]
        slots, pad = jnp.arange(S)[None], S - lengths[:, None]
        hidden, _ = model.apply({"params": params}, tokens, jnp.maximum(slots - pad, 0), valid=slots >= pad)
        logits = model.apply({"params": params}, hidden[:, -1], method="unembed")
        reply = generate(model, {"params": params}, tokens, lengths, jax.random.key(0), sampling, ())
        return jax.nn.log_softmax(logits)[0], reply.tokens[0]

    equal, largest = 0, 0.0
    for prompt, reply, top_ids, top_log_probs in theirs(args.file, args.new_tokens):
        S = next(size for size in BUCKETS if size >= len(prompt))
        tokens = np.zeros((1, S), np.int32)
        tokens[0, S - len(prompt) :] = prompt
        log_probs, ours = run(tokens, np.array([len(prompt)]))
        difference = float(np.abs(np.asarray(log_probs)[top_ids] - top_log_probs).max())
        equal, largest = equal + (ours.tolist() == reply), max(largest, difference)
        print(f"{len(prompt)} tokens: greedy {ours.tolist() == reply}, log-probabilities {difference:.1e}", flush=True)
    print(f"greedy tokens equal in {equal} of {len(LENGTHS)}; log-probabilities within {largest:.1e}")


if __name__ == "__main__":
    main()
