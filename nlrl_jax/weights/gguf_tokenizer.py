"""A tokenizer from the metadata of a GGUF file, with `tokenizers` alone."""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from nlrl_jax.lm.spelling import byte_table
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.lm.tokenizer_classes import QWEN2, QWEN35, SPLIT
from nlrl_jax.lm.tokenizer_files import TokenizerFiles, adding_bos
from nlrl_jax.weights.gguf_file import GGUFFile
from nlrl_jax.weights.gguf_sentencepiece import merges_by_score, sentencepiece_backend

LLAMA3 = SPLIT.replace("DIGITS", r"\p{N}{1,3}")


def split_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Splits by a regular expression, then maps bytes to GPT-2's printable characters."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(digits: bool) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    return pre_tokenizers.Sequence([*first, byte_level])


def _default() -> pre_tokenizers.PreTokenizer:
    """What llama.cpp takes where a file names none: punctuation, GPT-2's rule, and numbers three digits at a time."""
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    patterns = (r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", "[0-9][0-9][0-9]")
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# Names that llama.cpp (src/llama-vocab.cpp) treats alike stand together. Llama-3's take a word that is a token as it
# is, and put the bos before a prompt where a file does not say.
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
PRE_TOKENIZERS = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), lambda: _gpt2(digits=True)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), lambda: _gpt2(digits=False)),
    "default": _default,
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), lambda: split_pattern(QWEN2)),
    "qwen35": lambda: split_pattern(QWEN35),
    **dict.fromkeys(_LLAMA3, lambda: split_pattern(LLAMA3)),
}

# Texts of tokens that end a reply wherever they are in a vocabulary, whatever their type (llama.cpp, the same file).
_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[ "
    "<｜end▁of▁sentence｜>".split()
)
# Tokens of code models that end one too: the key that names it, or else these texts.
_CODE_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
# How a key ends -> the type of its value; the others are strings.
_KINDS = {"_token_id": int, ("_bos_token", "_prefix"): bool, ("tokens", "merges", "token_type", "scores"): list}
_UNDEFINED, _NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(7)  # GGUF token types
_ROLES = ("bos", "eos", "pad")
_JOINED = (_NORMAL, _USER_DEFINED, _UNUSED)  # what SentencePiece's merges make: no text becomes a control token


