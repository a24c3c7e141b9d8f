#!/usr/bin/env bash
# optax 0.2.8 (optax.contrib.muon) with flax 0.12.8's nn.scan: four equal blocks of RMSNorm and Dense, whose weights
# nn.scan stacks along a leading axis of layers.
#
# One would guess: Muon makes the steps of the Dense kernels orthogonal, layer by layer, and Adam takes the norms' scales.
# What happens is the reverse, without a word: "2D parameters" are counted with the axis of layers, so the stacked scales
# [layers, features] are a matrix, whose rows (the layers!) are made orthogonal to one another and scaled by
# sqrt(features / layers), while the kernels [layers, in, out] are stepped by Adam with Nesterov's momentum, at Muon's
# learning rate. `muon_weight_dimension_numbers`, with reduction axis 1 and output axis 2, gives what one wanted.
# Output seen: the kernels' steps equal optax.nadam's, each of their entries about one learning rate; the four rows of the
# scales' step have the inner products [5, 0, 0, 0], [0, 5, 0, 0], ...
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 optax==0.2.8
cat > "$folder/look.py" <<'PY'
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(16, use_bias=False)(nn.RMSNorm()(x)), None


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        return blocks(name="blocks")(x, None)[0]


x = jax.random.normal(jax.random.key(0), (8, 16))
params = Network().init(jax.random.key(1), x)["params"]
grads = jax.grad(lambda p: jnp.sum((Network().apply({"params": p}, x) - jnp.roll(x, 1, 1)) ** 2))(params)


def step(optimizer):
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return np.asarray(updates["blocks"]["Dense_0"]["kernel"]), np.asarray(updates["blocks"]["RMSNorm_0"]["scale"])


kernels, scales = step(optax.contrib.muon(1.0))
nadam_kernels, nadam_scales = step(optax.nadam(1.0))
inner = scales @ scales.T
print("shapes:", kernels.shape, scales.shape)
print("kernels as nadam:", np.allclose(kernels, nadam_kernels, atol=1e-5))
print("scales as nadam:", np.allclose(scales, nadam_scales, atol=1e-5))
print("inner products of the layers' steps of the scales:", inner.round().tolist())
raise SystemExit(
    kernels.shape != (4, 16, 16)
    or not np.allclose(kernels, nadam_kernels, atol=1e-5)
    or np.allclose(scales, nadam_scales, atol=1e-5)
    or not np.allclose(inner, 5 * np.eye(4), atol=0.5)
)
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/look.py"
