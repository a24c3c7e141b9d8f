"""Vectorised episodes: B agents play B copies of a text game under one `lax.scan`.

Letters: T turns, B episodes, A maximum number of actions per turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from nlrl_jax.text.policy import LanguageAgentPolicy, TokenTurn
from nlrl_jax.types import TextGame
from nlrl_jax.updates import where

Carry = TypeVar("Carry")


class Turns(NamedTuple):
    """The turns of B episodes, time-major.

    fields: the game's fields before the turn, each [T, B, ...].
    turn: prompts, replies and actions, each [T, B, ...]; see `TokenTurn`.
    reward: float32 [T, B], the environment's reward over the turn's steps.
    steps: int32 [T, B], environment steps taken in the turn.
    invalid: int32 [T, B], invalid actions of the reply, without those after the action that ended the episode.
    active: bool [T, B], False once the episode is over: then nothing else in that row counts.
    """

    fields: dict[str, jax.Array]
    turn: TokenTurn
    reward: jax.Array
    steps: jax.Array
    invalid: jax.Array
    active: jax.Array


class Episodes(NamedTuple):
    """B played episodes.

    turns: see `Turns`.
    terminated: bool [B], the game ended by its own rules (False: a limit, the environment's or the caller's, ended it).
    success: bool [B], the game's own notion of winning; False where it has none.
    final_fields: the game's fields of the last state, each [B, ...].
    """

    turns: Turns
    terminated: jax.Array
    success: jax.Array
    final_fields: dict[str, jax.Array]


def reset(game: TextGame, key: jax.Array, num: int) -> Any:
    """`num` initial states drawn from the game's initial distribution D_0, leading axis [num]."""
    _, states = jax.vmap(lambda k: game.env.reset_env(k, game.params))(jax.random.split(key, num))
    return states


def scan_turns(
    turn: Callable[[Carry, jax.Array], tuple[Carry, Any]],
    is_over: Callable[[Carry], jax.Array],
    start: Carry,
    key: jax.Array,
    number: int,
) -> tuple[Carry, Any]:
    """`turn(carry, key)` so often, under one `lax.scan`; what it returns is stacked along a leading axis [T].

    Once all episodes are over (`is_over(carry)`, bool [B]) the language model is skipped and rows are zeros.
    """
    # What a turn returns, to have zeros of the same shapes where none is played.
    shapes = jax.eval_shape(turn, start, key)[1]

    def nothing(carry):
        return carry, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def turn_or_nothing(carry, t):
        # Folded, not split: turn t draws the same numbers however many turns there are.
        return jax.lax.cond(
            jnp.all(is_over(carry)), nothing, lambda carry: turn(carry, jax.random.fold_in(key, t)), carry
        )

    return jax.lax.scan(turn_or_nothing, start, jnp.arange(number))


def play(
    policy: LanguageAgentPolicy,
    game: TextGame,
    variables: Any,
    key: jax.Array,
    states: Any,
    max_turns: int,
    max_steps: int,
) -> Episodes:
    """Plays B episodes to their end or to a limit (Algorithm 1 of MS-GRPO, lines 6-16). Pure; no host call.

    Each turn the policy reads the state as text and writes a reply, whose actions the game takes one by one. An invalid
    action moves nothing and takes no environment step.

    Args:
      variables: the model's parameters; on a mesh best as `lm.placement.gathered` gives them.
      key: folded once per turn.
      states: B initial states, leading axis [B].
      max_turns: maximum replies per episode ("LAP actions" in the paper).
      max_steps: maximum environment steps per episode; fewer where the environment truncates it earlier.
    """
    B = jax.tree.leaves(states)[0].shape[0]
    prefix = policy.prefix(variables)
    fields_of = jax.vmap(game.fields)

    def is_over(states, terminated, steps):
        return terminated | jax.vmap(game.truncated)(states) | (steps >= max_steps)

    def step(key, carry, action):
        """One environment step of every episode that is still running and has a valid action."""
        states, terminated, steps, reward, slots = carry
        # Episodes without a valid action are stepped with action 0, and the result is thrown away.
        do = (action >= 0) & ~is_over(states, terminated, steps)
        _, after, r, end, _ = jax.vmap(game.env.step_env, in_axes=(0, 0, 0, None))(
            jax.random.split(key, B), states, jnp.maximum(action, 0), game.params
        )
        return where(do, after, states), terminated | (do & end), steps + do, reward + jnp.where(do, r, 0.0), slots + do

    def turn(carry, key):
        states, terminated, steps = carry
        # 1. The model reads the states and replies.
        active = ~is_over(*carry)
        key_text, key_game = jax.random.split(key)
        fields = fields_of(states)
        decision = policy.act(variables, prefix, key_text, fields, active)
        actions = jnp.where(active[:, None], decision.parsed.actions, -1)
        # 2. The actions of the reply [B, A], one environment step each, as long as the episode runs.
        carry = (states, terminated, steps, jnp.zeros((B,), jnp.float32), jnp.zeros((B,), jnp.int32))
        invalid = jnp.zeros((B,), jnp.int32)
        for i in range(actions.shape[1]):
            # Counted only before the episode's end: what follows it was never tried.
            invalid += (actions[:, i] < 0) & ~is_over(*carry[:3])
            carry = step(jax.random.fold_in(key_game, i), carry, actions[:, i])
        states, terminated, steps, reward, slots = carry
        # A reply read to its end counts all that is wrong with it.
        invalid = jnp.where(is_over(states, terminated, steps), invalid, decision.parsed.num_invalid)
        return (states, terminated, steps), Turns(fields, decision, reward, slots, invalid, active)

    start = (states, jnp.zeros((B,), bool), jnp.zeros((B,), jnp.int32))
    (states, terminated, _), turns = scan_turns(turn, lambda carry: is_over(*carry), start, key, max_turns)
    success = jnp.zeros((B,), bool) if game.success is None else jax.vmap(game.success)(states)
    return Episodes(turns, terminated, success, fields_of(states))
