"""Monte-Carlo tree search with random rollouts, and what language TD needs of it (NLRL, appendix B.2).

`tree_search.py` says how a tree grows. Here are the evaluation by random games, the policy that follows, and games
played by such policies: variations, win rates and the dataset of states.

Letters: B positions, N nodes, K edges of a node, A actions, T moves. All values are from player 0's view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.tree_search import ROOT, UNKNOWN, Evaluator, LegalMoves, batch_of, best, search, where
from nlrl_jax.arrays import batch_laid_out_by_compiler
from nlrl_jax.types import BoardGame

# (key, positions [B]) -> (int32 [B] actions, -1 where the game is over; float32 [B] values; int32 [B, A] visit counts)
Policy = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array, jax.Array]]


def random_rollouts(game: BoardGame, key: jax.Array, positions: Any) -> jax.Array:
    """Plays B games to the end, every move uniformly random: the outcomes, float32 [B]. ValueError: see `batch_of`."""
    moves, batch = LegalMoves.of(game), batch_of(game, positions)

    def step(word: jax.Array, position: Any) -> Any:
        # A random rank among the legal moves, from one 32-bit word a game.
        k = _multiply_high(word, moves.count(position).astype(jnp.uint32))
        after = game.step(position, moves.nth(position, k.astype(jnp.int32)))
        return where(game.is_terminal(position), position, after)

    def advance(key: jax.Array, positions: Any) -> Any:
        return jax.vmap(step)(jax.random.bits(key, batch, jnp.uint32), positions)

    return _outcomes(game, advance, key, positions)


def rollout_evaluator(game: BoardGame, rollouts: int) -> Evaluator:
    """The mean outcome of `rollouts` random games from each position."""
    _at_least(1, rollouts=rollouts)

    def evaluate(key: jax.Array, positions: Any) -> jax.Array:
        batch_of(game, positions)
        repeated = jax.tree.map(lambda x: jnp.repeat(x, rollouts, axis=0), positions)
        return random_rollouts(game, key, repeated).reshape(-1, rollouts).mean(axis=1)

    return evaluate


def mcts_policy(game: BoardGame, simulations: int, rollouts: int, uct_c: float = 1.0, solve: bool = True) -> Policy:
    """The paper's policy; it names 2, 10, 100 and 1000 simulations, and 1, 10, 100 and 1000 rollouts.

    Args:
      solve: whether a search notices what it has proven.

    Returns: a pure function (key, positions [B]) -> (actions int32 [B]; values float32 [B], the mean over all
      simulations, or the result where it is proven; visit counts int32 [B, A], which add up to simulations - 1, or
      less where the result was proven before). Where a game is over the action is -1, the value its outcome and
      nothing is visited. It holds 13 bytes x B x simulations x the most legal moves.

    Raises:
      ValueError: fewer than 2 simulations (the first one only evaluates the root), no rollout, or a `uct_c` that is
        negative or not finite; from the policy, see `batch_of`.
    """
    _at_least(2, simulations=simulations)
    if not 0 <= uct_c < np.inf:
        raise ValueError(f"uct_c is {uct_c}; it must be at least 0 and finite")
    evaluate = rollout_evaluator(game, rollouts)
    moves = LegalMoves.of(game)

    @batch_laid_out_by_compiler
    def policy(key: jax.Array, positions: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        key_search, key_choice = jax.random.split(key)
        tree, value = search(game, evaluate, key_search, positions, simulations, uct_c, solve)
        visits, total, proven = tree.visits[ROOT], tree.total[ROOT], tree.proven[ROOT].astype(jnp.float32)
        legal = jnp.arange(moves.most) < tree.degree[ROOT][:, None]
        # The move played: best proven result first (unproven ones count as draws), then visits, then total.
        result = jnp.where(proven == UNKNOWN, 0.0, proven)
        ranks = (jnp.where(legal, result, -jnp.inf), visits, total)
        edge = best(ranks, jax.random.bits(key_choice, value.shape, jnp.uint32))
        ids = jax.vmap(jax.vmap(moves.nth, (None, 0)), (0, None))(positions, jnp.arange(moves.most))
        rows = jnp.arange(len(value))
        # From ranks among legal moves [B, K] to action ids [B, A]; ranks without a move are out of bounds and dropped.
        counts = jnp.zeros((len(value), game.num_actions), jnp.int32)
        counts = counts.at[rows[:, None], jnp.where(legal, ids, game.num_actions)].add(
            visits.astype(jnp.int32), mode="drop"
        )
        return jnp.where(legal.any(axis=1), ids[rows, edge], -1), value, counts

    return policy


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def play_moves(game: BoardGame, policy: Policy, key: jax.Array, positions: Any, moves: int) -> tuple[jax.Array, Any]:
    """Both players follow the policy for `moves` moves; a finished game stays as it is.

    Returns: (actions int32 [T, B], -1 where the game was over; positions [T + 1, B, ...], the given ones first).

    Raises:
      ValueError: fewer than 0 moves; see `batch_of`.
    """
    _at_least(0, moves=moves)
    batch_of(game, positions)

    def step(positions, key):
        after, action = _move(game, policy, key, positions)
        return after, (action, after)

    def play(key, positions):
        _, (actions, after) = jax.lax.scan(step, positions, jax.random.split(key, moves))
        return actions, jax.tree.map(lambda x, rest: jnp.concatenate([x[None], rest]), positions, after)

    return batch_laid_out_by_compiler(play, axes=1)(key, positions)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def win_rates(game: BoardGame, policy: Policy, key: jax.Array, positions: Any, games: int) -> jax.Array:
    """Mean outcome of `games` games from each position, both players following the policy: float32 [B] in [-1, 1].

    All B x games games are played side by side.

    Raises:
      ValueError: no game; see `batch_of`.
    """
    _at_least(1, games=games)
    batch_of(game, positions)

    def advance(key: jax.Array, positions: Any) -> Any:
        return _move(game, policy, key, positions)[0]

    def play(key: jax.Array, positions: Any) -> jax.Array:
        repeated = jax.tree.map(lambda x: jnp.repeat(x, games, axis=0), positions)
        return _outcomes(game, advance, key, repeated).reshape(-1, games).mean(axis=1)

    return batch_laid_out_by_compiler(play)(key, positions)


def state_dataset(game: BoardGame, policies: Sequence[Policy], key: jax.Array, games_per_pair: int) -> Any:
    """Every different unfinished position met in games of all ordered pairs of policies (NLRL, appendix B.2).

    Policy i plays player 0 and policy j player 1, for all i and j, `games_per_pair` games each. All games advance
    together; a policy is compiled once, for the len(policies) * games_per_pair games in which it is its turn.

    Returns: positions [S, ...], in the order in which they first occurred.

    Raises:
      ValueError: the players do not move by turns; no policy or no game.
    """
    _at_least(1, policies=len(policies), games_per_pair=games_per_pair)
    shape = (len(policies), len(policies), games_per_pair)
    mover, is_over = (jax.jit(jax.vmap(jax.vmap(jax.vmap(rule)))) for rule in (game.current_player, game.is_terminal))
    # [policy of player 0, policy of player 1, game, ...], writable and on the host.
    positions = jax.tree.map(lambda x: np.broadcast_to(x, (*shape, *jnp.shape(x))).copy(), game.init())
    met = []
    for turn in range(game.max_moves):
        going = ~np.asarray(is_over(positions))
        if not going.any():
            break
        met.append(_take(positions, going))
        movers = np.unique(np.asarray(mover(positions))[going])
        if len(movers) > 1:
            raise ValueError(f"after {turn} moves it is either player's turn in {game.name}; players must take turns")
        for i, policy in enumerate(policies):
            # All games in which policy i is to move: a row of the table for player 0, a column for player 1.
            games = np.s_[i, :] if movers[0] == 0 else np.s_[:, i]
            now = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), _take(positions, games))
            after, _ = _move(game, policy, jax.random.fold_in(jax.random.fold_in(key, turn), i), now)
            for x, y in zip(jax.tree.leaves(positions), jax.tree.leaves(after)):
                x[games] = np.asarray(y).reshape(shape[1:] + y.shape[1:])
    every = jax.tree.map(lambda *x: np.concatenate(x), *met)
    return jax.tree.map(jnp.asarray, _take(every, first_occurrences(every)))


def first_occurrences(positions: Any) -> np.ndarray:
    """Where in positions [S, ...] a position stands for the first time: increasing int [S'], on the host."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(positions)]
    # Positions as rows of bytes, which `np.unique` compares whole, whatever their fields are.
    as_bytes = [np.ascontiguousarray(x.reshape(len(x), -1)).view(np.uint8) for x in leaves]
    return np.sort(np.unique(np.concatenate(as_bytes, axis=1), axis=0, return_index=True)[1])


def _at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or number < least:
            raise ValueError(f"{name} is {number!r}; it must be a whole number of at least {least}")


def _take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _outcomes(game: BoardGame, advance: Callable[[jax.Array, Any], Any], key: jax.Array, positions: Any) -> jax.Array:
    """float32 [B] of games that `advance(key, positions)` plays on until all are over."""

    @batch_laid_out_by_compiler
    def play(key, positions):
        return jax.vmap(game.returns)(jax.lax.while_loop(going, body, (key, positions))[1])

    def body(carry):
        key, positions = carry
        key, use = jax.random.split(key)
        return key, advance(use, positions)

    def going(carry):
        return ~jax.vmap(game.is_terminal)(carry[1]).all()

    return play(key, positions)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _move(game: BoardGame, policy: Policy, key: jax.Array, positions: Any) -> tuple[Any, jax.Array]:
    """One move of B games: (positions, actions), -1 and as before where the game is over."""
    action = policy(key, positions)[0]
    after = jax.vmap(game.step)(positions, jnp.maximum(action, 0))
    return jax.vmap(where)(action < 0, positions, after), action


def _multiply_high(word: jax.Array, n: jax.Array) -> jax.Array:
    """floor(word * n / 2^32) for n < 2^16: a uniform word as a uniform number below n."""
    # Two 16-bit halves, so that no product leaves 32 bits.
    return ((word >> 16) * n + ((word & np.uint32(0xFFFF)) * n >> 16)) >> 16
