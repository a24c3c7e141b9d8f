"""Gated DeltaNet: a layer with a state of fixed size in place of keys and values (Qwen3.5's linear layers).

    y, conv_state = causal_convolution(x, weights, conv_state, segments)
    out, memory = gated_delta_rule(q, k, v, log_decay, beta, memory, segments)

S. Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv:2412.06464, equation 10: per head
the state S [D, E] is a memory that maps keys to values. A token lets it decay, reads what it holds for the token's key,
and writes the difference to the token's value:

    S' = exp(log_decay) S;    S = S' + beta k (v - S'^T k)^T;    out = S^T q

Tokens are taken in chunks of C, within which the updates are one triangular system (the paper's section 3.3), and the
state goes from chunk to chunk.

Segments are the sequences of a row, each of them without gaps. Every one begins with the given state (that of a shared
prefix, say), and none sees another. Segment 0 is padding, which leaves the state as it is.

Letters: B batch, L tokens, H model width, N chunks of C tokens, K key heads, V value heads (a multiple of K), D key
size, E value size, W taps of the convolution, F its channels.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nlrl_jax.lm.cache import Cache, States
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.layers import Linear, apart

CHUNK = 64  # tokens


class DeltaNet(nn.Module):
    """The mixer of a linear layer. `alone`: see `block.Block`."""

    config: ModelConfig
    mesh: Mesh | None
    alone: bool

    @nn.compact
    def __call__(
        self, x: jax.Array, segments: jax.Array | None, prefix: States | None, cache: Cache | None, layer: jax.Array
    ) -> tuple[jax.Array, States, Cache | None]:
        """x [B, L, H] -> (output [B, L, H], the states after the last token, the cache with these).

        Args:
          segments: int [B, L]; one, without padding, if None.
          prefix: states [W - 1, F] and [V, D, E] that rows begin with which have no cache; zeros if None.
          cache: its states of `layer` are those that the rows begin with.
        """
        c, n = self.config, self.config.delta_net
        B, L, _ = x.shape
        of_keys, of_values = n.num_key_heads * n.key_head_dim, n.num_value_heads * n.value_head_dim
        before = self._states_before(B, prefix, cache, layer)

        # 1. Products of the input; the convolution mixes neighbouring tokens of queries, keys and values.
        for_z, for_b, for_a, *for_lora = apart(x, 7, cache, self.mesh, self.alone)
        for_lora = for_lora if self.alone else (None,) * 4
        qkv = Linear(c, n.channels, ("embed", "heads"), name="in_qkv")(x, for_lora[0])
        z = Linear(c, of_values, ("embed", "heads"), name="in_z")(for_z, for_lora[1])
        b = Linear(c, n.num_value_heads, ("embed", "heads"), name="in_b")(for_b, for_lora[2])
        a = Linear(c, n.num_value_heads, ("embed", "heads"), name="in_a")(for_a, for_lora[3])
        # As files hold it: [F, 1, W].
        weights = self._param("conv", nn.initializers.normal(0.02), (n.channels, 1, n.conv_width))
        qkv, conv = causal_convolution(qkv, weights[:, 0].T, before.conv, segments)
        q, k, v = jnp.split(jax.nn.silu(qkv), (of_keys, 2 * of_keys), axis=-1)
        q, k = (t.reshape(B, L, n.num_key_heads, n.key_head_dim) for t in (q, k))
        v, z = (t.reshape(B, L, n.num_value_heads, n.value_head_dim) for t in (v, z))

        # 2. The recurrence, in float32.
        decay_rate = jnp.exp(self._param("A_log", nn.initializers.zeros, (n.num_value_heads,)).astype(jnp.float32))
        dt_bias = self._param("dt_bias", nn.initializers.ones, (n.num_value_heads,)).astype(jnp.float32)
        log_decay = -decay_rate * jax.nn.softplus(a.astype(jnp.float32) + dt_bias)
        out, memory = gated_delta_rule(q, k, v, log_decay, jax.nn.sigmoid(b), before.memory, segments)

        # 3. Each head normed (whatever `norm_offset` is, by the weight alone) and gated.
        scale = self._param("norm", nn.initializers.ones, (n.value_head_dim,))
        out = out.astype(x.dtype).astype(jnp.float32)
        out = out * jax.lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + c.norm_eps)
        out = out.astype(x.dtype) * scale.astype(x.dtype)
        out = (out.astype(jnp.float32) * jax.nn.silu(z.astype(jnp.float32))).astype(x.dtype).reshape(B, L, of_values)
        for_lora = apart(out, 1, cache, self.mesh, self.alone)[0] if self.alone else None
        states = States(conv, memory)
        out = Linear(c, c.hidden_size, ("heads", "embed"), name="out")(out, for_lora)
        return out, states, self._written(states, cache, layer)

    def _param(self, name: str, init: nn.initializers.Initializer, shape: tuple[int, ...]) -> jax.Array:
        # Of heads all but the norm, which they share.
        axes = (None if name == "norm" else "heads", *[None] * (len(shape) - 1))
        return self.param(name, nn.with_logical_partitioning(init, axes), shape, self.config.param_dtype)

    def _states_before(self, B: int, prefix: States | None, cache: Cache | None, layer: jax.Array) -> States:
        if cache is not None:  # which may have more rows
            stacks = cache.kv.states
            return States(*(jax.lax.dynamic_index_in_dim(t, layer, keepdims=False)[:B] for t in stacks))
        if prefix is not None:
            return States(*(jnp.broadcast_to(t, (B, *t.shape)) for t in prefix))
        n = self.config.delta_net
        conv = jnp.zeros((B, n.conv_width - 1, n.channels), self.config.dtype)
        return States(conv, jnp.zeros((B, n.num_value_heads, n.key_head_dim, n.value_head_dim), jnp.float32))

    def _written(self, states: States, cache: Cache | None, layer: jax.Array) -> Cache | None:
        if cache is None:
            return None
        written = [
            jax.lax.dynamic_update_slice(old, new[None].astype(old.dtype), (layer, *[0] * (old.ndim - 1)))
            for old, new in zip(cache.kv.states, states)
        ]
        return cache._replace(kv=cache.kv._replace(states=States(*written)))


def causal_convolution(
    x_BLF: jax.Array, weights_WF: jax.Array, before_BTF: jax.Array, segments_BL: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """sum_w weights[w] * x[l - (W - 1) + w] for each channel -> ([B, L, F], the last W - 1 inputs [B, W - 1, F]).

    Args:
      before_BTF: the T = W - 1 inputs before the first of each segment.
      segments_BL: one, without padding, if None. The last inputs returned are those of rows with one segment, which is
        padded on the left.
    """
    T, L = len(weights_WF) - 1, x_BLF.shape[1]
    weights_WF, before_BTF = weights_WF.astype(x_BLF.dtype), before_BTF.astype(x_BLF.dtype)
    if segments_BL is None or L == 1:
        inputs = jnp.concatenate([before_BTF, x_BLF], axis=1)
        out = sum(inputs[:, w : w + L] * weights_WF[w] for w in range(T + 1))
        last = inputs[:, L:]
        return out, last if segments_BL is None else jnp.where(segments_BL[..., None] > 0, last, before_BTF)
    slots = jnp.arange(L)
    begins = jnp.pad(segments_BL[:, 1:] != segments_BL[:, :-1], ((0, 0), (1, 0)))
    first_BL = jax.lax.cummax(jnp.where(begins, slots, 0), axis=1)  # slot of the first token of each one's segment
    out = jnp.zeros_like(x_BLF)
    for w in range(T + 1):
        back = T - w
        tap = jnp.pad(x_BLF, ((0, 0), (back, 0), (0, 0)))[:, :L]
        # Where that is before the segment, it is among the last inputs of what came before it.
        missing = first_BL - (slots - back)
        tap = jnp.where((missing > 0)[..., None], _counted_back(before_BTF, missing), tap)
        out = out + tap * weights_WF[w]
    missing = first_BL[:, -1:] - (L - T + jnp.arange(T))
    # A row of nothing but padding has no segment yet.
    missing = jnp.where(segments_BL[:, -1:] > 0, missing, T - jnp.arange(T))
    last = jnp.pad(x_BLF, ((0, 0), (T, 0), (0, 0)))[:, L:]
    return out, jnp.where((missing > 0)[..., None], _counted_back(before_BTF, missing), last)


def _counted_back(before_BTF: jax.Array, number_BM: jax.Array) -> jax.Array:
    """Of T inputs the last one for number 1, the one before it for 2: [B, M, F]; any outside of 1 .. T."""
    T = before_BTF.shape[1]
    return jnp.take_along_axis(before_BTF, jnp.clip(T - number_BM, 0, T - 1)[..., None], axis=1)


def gated_delta_rule(
    q_BLKD: jax.Array,
    k_BLKD: jax.Array,
    v_BLVE: jax.Array,
    log_decay_BLV: jax.Array,
    beta_BLV: jax.Array,
    memory_BVDE: jax.Array,
    segments_BL: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Outputs float32 [B, L, V, E] and the memory float32 [B, V, D, E] after the last token. All in float32.

    q and k are normalised here to length 1, and q is then divided by sqrt(D).

    Args:
      log_decay_BLV: at most 0. beta_BLV: in (0, 1).
      memory_BVDE: before the first token of each segment.
      segments_BL: one, without padding, if None.
    """
    B, L, V, E = v_BLVE.shape
    D, copies = q_BLKD.shape[-1], V // q_BLKD.shape[2]
    q, k = (jnp.repeat(_unit(t.astype(jnp.float32)), copies, axis=2) for t in (q_BLKD, k_BLKD))
    v, log_decay, beta = (t.astype(jnp.float32) for t in (v_BLVE, log_decay_BLV, beta_BLV))
    q = q * D**-0.5
    if segments_BL is not None:
        # Padding decays nothing and writes nothing.
        is_token = (segments_BL > 0)[..., None]
        log_decay, beta = jnp.where(is_token, log_decay, 0), jnp.where(is_token, beta, 0)
    if L == 1:
        out, memory = _one_token(memory_BVDE, *(t[:, 0] for t in (q, k, v, log_decay, beta)))
        return out[:, None], memory
    if segments_BL is None:
        segments_BL = jnp.ones((B, L), jnp.int32)
    C = min(CHUNK, L)

    def chunks(t):
        """[B, L, V, ...] -> [N, B, V, C, ...], filled up at the end."""
        t = jnp.pad(t, [(0, 0), (0, -L % C), *[(0, 0)] * (t.ndim - 2)])
        t = t.reshape(B, -1, C, *t.shape[2:])
        return jnp.moveaxis(t, 1, 0).swapaxes(2, 3) if t.ndim > 3 else jnp.moveaxis(t, 1, 0)

    def step(carry, inputs):
        return _chunk(memory_BVDE, carry, *inputs)

    inputs = tuple(map(chunks, (q, k, v, log_decay, beta))), chunks(segments_BL)
    # The carry: a memory, and the segment that it is of; 0 before the first. The backward pass makes a chunk's scores
    # again, and keeps the memories between chunks.
    carry = memory_BVDE, jnp.zeros(B, segments_BL.dtype)
    (memory, _), out = jax.lax.scan(jax.checkpoint(step, prevent_cse=False), carry, inputs)
    # [N, B, V, C, E] -> [B, N * C, V, E]
    return out.transpose(1, 0, 3, 2, 4).reshape(B, -1, V, E)[:, :L], memory


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def _one_token(memory, q, k, v, log_decay, beta):
    """The rule as it is written at the top: memory [B, V, D, E]; q, k [B, V, D]; v [B, V, E]; the rest [B, V]."""
    memory = memory * jnp.exp(log_decay)[..., None, None]
    recalled = jnp.einsum("bvde,bvd->bve", memory, k)
    memory = memory + jnp.einsum("bvd,bve->bvde", k, (v - recalled) * beta[..., None])
    return jnp.einsum("bvde,bvd->bve", memory, q), memory


