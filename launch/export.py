"""Writes a trained model as a Hugging Face folder that `transformers` and --model load.

    nlrl-jax export --run_dir runs/demo --out models/demo
    nlrl-jax export --model smollm2 --adapter runs/smollm2/adapter --out models/smollm2_frozen_lake
    nlrl-jax export --run_dir runs/actor_critic/random/actor-critic --part policy --out models/policy

With --run_dir the latest checkpoint is exported; a LoRA adapter is merged into the weights. Without it, --model is
exported with --adapter, if there is one. The folder holds config.json, the weights (in several files above 5 GB), the
tokenizer with its chat template, and generation_config.json; dialogue.json says in which form of transcripts the model
has learned, in lines or in a chat, and games are played in that form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from nlrl_jax.config import DTYPES, of_stored, pick
from nlrl_jax.files import write_json
from nlrl_jax.run import app
from nlrl_jax.run.directory import output_folder
from nlrl_jax.run.flags import leave_out
from nlrl_jax.run.host_games.prompts import FORM, learned_form
from nlrl_jax.run.ms_grpo.config import TranscriptConfig
from nlrl_jax.run.players import MODELS, load, load_trained
from nlrl_jax.weights import huggingface, peft


def main(argv: list[str]) -> None:
    del argv
    options = flags.FLAGS
    out = output_folder("out", options.out)
    if bool(options.run_dir) == bool(options.model) or (options.run_dir and options.adapter):
        raise ValueError("give either --run_dir, or --model and perhaps --adapter")
    if options.run_dir:
        leave_out("with --run_dir, whose run has its own", "revision", "dtype")
        (config, params, tokenizer), lora, step, run = load_trained(options.run_dir, options.part)
        name = f"{options.run_dir} at iteration {step}"
    else:
        leave_out("without --run_dir", "part")
        config, params, tokenizer = load(options.model, options.dtype, revision=options.revision)
        lora, name, run = None, options.model, {}
        if options.adapter:
            config, lora = peft.load(options.adapter, config)
            name += f" with {options.adapter}"
    huggingface.save(out, config, params, tokenizer, lora)
    form = form_of(run) if run else learned_form(options.adapter) or learned_form(options.model)
    if form:
        write_json(out / FORM, form)
        name += f", which has learned in {'messages of a chat' if form['turns'] == 'chat' else 'lines'} ({FORM})"
    print(f"{name}: exported to {out}")


def form_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts and turns that a run's model has learned, see `prompts.FORM`; {} where nobody has to know.

    Args:
      run: its config.
    """
    if run.get("context") != "transcript":
        return learned_form(run.get("model", ""))
    transcripts = pick(TranscriptConfig, of_stored(TranscriptConfig, run))
    prompt, examples = dataclasses.replace(transcripts.prompts, prompt=run["prompt"]).form(run["model"])
    return {"prompt": prompt, "examples": examples, "turns": transcripts.turns.turns}


def define_flags() -> None:
    flags.DEFINE_string("run_dir", "", "a training run; its model with its latest checkpoint is exported")
    flags.DEFINE_string("part", "", "with --run_dir: which model of an actor-critic, policy or value")
    flags.DEFINE_string("model", "", f"without --run_dir: {MODELS}")
    flags.DEFINE_string("revision", "", "branch, tag or commit of a Hub id")
    flags.DEFINE_string("adapter", "", "without --run_dir: folder of a LoRA adapter in PEFT's format")
    flags.DEFINE_enum("dtype", "", DTYPES, "without --run_dir: float32 or bfloat16; empty keeps the checkpoint's")
    flags.DEFINE_string("out", "", "the folder to write; new or empty")


if __name__ == "__main__":
    define_flags()
    app.run(main)
