"""Small decoders with weights large enough that every part of a model moves its output."""

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.lm.transformer import Transformer, init_lora, init_params


def noisy(tree, scale, seed=1):
    """The tree plus normal noise, in its own dtypes; added on the host, where no shape needs a program."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x) + scale * rng.normal(size=x.shape).astype(x.dtype)), tree)


def noisy_params(config, scale, seed=2):
    """{"params"} of a decoder."""
    return {"params": noisy(init_params(Transformer(config), jax.random.key(0)), scale, seed)}


def noisy_variables(config, scale):
    """{"params", "lora"} of a decoder with an adapter, on the host."""
    model = Transformer(config)
    variables = {"params": init_params(model, jax.random.key(0)), "lora": init_lora(model, jax.random.key(1))}
    return jax.tree.map(np.asarray, noisy(variables, scale))
