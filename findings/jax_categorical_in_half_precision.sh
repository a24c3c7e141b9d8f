#!/usr/bin/env bash
# jax 0.10.2: drawing tokens from logits in bfloat16 or float16.
#
# One would guess: jax.random.categorical(key, logits) of a language model's bfloat16 logits draws from their softmax,
# up to the rounding of the logits, some percent of each probability.
# What happens: the Gumbel noise has the logits' type. In bfloat16 it takes 128 values, none above 4.9, so that the best
# ones are drawn by many words at once, and argmax takes the first of them: from 32,000 equal words none behind the
# first few percent is ever drawn, and from words in the proportions of Zipf's law the 31,900 unlikelier ones, which hold
# 0.27 of the probability, get under 0.01. A reply looks as if it had been sampled at a lower temperature, and
# log-probabilities computed afterwards do not tell. The same holds for other draws by the type of an argument:
# jax.random.bernoulli of a bfloat16 probability of 0.001 is true 0.008 of the time, and a million bfloat16 normals end
# at 2.9. `mode="high"` errs the other way: these unlikelier words get 0.87. Only logits.astype(float32) before the draw
# mends it. (That results differ from float32's is told in jax-ml/jax issue 30879.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2
cat > "$folder/look.py" <<'PY'
import functools

import jax
import jax.numpy as jnp
import numpy as np

V, DRAWS = 32_000, 4_000
by_rank = 1 / np.arange(1, V + 1) ** 1.2
by_rank /= by_rank.sum()
zipf_V = np.random.default_rng(0).permutation(by_rank)
unlikelier = np.argsort(-zipf_V)[100:]


@functools.partial(jax.jit, static_argnames="mode")
def draw(logits_V, mode=None):
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return jax.lax.map(lambda key: jax.random.categorical(key, logits_V, mode=mode), keys)


rows = {}
for name, dtype, mode in (
    ("float32", jnp.float32, None), ("bfloat16", jnp.bfloat16, None), ("float16", jnp.float16, None),
    ("bfloat16, mode high", jnp.bfloat16, "high"),
):
    of_equal = np.asarray(draw(jnp.zeros(V, dtype), mode))
    of_zipf = np.asarray(draw(jnp.log(jnp.asarray(zipf_V, jnp.float32)).astype(dtype), mode))
    rows[name] = int(of_equal.max()), float(np.isin(of_zipf, unlikelier).mean())
    print(f"{name}: of {V} equal words {len(np.unique(of_equal))} different ones in {DRAWS} draws, the last at "
          f"{rows[name][0]}; by Zipf's law {rows[name][1]:.4f} are none of the 100 likeliest "
          f"(right: {zipf_V[unlikelier].sum():.4f})")
key = jax.random.key(0)
true = float(jax.random.bernoulli(key, jnp.bfloat16(0.001), (1_000_000,)).mean())
normal = np.asarray(jax.random.normal(key, (1_000_000,), jnp.bfloat16)).astype(np.float32)
print(f"bernoulli(bfloat16 0.001): {true:.4f}; a million bfloat16 normals: {len(np.unique(normal))} values "
      f"from {normal.min():.2f} to {normal.max():.2f}")
as_seen = rows["bfloat16"][0] < 0.1 * V and rows["bfloat16"][1] < 0.01 and rows["float16"][0] < 0.5 * V
as_seen &= rows["float32"][0] > 0.99 * V and rows["bfloat16, mode high"][1] > 0.5 and true > 0.005
raise SystemExit(not (as_seen and np.abs(normal).max() < 3))
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
