"""What a compiled decoding loop does for each token, beside what it may do.

    for problem in decoding.problems(hlo.Program(text), model, rows=100):
        print(problem)

Weights are exchanged by no device, and of a mixture's experts those alone are read that a loop over blocks picks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks import hlo
from nlrl_jax.lm import experts, placement
from nlrl_jax.lm.sharding import RULES, devices_of, platform_of, whole_rows
from nlrl_jax.lm.transformer import Transformer, init_params

TILE = 8  # rows are filled up to a multiple
PICKS = ("dynamic-slice", "gather")  # operations that read the part of an array that their result holds


def problems(program: hlo.Program, model: Transformer, rows: int) -> list[str]:
    """One line for each exchange of weights and each reading of experts that were not picked, of the loops that
    decode; none if all is well.

    Args:
      rows: replies that are written at once, on all devices together.
    """
    lines = [f"moves weights for every token: {row}" for row in moved_weights(program, model, rows)]
    if model.config.num_experts:
        lines += [f"reads experts that no row chose: {line}" for line in experts_read_in_vain(program, model)]
    return lines


def moved_weights(program: hlo.Program, model: Transformer, rows: int) -> list[hlo.Collective]:
    """Exchanges for a token that are larger than sums of its activations, or not sums and as large as a matrix."""
    smallest = _smallest_matrix(model)
    shared = 1 if model.mesh is None else devices_of(model.mesh, RULES["batch"])
    rows_of_device = -(-whole_rows(rows, model.mesh) // (shared * TILE)) * TILE
    sums = 2 * rows_of_device * model.config.hidden_size * 4  # two of float32, which XLA may join
    return [
        row
        for row in program.collectives()
        if hlo.UNKNOWN in row.loops and row.bytes >= (sums + 1 if row.kind == "all-reduce" else smallest)
    ]


def experts_read_in_vain(program: hlo.Program, model: Transformer) -> list[str]:
    """Operations of decoding loops that read experts otherwise than a few at a time, in a loop over their blocks."""
    c, mesh = model.config, model.mesh
    width = c.expert_size
    if mesh is not None and width % mesh.shape["tensor"] == 0:
        width //= mesh.shape["tensor"]
    matrix = c.hidden_size * width
    shapes = [(c.num_experts, c.hidden_size, width)] * 2 + [(c.num_experts, width, c.hidden_size)]
    matrices = experts.Matrices(*(jax.ShapeDtypeStruct(shape, c.param_dtype) for shape in shapes))
    at_once = experts.blocks_at_once(matrices, platform_of(mesh))
    lines = []
    for computation, loops in program.loops():
        if hlo.UNKNOWN not in loops:
            continue
        for op in _readers(program, computation, c.num_experts * matrix):
            picked = max((math.prod(dims) for dims in hlo.dims_of(op.type)), default=0) // matrix
            if op.code not in PICKS or picked > at_once or hlo.AT_MOST not in loops:
                lines.append(f"{op.code} {op.type[:60]} in {loops}  {program.line(op)}")
    return lines


def _readers(program: hlo.Program, computation: str, size: int) -> Iterator[hlo.Op]:
    """Operations, also within fusions, with an operand of `size` numbers or of several layers with so many each."""
    ops = program.computations[computation]
    types = {op.name: op.type for op in ops}
    for op in ops:
        if op.code in hlo.FREE or op.code.endswith("-done"):
            continue
        operands = [dims for name in hlo.operands(op) for dims in hlo.dims_of(types.get(name, ""))]
        if not any(len(dims) >= 3 and math.prod(dims) % size == 0 for dims in operands):
            continue
        fused = re.search(r"calls=%?([\w.\-]+)", op.rest)
        if op.code == "fusion" and fused:
            yield from _readers(program, fused.group(1), size)
        else:
            yield op


def _smallest_matrix(model: Transformer) -> float:
    """Bytes of the smallest part that a device has of a layer's matrix, the adapter's not counted, as it computes."""
    bare, itemsize = model.clone(mesh=None), jnp.dtype(model.config.dtype).itemsize
    variables = {"params": jax.eval_shape(lambda: init_params(bare, jax.random.key(0)))}
    shapes = jax.tree.map(lambda leaf: leaf.shape, variables)
    if model.mesh is not None:
        places = placement.of_variables(model, variables)
        shapes = jax.tree.map(lambda leaf, place: place.shard_shape(leaf.shape), variables, places)
    stacks = jax.tree.leaves(shapes["params"]["blocks"], is_leaf=lambda shape: isinstance(shape, tuple))
    return min(math.prod(shape[1:]) for shape in stacks if len(shape) > 2) * itemsize
