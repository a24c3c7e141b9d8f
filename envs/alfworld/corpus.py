"""Transcripts of ALFWorld as a corpus, from which a small model can learn the game's language."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from envs.alfworld import games
from envs.alfworld.transcripts import WANDERER, Walker, walk
from envs.babyai.corpus import SHARES, WANDERERS, example
from nlrl_jax.types import Chat


def corpus(episodes: int, seed: int) -> Iterator[tuple[Chat, str]]:
    """`episodes` examples of all kinds of tasks and notes, in the rooms for training; a function of the seed."""
    rng = random.Random(seed)
    for i in range(episodes):
        (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
        walker = WANDERER if rng.random() < WANDERERS else Walker()
        task = games.KINDS[i % len(games.KINDS)]
        yield example(walk(task, (seed << 24) + i, walker, kind, rng.randint(15, 40)), rng)


def names(pairs: Sequence[tuple[Chat, str]]) -> str:
    """A regular expression of the names in a corpus: " shelf", and its number " 2" apart.

    So the "mug" of a goal is the token that "mug 1" begins with, and looking it up is a comparison.
    """
    kinds = sorted({kind for _, text in pairs for kind in re.findall(r" ([a-z]+) \d+(?!/)", text)}, reverse=True)
    return rf" (?:{'|'.join(kinds)})(?![a-z])| \d+"
