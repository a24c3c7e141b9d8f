"""Text in, text out.

    nlrl-jax generate --model smollm2 --prompt "Name three colours." --max_tokens 40
    nlrl-jax generate --model PATH --prompt_ids 5,17,3 --max_tokens 8 --temperature 0 --json

`--prompt` is rendered by the model's chat template unless `--raw` is given. `--prompt_ids` needs no tokenizer, and
`--samples` asks for several completions of each prompt. `--json` prints one line, {"completions": [{"ids", "logprobs",
"text", "ended"}, ...]}, where logprobs are the model's own, before temperature, top-k and top-p.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from nlrl_jax.config import DTYPES, MOST_SEED
from nlrl_jax.lm.chat_template import TemplateOptions
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import generate, left_pad
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.run import app, players
from nlrl_jax.run import flags as config_flags
from nlrl_jax.types import Sampling
from nlrl_jax.weights import peft
from nlrl_jax.weights.load import load_eos_ids, load_tokenizer, load_weights


def read_prompts(config: ModelConfig, tokenizer: Any, max_tokens: int) -> list[list[int]]:
    """Token ids of every prompt, checked against the vocabulary and the context."""
    options = flags.FLAGS
    if bool(options.prompt) == bool(options.prompt_ids):
        raise ValueError("give either --prompt TEXT or --prompt_ids 5,17,...")
    if options.prompt_ids:
        try:
            prompts = [[int(i) for i in ids.split(",")] for ids in options.prompt_ids]
        except ValueError:
            raise ValueError(f"--prompt_ids {options.prompt_ids} is not a list of numbers such as 5,17,3") from None
    else:
        texts = options.prompt
        if not options.raw:
            texts = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in texts]
        prompts = [tokenizer.encode(text) for text in texts]
    for prompt in prompts:
        if not prompt:
            raise ValueError("a prompt is empty; it needs at least one token")
        wrong = [i for i in prompt if not 0 <= i < config.vocab_size]
        if wrong:
            raise ValueError(f"token id {wrong[0]} is outside the vocabulary 0..{config.vocab_size - 1}")
        if len(prompt) + max_tokens > config.max_positions:
            raise ValueError(
                f"{len(prompt)} prompt tokens and --max_tokens {max_tokens} do not fit the model's "
                f"context of {config.max_positions}"
            )
    return prompts


def main(argv: list[str]) -> None:
    del argv
    options = flags.FLAGS
    sampling, templates = app.parse(Sampling(max_tokens=100)), app.parse(TemplateOptions)
    if options.prompt_ids:
        config_flags.leave_out("with --prompt_ids, which are tokens already", "raw")
    if options.raw or options.prompt_ids:
        config_flags.leave_out("with --raw or --prompt_ids, which leave out the chat template", "template", "date")
    if not sampling.temperature:
        config_flags.leave_out("with --temperature 0, which is greedy", "top_k", "top_p", "seed", "samples")
    try:
        tokenizer = load_tokenizer(options.model, options.revision, templates)
    except FileNotFoundError:
        if options.prompt and not options.prompt_ids:
            raise
        tokenizer = None
    dtype = options.dtype or None
    config, params = load_weights(options.model, dtype, dtype, revision=options.revision)
    variables = {"params": params}
    if options.adapter:
        config, variables["lora"] = peft.load(options.adapter, config)
    prompts = [p for p in read_prompts(config, tokenizer, sampling.max_tokens) for _ in range(options.samples)]
    eos_ids = load_eos_ids(options.model, options.revision)

    bucket = max(16, 1 << (max(map(len, prompts)) - 1).bit_length())  # few shapes, few compilations
    tokens = np.zeros((len(prompts), bucket), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = jnp.array([len(p) for p in prompts])
    sample = jax.jit(generate, static_argnums=(0, 5, 6))
    out = jax.device_get(
        sample(Transformer(config), variables, left_pad(jnp.asarray(tokens), lengths), lengths,
               jax.random.key(options.seed), sampling, eos_ids)
    )  # fmt: skip
    continues = options.raw or bool(options.prompt_ids)
    completions = []
    for ids, length, log_probs, ended in zip(*out[:3], out.ended, strict=True):
        ids = [int(i) for i in ids[:length]]
        known_ids = [] if tokenizer is None else [i for i in ids if i < tokenizer.vocab_size]
        text = None if tokenizer is None else tokenizer.decode(known_ids, continues=continues)
        logprobs = [float(p) for p in log_probs[:length]]
        completions.append({"ids": ids, "logprobs": logprobs, "text": text, "ended": bool(ended)})
    if options.json:
        print(json.dumps({"completions": completions}))
    else:
        for completion in completions:
            print(completion["text"] if completion["text"] is not None else completion["ids"])


def define_flags() -> None:
    flags.DEFINE_string("model", "nano", players.MODELS)
    flags.DEFINE_string("revision", "", "branch, tag or commit of a Hub id")
    flags.DEFINE_multi_string("prompt", [], "a prompt; give it several times for a batch")
    flags.DEFINE_multi_string("prompt_ids", [], "a prompt as token ids, 5,17,...; several times for a batch")
    flags.DEFINE_string("adapter", "", "folder of a LoRA adapter in PEFT's format")
    flags.DEFINE_boolean("raw", False, "use --prompt as it is, without the chat template")
    config_flags.define(Sampling(max_tokens=100))
    config_flags.define(TemplateOptions())
    flags.DEFINE_integer("samples", 1, "completions per prompt", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "random seed", 0, MOST_SEED)
    flags.DEFINE_enum("dtype", "", DTYPES, "float32 or bfloat16; empty keeps the checkpoint's")
    flags.DEFINE_boolean("json", False, "print one line of JSON")


if __name__ == "__main__":
    define_flags()
    app.run(main)
