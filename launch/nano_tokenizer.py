"""The tokenizer of the built-in models: a small byte-level BPE with a ChatML template."""

from __future__ import annotations

import json
import pathlib

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.text.prompts import TAGS

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: list[str], folder: pathlib.Path, vocab_size: int, by_blanks: bool = False) -> Tokenizer:
    """A byte-level BPE of `vocab_size` tokens: any text round-trips; the reply's tags are tokens of their own."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tags = [f"<{slash}{tag}>" for tag in TAGS["paper"] for slash in ("", "/")]
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if by_blanks:
        words = pre_tokenizers.Split(tokenizers.Regex(r" ?[^\s]+|\s"), behavior="isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
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
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return Tokenizer.from_pretrained(folder)
