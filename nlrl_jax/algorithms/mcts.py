"""Monte-Carlo tree search with random rollouts for many positions at once (NLRL, appendix B.2; Kocsis and Szepesvari).

The rules are those of OpenSpiel's MCTSBot with its random-rollout evaluator and solve=False, which the paper uses:
- the first of the simulations evaluates the root, each further one walks to a new node and evaluates that, so the
  visit counts of a root's moves add up to simulations - 1;
- UCT, Q + c sqrt(ln N / n); unvisited moves come first, ties fall at random;
- a move that ends the game counts as its outcome, without the exploration term;
- the move played is a winning one if it was seen, else the most visited, else the one with the highest total.
We have no solver.

This is written on plain arrays and not on mctx, whose results it reproduces where both are defined (see the test):
mctx backs up under `vmap`, so that every step of every simulation copies the whole tree. On 2 cores, 1024 positions of
5x5 breakthrough and 100 simulations, that was 8 times slower, and the gap grows with the number of simulations.

A tree's edges are numbered by the rank of a move among the legal ones, not by action id: a game with many ids and few
legal moves costs no more than it must. A game may offer `max_legal`, `num_legal` and `nth_legal` (see
`envs/breakthrough.py`); from any other they are made of its `legal`.

Letters: B positions, N nodes, K edges of a node, A actions, T moves. All values are from player 0's view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.types import BoardGame

# (key, positions [B]) -> (int32 [B] actions, -1 where the game is over; float32 [B] values; int32 [B, A] visit counts)
Policy = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array, jax.Array]]
# (key, positions [B]) -> float32 [B] values, from player 0's view
Evaluator = Callable[[jax.Array, Any], jax.Array]

_ROOT, _NONE = 0, -1


class Tree(NamedTuple):
    """B search trees, node by node so that a simulation writes one contiguous row.

    positions: [N, B, ...]. mover: float32 [N, B], 1 where player 0 moves, -1 where player 1 does.
    degree: int32 [N, B], number of legal moves.
    parent, edge: int32 [N, B], where a node hangs.
    child: int32 [N, B, K]: -1 for none, node n as n, and as -1 - n if the game is over there.
    visits, total: float32 [N, B, K], of an edge; the total is from the view of who moves at the node.
    """

    positions: Any
    mover: jax.Array
    degree: jax.Array
    parent: jax.Array
    edge: jax.Array
    child: jax.Array
    visits: jax.Array
    total: jax.Array


class LegalMoves(NamedTuple):
    """A game's legal moves as a list: `most` at any position, `count(position)`, `nth(position, k)` -> action id."""

    most: int
    count: Callable[[Any], jax.Array]
    nth: Callable[[Any, jax.Array], jax.Array]

    @classmethod
    def of(cls, game: BoardGame) -> LegalMoves:
        if hasattr(game, "nth_legal"):
            return cls(game.max_legal, game.num_legal, game.nth_legal)
        count = lambda position: game.legal(position).sum(dtype=jnp.int32)
        nth = lambda position, k: jnp.argmax(jnp.cumsum(game.legal(position)) > k).astype(jnp.int32)
        return cls(game.num_actions, count, nth)


def random_rollouts(game: BoardGame, key: jax.Array, positions: Any) -> jax.Array:
    """Plays B games to the end, every move uniformly random: the outcomes, float32 [B]."""
    moves = LegalMoves.of(game)

    def step(word: jax.Array, position: Any) -> Any:
        k = _multiply_high(word, moves.count(position).astype(jnp.uint32))
        after = game.play(position, moves.nth(position, k.astype(jnp.int32)))
        return _where(game.over(position), position, after)

    def body(carry):
        key, positions = carry
        key, use = jax.random.split(key)
        words = jax.random.bits(use, _batch(positions), jnp.uint32)
        return key, jax.vmap(step)(words, positions)

    going = lambda carry: ~jax.vmap(game.over)(carry[1]).all()
    return jax.vmap(game.outcome)(jax.lax.while_loop(going, body, (key, positions))[1])


def rollout_evaluator(game: BoardGame, rollouts: int) -> Evaluator:
    """The mean outcome of `rollouts` random games from each position."""
    if rollouts < 1:
        raise ValueError(f"rollouts is {rollouts}; it must be at least 1")

    def evaluate(key: jax.Array, positions: Any) -> jax.Array:
        many = jax.tree.map(lambda x: jnp.repeat(x, rollouts, axis=0), positions)
        return random_rollouts(game, key, many).reshape(-1, rollouts).mean(axis=1)

    return evaluate


