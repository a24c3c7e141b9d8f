#!/usr/bin/env bash
# jax 0.10.2 on a CPU, Python 3.11.
# One would guess: jax.lax.ragged_dot, the product of a mixture of experts, costs what one product of as many rows costs:
# each row is multiplied by the matrix of its own group.
# What happens: XLA:CPU multiplies every row by every group's matrix and keeps one result. The compiled program counts
# as many times the operations as there are groups; 16 groups take ten to twenty times a plain product's time.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import statistics, sys, time
import jax
import jax.numpy as jnp

rows, width = 1024, 256
x = jax.random.normal(jax.random.key(0), (rows, width))


def seconds(program, *args):
    jax.block_until_ready(program(*args))
    times = []
    for _ in range(7):
        start = time.process_time()
        jax.block_until_ready(program(*args))
        times.append(time.process_time() - start)
    return statistics.median(times)


def flops(compiled):
    cost = compiled.cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["flops"]


plain = jax.jit(jnp.matmul).lower(x, x[:width]).compile()
plain_flops, plain_seconds = flops(plain), seconds(plain, x, x[:width])
ratios = {}
for groups in (1, 4, 16, 64):
    matrices = jax.random.normal(jax.random.key(1), (groups, width, width))
    sizes = jnp.full(groups, rows // groups)
    ragged = jax.jit(jax.lax.ragged_dot).lower(x, matrices, sizes).compile()
    ratios[groups] = flops(ragged) / plain_flops
    slower = seconds(ragged, x, matrices, sizes) / plain_seconds
    print(f"{groups} groups: {ratios[groups]:.1f} times the operations of one product, {slower:.1f} times its CPU time")
sys.exit(not all(0.9 * groups < ratio < 1.5 * groups + 1 for groups, ratio in ratios.items()))
PYTHON
