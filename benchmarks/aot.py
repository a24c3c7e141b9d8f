"""Compiles a main program for devices that are not here and says what it does there; nothing runs, no weights are made.

    python -m benchmarks.aot --model qwen2.5-3b
    python -m benchmarks.aot --model qwen3-8b --mesh 1,1,8
    python -m benchmarks.aot --program sft --train params --model llama3.1-8b --mesh 1,8,1
    python -m benchmarks.aot --program sample --model llama3.1-8b --mesh 1,1,8 --rows 8 --prompt 32768
    python -m benchmarks.aot --target cpu --model nano --mesh 2,2,2

Prints bytes a device, operations of matrix products, what devices exchange and what is copied, by loop and line of
the project. Fails where decoding moves weights between devices or reads experts that no row chose (`decoding.py`).
For GPUs it needs the extra `aot` (`nlrl_jax/run/targets.py`), for the Qwen prompts the wheel dashscope.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import math
import os
import pathlib
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the devices of the target are made below

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import decoding, hlo
from benchmarks.models import MODELS, prompts_of
from benchmarks.timing import parser_of
from nlrl_jax import envs
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig
from nlrl_jax.algorithms.sft import SFTBatch, make_sft_step, sft_loss
from nlrl_jax.lm import placement
from nlrl_jax.lm.acting import WEIGHTS, acting
from nlrl_jax.lm.generate import generate
from nlrl_jax.lm.sharding import make_mesh, shardings, spec
from nlrl_jax.lm.transformer import Transformer, init_lora, init_params
from nlrl_jax.run import targets
from nlrl_jax.run.sizing import GIB, bytes_of, compile_update, placed
from nlrl_jax.text.policy import LanguageAgentPolicy, in_whole_tiles
from nlrl_jax.types import Sampling
from nlrl_jax.weights.load import load_config


def ms_grpo(model: Transformer, args: argparse.Namespace) -> tuple[Any, int]:
    """The whole update at the paper's settings. Returns (compiled, most steps of a loop of unknown length)."""
    tokenizer, prompt = prompts_of(args.model)
    game, sampling = envs.make(args.game, prompt), Sampling(max_tokens=args.tokens, temperature=1.5, top_k=3)
    policy = LanguageAgentPolicy.for_game(game, model, tokenizer, sampling, prompt)
    learning = MSGRPOConfig(
        group_size=args.rows,
        group_sample=args.rows // 4,
        micro_batch=args.micro_batch,
        remat=not args.no_remat,
        rollout_weights=args.rollout_weights,
    )
    print(f"prompt {len(policy.template.prefix)} + {policy.template.max_length} tokens, G={learning.group_size}")
    return compile_update(policy, game, learning), args.tokens - 1


def sft(model: Transformer, args: argparse.Namespace) -> tuple[Any, int]:
    """One step of supervised fine-tuning with AdamW, on `rows` of `tokens`."""
    model = model.clone(remat=not args.no_remat)
    variables, places_of = _variables(model)
    optimizer = optax.adamw(1e-5)
    opt_state = jax.eval_shape(optimizer.init, variables[args.train])
    places = placement.of_optimizer(optimizer, opt_state, places_of(variables)[args.train], model.mesh)
    opt_state = placed(opt_state, places)
    tokens = jax.ShapeDtypeStruct((args.rows, args.tokens), jnp.int32)
    batch = SFTBatch(tokens, tokens, tokens, jax.ShapeDtypeStruct(tokens.shape, jnp.float32))
    batch = placed(batch, _rows(model, batch))
    step = make_sft_step(functools.partial(sft_loss, model), optimizer, args.train, short_weights=True)
    variables = placed(variables, places_of(variables))
    return targets.compiled(jax.jit(step, donate_argnums=(0, 1)).lower(variables, opt_state, batch), model.mesh), 1


def sample(model: Transformer, args: argparse.Namespace) -> tuple[Any, int]:
    """Replies of at most `tokens` tokens to `rows` prompts of `prompt`."""
    variables, places_of = _variables(model)
    prompts = jax.ShapeDtypeStruct((args.rows, args.prompt), jnp.int32)
    arguments = (prompts, jax.ShapeDtypeStruct((args.rows,), jnp.int32))
    arguments = placed(arguments, _rows(model, arguments))
    key = jax.eval_shape(lambda: jax.random.key(0))

    def run(variables, prompts, lengths, key):
        weights = acting(model, variables, args.rollout_weights)
        prompts, lengths = in_whole_tiles(model.mesh, args.tokens, prompts, lengths, lengths > 0)[:2]
        return generate(model, weights, prompts, lengths, key, Sampling(max_tokens=args.tokens), (0,))

    arguments = (placed(variables, places_of(variables)), *arguments, key.update(sharding=places_of(key)))
    return targets.compiled(jax.jit(run).lower(*arguments), model.mesh), args.tokens - 1


PROGRAMS = {"ms_grpo": ms_grpo, "sft": sft, "sample": sample}


