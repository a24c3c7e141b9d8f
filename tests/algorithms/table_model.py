"""A language model that remembers word for word: what algorithms can learn with, without a network."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict

from nlrl_jax.types import Reply


class TableModel:
    """Answers a chat with what it was taught for it: the most frequent reply, or a draw by frequency above temperature
    0.

    To a chat it was not taught it writes `guess(randomness)`, and above temperature 0 to every fourth one it was, so
    that it does not stop to explore.
    """

    can_score = False

    def __init__(self, table=None, guess=lambda rng: ""):
        self.table, self.guess = table or {}, guess

    def complete(self, chats, sampling, role, seed=0, stop=()):
        return [Reply(self._answer(chat, sampling, f"{seed}/{role}/{i}")) for i, chat in enumerate(chats)]

    def _answer(self, chat, sampling, seed):
        known, rng = self.table.get(_key(chat)), random.Random(seed)
        if known is None or (sampling.temperature > 0 and rng.random() < 0.25):
            return self.guess(rng)
        if sampling.temperature == 0:
            return min(known, key=lambda text: (-known[text], text))
        texts = sorted(known)
        return rng.choices(texts, [known[text] for text in texts])[0]

    def score(self, chats, continuations, role):
        raise NotImplementedError


def learn(model, pairs):
    """The model with these pairs; they replace what it knew about their chats."""
    taught = defaultdict(Counter)
    for chat, reply in pairs:
        taught[_key(chat)][reply] += 1
    return TableModel({**model.table, **taught}, model.guess), {"examples": len(pairs)}


def _key(chat):
    return json.dumps(list(chat.messages))
