"""What log-probabilities of given replies need in memory, whole and in chunks, read off the compiled program.

    python -m benchmarks.memory

SmolLM2's sizes, for the devices at hand. Whole programs, and devices that are not here: benchmarks/aot.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nlrl_jax.lm.config import ModelConfig
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.transformer import Transformer, init_params
from nlrl_jax.run.dry_run import GIB, bytes_of

BATCH, LENGTH, VOCAB, HIDDEN = 8, 256, 49152, 576


def main() -> None:
    config = ModelConfig(VOCAB, HIDDEN, 8, 1, 1, 1, 8, LENGTH, tie_embeddings=True)
    model = Transformer(config)
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    shapes = (
        jax.ShapeDtypeStruct((BATCH, LENGTH, HIDDEN), jnp.float32),
        jax.ShapeDtypeStruct((BATCH, LENGTH), "int32"),
    )
    print(f"{jax.devices()[0].device_kind}, gradient with respect to the hidden states of {BATCH} x {LENGTH} tokens")
    for name, chunk in (("whole [B, L, V]", BATCH * LENGTH), ("in chunks", None)):
        loss = lambda h, t, p, chunk=chunk: token_log_probs(model, {"params": p}, h, t, chunk=chunk).sum()
        compiled = jax.jit(jax.grad(loss)).lower(*shapes, params).compile()
        print(f"{name}: " + ", ".join(f"{part} {n / GIB:.2f} GiB" for part, n in bytes_of(compiled).items()))


if __name__ == "__main__":
    main()
