"""A mixture of experts: each token goes through the few MLPs that a router picks for it (Qwen3-MoE).

    y_BLH = Experts(config, mesh, name="experts")(x_BLH)  # in place of the MLP
    y_BLH = mixture(x_BLH, router_HE, matrices, k, renormalise, jax.nn.silu)  # the same as a function

Pairs of a token and one of its experts are sorted by expert and cut into blocks that one expert serves. A block is a
plain matrix product; no token is dropped, and an expert that no token chose is not read. A CPU takes one block after
another, a GPU several at a time: one alone ends there before the next one's kernels are launched.

Letters: T tokens, E experts, k experts of a token, H model width, F width of an expert, N blocks of b pairs, C blocks
that are computed at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.sharding import RULES, devices_of, platform_of

FEW = {"cpu": 8}  # tokens up to which a block takes all of them: each chosen expert is then read exactly once;
FEW_ELSEWHERE = 64  # rows that a GPU multiplies in the time in which it reads the weights
SMALLEST, LARGEST = 8, 256  # pairs of a block where there are more tokens
MOST_AT_ONCE = {"cpu": 1}  # blocks that are computed at once, each with a copy of its expert's matrices
MOST_AT_ONCE_ELSEWHERE, COPIED = 16, 2**28  # and at most so many bytes of them, unless one expert has more


class Matrices(NamedTuple):
    """All experts' matrices: gates and ups [E, H, F], downs [E, F, H]."""

    gates: jax.Array
    ups: jax.Array
    downs: jax.Array


class Blocks(NamedTuple):
    """Which expert serves which pairs; pair number t * k + j is token t's j-th expert.

    experts: int32 [N], of each block; N is the most that there can be, and a multiple of those computed at once.
    used: int32 [], blocks that hold a pair; they come first.
    pairs: int32 [N, b], the pairs of a block; T * k where there is none.
    places: int32 [T * k], where each pair lies, counted over N * b.
    """

    experts: jax.Array
    used: jax.Array
    pairs: jax.Array
    places: jax.Array


class Experts(nn.Module):
    """The layer with its weights: router [H, E], gates and ups [E, H, F], downs [E, F, H]. It has no adapter."""

    config: ModelConfig
    mesh: Mesh | None
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x_BLH: jax.Array) -> jax.Array:
        c = self.config

        def weights(name, shape, axes):
            init = nn.with_logical_partitioning(nn.initializers.normal(0.02), axes)
            return self.param(name, init, shape, c.param_dtype)

        wide, tall = (c.num_experts, c.hidden_size, c.expert_size), (c.num_experts, c.expert_size, c.hidden_size)
        router = weights("router", (c.hidden_size, c.num_experts), ("embed", None))
        matrices = Matrices(
            weights("gates", wide, (None, "embed", "mlp")),
            weights("ups", wide, (None, "embed", "mlp")),
            weights("downs", tall, (None, "mlp", "embed")),
        )
        k, renormalise = c.experts_per_token, c.renormalise_experts
        return mixture(x_BLH, router, matrices, k, renormalise, self.activation, self.mesh)


def route(logits_TE: jax.Array, k: int, renormalise: bool) -> tuple[jax.Array, jax.Array]:
    """Each token's k likeliest experts: (weights float32 [T, k], experts int32 [T, k]).

    The weights are softmax over all E experts; with `renormalise` they sum to 1 over the k chosen.
    """
    weights_Tk, experts_Tk = jax.lax.top_k(jax.nn.softmax(logits_TE.astype(jnp.float32), axis=-1), k)
    if renormalise:
        weights_Tk = weights_Tk / weights_Tk.sum(-1, keepdims=True)
    return weights_Tk, experts_Tk


