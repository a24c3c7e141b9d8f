"""The memory, tokens and floating-point operations of an MS-GRPO update, and the micro-batch that fits a device.

Programs are compiled from shapes alone, so the size of a model that this machine cannot hold is known too.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from nlrl_jax import multihost
from nlrl_jax.algorithms.ms_grpo import MSGRPOConfig, init_state, layout, make_update
from nlrl_jax.algorithms.policy_gradient import rows_at_a_time
from nlrl_jax.lm.sharding import memory_of
from nlrl_jax.lm.transformer import init_params
from nlrl_jax.run import targets
from nlrl_jax.text.policy import LanguageAgentPolicy
from nlrl_jax.types import TextGame
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


def fit_micro_batch(
    policy: LanguageAgentPolicy, game: Any, learning: MSGRPOConfig, seeds: int = 1
) -> tuple[MSGRPOConfig, str]:
    """Replaces a micro-batch of 0 (automatic) by the largest that fits the devices' memory; where none does, rollouts
    whose weights are "auto" read the shared ones, so that there is no copy of them.

    Returns:
      (`learning` with its micro-batch, a line that names it); `learning` as it was and "" if it names a size, or if
      nobody knows the memory (a CPU).

    Raises:
      ValueError: one reply at a time does not fit.
    """
    if learning.micro_batch:
        return learning, ""
    mesh = policy.model.mesh
    capacities = multihost.every(memory_of(mesh))
    if None in capacities:
        return learning, ""
    capacity = min(capacities)  # one program for all processes
    episodes = learning.group_sample if learning.sampling_temperature else learning.group_size
    replies = learning.num_groups * episodes * learning.max_turns
    smallest = rows_at_a_time(1, 1, mesh)

    def needs(size: int) -> int:
        compiled = compile_update(policy, game, dataclasses.replace(learning, micro_batch=size), seeds)
        return bytes_of(compiled)["all"]

    size = rows_at_a_time(replies, 0, mesh)
    needed = needs(size)
    if needed > capacity:
        minimum = needs(smallest)
        if minimum > capacity and learning.rollout_weights == "auto":
            shared = dataclasses.replace(learning, rollout_weights="shared")
            learning, line = fit_micro_batch(policy, game, shared, seeds)
            return learning, f"{line}, and --rollout_weights shared"
        if minimum > capacity:
            raise ValueError(
                f"an update needs {minimum / GIB:.1f} GiB per device with --micro_batch {smallest}, and there are "
                f"{capacity / GIB:.1f}; use --remat, a smaller group_size, or --mesh with more devices"
            )
        # Memory grows evenly with the size, but for what XLA rounds: go there at once, then down by quarters.
        share = (capacity - minimum) / (needed - minimum)
        while needed > capacity:
            size = max(smallest, int((smallest + share * (size - smallest)) / smallest) * smallest)
            needed, share = (needs(size) if size > smallest else minimum), 0.75
    line = f"micro_batch 0: {size} replies at a time, {needed / GIB:.1f} of {capacity / GIB:.1f} GiB per device"
    return dataclasses.replace(learning, micro_batch=size), line


def placed(shapes: Any, shardings: Any) -> Any:
    """Shapes with `shardings`, a tree of the same structure."""
    return jax.tree.map(lambda x, sharding: x.update(sharding=sharding), shapes, shardings)


def bytes_of(compiled: Any) -> dict[str, int]:
    """Bytes per device of a compiled program: arguments, temporaries, outputs that reuse no argument, and the sum."""
    m = compiled.memory_analysis()
    outputs = m.output_size_in_bytes - m.alias_size_in_bytes
    sizes = {"arguments": m.argument_size_in_bytes, "temporaries": m.temp_size_in_bytes, "outputs": outputs}
    return {**sizes, "all": sum(sizes.values())}


@dataclasses.dataclass(frozen=True)
class UpdateWork:
    """Upper bounds for one iteration: every episode takes all turns, and every reply has its maximum length."""

    prompt_tokens: int
    reply_tokens: int
    learned_tokens: int
    flop: float


def work_of(policy: LanguageAgentPolicy, learning: MSGRPOConfig) -> UpdateWork:
    """Counts tokens, and two floating-point operations per weight and token (without attention).

    Learned tokens are read by the model and the reference; the backward pass costs twice the model's forward pass.
    """
    episodes = learning.num_groups * learning.group_size
    sampled = learning.num_groups * (learning.group_sample if learning.sampling_temperature else learning.group_size)
    prompt, reply = policy.template.max_length, policy.sampling.max_tokens
    prompts = len(policy.template.prefix) + episodes * learning.max_turns * prompt
    replies = episodes * learning.max_turns * reply
    learned = sampled * learning.max_turns * (prompt + reply) * learning.updates_per_batch
    passes = prompts + replies + learned * (3 + (learning.beta > 0))
    return UpdateWork(prompts, replies, learned, 2.0 * policy.model.config.num_params * passes)


def planned(
    policy: LanguageAgentPolicy,
    game: TextGame,
    learning: MSGRPOConfig,
    iterations: int,
    seeds: int,
    vectorize: bool,
    rate: float,
    device: str,
) -> tuple[float, str]:
    """The device hours of a run, and a paragraph on its memory and work.

    Args:
      vectorize: the seeds learn at once. rate: floating-point operations per second. device: what computes, in words.
    """
    clock = time.monotonic()
    memory = bytes_of(compile_update(policy, game, learning, seeds if vectorize else 1))
    work, seconds = work_of(policy, learning), time.monotonic() - clock
    hours = work.flop * iterations * seeds / rate / 3600
    return hours, (
        f"{policy.model.config.num_params / 1e9:.3g}e9 weights, {iterations} iterations, seeds: {seeds} "
        f"{'at once' if vectorize else 'one after the other'}\n"
        f"  prompt {len(policy.template.prefix)} shared + {policy.template.max_length} own tokens, "
        f"reply {policy.sampling.max_tokens}, G={learning.group_size}, G'={learning.group_sample}, "
        f"groups {learning.num_groups}\n"
        f"  memory on {device} {memory['all'] / GIB:.2f} GiB: arguments {memory['arguments'] / GIB:.2f}, "
        f"temporaries {memory['temporaries'] / GIB:.2f} (compiled in {seconds:.0f} s)\n"
        f"  an iteration, at most: {work.prompt_tokens:,} prompt tokens, {work.reply_tokens:,} written, "
        f"{work.learned_tokens:,} learned from, {work.flop / 1e12:.4g} TFLOP\n"
        f"  in total: {hours:.3g} device hours at the rate above"
    )


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
