"""What shows early that a language model's replies collapse in reinforcement learning, while returns still look good.

RAGEN (Wang et al., 2025) names returns that no longer differ within a group and falling entropy, its successor replies
that vary but ignore the state. All measures are computed inside the update.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nlrl_jax.arrays import flat_steps
from nlrl_jax.lm.score import score
from nlrl_jax.rollouts.text_games import Turns
from nlrl_jax.text.policy import LanguageAgentPolicy


def measures(turns: Turns, returns: jax.Array) -> dict[str, jax.Array]:
    """Of the turns [T, B] of an iteration and the returns [n, G] of its groups.

    Returns: "surprisal": mean of -log p (temperature 1) of the sampled tokens, nats; an estimate of the entropy where
    tokens are sampled at temperature 1 and uncut. "distinct_replies": different replies over replies.
    "return_spread": standard deviation of the returns within a group, mean over groups.
    """
    turn, active = turns.turn, turns.active
    # bool [T, B, K]: tokens that a reply has and that an episode still played.
    is_token = (jnp.arange(turn.replies.shape[-1]) < turn.reply_lengths[..., None]) & active[..., None]
    surprisal = -jnp.sum(jnp.where(is_token, turn.log_probs, 0.0)) / jnp.maximum(jnp.sum(is_token), 1)
    # Ids from 1 on, so that a reply and the same one with a token 0 behind it differ.
    replies = jnp.where(is_token, turn.replies + 1, 0).reshape(active.size, -1)
    return {
        "surprisal": surprisal,
        "distinct_replies": _distinct(replies, active.reshape(-1)) / jnp.maximum(jnp.sum(active), 1),
        "return_spread": jnp.mean(jnp.std(returns, axis=-1)),
    }


def state_dependence(policy: LanguageAgentPolicy, variables: Any, turns: Turns, number: int) -> jax.Array:
    """Mean of log p(reply | its prompt) - log p(reply | another prompt), nats per reply; 0 where no two prompts differ.

    In expectation at least the mutual information of prompt and reply if replies are sampled at temperature 1; 0 for
    a model that ignores its prompt.

    Args:
      number: how many replies are scored after another prompt, spread evenly over the turns played.
    """
    turn, active = turns.turn, turns.active.reshape(-1)
    rows = jax.tree.map(flat_steps, turn._replace(parsed=None))
    # Turns played come first; `scored` takes `number` of them at equal distances.
    order = jnp.argsort(~active, stable=True)
    played = jnp.sum(active)
    scored = order[jnp.arange(number) * played // number]
    # The other prompt is half the list away: mostly another episode's, not the neighbouring turn's.
    swapped = jnp.roll(scored, number // 2)
    # With two equal prompts the difference would be 0 whatever the model does.
    differ = jnp.any(rows.prompts[scored] != rows.prompts[swapped], axis=-1) & active[scored] & active[swapped]
    lengths = jnp.maximum(rows.prompt_lengths[swapped], 1)
    after_other = score(
        policy.model, variables, rows.prompts[swapped], lengths, rows.replies[scored], policy.prefix(variables)
    )
    is_token = jnp.arange(rows.replies.shape[-1]) < rows.reply_lengths[scored][:, None]
    gap = jnp.sum(jnp.where(is_token, rows.log_probs[scored] - after_other, 0.0), axis=-1)
    return jnp.sum(jnp.where(differ, gap, 0.0)) / jnp.maximum(jnp.sum(differ), 1)


def _distinct(rows: jax.Array, counted: jax.Array) -> jax.Array:
    """How many of the counted rows int32 [R, N] differ, by a hash of 64 bits."""

    def hashed(seed: int) -> jax.Array:
        # An odd weight for each column, so that no bit of a token is lost modulo 2^32.
        weights = jax.random.bits(jax.random.key(seed), rows.shape[1:], jnp.uint32) | 1
        mixed = rows.astype(jnp.uint32) * jnp.uint32(2654435761)
        return jnp.sum((mixed ^ (mixed >> 15)) * weights, axis=-1, dtype=jnp.uint32)

    hash_low, hash_high, last = hashed(1), hashed(2), ~counted
    # Equal rows become neighbours, those that do not count go last: a row is new where its hash is not that before it.
    order = jnp.lexsort((hash_high, hash_low, last))
    hash_low, hash_high, counted = hash_low[order], hash_high[order], counted[order]
    new = jnp.concatenate([jnp.ones(1, bool), (hash_low[1:] != hash_low[:-1]) | (hash_high[1:] != hash_high[:-1])])
    return jnp.sum(new & counted)