def search(
    game: BoardGame, evaluate: Evaluator, key: jax.Array, positions: Any, simulations: int, uct_c: float
) -> tuple[Tree, jax.Array]:
    """Grows a tree of `simulations` nodes from each position.

    Simulation 0 evaluates the roots themselves.

    Returns: (the trees, float32 [B] the mean value of all simulations).
    """
    moves = LegalMoves.of(game)
    batch = _batch(positions)
    rows = jnp.arange(batch[0])
    key_ties, key_values = jax.random.split(key)
    seeds = jax.random.bits(key_ties, batch, jnp.uint32)
    finished = jax.vmap(game.over)(positions)
    per_node = lambda fill, dtype: jnp.full((simulations, *batch), fill, dtype)
    per_edge = lambda fill, dtype: jnp.full((simulations, *batch, moves.most), fill, dtype)
    tree = Tree(
        positions=jax.tree.map(lambda x: jnp.zeros((simulations, *x.shape), x.dtype), positions),
        mover=per_node(0, jnp.float32),
        degree=per_node(0, jnp.int32),
        parent=per_node(_NONE, jnp.int32),
        edge=per_node(_NONE, jnp.int32),
        child=per_edge(_NONE, jnp.int32),
        visits=per_edge(0, jnp.float32),
        total=per_edge(0, jnp.float32),
    )

    def simulate(node: jax.Array, carry: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
        """One simulation of every tree; a tree that meets the end of a game leaves row `node` unused."""
        tree, total = carry
        parent, edge = descend(tree, seeds, uct_c)
        met = tree.child[parent, rows, edge]
        before = jax.tree.map(lambda x: x[parent, rows], tree.positions)
        played = jax.vmap(game.play)(before, jax.vmap(moves.nth)(before, edge))
        stays = finished | (node == _ROOT)
        now = jax.vmap(_where)(stays, positions, played)
        over = jax.vmap(game.over)(now)
        value = jnp.where(over, jax.vmap(game.outcome)(now), evaluate(jax.random.fold_in(key_values, node), now))
        link = jnp.where(stays | (met != _NONE), met, jnp.where(over, -1 - node, node))
        tree = tree._replace(
            positions=jax.tree.map(lambda x, y: x.at[node].set(y), tree.positions, now),
            mover=tree.mover.at[node].set(jnp.where(jax.vmap(game.to_move)(now) == 0, 1.0, -1.0)),
            degree=tree.degree.at[node].set(jax.vmap(moves.count)(now)),
            parent=tree.parent.at[node].set(jnp.where(stays, _NONE, parent)),
            edge=tree.edge.at[node].set(jnp.where(stays, _NONE, edge)),
            child=tree.child.at[parent, rows, edge].set(link),
        )
        return back_up(tree, jnp.where(stays, _NONE, parent), edge, value), total + value

    tree, total = jax.lax.fori_loop(0, simulations, simulate, (tree, jnp.zeros(batch)))
    return tree, total / simulations


def descend(tree: Tree, seeds: jax.Array, uct_c: float) -> tuple[jax.Array, jax.Array]:
    """From the roots along the moves that UCT chooses, to an edge without a child or to the end of a game.

    Returns: int32 [B] nodes and [B] edges.
    """
    rows = jnp.arange(tree.degree.shape[1])

    def body(carry):
        node, edge, walking = carry
        chosen = _best((uct(tree, node, uct_c),), seeds + node.astype(jnp.uint32) * np.uint32(0x9E3779B9))
        edge = jnp.where(walking, chosen, edge)
        child = tree.child[node, rows, edge]
        walking &= child > _ROOT
        return jnp.where(walking, child, node), edge, walking

    start = jnp.zeros_like(rows)
    node, edge, _ = jax.lax.while_loop(lambda carry: carry[2].any(), body, (start, start, start == 0))
    return node, edge


def uct(tree: Tree, node: jax.Array, uct_c: float) -> jax.Array:
    """float32 [B, K]: Q + c sqrt(ln N / n), infinity for what was not tried, -infinity for what is no move."""
    rows = jnp.arange(tree.degree.shape[1])
    visits, child = tree.visits[node, rows], tree.child[node, rows]
    mean = tree.total[node, rows] / jnp.maximum(visits, 1)
    parent_visits = 1 + visits.sum(axis=-1, keepdims=True)
    bonus = uct_c * jnp.sqrt(jnp.log(parent_visits) / jnp.maximum(visits, 1))
    score = jnp.where(child < _NONE, mean, mean + bonus)
    score = jnp.where(visits == 0, jnp.inf, score)
    return jnp.where(jnp.arange(score.shape[-1]) < tree.degree[node, rows, None], score, -jnp.inf)


def back_up(tree: Tree, node: jax.Array, edge: jax.Array, value: jax.Array) -> Tree:
    """Adds a visit and player 0's `value` [B] to the edges from (node, edge) up to the root; none where node is -1."""
    rows = jnp.arange(tree.degree.shape[1])

    def body(carry):
        node, edge, visits, total = carry
        inside = node >= _ROOT
        at = jnp.maximum(node, _ROOT)
        visits = visits.at[at, rows, edge].add(jnp.where(inside, 1.0, 0.0))
        total = total.at[at, rows, edge].add(jnp.where(inside, value * tree.mover[at, rows], 0.0))
        parent = jnp.where(inside, tree.parent[at, rows], _NONE)
        return parent, jnp.where(parent >= _ROOT, tree.edge[at, rows], 0), visits, total

    start = (node, edge, tree.visits, tree.total)
    *_, visits, total = jax.lax.while_loop(lambda carry: (carry[0] >= _ROOT).any(), body, start)
    return tree._replace(visits=visits, total=total)


def mcts_policy(game: BoardGame, simulations: int, rollouts: int, uct_c: float = 1.0) -> Policy:
    """The paper's policy; it names 2, 10, 100 and 1000 simulations, and 1, 10, 100 and 1000 rollouts.

    Returns: a pure function (key, positions [B]) -> (actions int32 [B]; values float32 [B], the mean over all
      simulations; visit counts int32 [B, A], which add up to simulations - 1). Where a game is over the action is -1,
      the value its outcome and nothing is visited. It holds 12 bytes x B x simulations x the most legal moves.

    Raises:
      ValueError: fewer than 2 simulations (the first one only evaluates the root), or no rollout.
    """
    if simulations < 2:
        raise ValueError(f"simulations is {simulations}; it must be at least 2, as the first only evaluates the root")
    evaluate = rollout_evaluator(game, rollouts)
    moves = LegalMoves.of(game)

    def policy(key: jax.Array, positions: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        key_search, key_choice = jax.random.split(key)
        tree, value = search(game, evaluate, key_search, positions, simulations, uct_c)
        visits, total, child = tree.visits[_ROOT], tree.total[_ROOT], tree.child[_ROOT]
        legal = jnp.arange(moves.most) < tree.degree[_ROOT][:, None]
        outcome = jnp.where(child < _NONE, total / jnp.maximum(visits, 1), 0.0)
        ranks = (jnp.where(legal, outcome, -jnp.inf), visits, total)
        edge = _best(ranks, jax.random.bits(key_choice, value.shape, jnp.uint32))
        ids = jax.vmap(jax.vmap(moves.nth, (None, 0)), (0, None))(positions, jnp.arange(moves.most))
        rows = jnp.arange(len(value))
        counts = jnp.zeros((len(value), game.num_actions), jnp.int32)
        counts = counts.at[rows[:, None], jnp.where(legal, ids, game.num_actions)].add(visits.astype(jnp.int32))
        return jnp.where(legal.any(axis=1), ids[rows, edge], -1), value, counts

    return policy


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def play_moves(game: BoardGame, policy: Policy, key: jax.Array, positions: Any, moves: int) -> tuple[jax.Array, Any]:
    """Both players follow the policy for `moves` moves; a finished game stays as it is.

    Returns: (actions int32 [T, B], -1 where the game was over; positions [T + 1, B, ...], the given ones first).
    """

    def step(positions, key):
        after, action = _move(game, policy, key, positions)
        return after, (action, after)

    _, (actions, after) = jax.lax.scan(step, positions, jax.random.split(key, moves))
    return actions, jax.tree.map(lambda x, rest: jnp.concatenate([x[None], rest]), positions, after)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def win_rates(game: BoardGame, policy: Policy, key: jax.Array, positions: Any, games: int) -> jax.Array:
    """Mean outcome of `games` games from each position, both players following the policy: float32 [B] in [-1, 1].

    All B x games games are played side by side.
    """

    def body(carry):
        key, positions = carry
        key, use = jax.random.split(key)
        return key, _move(game, policy, use, positions)[0]

    many = jax.tree.map(lambda x: jnp.repeat(x, games, axis=0), positions)
    going = lambda carry: ~jax.vmap(game.over)(carry[1]).all()
    _, ended = jax.lax.while_loop(going, body, (key, many))
    return jax.vmap(game.outcome)(ended).reshape(-1, games).mean(axis=1)


def state_dataset(game: BoardGame, policies: Sequence[Policy], key: jax.Array, games_per_pair: int) -> Any:
    """Every different unfinished position met in games of all ordered pairs of policies (NLRL, appendix B.2).

    Policy i plays player 0 and policy j player 1, for all i and j, `games_per_pair` games each. All games advance
    together; a policy is compiled once, for the len(policies) * games_per_pair games in which it is its turn.

    Returns: positions [S, ...], in the order in which they first occurred.

    Raises:
      ValueError: the players do not move by turns.
    """
    steps = [jax.jit(functools.partial(_move, game, policy)) for policy in policies]
    shape = (len(policies), len(policies), games_per_pair)
    mover, over = (jax.jit(_over_axes(function, 3)) for function in (game.to_move, game.over))
    positions = jax.tree.map(lambda x: np.broadcast_to(x, (*shape, *jnp.shape(x))).copy(), game.initial())
    met = []
    for turn in range(game.max_moves):
        going = ~np.asarray(over(positions))
        if not going.any():
            break
        met.append(_take(positions, going))
        movers = np.unique(np.asarray(mover(positions))[going])
        if len(movers) > 1:
            raise ValueError(f"after {turn} moves it is either player's turn in {game.name}; players must take turns")
        for i, step in enumerate(steps):
            games = np.s_[i, :] if movers[0] == 0 else np.s_[:, i]
            now = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), _take(positions, games))
            after, _ = step(jax.random.fold_in(jax.random.fold_in(key, turn), i), now)
            for x, y in zip(jax.tree.leaves(positions), jax.tree.leaves(after)):
                x[games] = np.asarray(y).reshape(shape[1:] + y.shape[1:])
    every = jax.tree.map(lambda *x: np.concatenate(x), *met)
    return jax.tree.map(jnp.asarray, _take(every, first_occurrences(every)))