def block_size(tokens: int, k: int, num_experts: int, platform: str) -> int:
    """b, pairs of a block: half of an expert's mean share, as a power of two; all tokens where these are few."""
    if tokens <= FEW.get(platform, FEW_ELSEWHERE):
        return tokens
    half_share = max(1, tokens * k // (2 * num_experts))
    return min(max(1 << (half_share.bit_length() - 1), SMALLEST), LARGEST)


def blocks_at_once(matrices: Matrices, platform: str) -> int:
    """C, by the platform and the size of an expert."""
    bytes_of_expert = sum(matrix.size * matrix.dtype.itemsize for matrix in matrices) // matrices.gates.shape[0]
    return max(1, min(MOST_AT_ONCE.get(platform, MOST_AT_ONCE_ELSEWHERE), COPIED // bytes_of_expert))


def plan(experts_Tk: jax.Array, num_experts: int, platform: str = "cpu", at_once: int = 1) -> Blocks:
    """Sorts pairs by expert and cuts them into blocks of one expert each, of a size that suits the platform."""
    T, k = experts_Tk.shape
    b = block_size(T, k, num_experts, platform)
    most_chosen = min(num_experts, T * k)  # experts; each leaves at most one block partly filled
    N = most_chosen + (T * k - most_chosen) // b
    N = -(-N // at_once) * at_once
    expert_of_pair = experts_Tk.reshape(-1)
    order = jnp.argsort(expert_of_pair, stable=True)
    counts_E = jnp.zeros(num_experts, jnp.int32).at[expert_of_pair].add(1)
    blocks_E = -(-counts_E // b)
    first_block_E = jnp.cumsum(blocks_E) - blocks_E
    first_pair_E = jnp.cumsum(counts_E) - counts_E
    # A pair's place: its expert's first block, and then its rank among the expert's pairs.
    sorted_experts = expert_of_pair[order]
    rank = jnp.arange(T * k) - first_pair_E[sorted_experts]
    sorted_places = first_block_E[sorted_experts] * b + rank
    pairs = jnp.full(N * b, T * k).at[sorted_places].set(order, unique_indices=True)
    places = jnp.zeros(T * k, jnp.int32).at[order].set(sorted_places, unique_indices=True)
    # Compared with all at once: a binary search would be a loop of many launches, for every layer and token.
    experts_N = jnp.searchsorted(jnp.cumsum(blocks_E), jnp.arange(N), side="right", method="compare_all")
    # Blocks past `used`, where they are computed beside others, read no other expert: the last that a token chose.
    experts_N = jnp.minimum(experts_N, expert_of_pair.max()).astype(jnp.int32)
    return Blocks(experts_N, blocks_E.sum(), pairs.reshape(N, b), places)


def mix(
    x_TH: jax.Array,
    weights_Tk: jax.Array,
    experts_Tk: jax.Array,
    matrices: Matrices,
    activation: Callable[[jax.Array], jax.Array],
    platform: str = "cpu",
) -> jax.Array:
    """sum over a token's experts e of weight * (activation(x @ gates[e]) * (x @ ups[e])) @ downs[e]: [T, H].

    Gradients with respect to x, the router's weights and the experts' matrices are exact. Sums are taken in a fixed
    order, so results are reproducible to the bit.
    """
    T, k = experts_Tk.shape
    C = blocks_at_once(matrices, platform)
    blocks = plan(experts_Tk, matrices.gates.shape[0], platform, C)
    # One copy of a token for each of its experts: then no sum is scattered, backwards either.
    copies = jnp.repeat(x_TH, k, axis=0)
    x_NbH = copies.at[blocks.pairs].get(mode="fill", fill_value=0, unique_indices=True)
    y_NbH = _through_experts(activation, C, x_NbH, matrices, blocks.experts, blocks.used)
    y_TkH = y_NbH.reshape(-1, x_TH.shape[-1]).at[blocks.places].get(unique_indices=True).reshape(T, k, -1)
    return jnp.einsum("tkh,tk->th", y_TkH, weights_Tk.astype(y_TkH.dtype))


def mixture(
    x_BLH: jax.Array,
    router_HE: jax.Array,
    matrices: Matrices,
    k: int,
    renormalise: bool,
    activation: Callable[[jax.Array], jax.Array],
    mesh: Mesh | None = None,
) -> jax.Array:
    """The layer, [B, L, H] -> [B, L, H]. On a mesh each device sorts its own rows, and has a part of every expert's F
    where "tensor" divides it: no expert moves between devices but for the gathering of "fsdp" shards."""

    platform = platform_of(mesh)  # of the mesh's devices: a program may be compiled for others than those at hand

    def local(x, router, matrices):
        x_TH = x.reshape(-1, x.shape[-1])
        y_TH = mix(x_TH, *route(x_TH @ router.astype(x.dtype), k, renormalise), matrices, activation, platform)
        return y_TH.reshape(x.shape)

    if mesh is None:
        return local(x_BLH, router_HE, matrices)
    rows = RULES["batch"] if x_BLH.shape[0] % devices_of(mesh, RULES["batch"]) == 0 else ()
    columns = ("tensor",) if matrices.gates.shape[-1] % mesh.shape["tensor"] == 0 else ()

    def of_device(x, router, matrices):
        # Said of each operand: it differs, from here on, between the devices that compute with it.
        x = jax.lax.pcast(x, columns, to="varying") if columns else x
        router = jax.lax.pcast(router, (*rows, *columns), to="varying") if (*rows, *columns) else router
        if rows:
            matrices = jax.lax.pcast(matrices, rows, to="varying")
        y = local(x, router, matrices)
        return jax.lax.psum(y, columns) if columns else y

    wide, tall = PartitionSpec(None, None, *columns), PartitionSpec(None, *columns, None)
    row_spec = PartitionSpec(rows or None, None, None)
    in_specs = row_spec, PartitionSpec(), Matrices(wide, wide, tall)
    return jax.shard_map(of_device, mesh=mesh, in_specs=in_specs, out_specs=row_spec)(x_BLH, router_HE, matrices)


def _expert(activation: Callable, matrices: Matrices, x_bH: jax.Array) -> jax.Array:
    """One expert's gated MLP, [b, H] -> [b, H]; its matrices [H, F], [H, F] and [F, H] in any dtype."""
    gate, up, down = (matrix.astype(x_bH.dtype) for matrix in matrices)
    return (activation(x_bH @ gate) * (x_bH @ up)) @ down


def _of_experts(matrices: Matrices, experts_C: jax.Array) -> Matrices:
    """Copies of the matrices of C experts: [C, H, F], [C, H, F], [C, F, H]."""
    return Matrices(*(jnp.take(matrix, experts_C, axis=0, mode="clip") for matrix in matrices))


def _step(i: jax.Array, C: int, *arrays_N: jax.Array) -> tuple[jax.Array, ...]:
    """What step i's C blocks hold of each array [N, ...]."""
    return tuple(jax.lax.dynamic_slice_in_dim(array, i * C, C) for array in arrays_N)


def _each_step(C: int, experts_N: jax.Array, used: jax.Array, step: Callable, start: Any) -> Any:
    """A loop over `used` blocks, C of them a step; the name of its scope says how many steps it has at most."""
    with jax.named_scope(f"at_most_{experts_N.shape[0] // C}"):
        return jax.lax.fori_loop(0, -(-used // C), step, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _through_experts(activation, C, x_NbH, matrices, experts_N, used) -> jax.Array:
    """Each used block through its expert, zeros in the others: [N, b, H].

    The gradient computes a block's hidden numbers again instead of keeping them.
    """

    def step(i, y_NbH):
        x_CbH, experts_C = _step(i, C, x_NbH, experts_N)
        y_CbH = jax.vmap(functools.partial(_expert, activation))(_of_experts(matrices, experts_C), x_CbH)
        return jax.lax.dynamic_update_slice_in_dim(y_NbH, y_CbH, i * C, 0)

    return _each_step(C, experts_N, used, step, jnp.zeros_like(x_NbH))


def _through_experts_fwd(activation, C, x_NbH, matrices, experts_N, used):
    return _through_experts(activation, C, x_NbH, matrices, experts_N, used), (x_NbH, matrices, experts_N, used)


def _through_experts_bwd(activation, C, residuals, g_NbH):
    x_NbH, matrices, experts_N, used = residuals

    def step(i, gradients):
        dx_NbH, dmatrices = gradients
        x_CbH, g_CbH, experts_C = _step(i, C, x_NbH, g_NbH, experts_N)
        forward = jax.vmap(functools.partial(_expert, activation))
        _, pull_back = jax.vjp(forward, _of_experts(matrices, experts_C), x_CbH)
        dmatrices_C, dx_CbH = pull_back(g_CbH)
        for c in range(C):  # one after another: blocks may be of one expert, and sums have a fixed order
            dmatrices = Matrices(*(t.at[experts_C[c]].add(d[c]) for t, d in zip(dmatrices, dmatrices_C)))
        return jax.lax.dynamic_update_slice_in_dim(dx_NbH, dx_CbH, i * C, 0), dmatrices

    zeros = jnp.zeros_like(x_NbH), Matrices(*map(jnp.zeros_like, matrices))
    dx_NbH, dmatrices = _each_step(C, experts_N, used, step, zeros)
    return dx_NbH, dmatrices, None, None


_through_experts.defvjp(_through_experts_fwd, _through_experts_bwd)
