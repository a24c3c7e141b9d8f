"""The local backend beside the naive way, and LAC's calls with a session and without.

    python -m benchmarks.local_backend                                            # the nano model
    python -m benchmarks.local_backend --lac                                      # nano_babyai, whole LAC episodes
    python -m benchmarks.local_backend --lac --model smollm2 --games 2 --steps 3

Naive: all prompts padded to one length, `generate` on chunks of `rows`, every duplicate for itself. All are
compiled first and then take turns. The naive way does a fifth of the work: its rate is the same for any part. The table
shows the best of the repeats and how many times the naive rate that is, by wall time and by CPU time (steadier on a
machine that others use). Templates, tokenisation and decoding are in all of them.

    duplicates   200 prompts x 10 at temperature 1
    distinct     2000 prompts, greedy
    mixed        2000 prompts of 10 to 400 words, temperature 1
    scores       500 prompts x 9 continuations; the naive way reads the prompt for each of them

`--lac`: episodes of LAC on BabyAI-Text in lockstep, whose texts grow from step to step, as `run_lac` plays them.
The first play compiles and does not count.
"""

from __future__ import annotations

import dataclasses
import random

import jax
import numpy as np

from benchmarks.timing import both_clocks, in_turns, medians, parser_of, print_head, print_row
from nlrl_jax import envs
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.backends.session import Session
from nlrl_jax.backends.usage import Usage
from nlrl_jax.backends.wrappers import metered
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.score import score
from nlrl_jax.run import local_models
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.host_games.tasks import tasks_of
from nlrl_jax.run.lac.dials import COMPACT
from nlrl_jax.run.lac.episodes import Setting, run_method
from nlrl_jax.types import Chat, Sampling

BOARD_RULES = (
    "You play a game on a board of three rows. X is you, O is the other player, a dot is a free cell. Name a cell."
)
_generate = jax.jit(generate, static_argnums=(0, 5, 6))
_score = jax.jit(score, static_argnums=0)
CELLS = [str(i) for i in range(1, 10)]


def boards(n, seed, lines=3):
    rng = random.Random(seed)
    return [
        Chat.of("\n".join(" ".join(rng.choice("XO.") for _ in range(3)) for _ in range(lines)), BOARD_RULES)
        for _ in range(n)
    ]


def mixed(n, seed):
    rng = random.Random(seed)
    return [boards(1, seed + i, int(3 * 12 ** rng.random()))[0] for i in range(n)]


def naive_prompts(local, chats):
    """(tokens [n, longest], lengths [n]) of all prompts, padded on the left and to whole batches."""
    ids = [local.tokenizer.encode(local.tokenizer.render_chat(chat.messages)) for chat in chats]
    lengths = np.array([len(i) for i in ids], np.int32)
    tokens = np.zeros((len(ids), lengths.max()), np.int32)
    for row, i in zip(tokens, ids):
        row[len(row) - len(i) :] = i
    pad = -len(tokens) % local.rows
    return np.pad(tokens, ((0, pad), (0, 0))), np.pad(lengths, (0, pad), constant_values=1)


def batches(local, n):
    return [slice(at, at + local.rows) for at in range(0, n, local.rows)]


def naive(local, chats, sampling):
    """How many tokens it writes."""
    tokens, lengths = naive_prompts(local, chats)
    replies, eos = [], local.tokenizer.eos_ids
    for rows in batches(local, len(tokens)):
        key = jax.random.key(rows.start)
        out = _generate(local.model, local.variables, tokens[rows], lengths[rows], key, sampling, eos)
        texts, n = np.asarray(out.tokens), np.asarray(out.lengths)
        replies += [(local.tokenizer.decode(t[:k]), int(k)) for t, k in zip(texts, n)]
    return sum(n for _, n in replies[: len(chats)])


def ours(local, chats, sampling):
    return sum(reply.tokens for reply in local.complete(chats, sampling, "policy"))


def naive_score(local, chats):
    tokens, lengths = naive_prompts(local, [chat for chat in chats for _ in CELLS])
    encoded = [local.tokenizer.encode(cell) for cell in CELLS]
    replies = np.array([encoded[i % 9] for i in range(len(tokens))], np.int32)
    for rows in batches(local, len(tokens)):
        np.asarray(_score(local.model, local.variables, tokens[rows], lengths[rows], replies[rows]))
    return len(chats) * len(CELLS)


def ours_score(local, chats):
    return sum(len(row) for row in local.score(chats, [CELLS] * len(chats), "policy"))


