"""A small vocabulary like SentencePiece's, BPE over whole texts with bytes for unknown characters, in all its forms."""

from __future__ import annotations

import functools
import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from nlrl_jax.lm.tokenizer import Tokenizer

SPACE = "\u2581"
LLAMA2_CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ '[INST] <<SYS>>\n' + m['content'] + "
    "'\n<</SYS>>\n\n' }}{% elif m['role'] == 'user' %}{{ m['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
CONTROL = ("<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>")
LINES = ["You are playing a game, one turn at a time. Reply in at most 64 words.", "[Game State]", "Holes: none"] * 4
LINES += ["<observe>Up</observe><think>Down</think><plan>Left || Right</plan><action>Up || Left</action>"] * 4
LINES += ["Player position: (0, 3)", "Holes: (1, 3), (2, 10)", "Goal: (3, 0)", "P _ O _", "_ _ G _", "> </a> </b>"] * 4

# How the forms write spaces: normalizer, pre-tokenizer, chat template. "legacy", "first" and "always" are Llama's and
# Mistral's of several years, "gemma" is Gemma's, "words" never merges over a space.
_REPLACE = normalizers.Replace(" ", SPACE)
FORMS = {
    "gemma": lambda: (_REPLACE, pre_tokenizers.Split(" ", "merged_with_previous"), GEMMA_CHAT),
    "legacy": lambda: (normalizers.Sequence([normalizers.Prepend(SPACE), _REPLACE]), None, LLAMA2_CHAT),
    "first": lambda: (None, pre_tokenizers.Metaspace(SPACE, "first", split=False), LLAMA2_CHAT),
    "always": lambda: (None, pre_tokenizers.Metaspace(SPACE, "always", split=False), LLAMA2_CHAT),
    "words": lambda: (None, pre_tokenizers.Metaspace(SPACE, "first", split=True), LLAMA2_CHAT),
}


@functools.cache
def learned() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(characters and the tokens that merges make, the merges): like SentencePiece's, a digit or newline is alone."""
    backend = tokenizers.Tokenizer(models.BPE())
    alone = pre_tokenizers.Split(tokenizers.Regex(r"\d|\n|(?<=\w)\p{P}|\p{P}(?=\w)"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(SPACE, "never"), alone])
    backend.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(backend.to_str())["model"]
    merges = [*map(tuple, model["merges"]), (">", SPACE), ("<", "/"), (f">{SPACE}", "</"), ("\n", "\n")]
    return tuple(dict.fromkeys([*model["vocab"], "\n", *map("".join, merges)])), tuple(dict.fromkeys(merges))


@functools.cache
def small(form: str = "gemma", bytes_of_unknown: bool = True) -> Tokenizer:
    """The vocabulary in one of `FORMS`."""
    tokens, merges = learned()
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)] if bytes_of_unknown else []
    vocabulary = {token: i for i, token in enumerate([*CONTROL, *in_bytes, *tokens])}
    model = models.BPE(
        vocabulary, list(merges), unk_token="<unk>", byte_fallback=bytes_of_unknown, fuse_unk=bytes_of_unknown
    )
    backend = tokenizers.Tokenizer(model)
    normalizer, pre_tokenizer, chat = FORMS[form]()
    if normalizer:
        backend.normalizer = normalizer
    if pre_tokenizer:
        backend.pre_tokenizer = pre_tokenizer
    strip = [decoders.Strip(" ", 1, 0)] if form != "gemma" else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    eos = "<end_of_turn>" if form == "gemma" else "</s>"
    return Tokenizer.create(backend, chat, bos_token="<s>", eos_token=eos, pad_token="<unk>")
