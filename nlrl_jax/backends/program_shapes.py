"""Shapes of the programs for growing texts: few, as each must be compiled, and none much costlier than needed.

A shape is (queries, and G groups, C keys, N queries of a group for each level of context). A program that is larger
than a call needs is used until it has wasted as much as compiling a better one takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nlrl_jax.backends import batching
from nlrl_jax.lm import acting
from nlrl_jax.lm.config import ModelConfig

Shape = tuple[int, ...]
COMPILING = 30e9  # multiplications in the time that it takes for a small model: about a second of one core
SLOWER = {"read": 3, "reply": 8}  # times as long for a large model, whose layers are compiled one by one for replies
# How much more a new program may cost than what is needed, if it can then do an older one's work too: a factor, but no
# more than a call may waste (of a large model a third is many compilations), and in any case a little.
FACTOR, WASTE, MORE = 1.3, 1 / 4, 1 / 100  # the last two: shares of a compilation
READ, LOAD = 14, 20  # multiplications in the time that reading a key for all its queries, and loading it, take
STEPS = {"read": 1, "reply": 12}  # typical uses of a program's shape in a call
GRAIN = {"read": 32, "reply": 4}  # queries are a multiple of this, and this times a power of two in a small model


class Shapes:
    """What has been compiled for one model, and how much each program has wasted since the last one was.

    Its choices follow from the calls alone, so that a run repeats itself to the bit.
    """

    def __init__(self, config: ModelConfig):
        self.config = config
        table = config.vocab_size * config.hidden_size
        blocks = config.num_params - table * (1 if config.tie_embeddings else 2)
        self.weights = {"read": blocks, "reply": blocks + table}
        self.large = 4 * blocks / config.num_layers >= acting.LARGE
        self.room = WASTE if self.large else MORE
        self.compiling = {program: COMPILING * (SLOWER[program] if self.large else 1) for program in STEPS}
        self.wasted: dict[str, dict[Shape, float]] = {program: {} for program in STEPS}

    def dump(self) -> dict[str, list[Any]]:
        """What its next choices depend on, as JSON."""
        return {program: [[list(shape), waste] for shape, waste in of.items()] for program, of in self.wasted.items()}

    def load(self, dumped: Mapping[str, Sequence[Any]]) -> None:
        """Chooses from now on as the one that was dumped."""
        self.wasted = {program: {tuple(shape): waste for shape, waste in of} for program, of in dumped.items()}

    def cost(self, program: str, shape: Shape) -> float:
        """Multiplications by weights and keys, and what takes as long: the reading of keys, and before it their loading
        from the cache, once per call."""
        c, load = self.config, READ + LOAD / STEPS[program]
        keys = sum(G * C * (N * c.num_heads + load * c.num_kv_heads) for G, C, N in zip(*[iter(shape[1:])] * 3))
        return shape[0] * self.weights[program] + 2 * keys * c.head_dim * c.num_layers

    def queries(self, program: str, n: int) -> int:
        """The padded number of n queries: few numbers where padding is cheap, little padding where it is not."""
        grain = GRAIN[program]
        few, exact = batching.bucket(n, grain), -(-n // grain) * grain
        return few if (few - exact) * self.weights[program] * STEPS[program] <= WASTE * COMPILING else exact

    def keys(self, n: int) -> int:
        """The padded number of n keys: of a large model few numbers, as reading keys is a small part of its work."""
        exact, power = -(-n // 64) * 64, batching.bucket(n, 64)
        few = power * 3 // 4 if exact <= power * 3 // 4 else power
        return few if self.large and power > 128 else exact

    def choose(self, program: str, wanted: Sequence[Shape]) -> tuple[int, Shape]:
        """Which of the alternatives `wanted` to take, and the shape of the program for it."""
        wasted, compiling = self.wasted[program], self.compiling[program]
        cost = lambda shape: self.cost(program, shape)
        least, cheapest = min((cost(shape), i) for i, shape in enumerate(wanted))
        fits = [(cost(have), i, have) for have in wasted for i, want in enumerate(wanted) if _holds(have, want)]
        if fits:
            price, i, have = min(fits)
            waste = wasted[have] + (price - least) * STEPS[program]
            if waste <= compiling:
                wasted[have] = waste
                return i, have
            wasted[have] = 0.0
        waste, more = WASTE * compiling / STEPS[program], MORE * compiling / STEPS[program]
        most = least + min((FACTOR - 1) * least, waste) + more
        best = wanted[cheapest]
        for have in sorted(wasted, key=cost, reverse=True):
            both = tuple(map(max, have, best))
            best = both if cost(both) <= most else best
        # And longer texts and larger groups, where that costs next to nothing; of a large model, texts that still grow,
        # which the first level's do not if there are others.
        room = self.room * compiling / STEPS[program]
        growing = range(len(best) - 2, 2 if len(best) > 4 else 0, -3)
        for i in growing if self.large else 2 * (*range(1, len(best)),):
            twice = (*best[:i], 2 * best[i], *best[i + 1 :])
            best = twice if cost(twice) <= least + room else best
        wasted[best] = 0.0
        return cheapest, best


def _holds(shape: Shape, wanted: Shape) -> bool:
    return all(have >= want for have, want in zip(shape, wanted, strict=True))
