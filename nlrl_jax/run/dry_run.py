"""Dry runs: the memory, tokens and floating-point operations of an MS-GRPO update, and the calls and tokens of language
models, counted in a small run over `backends.scripted.CountingModel`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax import multihost
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, layout, make_update
from nlrl_jax.algorithms.policy_gradient import rows_at_a_time
from nlrl_jax.backends.scripted import CHARACTERS
from nlrl_jax.lm.sharding import memory_of
from nlrl_jax.lm.transformer import init_params
from nlrl_jax.run import targets
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.updates import over_seeds

GIB = 2**30


def compile_update(policy: LanguageAgentPolicy, game: Any, learning: MSGRPOConfig, seeds: int = 1) -> Any:
    """One MS-GRPO iteration, compiled from shapes alone for the model's mesh (whose devices may be those of
    `run.targets`) or this machine's device; no weights are made.

    Args:
      seeds: number of seeds that are vectorised.
    """
    key = jax.random.key(0)
    model = policy.model.clone(mesh=None)
    params = jax.eval_shape(lambda: init_params(model, key))
    state = jax.eval_shape(lambda params: init_state(model, params, learning, key), params)
    update, keys = make_update(policy, game, learning), jax.eval_shape(lambda: key)
    if policy.model.mesh is not None:
        state = placed(state, layout(policy.model, state, learning))
        keys = placed(keys, NamedSharding(policy.model.mesh, PartitionSpec()))
    if seeds > 1:
        stacked = jax.tree.map(lambda x: x.update(shape=(seeds, *x.shape)), state.replace(params=None))
        state, keys = stacked.replace(params=state.params), keys.update(shape=(seeds, *keys.shape))
        update = over_seeds(update, vectorize=True)
    return targets.compiled(jax.jit(update, donate_argnums=0).lower(state, keys), policy.model.mesh)


def fitted(policy: LanguageAgentPolicy, game: Any, learning: MSGRPOConfig, seeds: int = 1) -> tuple[MSGRPOConfig, str]:
    """`learning` with the micro-batch that 0 stands for, smaller where its update would not fit into the devices'
    memory, and a line that says so; as it was, and "", if it names a size or nobody knows the memory (a CPU).

    Raises:
      ValueError: one reply at a time does not fit.
    """
    if learning.micro_batch:
        return learning, ""
    mesh = policy.model.mesh
    known = multihost.every(memory_of(mesh))
    if None in known:
        return learning, ""
    memory = min(known)  # one program for all processes
    episodes = learning.group_sample if learning.sampling_temperature else learning.group_size
    replies, least = learning.num_groups * episodes * learning.max_turns, rows_at_a_time(1, 1, mesh)

    def needs(size: int) -> int:
        return bytes_of(compile_update(policy, game, dataclasses.replace(learning, micro_batch=size), seeds))["all"]

    size = rows_at_a_time(replies, 0, mesh)
    found = needs(size)
    if found > memory:
        fewest = needs(least)
        if fewest > memory:
            raise ValueError(
                f"an update needs {fewest / GIB:.1f} GiB per device with --micro_batch {least}, and there are "
                f"{memory / GIB:.1f}; use --remat, a smaller group_size, or --mesh with more devices"
            )
        share = (memory - fewest) / (found - fewest)  # memory grows evenly with the size, but for what XLA rounds
        while found > memory:
            size, found = max(least, int((least + share * (size - least)) / least) * least), fewest
            if size > least:
                found, share = needs(size), 0.75
    line = f"micro_batch 0: {size} replies at a time, {found / GIB:.1f} of {memory / GIB:.1f} GiB per device"
    return dataclasses.replace(learning, micro_batch=size), line


def placed(shapes: Any, where: Any) -> Any:
    """Shapes with the shardings `where`, a tree of the same structure."""
    return jax.tree.map(lambda x, sharding: x.update(sharding=sharding), shapes, where)


def bytes_of(compiled: Any) -> dict[str, int]:
    """Bytes per device of a compiled program: arguments, temporaries, outputs that reuse no argument, and the sum."""
    m = compiled.memory_analysis()
    outputs = m.output_size_in_bytes - m.alias_size_in_bytes
    found = {"arguments": m.argument_size_in_bytes, "temporaries": m.temp_size_in_bytes, "outputs": outputs}
    return {**found, "all": sum(found.values())}


@dataclasses.dataclass(frozen=True)
class Work:
    """Upper bounds for one iteration: every episode takes all turns, and every reply has its maximum length."""

    prompt_tokens: int
    reply_tokens: int
    learned_tokens: int
    flop: float


def work_of(policy: LanguageAgentPolicy, learning: MSGRPOConfig) -> Work:
    """Counts tokens, and two floating-point operations per weight and token (without attention).

    Learned tokens are read by the model and the reference; the backward pass costs twice the model's forward pass.
    """
    episodes = learning.num_groups * learning.group_size
    kept = learning.num_groups * (learning.group_sample if learning.sampling_temperature else learning.group_size)
    prompt, reply = policy.template.max_length, policy.sampling.max_tokens
    prompts = len(policy.template.prefix) + episodes * learning.max_turns * prompt
    replies = episodes * learning.max_turns * reply
    learned = kept * learning.max_turns * (prompt + reply) * learning.updates_per_batch
    passes = prompts + replies + learned * (3 + (learning.beta > 0))
    return Work(prompts, replies, learned, 2.0 * policy.model.config.num_params * passes)


def matmul_rate(size: int = 2048) -> float:
    """Floating-point operations per second of a matrix product on this device, in bfloat16 (on a CPU float32)."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    x = jnp.ones((size, size), dtype)
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(5):
        clock = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - clock)
    return 2 * size**3 / best


def calls_table(rows: Iterable[Mapping[str, Any]], times: float = 1.0) -> str:
    """What a dry run counted, by role and in total, as a table.

    Args:
      rows: `Usage.rows` of a small run over `CountingModel`.
      times: how many times larger the planned run is.
    """
    lines, rows = [f"{'role':20}{'calls':>14}{'tokens read, about':>22}{'written, at most':>20}"], list(rows)
    for row in rows:
        calls, read, written = (row[name] * times for name in ("calls", "prompt_tokens", "tokens"))
        lines.append(f"{row['role']:20}{calls:>14,.0f}{read:>22,.0f}{written:>20,.0f}")
    total = tokens_of(rows) * times
    return "\n".join([*lines, f"{total / 1e6:,.1f} million tokens at most, at {CHARACTERS} characters per token"])


def tokens_of(rows: Iterable[Mapping[str, Any]]) -> int:
    """Sum of the tokens read and written in `Usage.rows`."""
    return sum(row["prompt_tokens"] + row["tokens"] for row in rows)


def within_budget(budget: int, option: str, value: int, fixed: float, each: float) -> str:
    """A line for a dry run: the largest value of an option with which the run stays below --token_budget.

    Args:
      budget: tokens; 0 is no limit, and the line is empty.
      fixed, each: tokens that do not depend on the value, and tokens per unit of it.
    """
    if not budget:
        return ""
    tokens, most = lambda value: f"{fixed + each * value:,.0f} tokens at most", math.floor((budget - fixed) / each)
    most -= fixed + each * most >= budget
    if most < 1:
        return f"\n--token_budget {budget:,}: too little even for --{option} 1 ({tokens(1)})"
    is_enough = f"--{option} {value} ({tokens(value)}) is {'within it' if value <= most else 'too much'}"
    return f"\n--token_budget {budget:,}: {is_enough}; the largest below it is --{option} {most} ({tokens(most)})"
