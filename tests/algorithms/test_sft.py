"""SFT: hand-worked loss, what is masked, what learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nlrl_jax.algorithms.sft import make_sft_step, sft_loss
from nlrl_jax.lm.config import LoraConfig, ModelConfig
from nlrl_jax.lm.transformer import Transformer, init_lora, init_params

V, END = 20, 19
MODEL = Transformer(ModelConfig(V, 16, 24, 1, 2, 1, 8, 32, lora=LoraConfig(4, 8.0)))
# prompt 3 1 4, reply 5 9 END; prompt 2, reply 7 END, then padding
TOKENS = jnp.array([[3, 1, 4, 5, 9, END], [2, 7, END, 0, 0, 0]])
LENGTHS = jnp.array([6, 3])
MASK = jnp.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0]])


@pytest.fixture(scope="module")
def variables():
    params = init_params(MODEL, jax.random.key(0))
    params["lm_head"] *= 10  # so that an adapter, which does not reach the head, can be heard
    return {"params": params, "lora": init_lora(MODEL, jax.random.key(1))}


class Table:
    """Stands in for a model: the logits of what follows a token are given, whatever came before it."""

    config = MODEL.config

    def apply(self, logits, x, *args, method=None, **kwargs):
        return x if method == "unembed" else (logits[x], None)


def test_hand_worked_loss():
    # After a 3, token 1 has probability 3/4 and token 0 has 1/4; after a 1 all three are equally likely.
    logits = jnp.log(jnp.array([[1, 1, 1], [1, 1, 1], [1, 1, 2], [1, 3, 1e-30]], jnp.float32))
    tokens, lengths = jnp.array([[3, 1, 2], [3, 0, 0]]), jnp.array([3, 2])
    both = jnp.array([[0, 1, 1], [0, 1, 0]])
    loss, metrics = sft_loss(Table(), logits, tokens, lengths, both)
    want = -(np.log(3 / 4) + np.log(1 / 3) + np.log(1 / 4)) / 3
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    np.testing.assert_allclose(metrics["perplexity"], np.exp(want), rtol=1e-6)
    assert metrics["tokens"] == 3
    loss, metrics = sft_loss(Table(), logits, tokens, lengths, both.at[0, 1].set(0))  # the 1 is prompt now
    np.testing.assert_allclose(loss, -(np.log(1 / 3) + np.log(1 / 4)) / 2, rtol=1e-6)
    # Padding and the first column never count, whatever the mask says.
    loss, metrics = sft_loss(Table(), logits, tokens, lengths, jnp.ones((2, 3)))
    assert metrics["tokens"] == 3
    np.testing.assert_allclose(loss, want, rtol=1e-6)


def test_prompt_is_masked_end_token_is_learned_and_padding_is_invisible(variables):
    @jax.jit
    def gradient_of_logits(tokens):
        """How much each position's logits matter to the loss, [B, L - 1]."""

        def loss(shift):
            class Shifted:
                config = MODEL.config

                def apply(self, v, x, *args, method=None, **kwargs):
                    out = MODEL.apply(v, x, *args, method=method, **kwargs)
                    return out + shift.reshape(out.shape) if method == "unembed" else out

            return sft_loss(Shifted(), variables, tokens, LENGTHS, MASK)[0]

        return jnp.abs(jax.grad(loss)(jnp.zeros((2, 5, V)))).sum(-1), loss(jnp.zeros((2, 5, V)))

    matters, loss = gradient_of_logits(TOKENS)
    # position i predicts token i + 1: tokens 3, 4, 5 of the first row, the end included, and 1, 2 of the second
    np.testing.assert_array_equal(matters > 0, [[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
    _, other = gradient_of_logits(TOKENS.at[1, 3:].set(8))
    assert loss == other


@pytest.mark.parametrize("train", ["lora", "params"])
def test_only_what_trains_changes_and_the_loss_falls(variables, train):
    optimizer = optax.adam(0.03)
    if train == "params":
        variables = {"params": variables["params"]}  # needs no adapter
    step = jax.jit(make_sft_step(MODEL, optimizer, train))
    now, opt_state, found = variables, optimizer.init(variables[train]), []
    for _ in range(40):
        now, opt_state, metrics = step(now, opt_state, TOKENS, LENGTHS, MASK)
        found.append(float(metrics["loss"]))
    assert abs(found[0] - np.log(V)) < 1  # knows nothing
    assert found[-1] < 0.3 * found[0]
    assert set(now) == set(variables)
    if train == "lora":
        jax.tree.map(np.testing.assert_array_equal, now["params"], variables["params"])
    assert step._cache_size() == 1
    assert metrics["grad_norm"] > 0 and metrics["tokens"] == 5


def test_another_collection_is_refused():
    with pytest.raises(ValueError, match="train is 'all'; choose 'lora' or 'params'"):
        make_sft_step(MODEL, optax.sgd(1.0), "all")
