"""The local backend beside the naive way, and LAC's calls with its key/value cache and without.

    python -m benchmarks.local_backend                                            # the nano model
    python -m benchmarks.local_backend --lac                                      # nano_board, whole LAC episodes
    python -m benchmarks.local_backend --lac --model smollm2 --games 2 --without 2 10 20

Naive: all prompts padded to one length, `generate` on chunks of `rows`, every duplicate for itself. All are
compiled first and then take turns. The naive way does a fifth of the work: its rate is the same for any part. The table
shows the best of the repeats and how many times the naive rate that is, by wall time and by CPU time (steadier on a
machine that others use). Templates, tokenisation and decoding are in all of them.

    duplicates   200 prompts x 10 at temperature 1
    distinct     2000 prompts, greedy
    mixed        2000 prompts of 10 to 400 words, temperature 1
    scores       500 prompts x 9 continuations; the naive way reads the prompt for each of them

`--lac`: games in lockstep; each step is a reflection, the prior of the candidate actions, imagined steps after each
candidate (observation, reflection and next action, a line each) and the scores of GOOD and BAD. Then an action is taken
and an observation in BabyAI-Text's words is added. First an episode that compiles, then the one that counts, with an
empty cache. Without the cache, only the steps named by `--without` are done, on the same texts. Compilation is left out
of all times. Tokens read are those that went through the network in prompts and scored continuations; new ones are
those of them that follow a text for the first time and were not written by the model itself.
"""

from __future__ import annotations

import dataclasses
import random
import time

import jax
import numpy as np

from benchmarks.timing import parser_of, print_head, print_row
from nlrl_jax.backends.local import LocalModel
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.score import score
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Chat, Sampling
from nlrl_jax.weights.load import load_model

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
    written, eos = [], local.tokenizer.eos_ids
    for rows in batches(local, len(tokens)):
        key = jax.random.key(rows.start)
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
    for rows in batches(local, len(tokens)):
        np.asarray(_score(local.model, local.variables, tokens[rows], lengths[rows], replies[rows]))
    return len(chats) * len(CELLS)


def ours_score(local, chats):
    return sum(len(row) for row in local.score(chats, [CELLS] * len(chats), "policy"))


ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
ROOM_RULES = (
    "You are in a room of a grid world. You see what is in front of you, up to six steps ahead and three to each side. "
    "The actions are turn left, turn right, go forward, pick up, drop and toggle. After each observation, say whether "
    "the last step was good for the goal, and then name the next action."
)
THINGS = [f"a {c} {o}" for c in ("red", "green", "blue", "purple", "yellow", "grey") for o in ("key", "ball", "box")]

compiling = [0.0]


def observation(rng):
    """E.g. "You see a wall 2 steps forward. You see a red key 1 step left and 3 steps forward."."""
    steps = lambda n: f"{n} step{'s' * (n > 1)}"
    seen = [f"You see a wall {steps(rng.randint(1, 5))} {rng.choice(('forward', 'left', 'right'))}"]
    for thing in rng.sample(THINGS, rng.randint(1, 3)):
        side = f"{steps(rng.randint(1, 3))} {rng.choice(('left', 'right'))} and " if rng.random() < 0.7 else ""
        seen.append(f"You see {thing} {side}{steps(rng.randint(1, 5))} forward")
    return ". ".join(seen) + "."


class Counted:
    """A model, with the time of its calls and the tokens that are new."""

    def __init__(self, model):
        self.model, self.seen, self.new, self.seconds, self.said = model, set(), 0, 0.0, []

    def _note(self, ids, counts):
        # A running hash stands for a text up to a token.
        state = 0
        for token in ids:
            state = hash((state, token))
            if state not in self.seen:
                self.seen.add(state)
                self.new += counts

    def _timed(self, call, *args):
        start, before = time.perf_counter(), compiling[0]
        out = call(*args)
        self.seconds += time.perf_counter() - start - (compiling[0] - before)
        self.said.append(out)
        return out

    def ids(self, chat, text=""):
        tokenizer = self.model.tokenizer
        return tokenizer.encode(tokenizer.render_chat(chat.messages)), tokenizer.encode(text)

    def complete(self, texts, max_tokens):
        chats = [Chat.of(ROOM_RULES, continued=text) for text in texts]
        replies = self._timed(self.model.complete, chats, Sampling(max_tokens, 0.0), "policy", 0, ["\n"])
        for chat in chats:
            self._note(self.ids(chat)[0], 1)
        out = [text + reply.text + "\n" for text, reply in zip(texts, replies)]
        for text in out:
            self._note(self.ids(Chat.of(ROOM_RULES, continued=text))[0], 0)
        return out

    def score(self, texts, words):
        chats = [Chat.of(ROOM_RULES, continued=text) for text in texts]
        scores = self._timed(self.model.score, chats, [words] * len(chats), "policy")
        for chat in chats:
            for word in words:
                prompt, ids = self.ids(chat, word)
                self._note(prompt + ids[:-1], 1)
        return np.array([[score.log_prob for score in row] for row in scores])


