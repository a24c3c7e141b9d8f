"""Board games between a language policy and an opponent, in lockstep: one call to either side per ply."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.config import check_seed
from nlrl_jax.roles.board_games import ActorCriticRoles, Line, Ply, View, Viewer, side_of
from nlrl_jax.types import BoardGame, LanguageModel, Sampling
from nlrl_jax.updates import where

# (views [B], seed) -> a legal word each
Act = Callable[[Sequence[View], int], list[str]]
# (key, positions [B]) -> int [B] action ids
Opponent = Callable[[jax.Array, Any], jax.Array]


class PlayedGame(NamedTuple):
    """A finished game. agent: the name of the agent's side."""

    line: Line
    agent: str

    @property
    def outcome(self) -> int:
        """1: the agent won; -1: it lost; 0: a draw."""
        return 0 if self.line.winner is None else 1 if self.line.winner == self.agent else -1


def random_opponent(game: BoardGame) -> Opponent:
    """Plays a uniformly random legal move."""

    def opponent(key, positions):
        logits = jnp.where(jax.vmap(game.legal_action_mask)(positions), 0.0, -jnp.inf)
        return jax.random.categorical(key, logits, axis=-1)

    return opponent


def first_move_opponent(game: BoardGame) -> Opponent:
    """Plays the legal move with the lowest id (the paper's deterministic opponent)."""
    return lambda key, positions: jnp.argmax(jax.vmap(game.legal_action_mask)(positions), axis=-1)


def random_act(views: Sequence[View], seed: int) -> list[str]:
    """Uniform over the legal moves."""
    rng = np.random.default_rng(seed)
    return [view.legal[rng.integers(len(view.legal))] for view in views]


def language_act(model: LanguageModel, roles: ActorCriticRoles, sampling: Sampling, counts: Counter[str]) -> Act:
    """A language policy. A reply without a legal move becomes a random one, counted in `counts` by its problem."""

    def act(views, seed):
        replies = model.complete([roles.policy(view) for view in views], sampling, "policy", seed)
        rng = np.random.default_rng(seed)
        words = []
        for view, reply in zip(views, replies, strict=True):
            move = roles.read_move(reply.text, view.legal)
            if move.problem:
                counts[f"policy/{move.problem}"] += 1
            if not reply.ended:
                counts["policy/never ended"] += 1
            if move.word is None:
                counts["policy/random move"] += 1
            words.append(move.word or view.legal[rng.integers(len(view.legal))])
        counts["policy/moves"] += len(views)
        return words

    return act


def play_games(game: BoardGame, viewer: Viewer, act: Act, opponent: Opponent, num: int, seed: int) -> list[PlayedGame]:
    """`num` games from the start; the agent is player 0 in the first half of them and player 1 in the others.

    The paper alternates the agent's side from batch to batch; all games are one batch here.
    """
    # With an odd number the first side gets one game more.
    agents = (np.arange(num) >= (num + 1) // 2).astype(np.int32)
    return play_on(game, viewer, act, opponent, beginnings(game, num), agents, seed)


def play_on(
    game: BoardGame,
    viewer: Viewer,
    act: Act,
    opponent: Opponent,
    positions: Any,
    agents: np.ndarray,
    seed: int,
    first: Sequence[str] | None = None,
) -> list[PlayedGame]:
    """Plays games from any positions to their end, in lockstep.

    Args:
      positions: leading axis [B]; none of them terminal.
      agents: int [B], the agent's player id in each.
      first: words of the agent's first moves, in place of its own; it must be the agent's turn everywhere.
    """
    num = len(agents)
    describe, forward = _programs(game, opponent)
    index = {word: i for i, word in enumerate(game.actions)}
    key = jax.random.key(check_seed(seed))
    steps: list[list[Ply]] = [[] for _ in range(num)]
    before = viewer.views(positions)
    for ply in range(game.max_moves):
        is_over, player, _ = jax.device_get(describe(positions))
        if is_over.all():
            break
        # 1. The agent's moves, in games where it is its turn.
        mine = ~is_over & (player == agents)
        rows, chosen = np.flatnonzero(mine), np.zeros(num, np.int32)
        if len(rows):
            words = first if first is not None and ply == 0 else act([before[r] for r in rows], seed + ply)
            chosen[rows] = [index[word] for word in words]
        # 2. The opponent's in all others; finished games stay as they are.
        positions, actions = forward(jax.random.fold_in(key, ply), positions, mine, chosen)
        # 3. What both sides see becomes the game's line.
        after, actions = viewer.views(positions), np.asarray(actions)
        for r in np.flatnonzero(~is_over):
            steps[r].append(Ply(before[r], game.actions[int(actions[r])], after[r]))
        before = after
    is_over, _, returns = jax.device_get(describe(positions))
    return [
        PlayedGame(Line(tuple(s), bool(o), side_of(v, game.players)), game.players[a])
        for s, o, v, a in zip(steps, is_over, returns, agents, strict=True)
    ]


@functools.lru_cache(maxsize=16)
def _programs(game: BoardGame, opponent: Opponent) -> tuple[Callable, Callable]:
    """(terminal, player to move and returns of positions; the next ply), compiled once for a game and an opponent."""
    # Cached by game and opponent, both hashed by identity: games that are played again compile nothing.
    describe = jax.jit(jax.vmap(lambda p: (game.is_terminal(p), game.current_player(p), game.returns(p))))

    @jax.jit
    def forward(key, positions, mine, chosen):
        actions = jnp.where(mine, chosen, opponent(key, positions))
        return advance(game, positions, actions), actions

    return describe, forward


def advance(game: BoardGame, positions: Any, actions: jax.Array) -> Any:
    """The positions [B, ...] after one move in every game that is not over."""
    is_over = jax.vmap(game.is_terminal)(positions)
    return where(is_over, positions, jax.vmap(game.step)(positions, actions))


def beginnings(game: BoardGame, num: int) -> Any:
    """The first position `num` times, leading axis [num]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num, *jnp.shape(leaf))), game.init())


def rates(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Shares of games that the agent won, tied and lost."""
    count = Counter(game.outcome for game in games)
    return {name: count[outcome] / len(games) for name, outcome in (("win", 1), ("tie", 0), ("loss", -1))}


def random_views(game: BoardGame, num: int, seed: int) -> list[View]:
    """`num` unfinished positions from games between random players; the same seed gives the same positions."""
    # Games side by side: a batch gives several positions a game, and 512 bound the memory.
    viewer, games = Viewer(game), min(max(num // 4, 8), 512)
    opponent = random_opponent(game)

    forward = jax.jit(lambda key, positions: advance(game, positions, opponent(key, positions)))
    unfinished: list[View] = []
    key, n = jax.random.key(check_seed(seed)), 0
    while len(unfinished) < num:
        positions = beginnings(game, games)
        for _ in range(game.max_moves):
            # A finished game has no legal move.
            views = [view for view in viewer.views(positions) if view.legal]
            if not views:
                break
            unfinished += views
            positions, n = forward(jax.random.fold_in(key, n), positions), n + 1
    order = np.random.default_rng(seed).permutation(len(unfinished))[:num]
    return [unfinished[i] for i in order]
