"""`decode.decode` for weights with an array per layer, outside of a program: one compiled layer for all of them.

A loop over all layers in one program is compiled layer by layer, for every shape of rows. Here the host calls one
small program for each layer of a kind, and one for what lies between two steps, so that a new shape takes a second or
two. A call takes some tens of microseconds, a layer of `acting.LARGE` bytes or more many times that.

Letters: R rows, W cache slots, H width, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from nlrl_jax.lm.block import Block, View
from nlrl_jax.lm.cache import Cache, KeyValues, num_slots, prefix_length
from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.decode import Rows, goes_on, next_inputs, write
from nlrl_jax.lm.programs import PROGRAMS
from nlrl_jax.lm.sampling import DrawSampling
from nlrl_jax.lm.transformer import Transformer
from nlrl_jax.types import Sampling


def _program(static: tuple[int, ...] = (), donated: tuple[int, ...] = ()) -> Callable[[Any], Any]:
    return lambda function: PROGRAMS.own(jax.jit(function, static_argnums=static, donate_argnums=donated))


class Step(NamedTuple):
    """What the layers read in a step.

    x [R, 1, H], views, segments: see `Block`. goes_on: bool [], whether the step is taken.
    """

    x: jax.Array
    views: tuple[View, ...]
    segments: jax.Array | None
    goes_on: jax.Array


def decode(
    model: Transformer,
    variables: Any,
    rows: Rows,
    key: jax.Array,
    stop_at: jax.Array,
    sampling: Sampling,
    end_tokens: jax.Array,
    prefix: KeyValues | None = None,
    temperature: jax.Array | None = None,
    draws: DrawSampling | None = None,
) -> Rows:
    """Arguments and result are those of `decode.decode`; `rows.kv` is consumed.

    Args:
      variables: from `acting.views`, with blocks that are a tuple.
    """
    W, before, c = num_slots(rows.kv), prefix_length(prefix), model.config
    blocks = [tree["blocks"] for tree in variables.values()]
    layers = [dict(zip(variables, layer)) for layer in zip(*blocks)]
    rest = {name: {part: t for part, t in tree.items() if part != "blocks"} for name, tree in variables.items()}
    places, kv, rows = _places(c), rows.kv, rows._replace(kv=None)
    # By kind, attention first.
    stacks, prefix_stacks = [kv[:2], kv.states], (None, None) if prefix is None else (prefix[:2], prefix.states)
    kvs = [_layer_of(stacks[kind], i) for kind, i in places]
    prefixes = [_prefix_of(prefix_stacks[kind], i) for kind, i in places]
    step = _first_step(model, W, before, rest, rows, stop_at)
    while step.goes_on:
        x = step.x
        for number, layer in enumerate(layers):
            static = _block(model, c.kinds[number % c.period]), c.slides[number], type(kv)
            reads = rows.index, prefixes[number], step.views, step.segments
            x, kvs[number] = _layer(*static, layer, x, kvs[number], *reads)
        arguments = key, stop_at, end_tokens, temperature, draws
        rows, step = _next_step(model, W, before, sampling, rest, rows, x, *arguments)
    for (kind, i), arrays in zip(places, kvs):
        stacks[kind] = _put(stacks[kind], arrays, i)
    return rows._replace(kv=type(kv)(*stacks[False], stacks[True]))


@functools.lru_cache(64)
def _places(config: ModelConfig) -> tuple[tuple[bool, np.int32], ...]:
    """Of each layer whether it is linear, and its number among those of its kind."""
    kinds = [config.kinds[layer % config.period][0] for layer in range(config.num_layers)]
    return tuple((kind, np.int32(kinds[:layer].count(kind))) for layer, kind in enumerate(kinds))


@functools.lru_cache(64)
def _block(model: Transformer, kind: tuple[bool, bool]) -> Block:
    return Block(model.config, model.mesh, False, None, *kind, alone=True, parent=None)


@_program()
def _layer_of(stacks, i):
    """One layer's part [1, ...] of stacked arrays."""
    return jax.tree.map(lambda t: jax.lax.dynamic_slice_in_dim(t, i, 1), stacks)


@_program()
def _prefix_of(stacks, i):
    return jax.tree.map(lambda t: jax.lax.dynamic_index_in_dim(t, i, keepdims=False), stacks)


@_program(donated=(0,))
def _put(stacks, arrays, i):
    """The stacked arrays with one layer's part in its place."""
    return jax.tree.map(lambda t, new: jax.lax.dynamic_update_slice_in_dim(t, new, i, 0), stacks, arrays)


@_program(static=(0, 1, 2))
def _first_step(model, W, before, rest, rows, stop_at) -> Step:
    """The first step of a call."""
    positions, valid = next_inputs(model, rows, W, before)
    tokens = rows.last[:, None]
    x, views, segments, _ = model.apply(rest, tokens, positions, valid, rows.index, W, before, method="enter")
    return Step(x, views, segments, goes_on(rows, stop_at, W))


@_program(static=(0, 1, 2, 3))
def _next_step(
    model, W, before, sampling, rest, rows, x, key, stop_at, end_tokens, temperature, draws
) -> tuple[Rows, Step]:
    """From what the last layer returned to the next step."""
    hidden, rows = model.apply(rest, x, method="leave"), rows._replace(index=rows.index + 1)
    rows = write(model, rest, rows, hidden[:, -1], key, sampling, end_tokens, temperature, draws)
    return rows, _first_step(model, W, before, rest, rows, stop_at)


@_program(static=(0, 1, 2), donated=(4, 5))
def _layer(block, slides, kv_type, variables, x, arrays, index, prefix, views, segments):
    """x, and the layer's keys and values or states, after a layer."""
    kv = kv_type((), (), arrays) if block.is_linear else kv_type(*arrays)
    (x, cache), _ = block.apply(variables, (x, Cache(kv, index)), prefix, 0, slides, views, segments)
    return x, cache.kv.states if block.is_linear else cache.kv[:2]