def _chunk(initial, carry, tokens, segments):
    """C tokens at once.

    Written out, token i's update is beta_i (v_i - sum over j < i of decay(j, i) (k_i . k_j) u_j - decay(0, i) S0^T k_i)
    with u_j the update of token j: a triangular system for all u of the chunk. S0 is the memory that the chunks before
    left, or for a segment that begins here the initial one.

    Args:
      initial: memory [B, V, D, E] that segments begin with.
      carry: memory [B, V, D, E] and its segment [B].
      tokens: (q, k [B, V, C, D], v [B, V, C, E], log_decay, beta [B, V, C]). segments: [B, C].
    """
    (memory, memory_segment), (q, k, v, log_decay, beta) = carry, tokens
    C = k.shape[-2]
    same_segment = (segments[:, :, None] == segments[:, None, :])[:, None]
    before = jnp.tril(jnp.ones((C, C), bool)) & same_segment
    # Decay since the chunk's beginning, or the segment's: [B, V, C].
    total = jnp.sum(jnp.where(before, log_decay[:, :, None], 0), axis=-1)
    # Where j is not before i, the difference may be large: masked before the exponential, for the gradient.
    decay = jnp.exp(jnp.where(before, total[..., :, None] - total[..., None, :], -jnp.inf))
    continues = (segments == memory_segment[:, None])[:, None, :, None]
    from_start = jnp.exp(total)[..., None]

    def recall(x):  # [B, V, C, D] -> [B, V, C, E]
        return from_start * jnp.where(continues, x @ memory, x @ initial)

    strictly = jnp.tril(jnp.ones((C, C), bool), -1)
    system = jnp.where(strictly, beta[..., None] * decay * (k @ k.swapaxes(-1, -2)), 0)
    values = beta[..., None] * (v - recall(k))
    updates = jax.scipy.linalg.solve_triangular(system + jnp.eye(C), values, lower=True, unit_diagonal=True)
    out = recall(q) + (decay * (q @ k.swapaxes(-1, -2))) @ updates

    # The memory of the segment that goes on: the last one that has a token here or, in a chunk of padding, before.
    last_slot = jnp.max(jnp.where(segments > 0, jnp.arange(C), -1), axis=1)
    last_BVC1 = jnp.maximum(last_slot, 0)[:, None, None]
    last_segment = jnp.take_along_axis(segments, jnp.maximum(last_slot, 0)[:, None], axis=1)[:, 0]
    last_segment = jnp.where(last_slot >= 0, last_segment, memory_segment)
    total_at_last = jnp.take_along_axis(total, jnp.broadcast_to(last_BVC1, (*total.shape[:2], 1)), axis=2)
    total_at_last = jnp.where((last_slot >= 0)[:, None, None], total_at_last, 0.0)
    begun = jnp.where((last_segment == memory_segment)[:, None, None, None], memory, initial)
    is_last = (segments == last_segment[:, None]) & (segments > 0)
    to_end = jnp.exp(jnp.where(is_last[:, None], total_at_last - total, -jnp.inf))[..., None]
    memory = jnp.exp(total_at_last)[..., None] * begun + (k * to_end).swapaxes(-1, -2) @ updates
    return (memory, last_segment), out