def tokenizer_from_gguf(path: str | pathlib.Path) -> Tokenizer:
    """The tokenizer that a GGUF file carries: byte-level BPE with the family's pre-tokenizer, or SentencePiece's BPE.

    Special are the entries of `token_type` 2 and 3 (unknown, control) and those that end a reply; type 4 (user
    defined) is matched whole but is text. Types 0 and 5 (undefined, unused) have no text, and those of them behind
    all other tokens, which fill the weights up, are left out; type 6, "<0x0A>", is a byte. Replies end where llama.cpp
    ends them: at the tokens of the keys eos, eot and eom, and at some that are known by their text. Where a prompt
    begins with the bos, the chat template writes it.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a damaged file, another kind of tokenizer, or an unknown pre-tokenizer.
    """
    path = pathlib.Path(path)
    metadata = GGUFFile(path).metadata

    def read(name, default=None):
        value = metadata.get(f"tokenizer.{name}", default)
        kind = next((kind for suffix, kind in _KINDS.items() if name.endswith(suffix)), str)
        if value is not None and type(value) is not kind:
            raise ValueError(f"{path} has tokenizer.{name} = {str(value)[:40]}; it must be of type {kind.__name__}")
        return value

    model = read("ggml.model")
    if model not in ("gpt2", "llama"):
        raise ValueError(
            f"{path} has a tokenizer of kind {model!r:.60}; only 'gpt2' (byte-level BPE) and 'llama' (SentencePiece's) "
            "are read"
        )
    is_byte_level = model == "gpt2"
    pre = _pre_tokenizer_name(path, read("ggml.pre")) if is_byte_level else ""
    # 1. The vocabulary, and what its rows stand for.
    tokens = [
        token or f"[EMPTY_{i}]" for i, token in enumerate(_entries(path, read, "tokens", str))
    ]  # llama.cpp's name
    types = read("ggml.token_type", [_NORMAL] * len(tokens))
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens) or len(types) < len(tokens):
        fault = "lists a token twice" if len(ids) < len(tokens) else f"gives a type to {len(types)} tokens only"
        raise ValueError(f"{path}: its vocabulary of {len(tokens)} tokens {fault}")
    end_ids = _ends(path, tokens, ids, read)
    named = {role: _token_id(path, tokens, read, role) for role in ("bos", "eos", "padding")}
    read_as = _read_as(tokens, types, ids, end_ids, is_byte_level)
    # 2. Its merges. Unused rows behind all others are left out, unless a merge makes them.
    if is_byte_level:
        merges = _pairs(path, _entries(path, read, "merges", str))
    else:
        scores = _entries(path, read, "scores", float)
        if len(scores) < len(tokens):
            raise ValueError(f"{path}: its vocabulary of {len(tokens)} tokens gives a score to {len(scores)} only")
        merges = merges_by_score(tokens, scores, [kind in _JOINED for kind in types])
    joined = {left + right for left, right in merges} if len(ids) - 1 in read_as else set()
    while (last := len(ids) - 1) in read_as.keys() - named.values() and not {tokens[last]} & joined:
        del ids[tokens[last]], read_as[last]
    # 3. The tokenizer, with the tokens that are matched before all merges.
    if is_byte_level:
        backend = _byte_level_backend(path, ids, merges, pre)
    else:
        unknown = _token_id(path, tokens, read, "unknown")
        unknown = None if unknown is None else tokens[unknown]
        backend = sentencepiece_backend(ids, merges, unknown, adds_space=read("ggml.add_space_prefix", True))
    special = [t for t, i in ids.items() if types[i] in (_UNKNOWN, _CONTROL) or i in end_ids]
    user = [t for t, i in ids.items() if types[i] == _USER_DEFINED and i not in end_ids]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in user])
    # 4. What begins and ends texts.
    by_role = {f"{role}_token": None if i is None else tokens[i] for role, i in zip(_ROLES, named.values())}
    bos, add_bos = by_role["bos_token"], read("ggml.add_bos_token")
    if add_bos and bos is None:
        raise ValueError(f"{path}: tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing")
    by_default = pre in _LLAMA3 or not is_byte_level
    adds_bos = bos is not None and (by_default if add_bos is None else add_bos)
    special_tokens = {role: token for role, token in by_role.items() if token is not None}
    post_processor = adding_bos(bos, backend) if adds_bos else None
    files = TokenizerFiles(backend, post_processor, special_tokens, read("chat_template"), clean_up=False)
    tokenizer = Tokenizer.of_files(files, {"bos": (), "eos": tuple(sorted(end_ids)), "pad": ()})
    tokenizer = dataclasses.replace(tokenizer, read_as=read_as)
    return _begin_with_bos(tokenizer) if adds_bos else tokenizer


def _entries(path: pathlib.Path, read: Callable[..., Any], name: str, kind: type) -> list[Any]:
    """A list of the vocabulary, which must be there and hold entries of one type."""
    entries = read(f"ggml.{name}")
    if entries is None:
        raise ValueError(f"{path} lacks the metadata key tokenizer.ggml.{name}")
    if wrong := [entry for entry in entries if not isinstance(entry, kind)]:
        expected = "texts" if kind is str else "numbers"
        raise ValueError(f"{path} has {str(wrong[0])[:40]} in tokenizer.ggml.{name}; it must hold {expected}")
    return entries


