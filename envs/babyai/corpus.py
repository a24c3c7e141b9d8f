"""Transcripts of BabyAI-Text as a corpus: the training data of nano_babyai."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from nlrl_jax.envs.babyai.transcripts import WANDERER, NotedEpisode, Walker, walk
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.types import Chat

# Share of each kind of notes; see `transcripts.KINDS`.
SHARES = {"Critic": 0.5, "": 0.1, "Value": 0.1, "Reward": 0.1, "Thought": 0.1, "Think": 0.1}
WANDERERS = 0.2  # share of walkers that act at random half of the time
_VALUE = 0.2  # share of observations followed by a line of value
_CHUNK = 512
NAMES = " (?:red|green|blue|purple|yellow|grey) (?:key|ball|box|door)"
PLACE = " Next: red ball 1 step left."  # the beginning of it stands in front of a name and its place


def dialogue_of(kind: str) -> Dialogue:
    """Returns the short prompt of the built-in model for a kind of notes."""
    return Dialogue.of("", "" if kind == "Think" else kind, compact=True, thinks=kind == "Think")


def example(transcript: NotedEpisode, rng: random.Random) -> tuple[Chat, str]:
    """Turns a transcript into (prompt, the whole text after it)."""
    dialogue, history = dialogue_of(transcript.kind), transcript.history
    if transcript.kind == "Value":
        notes = [value if rng.random() < _VALUE else "" for value in transcript.values]
        steps = tuple(step._replace(note=note) for step, note in zip(history.steps, notes[1:], strict=True))
        history = dataclasses.replace(history, steps=steps, note=notes[0])
    return Chat.of(dialogue.instructions), dialogue.text(history)


def corpus(episodes: int, seed: int) -> Iterator[tuple[Chat, str]]:
    """Yields `episodes` examples of all missions and kinds of notes; the same seed gives the same ones."""
    rng = random.Random(seed)
    for first in range(0, episodes, _CHUNK):
        n = min(_CHUNK, episodes - first)
        kinds = rng.choices(list(SHARES), list(SHARES.values()), k=n)
        walkers = [WANDERER if rng.random() < WANDERERS else Walker() for _ in range(n)]
        seeds = [(seed << 24) + first + i for i in range(n)]
        for transcript in walk("all", seeds, walkers, kinds, [rng.randint(15, 30) for _ in range(n)]):
            yield example(transcript, rng)
