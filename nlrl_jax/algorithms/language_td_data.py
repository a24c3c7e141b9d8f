"""Positions, look-ahead variations and win rates for language TD, made by MCTS and kept in a folder."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms import language_td, mcts
from nlrl_jax.algorithms.language_td import LookAhead
from nlrl_jax.config import check, check_seed, option
from nlrl_jax.roles.board_games import View, Viewer
from nlrl_jax.rollouts.board_games import random_opponent
from nlrl_jax.types import BoardGame

_ROWS = 8192  # positions searched at once: a tree takes 12 bytes x simulations x 30 moves per row
_FILE = "positions.npz"


@dataclasses.dataclass(frozen=True)
class TDDataConfig:
    """Positions for language TD (NLRL, appendix B.2)."""

    states: int = option(45_000, "positions to learn from", least=1)
    test_states: int = option(3000, "held-out positions for evaluation", least=1)
    look_ahead: int = option(4, "moves per variation [l]", least=1)
    variations: int = option(4, "variations per position, before duplicates are removed [K]", least=1)
    simulations: int = option(1000, "MCTS simulations per move of the policy that is evaluated", least=2)
    rollouts: int = option(100, "random playouts per simulation", least=1)
    skills: str = option(
        ",".join(f"{s}x{r}" for s in (2, 10, 100, 1000) for r in (1, 10, 100, 1000)),
        "simulations x rollouts of the players whose games give the positions",
    )
    judge_games: int = option(100, "games that measure the win rate of a test position", least=1)

    def __post_init__(self):
        check(self)
        parse_skills(self.skills)


class Data(NamedTuple):
    """The data of a run.

    train: D_s with its variations. test: other positions. win_rates: float [len(test)], mean outcome for player 0.
    positions: the states of `test`, leading axis [len(test)].
    """

    train: list[LookAhead]
    test: list[View]
    win_rates: np.ndarray
    positions: Any


def parse_skills(text: str) -> list[tuple[int, int]]:
    """ "2x1,64x4" -> [(simulations, rollouts), ...].

    Raises:
      ValueError: anything else.
    """
    pairs = [skill.split("x") for skill in text.split(",")]
    if not all(len(pair) == 2 and all(n.strip().isdecimal() and int(n) > 0 for n in pair) for pair in pairs):
        raise ValueError(f"--skills is {text!r}; write simulations x rollouts such as 2x1,64x4, each at least 1")
    return [(int(simulations), int(rollouts)) for simulations, rollouts in pairs]


def load_or_make(game: BoardGame, config: TDDataConfig, seed: int, folder: pathlib.Path) -> Data:
    """The data of a run, from `folder`, where it is stored once made.

    Raises:
      ValueError: too few different positions came up.
    """
    path = folder / _FILE
    made_from = repr([*dataclasses.astuple(config), seed])
    stored = dict(np.load(path)) if path.is_file() else {}
    if str(stored.get("made_from")) != made_from:
        stored = _make(game, config, seed) | {"made_from": np.array(made_from)}
        if jax.process_index() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            # Renamed into place when it is whole: a run that is killed meanwhile leaves no half of a file.
            part = folder / "part.npz"
            np.savez_compressed(part, **stored)
            part.replace(path)
    tree = jax.tree.structure(game.init())

    def unpack(name):
        return jax.tree.unflatten(tree, [stored[f"{name}_{i}"] for i in range(tree.num_leaves)])

    viewer = Viewer(game)
    train = language_td.look_ahead(
        game, viewer, unpack("train"), stored["actions"], unpack("reached"), config.variations
    )
    return Data(train, viewer.views(unpack("test")), stored["win_rates"], unpack("test"))


def sample(game: BoardGame, config: TDDataConfig, num: int, key: jax.Array) -> list[LookAhead]:
    """Early positions and look-ahead variations by random play: quick to make, as long as those of a run."""
    random_move = random_opponent(game)
    is_over = jax.vmap(game.is_terminal)

    def policy(key, positions):
        return jnp.where(is_over(positions), -1, random_move(key, positions)), None, None

    start = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num, axis=0), game.init())
    _, played = mcts.play_moves(game, policy, jax.random.fold_in(key, 0), start, 4)  # no game is over so early
    positions = jax.tree.map(lambda leaf: leaf[-1], played)
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, config.variations, axis=0), positions)
    ahead = mcts.play_moves(game, policy, jax.random.fold_in(key, 1), repeated, config.look_ahead)
    actions, reached = jax.device_get(ahead)
    return language_td.look_ahead(game, Viewer(game), positions, actions, reached, config.variations)


def _make(game: BoardGame, config: TDDataConfig, seed: int) -> dict[str, np.ndarray]:
    key_games, key_split, key_look, key_judge = jax.random.split(jax.random.key(check_seed(seed)), 4)
    clock = time.monotonic()

    def log(text):
        print(f"[{time.monotonic() - clock:5.0f} s] {text}", flush=True)

    policies = [mcts.mcts_policy(game, *skill) for skill in parse_skills(config.skills)]
    needed = config.states + config.test_states
    positions = _states(game, policies, key_games, needed)
    # 1. Distinct positions, shuffled; the first ones are held out.
    order = np.asarray(jax.random.permutation(key_split, len(jax.tree.leaves(positions)[0])))[:needed]

    def take(rows):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], positions)

    train, test = take(order[config.test_states :]), take(order[: config.test_states])
    log(f"{len(order)} positions from games of {len(policies)} players with each other")
    policy = mcts.mcts_policy(game, config.simulations, config.rollouts)
    # 2. Variations: row n * K + k is the k-th of position n.
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, config.variations, axis=0), train)
    look = functools.partial(mcts.play_moves, game, policy)
    actions, reached = in_chunks(lambda key, rows: look(key, rows, config.look_ahead), key_look, repeated, axis=1)
    log(f"{config.variations} variations of {config.look_ahead} moves from each")
    # 3. Win rates of the test positions; a chunk has as many games as a search has rows.
    judge = functools.partial(mcts.win_rates, game, policy)
    copies = max(1, _ROWS // config.judge_games)
    rates = in_chunks(lambda key, rows: judge(key, rows, config.judge_games), key_judge, test, axis=0, size=copies)
    log(f"win rates of {config.test_states} test positions, {config.judge_games} games each")
    trees = {"train": train, "test": test, "reached": reached}
    arrays = {f"{name}_{i}": leaf for name, tree in trees.items() for i, leaf in enumerate(jax.tree.leaves(tree))}
    return {**arrays, "actions": actions, "win_rates": rates}


def _states(game: BoardGame, policies: list, key: jax.Array, needed: int) -> Any:
    """At least `needed` different positions, from as many games as that takes."""
    games, count = 4, 0
    for attempt in range(8):
        positions = mcts.state_dataset(game, policies, jax.random.fold_in(key, attempt), games)
        count = len(jax.tree.leaves(positions)[0])
        if count >= needed:
            return positions
        # As many more games as the share of new positions so far asks for, and a fifth on top.
        games = max(games + 4, int(games * 1.2 * needed / count))
    raise ValueError(f"only {count} different positions came up in {games} games per pair; ask for fewer --states")


def in_chunks(function: Any, key: jax.Array, positions: Any, axis: int, size: int = _ROWS) -> Any:
    """`function(key, positions)` over parts of equal size, joined along `axis`; the last part is filled up."""
    rows = len(jax.tree.leaves(positions)[0])
    size = min(size, rows)
    parts = []
    for n, first in enumerate(range(0, rows, size)):
        # The last row fills up the last part, so that all parts are one compiled program.
        index = np.minimum(np.arange(first, first + size), rows - 1)
        part = jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf[index]), positions)
        parts.append(jax.device_get(function(jax.random.fold_in(key, n), part)))
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
    return jax.tree.map(lambda leaf: leaf.take(np.arange(rows), axis=axis), whole)
