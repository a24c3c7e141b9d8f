"""How built-in models that continue transcripts are made: a tokenizer of phrases, and training on windows of episodes.

Phrases that the game repeats are pre-tokens of their own, each soon one token: a name ("green key", "shelf 2"), a
place ("2 steps left and 1 step forward"), a verdict. So an observation has some twenty tokens, and copying a name is
copying a token; what differs by game is its `Language`. A window begins where the prompt of a full context would: with
the goal, then an observation anywhere in the episode.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
import random
import re
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from nlrl_jax.algorithms.sft import Example, SFTConfig, make_batches, make_sft_step, sft_loss
from nlrl_jax.config import check_seed
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.roles.dialogues import BAD, GOOD, THINK_REPLY, UNKNOWN
from nlrl_jax.types import Chat
from nlrl_jax.weights import huggingface

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LABELS = "Goal of the agent|Observation|Action|Critic|Thought|Reward|Value"
_VERDICT = f" (?:{GOOD}|{BAD}|{UNKNOWN})"
_HEAVY = 3.0
_FROM_START = 0.3  # share of windows that begin with the episode


@dataclasses.dataclass(frozen=True)
class Language:
    """A game's transcripts as its model reads them.

    Attributes:
      names: regular expression of the things' names, with the blank in front.
      place: text whose second-next token gives the position of the thing named in between; "" for none.
      window: maximum tokens of an example. batch: windows per step. positions: of the model: a window, and the
        lines of a rollout.
    """

    names: str
    place: str = ""
    vocab_size: int = 640
    window: int = 256
    batch: int = 16
    positions: int = 320

    def phrases(self) -> str:
        """Regular expression of the tokenizer's pre-tokens."""
        rest = rf"(?:(?!{_VERDICT}|{self.names})[^\n\d.])+?(?=\n|{self.names}|{_VERDICT}| ?\d|\.|$)"
        return rf"\n|(?:{_LABELS}):|{_VERDICT}|{self.names}| \d+ steps?[^\n,.]*|\d|\.|{rest}"

    def config(self) -> ModelConfig:
        """About a million weights."""
        return ModelConfig(
            vocab_size=self.vocab_size, hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4,
            num_kv_heads=4, head_dim=32, max_positions=self.positions, tie_embeddings=True,
        )  # fmt: skip


def train_tokenizer(
    texts: Sequence[str], folder: pathlib.Path, vocab_size: int, words: str = "", tags: Sequence[str] = ()
) -> Tokenizer:
    """A byte-level BPE: any text round-trips. Written to `folder`.

    Args:
      words: regular expression of the pre-tokens; "" is GPT-2's.
      tags: texts that are tokens of their own, the last ids of the vocabulary.
    """
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words:
        split = pre_tokenizers.Split(tokenizers.Regex(words), behavior="isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tags),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.add_tokens([tokenizers.AddedToken(tag, special=False, normalized=False) for tag in tags])
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named, indent=2) + "\n")
    return Tokenizer.from_pretrained(folder)


def windows(
    tokenizer: Tokenizer, language: Language, pairs: Sequence[tuple[Chat, str]], seed: int
) -> Iterator[Example]:
    """Windows of random episodes, for ever: prompt, goal, then lines from an observation on.

    Everything after the prompt is learned, the end token where the episode ends in the window. Names, verdicts and the
    places of reflections weigh `_HEAVY` times as much as other tokens: they are what a rollout is worth.
    """
    rng, (newline,), end = random.Random(seed), tokenizer.encode("\n"), tokenizer.end_id
    place = tokenizer.encode(language.place)[0] if language.place else None
    text_of = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    verdicts = {token for token, text in enumerate(text_of) if re.fullmatch(_VERDICT, text)}
    names = {token for token, text in enumerate(text_of) if re.fullmatch(language.names, text)}

    def weigh(ids: list[int]) -> list[float]:
        heavy = [token in names or token in verdicts or before == place for before, token in zip([-1, -1, *ids], ids)]
        return [_HEAVY if is_heavy else 1.0 for is_heavy in heavy]

    episodes = []
    for chat, text in pairs:
        lines = text.split("\n")
        rows = [[*tokenizer.encode(line), newline] for line in lines]
        weights = [weigh(row) for row in rows]
        rows[-1].pop()
        weights[-1].pop()
        places = itertools.accumulate(map(len, rows[1:]), initial=0)
        observed = [line.startswith("Observation:") and line != f"Observation: {THINK_REPLY}" for line in lines[1:]]
        starts = list(itertools.compress(places, observed))
        head = tokenizer.encode(tokenizer.render_chat(chat.messages))
        body = list(itertools.chain(*rows[1:])), list(itertools.chain(*weights[1:]))
        episodes.append((head, rows[0], weights[0], *body, starts))
    while True:
        head, goal, goal_weights, body, body_weights, starts = rng.choice(episodes)
        room = language.window - len(head) - len(goal)
        full = [start for start in starts if len(body) - start >= room // 2]
        start = rng.choice(full) if full and rng.random() >= _FROM_START else 0
        tokens = [*head, *goal, *body[start : start + room]]
        weights = [*goal_weights, *body_weights[start : start + room]]
        if len(body) - start <= room and len(tokens) < language.window:
            tokens, weights = [*tokens, end], [*weights, 1.0]
        yield Example(tokens, len(head), weights)


def pretrain(
    out: pathlib.Path,
    language: Language,
    pairs: Sequence[tuple[Chat, str]],
    steps: int,
    learning_rate: float,
    seed: int,
    init_from: str = "",
) -> None:
    """Trains tokenizer and weights on episodes, given as (prompt, continuation), and writes them to `out`.

    Args:
      init_from: the folder of a model to continue from, with its tokenizer; "" starts from scratch.
    """
    if init_from:
        tokenizer = Tokenizer.from_pretrained(init_from)
        _, params = huggingface.load(init_from, dtype="float32", param_dtype="float32")
    else:
        texts = ["system\n", "user\n", "assistant\n"] * 1000
        texts += [text for chat, reply in pairs[:3000] for text in (chat.messages[0]["content"] + "\n", reply)]
        tokenizer, params = (
            train_tokenizer(texts, out, language.vocab_size, language.phrases()),
            init_params(Transformer(language.config()), jax.random.key(check_seed(seed))),
        )
    model = Transformer(language.config())
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, min(100, steps // 10), steps, learning_rate / 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.01))
    variables = {"params": params}
    opt_state = optimizer.init(variables["params"])
    step = jax.jit(make_sft_step(functools.partial(sft_loss, model), optimizer, "params"), donate_argnums=(0, 1))
    rows = windows(tokenizer, language, pairs, seed)
    form = SFTConfig(batch_size=language.batch, max_length=language.window, packed=True)
    clock, recent = time.monotonic(), []
    for i in range(steps):
        batch = make_batches([next(rows) for _ in range(language.batch)], form, np.arange(language.batch))[0]
        variables, opt_state, metrics = step(variables, opt_state, batch)
        recent.append(metrics["loss"])
        if (i + 1) % 100 == 0 or i + 1 == steps:
            loss, recent = float(np.mean(jax.device_get(recent))), []
            print(f"{i + 1}/{steps} loss {loss:.4f} ({time.monotonic() - clock:.0f} s)", flush=True)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), variables["params"])
    huggingface.save(out, model.config, params, tokenizer)
    print(f"wrote {out}")