def first_occurrences(positions: Any) -> np.ndarray:
    """Where in positions [S, ...] a position stands for the first time: increasing int [S'], on the host."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(positions)]
    as_bytes = [np.ascontiguousarray(x.reshape(len(x), -1)).view(np.uint8) for x in leaves]
    return np.sort(np.unique(np.concatenate(as_bytes, axis=1), axis=0, return_index=True)[1])


def _take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _over_axes(function: Callable, axes: int) -> Callable:
    return functools.reduce(lambda f, _: jax.vmap(f), range(axes), function)


def _move(game: BoardGame, policy: Policy, key: jax.Array, positions: Any) -> tuple[Any, jax.Array]:
    """One move of B games: (positions, actions), -1 and as before where the game is over."""
    action = policy(key, positions)[0]
    after = jax.vmap(game.play)(positions, jnp.maximum(action, 0))
    return jax.vmap(_where)(action < 0, positions, after), action


def _best(ranks: Sequence[jax.Array], seeds: jax.Array) -> jax.Array:
    """argmax over [B, K] by the first rank, equal ones by the next, and at random in the end: int32 [B]."""
    K = ranks[0].shape[-1]
    keep = jnp.ones(ranks[0].shape, bool)
    for rank in ranks:
        rank = jnp.where(keep, rank, -jnp.inf)
        keep &= rank == rank.max(axis=-1, keepdims=True)
    # A hash of (seed, k) with k in its low bits: one maximum finds the winner and its index.
    low = np.uint32(2 ** max(1, (K - 1).bit_length()) - 1)
    k = np.arange(K, dtype=np.uint32)
    lot = _mix(seeds[:, None] ^ k * np.uint32(0x85EBCA6B)) & ~low | k
    return (jnp.where(keep, lot | np.uint32(1 << 31), 0).max(axis=-1) & low).astype(jnp.int32)


def _mix(x: jax.Array) -> jax.Array:
    """An integer hash (the 32-bit finaliser of MurmurHash3)."""
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    return x ^ x >> 16


def _multiply_high(word: jax.Array, n: jax.Array) -> jax.Array:
    """floor(word * n / 2^32) for n < 2^16: a uniform word as a uniform number below n."""
    return ((word >> 16) * n + ((word & np.uint32(0xFFFF)) * n >> 16)) >> 16


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def _batch(positions: Any) -> tuple[int]:
    return jax.tree.leaves(positions)[0].shape[:1]
