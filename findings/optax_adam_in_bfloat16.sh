#!/usr/bin/env bash
# optax 0.2.8 (jax 0.10.2): Adam with its usual b2 = 0.999 on weights kept in bfloat16.
#
# One would guess: the moments are a little coarse, and `mu_dtype=float32` is the option for those who mind. A weight
# that met one large gradient takes small steps for some thousands of updates, and then ordinary ones.
# What happens: the second moment has the weights' type, whatever `mu_dtype`, and 0.999 of a bfloat16 number rounds to
# that number again, so it never decays: after one gradient of 10 among those of 0.01, updates are 30 times too small
# for good. It rises half of the way: where gradients double, updates stay 1.4 times too large. float16 errs less, and
# b2 = 0.95 moves in bfloat16 as well. What helps is to keep weights in float32 and cast a copy of them for the forward
# pass.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 optax==0.2.8
cat > "$folder/look.py" <<'PY'
import jax
import jax.numpy as jnp
import optax

LEARNING_RATE, STEPS = 1e-3, 10_000


def last_update(optimizer, dtype, gradients):
    """The last update's size in learning rates; Adam's is 1 where all gradients of its memory are equal."""
    weight = jnp.zeros((1,), dtype)

    def step(state, gradient):
        update, state = optimizer.update(gradient[None], state, weight)
        return state, update[0].astype(jnp.float32)

    run = jax.jit(lambda state, gradients: jax.lax.scan(step, state, gradients))
    _, updates = run(optimizer.init(weight), gradients.astype(dtype))
    return float(-updates[-1] / LEARNING_RATE)


courses = {
    "one gradient of 10 among those of 0.01": jnp.full(STEPS, 0.01).at[100].set(10.0),
    "gradients that double": jnp.where(jnp.arange(STEPS) < 2_000, 1.0, 2.0),
}
kinds = {
    "float32": (jnp.float32, {}), "bfloat16": (jnp.bfloat16, {}), "float16": (jnp.float16, {}),
    "bfloat16, mu in float32": (jnp.bfloat16, {"mu_dtype": jnp.float32}),
    "bfloat16, b2 0.95": (jnp.bfloat16, {"b2": 0.95}),
}
sizes = {}
for course, gradients in courses.items():
    for kind, (dtype, options) in kinds.items():
        sizes[course, kind] = size = last_update(optax.adam(LEARNING_RATE, **options), dtype, gradients)
        print(f"{course}, weights in {kind}: update {STEPS} is {size:.3f} learning rates")
spike, double = courses
stuck = ("bfloat16", "bfloat16, mu in float32")
as_seen = all(sizes[spike, kind] < 0.05 and sizes[double, kind] > 1.3 for kind in stuck)
as_seen &= all(0.85 < sizes[course, kind] < 1.1 for course in courses for kind in ("float32", "bfloat16, b2 0.95"))
raise SystemExit(not as_seen)
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
