"""A tokenizer from the metadata of a GGUF file, with `tokenizers` alone."""

from __future__ import annotations

import pathlib

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.tokenizer_files import QWEN2, SPLIT
from nlrl_jax.weights.gguf import open_gguf

LLAMA3 = SPLIT.replace("DIGITS", r"\p{N}{1,3}")


def split_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Splits by a regular expression, then maps bytes to GPT-2's printable characters."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(digits: bool) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    return pre_tokenizers.Sequence([*first, byte_level])


PRE_TOKENIZERS = {
    "smollm": lambda: _gpt2(digits=True),
    "gpt-2": lambda: _gpt2(digits=False),
    "default": lambda: _gpt2(digits=False),
    "qwen2": lambda: split_pattern(QWEN2),
    "llama-bpe": lambda: split_pattern(LLAMA3),
}

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types


def tokenizer_from_gguf(path: str | pathlib.Path) -> Tokenizer:
    """The tokenizer that a GGUF file carries: byte-level BPE with the family's pre-tokenizer.

    Special are the entries of `token_type` 3 (control); type 4 (user defined) is matched whole but is text.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a damaged file, not a byte-level BPE, or a pre-tokenizer this function does not know.
    """
    path = pathlib.Path(path)
    fields = open_gguf(path).fields

    def read(name, default=None):
        field = fields.get(f"tokenizer.{name}")
        return default if field is None else field.contents()

    model, pre = read("ggml.model"), read("ggml.pre", "default")
    if model != "gpt2":
        raise ValueError(f"{path} has a tokenizer of kind {model!r}; only 'gpt2' (byte-level BPE) is read")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"{path} names the pre-tokenizer {pre!r}; known are {sorted(PRE_TOKENIZERS)}")
    tokens, types = read("ggml.tokens"), read("ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in read("ggml.merges")]
    backend = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=pre == "llama-bpe")
    )
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    user = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in user])

    def token_at(name):
        index = read(f"ggml.{name}_token_id")
        return None if index is None else tokens[index]

    eot = read("ggml.eot_token_id")
    return Tokenizer.create(
        backend,
        chat_template=read("chat_template"),
        bos_token=token_at("bos"),
        eos_token=token_at("eos"),
        pad_token=token_at("padding"),
        eos_ids=() if eot is None else (eot,),
    )
