"""Where an MS-GRPO iteration spends its time, and what share of the device's limits it reaches.

    python -m benchmarks.ms_grpo_iteration                                    # nano, the demo's settings
    python -m benchmarks.ms_grpo_iteration --model smollm2 --preset laptop
    python -m benchmarks.ms_grpo_iteration --model smollm2 --preset paper --dtype bfloat16 --micro_batch 25   # a GPU
    python -m benchmarks.ms_grpo_iteration --model qwen2.5-3b --preset paper --micro_batch 5 --remat          # a GPU
    python -m benchmarks.ms_grpo_iteration --together 1 4 16                  # agents of so many seeds as one program
    python -m benchmarks.ms_grpo_iteration --model FILE.gguf --preset laptop --repeats 1 --rollout_weights apart \\
        --options maps=all max_tokens=120 num_groups=2 max_turns=2 top_k=0 temperature=1.0 sampling_temperature=1.0

A name of `benchmarks/models.py` stands for a model's shape with random weights, whose replies rarely end: the most work
that an iteration can be.

The whole iteration is one program, so generation is timed by itself: `text_games.play` under the same key, which plays
the same episodes. The rest of the iteration is the update. Both take turns within a repeat; figures are of the median.

Work is what has to be done for these episodes, padding left out: two operations a weight and token; the
update reads the learned tokens with the model and with the reference, and goes back once (the weights are frozen; what
`--remat` computes again does not count). Generation also has to read, once for every token that the longest reply of a
turn needs, all weights and the keys and values of the tokens so far. The limits are measured here: a plain matrix
product, and the sum of a large array. Seconds of all cores are given too: they say more where other work runs beside.

With --together the agents of several seeds train as one program, all at once (`vmap`) or one after another within it
(`lax.map`), and in turn each by itself: agent-iterations per CPU second.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.models import MODELS, prompts_of
from benchmarks.timing import both_clocks, in_turns, machine, medians, parser_of, print_head, print_row, timed
from nlrl_jax import envs
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, make_update
from nlrl_jax.config import make
from nlrl_jax.launch.train_ms_grpo import PRESETS, TrainConfig, build
from nlrl_jax.lm import malloc
from nlrl_jax.lm.acting import WEIGHTS
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.generate import row_use
from nlrl_jax.lm.programs import compiler_options
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.rollouts import text_games
from nlrl_jax.run.sizing import matmul_rate
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.updates import over_seeds, stack
from nlrl_jax.weights.load import load_tokenizer


class Work(NamedTuple):
    """Of the episodes of one iteration.

    prompt_tokens, reply_tokens: of prompts (the shared prefix once, a turn's equal prompts once) and of replies.
    learned: tokens that the update reads, prompts (with a prefix for each program that reads it) and replies.
    steps: passes of the decoding loops over all turns.
    bytes: read in these passes, weights and cache.
    """

    prompt_tokens: int
    reply_tokens: int
    learned: float
    steps: int
    bytes: float


def work_of(turns: text_games.Turns, prefix: int, config: ModelConfig, learning: MSGRPOConfig) -> Work:
    """Counts the work of played turns; each array of `turns` is on the host.

    Args:
      prefix: tokens of the shared prefix.
    """
    active, decisions = np.asarray(turns.active), turns.turn
    prompts, replies = np.where(active, decisions.prompt_lengths, 0), np.where(active, decisions.reply_lengths, 0)
    longest = replies.max(axis=1)  # [T]: the first token comes from reading the prompt, the others from a pass each
    passes = int(np.maximum(longest - 1, 0).sum())
    item = jnp.dtype(config.dtype).itemsize
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * item  # keys and values of one token
    later = np.maximum(replies - 1, 0)  # passes of a row; in pass n it reads its prompt and n tokens of its reply
    cached = token * (passes * prefix + float((later * prompts + later * (later + 1) / 2).sum()))
    share = learning.group_sample / learning.group_size if learning.sampling_temperature else 1.0
    learned = share * float((prompts + replies).sum()) * learning.updates_per_batch + prefix
    new = [np.unique(rows[on], axis=0, return_index=True)[1] for rows, on in zip(decisions.prompts, active)]
    prompt_tokens = prefix + sum(int(lengths[on][first].sum()) for lengths, on, first in zip(prompts, active, new))
    weights = config.num_params * jnp.dtype(config.param_dtype).itemsize
    return Work(prompt_tokens, int(replies.sum()), learned, passes, passes * weights + cached)


def memory_rate() -> float:
    """Bytes a second at which this device reads a large array."""
    x = jnp.ones((2**27,), jnp.float32)
    total = jax.jit(jnp.sum)
    total(x).block_until_ready()
    return x.nbytes / min(timed(total, x)[0] for _ in range(5))


def random_model(config: TrainConfig):
    """What `build` returns, for a shape with random weights, in its own type or `config.dtype`."""
    shape = dataclasses.replace(MODELS[config.model], lora=config.lora)
    if config.dtype:
        shape = dataclasses.replace(shape, dtype=config.dtype, param_dtype=config.dtype)
    model, (tokenizer, prompt) = Transformer(shape), prompts_of(config.model)
    if shape.vocab_size < tokenizer.vocab_size:
        tokenizer = load_tokenizer("smollm2")
    game = envs.make(config.game, prompt)
    policy = LanguageAgentPolicy.for_game(game, model, tokenizer, config.sampling, prompt)
    return game, game, policy, init_params(model, jax.random.key(0))


def measure(config: TrainConfig, repeats: int) -> list[list[str]]:
    """Rows (phase, seconds, share, tokens a second, share of the compute limit, share of the memory limit)."""
    game, _, policy, params = (random_model if config.model in MODELS else build)(config)
    learning = config.learning
    state = init_state(policy.model, params, learning, jax.random.key(0))
    update = jax.jit(make_update(policy, game, learning))
    G, T = learning.group_size, learning.max_turns

    @jax.jit
    def play(state, key):
        key_reset, key_play, _ = jax.random.split(key, 3)  # as `make_update` does: the same episodes
        starts = text_games.reset(game, key_reset, learning.num_groups)
        starts = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), starts)
        variables = {"params": state.params, "lora": state.lora}
        return text_games.play(policy, game, variables, key_play, starts, T, learning.max_steps).turns

    keys = [jax.random.key(n) for n in range(repeats)]
    jax.block_until_ready((play(state, keys[0]), update(state, keys[0])))
    programs = {"generation": play, "whole": update}
    subjects = {name: lambda n, run=run: both_clocks(run, state, keys[n])[:2] for name, run in programs.items()}
    clocks = in_turns(subjects, repeats)
    seconds, of_cores = ({name: [pair[i] for pair in pairs] for name, pairs in clocks.items()} for i in (0, 1))
    middle = sorted(range(repeats), key=lambda n: seconds["whole"][n])[repeats // 2]
    generation, whole = (seconds[name][middle] for name in programs)
    turns = jax.device_get(play(state, keys[middle]))
    work = work_of(turns, len(policy.template.prefix), policy.model.config, learning)

    N, peak, bandwidth = policy.model.config.num_params, matmul_rate(), memory_rate()
    learning_passes = 2 + (learning.beta > 0)
    phases = {
        "generation": (generation, work.reply_tokens, 2 * N * (work.prompt_tokens + work.reply_tokens), work.bytes),
        "update": (whole - generation, work.learned, 2 * N * learning_passes * work.learned, None),
    }
    use = row_use(np.where(turns.active, turns.turn.reply_lengths, 0), policy.model.mesh)
    print(
        f"{learning.num_groups * G} episodes of up to {T} turns: {work.prompt_tokens:,} tokens read, "
        f"{work.reply_tokens:,} written in {work.steps:,} passes ({use:.0%} of their rows were needed), "
        f"{work.learned:,.0f} learned from; "
        f"an iteration takes {whole:.3f} s (fastest {min(seconds['whole']):.3f}, slowest {max(seconds['whole']):.3f}); "
        f"seconds of all cores: {of_cores['whole'][middle]:.1f}, generation {of_cores['generation'][middle]:.1f}\n"
        f"limits here: {peak / 1e12:.3g} TFLOP/s in a matrix product, {bandwidth / 1e9:.3g} GB/s reading memory"
    )
    rows = []
    for name, (span, tokens, flop, moved) in phases.items():
        memory = "" if moved is None else f"{moved / span / bandwidth:.1%}"
        speed = f"{tokens / span:,.0f}", f"{flop / span / peak:.1%}", memory
        rows.append([name, f"{span:.3f}", f"{span / whole:.0%}", *speed])
    return rows


def together(config: TrainConfig, number: int, repeats: int) -> list[str]:
    """A row: agents, and their iterations per CPU second as one program of either kind and apart."""
    game, _, policy, params = build(config)
    update = make_update(policy, game, config.learning)
    keys = jax.random.split(jax.random.key(0), number)
    states = [init_state(policy.model, params, config.learning, key) for key in keys]
    stacked, options = stack(states), compiler_options(policy.model)
    programs = {
        name: jax.jit(over_seeds(update, vectorize), compiler_options=options)
        for name, vectorize in (("vmap", True), ("map", False))
    }
    alone = jax.jit(update, compiler_options=options)
    subjects = {name: lambda _, run=run: both_clocks(run, stacked, keys)[1] for name, run in programs.items()}
    subjects["apart"] = lambda _: sum(both_clocks(alone, *agent)[1] for agent in zip(states, keys))
    for run in subjects.values():
        run(0)  # compiles
    rates = {name: number / seconds for name, seconds in medians(in_turns(subjects, repeats)).items()}
    ratios = [rates[name] / rates["apart"] for name in programs]
    return [str(number), *(f"{rate:.3f}" for rate in rates.values()), *(f"{ratio:.2f}" for ratio in ratios)]


def value(text: str) -> Any:
    """A number or True where the text is one, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main() -> None:
    parser = parser_of(__doc__, model="nano", game="frozen_lake", dtype="", repeats=5)
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--micro_batch", type=int, help="the preset's, if not given")
    parser.add_argument("--max_tokens", type=int, help="the preset's, if not given")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--rollout_weights", default="auto", choices=WEIGHTS, help="what rollouts read")
    parser.add_argument("--options", nargs="*", default=[], help="others of train_ms_grpo, as NAME=VALUE")
    parser.add_argument("--together", nargs="+", type=int, help="numbers of agents that train as one program")
    args = parser.parse_args()
    malloc.keep()  # as every script does
    names = ("model", "game", "dtype", "remat", "rollout_weights", "micro_batch", "max_tokens")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options |= {name: value(text) for name, text in (option.split("=", 1) for option in args.options)}
    config = make(TrainConfig, **PRESETS[args.preset] | options)
    print(f"{machine()}; {args.model} on {args.game}, preset {args.preset}, median of {args.repeats}")
    if args.together:
        print("\nagent-iterations per CPU second\n")
        print_head("agents", "vmap", "map", "apart", "vmap to apart", "map to apart")
        for number in args.together:
            print_row(*together(config, number, args.repeats))
        return
    rows = measure(config, args.repeats)
    print_head("phase", "s", "share", "tokens/s", "of the compute limit", "of the memory limit")
    for row in rows:
        print_row(*row)


if __name__ == "__main__":
    main()
