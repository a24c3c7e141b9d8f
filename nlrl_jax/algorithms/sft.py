"""Supervised fine-tuning on replies: the prompt is masked, the end token is learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nlrl_jax import losses
from nlrl_jax.lm.score import token_log_probs
from nlrl_jax.lm.transformer import Transformer


def sft_loss(
    model: Transformer, variables: Any, tokens: jax.Array, lengths: jax.Array, mask: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean negative log-likelihood of the tokens that `mask` marks.

    Args:
      tokens: int32 [B, L], right-padded.
      lengths: int32 [B].
      mask: [B, L], 1 on the tokens to learn (a reply and its end token). The first column counts never.
    """
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    valid = positions < lengths[:, None]
    hidden, _ = model.apply(variables, tokens[:, :-1], positions[:, :-1], valid=valid[:, :-1])
    log_probs = token_log_probs(model, variables, hidden, tokens[:, 1:])
    return losses.sft(log_probs, mask[:, 1:] * valid[:, 1:])


def make_sft_step(
    model: Transformer, optimizer: optax.GradientTransformation, train: str = "lora"
) -> Callable[..., tuple[Any, Any, dict[str, jax.Array]]]:
    """A pure step `(variables, opt_state, tokens, lengths, mask) -> (variables, opt_state, metrics)`; jit it.

    Args:
      optimizer: initialised with `variables[train]`.
      train: the collection that learns: "lora" (the base stays frozen) or "params" (all weights).

    Raises:
      ValueError: another `train`.
    """
    if train not in ("lora", "params"):
        raise ValueError(f"train is {train!r}; choose 'lora' or 'params'")

    def step(variables, opt_state, tokens, lengths, mask):
        def loss_of(learned):
            return sft_loss(model, {**variables, train: learned}, tokens, lengths, mask)

        (loss, aux), grads = jax.value_and_grad(loss_of, has_aux=True)(variables[train])
        updates, opt_state = optimizer.update(grads, opt_state, variables[train])
        learned = optax.apply_updates(variables[train], updates)
        return {**variables, train: learned}, opt_state, {"loss": loss, **aux, "grad_norm": optax.global_norm(grads)}

    return step
