"""The calls of LAC episodes on the local model, with its cache of what it has read and without.

    python benchmarks/prefix_cache.py                                             # the nano model, whole episodes
    python benchmarks/prefix_cache.py --model smollm2 --games 2 --without 2 10 20

Games in lockstep; each step is a reflection, the prior of the candidate actions, imagined steps behind each candidate
(observation, reflection and next action, a line each) and the scores of GOOD and BAD. Then an action is taken and an
observation in BabyAI-Text's words is added. First an episode that compiles, then the one that counts, with an empty
cache. Without the cache, only the steps named by `--without` are done, on the same texts. Compilation is left out of
all times. Tokens read are those that went through the network in prompts and scored continuations; new ones are those
of them that stand behind a text for the first time and were not written by the model itself.
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
from nlrl_jax.lm.transformer import Transformer  # noqa: E402
from nlrl_jax.types import Chat, Sampling  # noqa: E402
from nlrl_jax.weights.load import load_model  # noqa: E402

ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]
RULES = (
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
        chats = [Chat.of(RULES, continued=text) for text in texts]
        replies = self._timed(self.model.complete, chats, Sampling(max_tokens, 0.0), "policy", 0, ["\n"])
        for chat in chats:
            self._note(self.ids(chat)[0], 1)
        out = [text + reply.text + "\n" for text, reply in zip(texts, replies)]
        for text in out:
            self._note(self.ids(Chat.of(RULES, continued=text))[0], 0)
        return out

    def score(self, texts, words):
        chats = [Chat.of(RULES, continued=text) for text in texts]
        scores = self._timed(self.model.score, chats, [words] * len(chats), "policy")
        for chat in chats:
            for word in words:
                prompt, ids = self.ids(chat, word)
                self._note(prompt + ids[:-1], 1)
        return np.array([[score.log_prob for score in row] for row in scores])


def step(model, texts, args):
    """One LAC step of all games -> their texts, with a reflection and an action."""
    if texts[0].count("\n") > 2:
        texts = model.complete([text + "Reflection:" for text in texts], args.max_tokens)
    prior = model.score([text + "Action:" for text in texts], [" " + action for action in ACTIONS])
    chosen = np.argsort(-prior, axis=1)[:, : args.candidates]
    ahead = [f"{text}Action: {ACTIONS[a]}\n" for text, row in zip(texts, chosen) for a in row]
    for depth in range(args.depth):
        ahead = model.complete([text + "Observation:" for text in ahead], args.max_tokens)
        ahead = model.complete([text + "Reflection:" for text in ahead], args.max_tokens)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano_board")
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--max_tokens", type=int, default=24)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cache_mb", type=float, default=1000.0)
    parser.add_argument("--without", type=int, nargs="*", default=[1, 8, 15, 22, 29])
    args = parser.parse_args()
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiling.__setitem__(
            0, compiling[0] + seconds * name.startswith("/jax/core/compile")
        )
    )
    overrides = {"max_positions": 4096} if args.model.startswith("nano") else {}
    loaded = load_model(args.model, **overrides)
    plain = LocalModel(Transformer(loaded.config), {"params": loaded.params}, loaded.tokenizer, args.rows)
    with_cache = dataclasses.replace(plain, cache_mb=args.cache_mb)
    for name in ("compiles", "counts"):
        model, before = Counted(dataclasses.replace(with_cache)), compiling[0]
        done = episode(model, args, "an episode")
        stats = model.model.cache.stats
        print(
            f"{name}: {model.seconds:.1f} s, {compiling[0] - before:.1f} s compiling, {stats}, {model.new} new, "
            f"read / new {stats.read / model.new:.3f}",
            flush=True,
        )
    print("| step | tokens of the longest text | with, s | without, s | ratio | replies that differ | score |")
    print("|---|---|---|---|---|---|---|", flush=True)
    ratios, sums = [], np.zeros(2)
    for n in [n for n in args.without if n < args.steps]:
        texts, seconds, said = done[n]
        other = Counted(plain)
        step(other, texts, args)
        differ, replies, largest = differences(other.said, said)
        ratios.append(seconds / other.seconds)
        sums += seconds, other.seconds
        longest = max(len(other.ids(Chat.of(RULES, continued=text))[0]) for text in texts)
        print(
            f"| {n} | {longest} | {seconds:.2f} | {other.seconds:.2f} | {ratios[-1]:.3f} | "
            f"{differ} of {replies} | {largest:.1e} |",
            flush=True,
        )
    if ratios:
        print(
            f"time with / without: best {min(ratios):.3f}, median {np.median(ratios):.3f}, "
            f"of the sums {sums[0] / sums[1]:.3f}"
        )


if __name__ == "__main__":
    main()