def with_session(local, megabytes):
    """The model with an empty session of so much memory."""
    return dataclasses.replace(local, kv_session=Session(megabytes))


def backend(args):
    """Prints the table of the local backend beside the naive way."""
    local, n = local_models.local_model(args.model or "nano", chat=False, rows=args.rows), args.chats
    # The nano model's own replies, as they are: short and long ones.
    drawn = Sampling(args.max_tokens or 60, 1.0)
    jobs = {
        "duplicates": (naive, ours, [chat for chat in boards(n // 10, 0) for _ in range(10)], (drawn,)),
        "distinct": (naive, ours, boards(n, 1), (dataclasses.replace(drawn, temperature=0.0),)),
        "mixed": (naive, ours, mixed(n, 2), (drawn,)),
        "scores": (naive_score, ours_score, boards(n // 4, 3), ()),
    }
    print_head("job", "way", "chats/s", "tokens or scores/s", "times naive, wall", "times naive, CPU")
    for name, (slow, fast, chats, options) in jobs.items():
        ways = {"naive": (slow, local)}
        ways |= {f"refill {f}": (fast, dataclasses.replace(local, refill=f)) for f in args.refill}
        ways |= {f"session of {mb} MB": (fast, with_session(local, mb)) for mb in args.cache_mb}
        for function, model in ways.values():
            # Compiles: a part of the work that meets the shapes of all of it.
            function(model, chats[:: max(1, len(chats) // (5 * args.rows))], *options)
        best, tokens = {way: (np.inf, np.inf) for way in ways}, {}
        for _ in range(args.repeats):
            for way, (function, model) in ways.items():
                part = chats
                if way == "naive":  # whole batches, so that padded rows do not count against it
                    part = chats[:: len(chats) // (len(chats) // 5 // args.rows * args.rows or len(chats))]
                    part = part[: len(part) // args.rows * args.rows or None]
                seconds, cpu_seconds, num_tokens = both_clocks(function, model, part, *options)
                tokens[way] = num_tokens / len(part)
                best[way] = tuple(np.minimum(best[way], np.divide((seconds, cpu_seconds), len(part))))
        for way, (wall, cpu) in best.items():
            ratios = (f"{slow / fast:.2f}" for slow, fast in zip(best["naive"], (wall, cpu)))
            print_row(name, way, f"{1 / wall:.0f}", f"{tokens[way] / wall:.0f}", *ratios)


def lac(args):
    """Prints how long LAC takes with a session and without; each repeat begins with an empty session."""
    name, game, method = args.model or "nano_babyai", envs.make_host("babyai", max_steps=args.steps), METHODS["lac"]
    local = local_models.local_model(name, chat=False, rows=args.rows)
    dialogue = dialogue_of(method, game, PromptConfig(), name, local.tokenizer, local.model.config.max_positions)
    tasks = tasks_of(game, ("go to",), args.games, seed=0)

    def play(megabytes):
        model, usage = with_session(local, megabytes), Usage()
        setting = Setting(metered(model, usage), usage, game, COMPACT, parallel=args.games)
        played = run_method(setting, "lac", method, dialogue, tasks)
        return played["seconds"], [episode["steps"] for episode in played["episodes"]]

    sizes = [0.0, *(args.cache_mb or [1000.0])]
    runs = in_turns({mb: lambda _, mb=mb: play(mb) for mb in sizes}, 1 + args.repeats)  # the first compiles
    seconds = medians({mb: [took for took, _ in rows[1:]] for mb, rows in runs.items()})
    print_head("session, MB", "s", "ratio", "same episodes")
    for mb, took in seconds.items():
        print_row(f"{mb:g}", f"{took:.2f}", f"{took / seconds[0.0]:.3f}", runs[mb][-1][1] == runs[0.0][-1][1])


def main() -> None:
    parser = parser_of(__doc__, repeats=1, chats=2000, rows=64, model="", max_tokens=0)
    parser.add_argument("--refill", type=float, nargs="*", default=[LocalModel.refill])
    parser.add_argument("--cache_mb", type=float, nargs="*", default=[], help="also with sessions of these sizes")
    parser.add_argument("--lac", action="store_true", help="measure LAC, without a session and with one of 1000 MB")
    parser.add_argument("--games", type=int, default=8, help="of LAC")
    parser.add_argument("--steps", type=int, default=30, help="of LAC's games")
    args = parser.parse_args()
    lac(args) if args.lac else backend(args)


if __name__ == "__main__":
    main()
