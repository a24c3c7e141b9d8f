#!/usr/bin/env bash
# JAX 0.10.2 (jaxlib 0.10.2) on a CPU: a number that each of 4,096 games computes in 144 cheap steps, and compares with
# its 400 cells; jax.lax.optimization_barrier between the number and the cells.
#
# One would guess: the barrier keeps the two apart, so that the number is computed once for a game. Its documentation
# says that it prevents the compiler from moving operations across the barrier.
# What happens: XLA's CPU compiler removes the barrier before it fuses. No barrier is left in the compiled program, and
# the number's steps stand in one fusion with the cells, as without a barrier. A remainder that changes nothing, by a
# modulus above all values, ends the fusion: the compiler counts it among the operations that are too dear to repeat.
# Output seen: one fusion and 0.19 ms with nothing and with the barrier, two fusions and 0.13 ms with the remainder.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2
cat > "$folder/look.py" <<'PY'
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

GAMES, CELLS = 4096, 400


def number_of(word):
    for _ in range(24):
        word ^= word << 13
        word ^= word >> 17
        word ^= word << 5
    return word & 511


def board(word, between):
    return between(number_of(word)) == np.arange(CELLS, dtype=np.uint32)


def milliseconds(function, *args):
    times = []
    for _ in range(16):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


words = jnp.arange(1, GAMES + 1, dtype=jnp.uint32)
ways = {
    "nothing": lambda x: x,
    "optimization_barrier": jax.lax.optimization_barrier,
    "a remainder": lambda x: jax.lax.rem(x, jnp.uint32(65537)),
}
barriers, kernels = {}, {}
for name, between in ways.items():
    function = jax.jit(jax.vmap(functools.partial(board, between=between)))
    lowered = function.lower(words)
    text = lowered.compile().as_text()
    barriers[name] = lowered.as_text().count("optimization_barrier"), text.count("opt-barrier")
    kernels[name] = text[text.index("ENTRY") :].count(" fusion(")
    print(f"{name:20} barriers {barriers[name]}, fusions {kernels[name]}, {milliseconds(function, words):.2f} ms")
is_dropped = barriers["optimization_barrier"] == (1, 0) and kernels["optimization_barrier"] == kernels["nothing"]
raise SystemExit(not (is_dropped and kernels["a remainder"] > kernels["nothing"]))
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
