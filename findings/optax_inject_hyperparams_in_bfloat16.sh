#!/usr/bin/env bash
# optax 0.2.8 (jax 0.10.2): `optax.inject_hyperparams`, by which a learning rate can be read and set from outside.
#
# One would guess: the wrapped optimizer takes the steps that it takes alone.
# What happens: all of its numbers, not the learning rate alone, are rounded to the type of the weights, and where all
# weights are bfloat16, b2 = 0.999 becomes 1: Adam's bias correction then divides 0 by 0, and every weight is NaN after
# the first step. adamw, nadam and lamb do the same, adafactor and rmsprop (decay 0.9) do not. One float32 leaf anywhere
# in the tree (a bias, a scale) and all is well, as the widest type counts: a model that learns breaks when its last
# float32 leaf is cast. What helps is `hyperparam_dtype=jnp.float32`. That the type is the weights' is known (optax issue
# 1414), what comes of it is not said there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 optax==0.2.8 2>/dev/null
cat > "$folder/look.py" <<'PY'
import jax
import jax.numpy as jnp
import optax


def nans(optimizer, params):
    """How many weights are NaN after one step on gradients of 0.1."""
    gradients = jax.tree.map(lambda x: jnp.full_like(x, 0.1), params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return sum(int(jnp.isnan(x).sum()) for x in jax.tree.leaves(optax.apply_updates(params, updates)))


bfloat16 = {"kernel": jnp.ones(4, jnp.bfloat16)}
mixed = bfloat16 | {"bias": jnp.ones(4)}
state = optax.inject_hyperparams(optax.adam)(1e-3).init(bfloat16)
print("adam's numbers:", {name: float(value) for name, value in state.hyperparams.items()})
as_seen = state.hyperparams["b2"] == 1
for name in ("adam", "adamw", "nadam", "lamb", "adafactor", "rmsprop"):
    make = getattr(optax, name)
    injected = optax.inject_hyperparams(make)(1e-3)
    widened = optax.inject_hyperparams(make, hyperparam_dtype=jnp.float32)(1e-3)
    count = nans(injected, bfloat16)
    others = nans(make(1e-3), bfloat16), nans(injected, mixed), nans(widened, bfloat16)
    print(f"{name}: {count} of 4 weights NaN; alone, with a float32 leaf, with hyperparam_dtype: {others}")
    as_seen &= count == (0 if name in ("adafactor", "rmsprop") else 4) and others == (0, 0, 0)
raise SystemExit(not as_seen)
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