def step(model, texts, args):
    """One LAC step of all games -> their texts, with a reflection and an action."""
    if texts[0].count("\n") > 2:
        texts = model.complete([text + "Reflection:" for text in texts], args.max_tokens or 24)
    prior = model.score([text + "Action:" for text in texts], [" " + action for action in ACTIONS])
    chosen = np.argsort(-prior, axis=1)[:, : args.candidates]
    ahead = [f"{text}Action: {ACTIONS[a]}\n" for text, row in zip(texts, chosen) for a in row]
    for depth in range(args.depth):
        ahead = model.complete([text + "Observation:" for text in ahead], args.max_tokens or 24)
        ahead = model.complete([text + "Reflection:" for text in ahead], args.max_tokens or 24)
        if depth < args.depth - 1:
            ahead = model.complete([text + "Action:" for text in ahead], 8)
    values = model.score([text + "This is" for text in ahead], [" GOOD", " BAD"])
    values = (values[:, 0] - values[:, 1]).reshape(chosen.shape)
    best = chosen[np.arange(len(texts)), values.argmax(1)]
    return [f"{text}Action: {ACTIONS[a]}\n" for text, a in zip(texts, best)]


def episode(model, args, seed):
    """-> for each step (texts before it, seconds)."""
    rngs = [random.Random(f"{seed}/{game}") for game in range(args.games)]
    texts = [f"Goal: go to {rng.choice(THINGS)}\n" for rng in rngs]
    done = []
    for _ in range(args.steps):
        texts = [f"{text}Observation: {observation(rng)}\n" for text, rng in zip(texts, rngs)]
        before, seconds, said = texts, model.seconds, len(model.said)
        texts = step(model, texts, args)
        done.append((before, model.seconds - seconds, model.said[said:]))
    return done


def differences(got, want):
    """(replies that differ, replies, largest difference of a score)."""
    differ, replies, largest = 0, 0, 0.0
    for a, b in zip(got, want, strict=True):
        for x, y in zip(a, b, strict=True):
            if isinstance(x, list):
                largest = max([largest] + [abs(p.log_prob - q.log_prob) for p, q in zip(x, y)])
            else:
                differ, replies = differ + (x != y), replies + 1
    return differ, replies, largest


def loaded_model(args, name, **overrides):
    loaded = load_model(name, **overrides)
    return LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, args.rows)


def backend(args):
    """Prints the table of the local backend beside the naive way."""
    local, n = loaded_model(args, args.model or "nano"), args.chats
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
                tokens[way] = function(model, some, *options) / len(some)
                taken = time.perf_counter() - start[0], time.process_time() - start[1]
                best[way] = tuple(min(old, new / len(some)) for old, new in zip(best[way], taken))
        for way, (wall, cpu) in best.items():
            ratios = (f"{slow / fast:.2f}" for slow, fast in zip(best["naive"], (wall, cpu)))
            print_row(name, way, f"{1 / wall:.0f}", f"{tokens[way] / wall:.0f}", *ratios)


def lac(args):
    """Prints the time of LAC's steps with the key/value cache and without."""
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiling.__setitem__(
            0, compiling[0] + seconds * name.startswith("/jax/core/compile")
        )
    )
    name = args.model or "nano_board"
    plain = loaded_model(args, name, **({"max_positions": 4096} if name.startswith("nano") else {}))
    with_cache = dataclasses.replace(plain, cache_mb=(args.cache_mb or [1000.0])[0])
    for title in ("compiles", "counts"):
        model, before = Counted(dataclasses.replace(with_cache)), compiling[0]
        done = episode(model, args, "an episode")
        stats, took = model.model.cache.stats, compiling[0] - before
        print(f"{title}: {model.seconds:.1f} s, {took:.1f} s compiling, {stats}, {model.new} new", end=", ")
        print(f"read / new {stats.read / model.new:.3f}", flush=True)
    print_head("step", "tokens of the longest text", "with, s", "without, s", "ratio", "replies that differ", "score")
    ratios, sums = [], np.zeros(2)
    for n in [n for n in args.without if n < args.steps]:
        texts, seconds, said = done[n]
        other = Counted(plain)
        step(other, texts, args)
        differ, replies, largest = differences(other.said, said)
        ratios.append(seconds / other.seconds)
        sums += seconds, other.seconds
        longest = max(len(other.ids(Chat.of(ROOM_RULES, continued=text))[0]) for text in texts)
        times = (f"{seconds:.2f}", f"{other.seconds:.2f}", f"{ratios[-1]:.3f}")
        print_row(n, longest, *times, f"{differ} of {replies}", f"{largest:.1e}")
    if ratios:
        print(f"time with / without: best {min(ratios):.3f}, median {np.median(ratios):.3f}", end=", ")
        print(f"of the sums {sums[0] / sums[1]:.3f}")


def main() -> None:
    parser = parser_of(__doc__, repeats=1, chats=2000, rows=64, model="", max_tokens=0)
    parser.add_argument("--refill", type=float, nargs="*", default=[LocalModel.refill])
    parser.add_argument("--cache_mb", type=float, nargs="*", default=[], help="also with caches of these sizes")
    lac_options = parser.add_argument_group("LAC's calls")
    lac_options.add_argument("--lac", action="store_true", help="measure these, with a cache of 1000 MB")
    for name, default in (("games", 8), ("steps", 30), ("candidates", 5), ("depth", 4)):
        lac_options.add_argument(f"--{name}", type=int, default=default)
    lac_options.add_argument("--without", type=int, nargs="*", default=[1, 8, 15, 22, 29])
    args = parser.parse_args()
    lac(args) if args.lac else backend(args)


if __name__ == "__main__":
    main()
