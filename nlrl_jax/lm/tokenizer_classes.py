"""Tokenizers that classes of `transformers` 5 build, with no more of tokenizer.json than its vocabulary and merges.

    spec = CLASSES["GemmaTokenizer"].rebuild(spec, tokenizer_config)

Published files may say something else: Llama-2's tokenizer.json puts a space before each piece of text between special
tokens, its class before the first piece alone unless `legacy` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nlrl_jax.lm.borders import SPACE

# The published pre-tokenizer pattern of the Qwen and Llama-3 families; they differ in DIGITS.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = SPLIT.replace("DIGITS", r"\p{N}")
# A combining mark belongs to the letters before it.
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")

Json = dict[str, Any]


class TokenizerClass(NamedTuple):
    """A class of tokenizers.

    rebuild: (tokenizer.json, tokenizer_config.json) -> the tokenizer.json of what the class builds.
    special_tokens: name -> text, where the folder names none.
    adds_bos: a text begins with the bos, whatever the post-processor in tokenizer.json adds.
    """

    rebuild: Callable[[Mapping[str, Any], Mapping[str, Any]], Json]
    special_tokens: Mapping[str, str]
    adds_bos: bool = False


def _byte_level(spec: Mapping[str, Any], splits: list[Json], normalizer: Json | None, **level: bool) -> Json:
    """A byte-level BPE."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **level}
    model = {"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    model |= {name: spec["model"][name] for name in ("vocab", "merges")}
    split = {"type": "Sequence", "pretokenizers": [*splits, level]} if splits else level
    decoder = {**level, "add_prefix_space": False, "use_regex": True}
    parts = {"normalizer": normalizer, "pre_tokenizer": split, "decoder": decoder, "model": model}
    return {**spec, "added_tokens": [], **parts}


def _gpt2(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Json:
    return _byte_level(spec, [], None, add_prefix_space=bool(config.get("add_prefix_space")))


def _qwen2(spec: Mapping[str, Any], config: Mapping[str, Any], pattern: str = QWEN2) -> Json:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    adds_space = bool(config.get("add_prefix_space"))
    return _byte_level(spec, [split], {"type": "NFC"}, add_prefix_space=adds_space, use_regex=False)


def _qwen3_5(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Json:
    return _qwen2(spec, config, QWEN35)


def _sentencepiece(
    spec: Mapping[str, Any], unknown: str | None, strips: bool, normalizer: Json | None, pre_tokenizer: Json
) -> Json:
    """A BPE over whole texts with bytes for unknown characters. strips: decoding leaves out the first space."""
    model = {"type": "BPE", "unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    model |= {name: spec["model"][name] for name in ("vocab", "merges")}
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strips:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model}
    return {**spec, "added_tokens": [], **parts, "decoder": {"type": "Sequence", "decoders": decoders}}


def _adds_space(config: Mapping[str, Any]) -> bool:
    """Whether a space is put before a text, as is the default."""
    adds_space = config.get("add_prefix_space")
    return True if adds_space is None else bool(adds_space)


def _metaspace(scheme: str) -> Json:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def _llama(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Json:
    adds_space = _adds_space(config)
    scheme = ("always" if config.get("legacy") else "first") if adds_space else "never"
    return _sentencepiece(spec, None, adds_space, None, _metaspace(scheme))


def _code_llama(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Json:
    unknown = _text(config.get("unk_token", "<unk>"))
    return _sentencepiece(spec, unknown, True, None, _metaspace("first" if _adds_space(config) else "never"))


def _gemma(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Json:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return _sentencepiece(spec, _text(config.get("unk_token", "<unk>")), False, replace, split)


def _text(token: Any) -> Any:
    return token.get("content") if isinstance(token, Mapping) else token


_END = "<|endoftext|>"
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_INFILLING = {f"{role}_token": f"{SPACE}<{role[:3].upper()}>" for role in ("prefix", "middle", "suffix", "eot")}
_GEMMA = {f"{role}_token": f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")}
CLASSES = {
    "GPT2Tokenizer": TokenizerClass(_gpt2, {"bos_token": _END, "eos_token": _END, "unk_token": _END}),
    "Qwen2Tokenizer": TokenizerClass(_qwen2, {"eos_token": _END, "unk_token": _END, "pad_token": _END}),
    "Qwen3_5Tokenizer": TokenizerClass(_qwen3_5, {"eos_token": _END, "unk_token": _END, "pad_token": _END}),
    "LlamaTokenizer": TokenizerClass(_llama, _LLAMA),
    "CodeLlamaTokenizer": TokenizerClass(_code_llama, {**_LLAMA, **_INFILLING, "fill_token": "<FILL_ME>"}, True),
    "GemmaTokenizer": TokenizerClass(_gemma, _GEMMA),
}