def _pre_tokenizer_name(path: pathlib.Path, pre: str | None) -> str:
    if not pre:
        warnings.warn(
            f"{path} does not name its pre-tokenizer (tokenizer.ggml.pre); llama.cpp's default is taken, which may "
            "split text differently from what the model has seen: a newly converted file is better",
            stacklevel=3,
        )
    pre = pre or "default"
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"{path} names the pre-tokenizer {pre!r:.60}; known are {sorted(PRE_TOKENIZERS)}")
    return pre


def _read_as(
    tokens: list[str], types: list[int], ids: dict[str, int], end_ids: set[int], is_byte_level: bool
) -> dict[int, int | None]:
    """Tokens whose text is not what stands in the vocabulary, as llama.cpp writes them: `Tokenizer.read_as`."""
    texts: dict[int, int | None] = {}
    if is_byte_level:  # SentencePiece's decoder reads tokens of bytes
        byte = {f"<0x{value:02x}>": ids.get(character) for value, character in byte_table().items()}
        texts = {i: byte.get(tokens[i].lower()) for i, kind in enumerate(types[: len(tokens)]) if kind == _BYTE}
    texts |= dict.fromkeys(i for i, kind in enumerate(types[: len(tokens)]) if kind in (_UNDEFINED, _UNUSED))
    return {i: text_id for i, text_id in texts.items() if i not in end_ids}


def _pairs(path: pathlib.Path, merges: list[str]) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    if whole := [merge for merge, pair in zip(merges, pairs) if len(pair) < 2]:
        raise ValueError(f"{path}: tokenizer.ggml.merges has {whole[0]!r}; a merge is two tokens with a space between")
    return pairs


def _byte_level_backend(
    path: pathlib.Path, ids: dict[str, int], pairs: list[tuple[str, str]], pre: str
) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer(models.BPE(ids, pairs, ignore_merges=pre in _LLAMA3))
    except Exception as error:  # the Rust library raises nothing more specific
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: tokenizer.ggml.merges does not fit its vocabulary: {reason}") from None
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    if pre in ("qwen2", "deepseek-r1-qwen", "qwen35"):
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _token_id(path: pathlib.Path, tokens: list[str], get: Callable[..., Any], role: str) -> int | None:
    index = get(f"ggml.{role}_token_id")
    if index is not None and not 0 <= index < len(tokens):
        raise ValueError(f"{path}: tokenizer.ggml.{role}_token_id is {index}; the vocabulary has {len(tokens)} tokens")
    return index


def _ends(path: pathlib.Path, tokens: list[str], ids: dict[str, int], get: Callable[..., Any]) -> set[int]:
    """Ids that end a reply, by llama.cpp's rules."""
    end_ids = {ids[text] for text in _ENDS & ids.keys()}
    for role in ("eos", "eot", "eom", *_CODE_ENDS):
        index = _token_id(path, tokens, get, role)
        if index is not None:
            end_ids.add(index)
        else:
            end_ids |= {ids[text] for text in _CODE_ENDS.get(role, ()) if text in ids}
    texts = {tokens[i] for i in end_ids}
    if texts & {"<|call|>", "<|calls|>"} and texts & {"<|return|>", "<|flush|>"}:
        end_ids.discard(ids.get("<|end|>"))  # in gpt-oss and Solar it ends a part of a reply
    if "<|tool_response>" in texts:  # Gemma 4
        end_ids.discard(ids.get("</s>"))
    if not end_ids:
        warnings.warn(f"{path} names no token that ends a reply; replies run to their limit", stacklevel=3)
    return end_ids


def _begin_with_bos(tokenizer: Tokenizer) -> Tokenizer:
    """With a chat template whose text begins with the bos, once, as llama.cpp's prompts do."""
    if tokenizer.chat_template is None:
        return tokenizer
    try:
        has_bos = tokenizer.render_chat([{"role": "user", "content": "."}]).startswith(tokenizer.bos_token)
    except ValueError:  # a template that wants another chat
        return tokenizer
    template = ("" if has_bos else "{{ bos_token }}") + tokenizer.chat_template
    return dataclasses.replace(tokenizer, chat_template=template)
