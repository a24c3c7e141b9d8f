"""What the built-in models were trained to read and write stays as it was, byte for byte."""

import hashlib
import random
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.babyai import corpus, transcripts
from nlrl_jax.envs.tic_tac_toe import prompts, rules
from nlrl_jax.launch import pretrain_nano
from nlrl_jax.roles.dialogues import NOTES, Dialogue, History, Step
from nlrl_jax.text.prompts import chat_prompt


def grid(name: str) -> Iterator[str]:
    """Prompts of nano, and the reply that demonstrations give."""
    game = envs.make(name, prompt="compact")
    template = chat_prompt(game, lambda messages: "\n".join(m["content"] for m in messages), "compact", 9)
    for seed in range(3):
        _, state = game.env.reset_env(jax.random.key(seed), game.params)
        yield template.render(jax.tree.map(np.asarray, game.fields(state)))
    yield pretrain_nano.reply_template(game, "compact").render({"shown": (0, 3), "num_shown": 2})


def pairs(made) -> Iterator[str]:
    for chat, reply in made:
        yield from (message["content"] for message in chat.messages)
        yield reply


def threats() -> Iterator[str]:
    fields = rules.fields(rules.init())
    fields |= rules.threat_fields(fields["cells"])
    yield prompts.policy_template("compact", threats=True)[0].render(jax.tree.map(np.asarray, fields))


def babyai() -> Iterator[str]:
    """Transcripts and labels of nano_babyai."""
    rng = random.Random(0)
    walked = corpus.walk("all", range(6), [corpus.Walker()] * 6, transcripts.KINDS, [8] * 6)
    yield from pairs(corpus.example(transcript, rng) for transcript in walked)
    past = History("go to the key", "You see a wall", (Step("turn left", "You see a key", "It is seen."),), "None.")
    for label in NOTES:
        dialogue = Dialogue.of("", label, compact=True, thinks=not label)
        yield from (message["content"] for message in dialogue.chat(past, "Action:").messages)


LEARNED = {
    "nano, FrozenLake": (lambda: grid("frozen_lake"), "e970e554e28500a9"),
    "nano, slippery FrozenLake": (lambda: grid("frozen_lake_slippery"), "c3f32bb9952721ea"),
    "nano, Snake": (lambda: grid("snake"), "899c3f353508c3ec"),
    "nano, poisonous Snake": (lambda: grid("snake_poison"), "fe6a96fab41aca9a"),
    "nano_board, tic-tac-toe": (lambda: pairs(pretrain_nano.tic_tac_toe_pairs(4, 0)), "123f3acdb02a194e"),
    "nano_board, tic-tac-toe's threats": (threats, "5cd288397e74336c"),
    "nano_board, breakthrough": (lambda: pairs(pretrain_nano.breakthrough_pairs(4, 0)), "860655f76312ccea"),
    "nano_babyai": (babyai, "c60897828efe255b"),
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_a_built_in_model_has_learned_to_read_is_unchanged(name):
    texts, known = LEARNED[name]
    assert hashlib.sha256("\0".join(texts()).encode()).hexdigest()[:16] == known
