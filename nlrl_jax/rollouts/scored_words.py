"""Vectorised games of a `MovePolicy`, which scores the words of the legal moves: `Moves`, `play_games`, `results`.

One forward pass per turn for all games; the policy itself is in `text/word_policy.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nlrl_jax.rollouts import text_games
from nlrl_jax.text.word_policy import MovePolicy, move_log_probs
from nlrl_jax.types import TextGame
from nlrl_jax.updates import where


class Moves(NamedTuple):
    """The moves of B games, time-major [T, B, ...]; rows that are not `active` come after the end of a game, or after
    the environment's own limit.

    prompts int32 [T, B, S] left-padded, lengths; legal bool [T, B, A]; action, log_prob (of the action, as sampled);
    value; reward; terminated (this move ended the game); active.
    """

    prompts: jax.Array
    lengths: jax.Array
    legal: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    active: jax.Array


def play_games(
    policy: MovePolicy,
    game: TextGame,
    variables: Any,
    value_of: Callable[[jax.Array], jax.Array],
    key: jax.Array,
    num: int,
    max_turns: int,
    temperature: float,
) -> tuple[Moves, jax.Array]:
    """Plays `num` games side by side, one forward pass per turn. Pure.

    Args:
      value_of: last hidden states [B, H] -> values [B].
      max_turns: moves per game; fewer where the environment truncates it earlier.
      temperature: 0 takes the best move.

    Returns: the moves, and the value of each game's last position, float32 [num]; 0 where it terminated.
    """
    key_reset, key_play = jax.random.split(key)
    prefix = policy.prefix(variables)

    # What the model sees in B states: prompts, legal moves, a score per move and the critic's value.
    def look(states):
        fields = jax.vmap(game.fields)(states)
        prompts, lengths = policy.read(fields)
        scores, hidden = policy.forward(variables, prefix, prompts, lengths)
        return prompts, lengths, fields["legal"] > 0, scores, value_of(hidden)

    def turn(carry, key):
        states, done, ended = carry
        key_act, key_game = jax.random.split(key)
        prompts, lengths, legal, scores, value = look(states)
        log_probs = move_log_probs(scores, legal, temperature or 1.0)
        action = jax.random.categorical(key_act, log_probs) if temperature else jnp.argmax(log_probs, axis=-1)
        _, after, reward, terminated, _ = jax.vmap(game.env.step_env, in_axes=(0, 0, 0, None))(
            jax.random.split(key_game, num), states, action, game.params
        )
        log_prob = jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]
        # Finished games go on as padding: no reward, and their states stay.
        reward, active = jnp.where(done, 0.0, reward), ~done
        moves = Moves(prompts, lengths, legal, action, log_prob, value, reward, terminated & active, active)
        # `done` is any end, `ended` one by the game's own rules: only the others bootstrap from their last position.
        ended |= moves.terminated
        return (where(done, states, after), done | ended | jax.vmap(game.truncated)(after), ended), moves

    none = jnp.zeros((num,), bool)
    start = text_games.reset(game, key_reset, num), none, none
    (states, _, ended), moves = text_games.scan_turns(turn, lambda carry: carry[1], start, key_play, max_turns)

    def cut_value(states):
        return jnp.where(ended, 0.0, look(states)[-1])

    # One more pass for the value of positions that were cut off, unless there are none.
    return moves, jax.lax.cond(jnp.all(ended), lambda _: jnp.zeros((num,)), cut_value, states)


def results(moves: Moves) -> dict[str, jax.Array]:
    """Shares of games won (return above 0), tied, lost (below 0) and cut off, and the mean return."""
    returns, ended = jnp.sum(moves.reward, axis=0), jnp.any(moves.terminated, axis=0)
    # A return of 0 is a tie only where the game ended by its own rules.
    shares = {
        "win_rate": returns > 0,
        "tie_rate": (returns == 0) & ended,
        "loss_rate": returns < 0,
        "cut_rate": ~ended,
        "env_return": returns,
    }
    return {name: jnp.mean(x.astype(jnp.float32)) for name, x in shares.items()}
