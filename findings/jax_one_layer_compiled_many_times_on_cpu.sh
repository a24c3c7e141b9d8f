#!/usr/bin/env bash
# JAX 0.10.2 (jaxlib 0.10.2) on a CPU: a network of 16 equal layers, each a call of one function under jax.jit.
#
# One would guess: the layer is traced, lowered and compiled once, and the program calls it 16 times, so that its time
# to compile hardly depends on the depth.
# What happens: it is traced and lowered once (one function in the lowered module, 16 calls of it), but XLA's CPU
# compiler inlines every call: the compiled program holds each layer's two products and its tanh 16 times, and takes as
# long to compile as 16 layers. Only a loop over stacked weights, or calls from the host, compile a layer once.
# Output seen: {2: (1, 2, 4, 2), 16: (1, 16, 32, 16)}: functions, calls, compiled products, compiled tanh by depth.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2
cat > "$folder/look.py" <<'PY'
import jax
import jax.numpy as jnp


@jax.jit
def layer(x, w):
    return x + jnp.tanh(x @ w) @ w.T


def network(x, weights):
    for w in weights:
        x = layer(x, w)
    return x


def counts(depth):
    weights = [jnp.ones((64, 64)) for _ in range(depth)]
    lowered = jax.jit(network).lower(jnp.ones((8, 64)), weights)
    text, compiled = lowered.as_text(), lowered.compile().as_text()
    functions, calls = text.count("func.func private @layer"), text.count("call @layer")
    return functions, calls, compiled.count(" dot("), compiled.count("tanh(")


seen = {depth: counts(depth) for depth in (2, 16)}
print(seen)
raise SystemExit(seen != {2: (1, 2, 4, 2), 16: (1, 16, 32, 16)})
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