def _variables(model: Transformer):
    """(shapes of weights and adapter, function from them, or from one array, to shardings)."""
    bare = model.clone(mesh=None)
    key = jax.random.key(0)
    variables = jax.eval_shape(lambda: {"params": init_params(bare, key), "lora": init_lora(bare, key)})
    whole = NamedSharding(model.mesh, PartitionSpec())
    return variables, lambda tree: placement.of_variables(model, tree) if isinstance(tree, dict) else whole


def _rows(model: Transformer, tree: Any) -> Any:
    """Shardings of arrays whose first axis is a batch."""
    return shardings(tree, jax.tree.map(lambda _: spec(("batch",)), tree), model.mesh)


def show(program: hlo.Program, unknown: int) -> None:
    """Prints operations, what is exchanged and what is copied."""
    flop = program.flop(unknown)
    print(f"TFLOP a device, matrix products, replies at their longest: {sum(flop.values()) / 1e12:,.4g}")
    for loops, n in sorted(flop.items(), key=lambda row: -row[1])[:6]:
        print(f"  {n / 1e12:10.4g}  {loops or 'outside loops'}")
    moved = collections.Counter()
    for row in program.collectives():
        moved[row.loops, row.kind] += row.runs * row.bytes
        if row.bytes > 2**16:
            print(f"  {row.kind} x{row.number} {row.bytes / 2**20:,.2f} MiB  {row.loops}  {row.type[:60]}  {row.line}")
    for (loops, kind), n in moved.most_common():
        print(f"exchanged, {loops or 'outside loops'}: {kind} {n / 2**20:,.1f} MiB (loops of unknown length once)")
    for loops, n in program.launches():
        if loops.endswith(hlo.UNKNOWN) and n:
            print(f"launches, {loops}: {n}")
    for row in program.copies()[:12]:
        print(f"copied, {row.loops or 'outside loops'}: {row.kind} {row.bytes / 2**20:,.1f} MiB  {row.line}")


def main() -> None:
    parser = parser_of(__doc__, prompt=256, micro_batch=5)
    parser.add_argument("--program", choices=PROGRAMS, default="ms_grpo")
    parser.add_argument("--model", default="qwen2.5-3b", help=f"{', '.join(MODELS)}, or what --model takes elsewhere")
    parser.add_argument("--target", default="h100", help=f"{', '.join(targets.GPUS)}, cpu, or a TPU such as v5e:2x4")
    parser.add_argument("--mesh", default="1,1,1", help="devices as data,fsdp,tensor, e.g. 1,8,1")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers, to compile sooner")
    parser.add_argument("--game", default="frozen_lake")
    parser.add_argument("--rows", type=int, default=0, help="episodes (100), examples (64) or prompts (100)")
    parser.add_argument("--tokens", type=int, default=0, help="per reply (200) or per example (1,024)")
    parser.add_argument("--rollout_weights", default="auto", choices=WEIGHTS, help="what rollouts read")
    parser.add_argument("--no_remat", action="store_true", help="keep activations")
    parser.add_argument("--train", choices=("lora", "params"), default="lora", help="what sft learns")
    parser.add_argument(
        "--param_dtype", default="", help="of the weights; by default the model's, float32 if they learn"
    )
    parser.add_argument("--text", help="a file for the optimized HLO")
    args = parser.parse_args()
    args.rows = args.rows or (64 if args.program == "sft" else 100)
    args.tokens = args.tokens or (1024 if args.program == "sft" else 200)
    config = MODELS[args.model] if args.model in MODELS else load_config(args.model)
    layers = args.layers or config.num_layers
    types = {name: getattr(config, name)[:layers] for name in ("layer_types", "mlp_types")}
    config = dataclasses.replace(config, num_layers=layers, **types)
    learned = args.program == "sft" and args.train == "params"  # then the trainers' weights are float32
    param_dtype = args.param_dtype or ("float32" if learned else config.param_dtype)
    config = dataclasses.replace(config, param_dtype=param_dtype)
    sizes = [int(size) for size in args.mesh.split(",")]
    if args.target == "cpu":
        jax.config.update("jax_num_cpu_devices", math.prod(sizes))
    devices = targets.devices(args.target, math.prod(sizes))
    model = Transformer(config, mesh=make_mesh(*sizes, devices=devices))
    print(
        f"{args.program}, {config.num_params / 1e9:.3g}e9 weights, {len(devices)} x {args.target} {args.mesh}",
        flush=True,
    )
    clock = time.perf_counter()
    compiled, unknown = PROGRAMS[args.program](model, args)
    sizes = ", ".join(f"{name} {n / GIB:.3f}" for name, n in bytes_of(compiled).items())
    print(f"GiB a device: {sizes} (compiled in {time.perf_counter() - clock:.0f} s)")
    text = compiled.as_text()
    if args.text:
        pathlib.Path(args.text).write_text(text)
    program = hlo.Program(text)
    show(program, unknown)
    problems = decoding.problems(program, model, args.rows) if args.program != "sft" else []
    if problems:
        raise SystemExit("\n".join(f"decoding {line}" for line in problems))


if __name__ == "__main__":
    main()
