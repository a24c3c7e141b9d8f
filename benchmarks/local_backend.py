"""The local backend beside the naive way, on the nano model.

    python benchmarks/local_backend.py

Naive: all prompts padded to one length, `generate` on chunks of `rows`, every duplicate for itself. All are
compiled first and then take turns. The naive way does a fifth of the work: its rate is the same for any part. The table
shows the best of the repeats and how many times the naive rate that is, by wall time and by CPU time (steadier on a
machine that others use). Templates, tokenisation and decoding are in all of them.

    duplicates   200 prompts x 10 at temperature 1
    distinct     2000 prompts, greedy
    mixed        2000 prompts of 10 to 400 words, temperature 1
    scores       500 prompts x 9 continuations; the naive way reads the prompt for each of them
"""

import argparse
import dataclasses
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax  # noqa: E402
import numpy as np  # noqa: E402

from nlrl_jax.backends.local import LocalModel  # noqa: E402
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.score import score  # noqa: E402
from nlrl_jax.lm.transformer import Transformer  # noqa: E402
from nlrl_jax.types import (
    Chat,  # noqa: E402
    Sampling,
)
from nlrl_jax.weights.load import load_model  # noqa: E402

RULES = "You play a game on a board of three rows. X is you, O is the other player, a dot is a free cell. Name a cell."
_generate = jax.jit(generate, static_argnums=(0, 5, 6))
_score = jax.jit(score, static_argnums=0)
CELLS = [str(i) for i in range(1, 10)]


def boards(n, seed, lines=3):
    rng = random.Random(seed)
    return [
        Chat.of("\n".join(" ".join(rng.choice("XO.") for _ in range(3)) for _ in range(lines)), RULES) for _ in range(n)
    ]


def mixed(n, seed):
    rng = random.Random(seed)
    return [boards(1, seed + i, int(3 * 12 ** rng.random()))[0] for i in range(n)]


def naive_prompts(local, chats):
    ids = [local.tokenizer.encode(local.tokenizer.render_chat(chat.messages)) for chat in chats]
    lengths = np.array([len(i) for i in ids], np.int32)
    tokens = np.zeros((len(ids), lengths.max()), np.int32)
    for row, i in zip(tokens, ids):
        row[len(row) - len(i) :] = i
    return tokens, lengths


def naive(local, chats, sampling):
    tokens, lengths = naive_prompts(local, chats)
    pad = -len(tokens) % local.rows
    tokens, lengths = np.pad(tokens, ((0, pad), (0, 0))), np.pad(lengths, (0, pad), constant_values=1)
    written = []
    for at in range(0, len(tokens), local.rows):
        rows = slice(at, at + local.rows)
        key = jax.random.key(at)
        eos = local.tokenizer.eos_ids
        out = _generate(local.model, local.variables, tokens[rows], lengths[rows], key, sampling, eos)
        texts, n = np.asarray(out.tokens), np.asarray(out.lengths)
        written += [(local.tokenizer.decode(t[:k]), int(k)) for t, k in zip(texts, n)]
    return sum(n for _, n in written[: len(chats)])


def ours(local, chats, sampling):
    return sum(reply.tokens for reply in local.complete(chats, sampling, "policy"))


def naive_score(local, chats):
    tokens, lengths = naive_prompts(local, [chat for chat in chats for _ in CELLS])
    encoded = [local.tokenizer.encode(cell) for cell in CELLS]
    replies = np.array([encoded[i % 9] for i in range(len(tokens))], np.int32)
    pad = -len(tokens) % local.rows
    tokens, replies = (np.pad(t, ((0, pad), (0, 0))) for t in (tokens, replies))
    lengths = np.pad(lengths, (0, pad), constant_values=1)
    for at in range(0, len(tokens), local.rows):
        rows = slice(at, at + local.rows)
        np.asarray(_score(local.model, local.variables, tokens[rows], lengths[rows], replies[rows]))
    return len(chats) * len(CELLS)


def ours_score(local, chats):
    return sum(len(row) for row in local.score(chats, [CELLS] * len(chats), "policy"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--chats", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max_tokens", type=int, default=60)
    parser.add_argument("--refill", type=float, nargs="*", default=[LocalModel.refill])
    parser.add_argument("--cache_mb", type=float, nargs="*", default=[], help="also with caches of these sizes")
    args = parser.parse_args()
    loaded = load_model("nano")
    local = LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, args.rows)
    # The nano model's own replies, as they are: short and long ones.
    drawn = Sampling(args.max_tokens, 1.0)
    n = args.chats
    few = boards(n // 10, 0)
    jobs = {
        "duplicates": (naive, ours, [chat for chat in few for _ in range(10)], (drawn,)),
        "distinct": (naive, ours, boards(n, 1), (Sampling(args.max_tokens, 0.0),)),
        "mixed": (naive, ours, mixed(n, 2), (drawn,)),
        "scores": (naive_score, ours_score, boards(n // 4, 3), ()),
    }
    titles = ("job", "way", "chats/s", "tokens or scores/s", "times naive, wall", "times naive, CPU")
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    for name, (slow, fast, chats, options) in jobs.items():
        ways = {"naive": (slow, local)}
        ways |= {f"refill {f}": (fast, dataclasses.replace(local, refill=f)) for f in args.refill}
        ways |= {f"cache of {mb} MB": (fast, dataclasses.replace(local, cache_mb=mb)) for mb in args.cache_mb}
        for function, model in ways.values():
            # Compiles: a part of the work that meets the shapes of all of it.
            function(model, chats[:: max(1, len(chats) // (5 * args.rows))], *options)
        best, tokens = {way: (np.inf, np.inf) for way in ways}, {}
        for _ in range(args.repeats):
            for way, (function, model) in ways.items():
                start = time.perf_counter(), time.process_time()
                # Whole batches for the naive way, so that padded rows do not count against it.
                some = chats[:: len(chats) // (len(chats) // 5 // args.rows * args.rows or len(chats))]
                some = chats if way != "naive" else some[: len(some) // args.rows * args.rows or None]
                per_chat = function(model, some, *options) / len(some)
                taken = time.perf_counter() - start[0], time.process_time() - start[1]
                best[way] = tuple(min(old, new / len(some)) for old, new in zip(best[way], taken))
                tokens[way] = per_chat
        for way, (wall, cpu) in best.items():
            ratios = f"{best['naive'][0] / wall:.2f} | {best['naive'][1] / cpu:.2f}"
            print(f"| {name} | {way} | {1 / wall:.0f} | {tokens[way] / wall:.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
