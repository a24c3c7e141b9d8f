"""Greedy decoding and prefill by llama.cpp, for `benchmarks.language_model`. Needs llama-cpp-python, and no JAX.

All rows of a batch are sequences of one context, decoded together; keys and values are float16, llama.cpp's default.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np


def in_float32(source: str, target: str) -> None:
    """Writes a GGUF file's weights as float32."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)):
        raise RuntimeError(f"llama.cpp cannot write {source} as float32")


def make(file: str, tokens: list[list[int]], new_tokens: int):
    """A call that reads `tokens` and returns new tokens [batch][new_tokens], or with 0 the mean logsumexp."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    make.silent = silent  # as long as the library lives
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    rows, length = len(tokens), len(tokens[0])
    options = llama_cpp.llama_context_default_params()
    options.n_seq_max, options.n_ctx = rows, rows * (length + new_tokens + 8)
    options.n_batch = options.n_ubatch = max(512, rows)
    options.n_threads = options.n_threads_batch = os.cpu_count()
    options.kv_unified = False
    context = llama_cpp.llama_init_from_model(model, options)
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)

    def feed(entries: list[tuple[int, int, int, bool]]) -> list[np.ndarray]:
        """Computes (token, position, row, whether to return its logits) and returns these logits."""
        batch.n_tokens = len(entries)
        for i, (token, position, row, has_logits) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, has_logits
            batch.seq_id[i][0] = row
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        at = [i for i, entry in enumerate(entries) if entry[3]]
        return [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (words,)).copy() for i in at]

    def run():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        last: list[np.ndarray] = []
        each = max(1, options.n_batch // length)  # prompts a call
        for first in range(0, rows, each):
            block = range(first, min(rows, first + each))
            last += feed([(tokens[r][p], p, r, p == length - 1) for r in block for p in range(length)])
        if not new_tokens:
            return float(np.mean([x.max() + np.log(np.exp(x - x.max()).sum()) for x in last]))
        replies = [[int(x.argmax())] for x in last]
        for step in range(new_tokens - 1):
            last = feed([(row[-1], length + step, r, True) for r, row in enumerate(replies)])
            for row, x in zip(replies, last, strict=True):
                row.append(int(x.argmax()))
        return replies

    return run
