"""Positions, look-ahead variations and win rates for language TD on breakthrough, kept in a folder once made."""

from __future__ import annotations

import functools
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.breakthrough.rules import Breakthrough, board_game
from nlrl_jax.algorithms import language_td, mcts
from nlrl_jax.algorithms.language_td import LookAhead
from nlrl_jax.roles.board_games import View, Viewer

_ROWS = 8192  # positions searched at once: a tree takes 12 bytes x simulations x 30 moves a row
_FILE = "positions.npz"
_MADE_FROM = ("states", "test_states", "look_ahead", "variations", "simulations", "rollouts", "skills")
_MADE_FROM += ("judge_games", "seed")


class Data(NamedTuple):
    """What a run learns from and is judged on.

    train: D_s with its variations. test: other positions. win_rates: float [len(test)], mean outcome for player 0.
    players: names, player 0 first.
    """

    train: list[LookAhead]
    test: list[View]
    win_rates: np.ndarray
    players: tuple[str, str]


def parse_skills(text: str) -> list[tuple[int, int]]:
    """ "2x1,64x4" -> [(simulations, rollouts), ...].

    Raises:
      ValueError: anything else.
    """
    pairs = [skill.split("x") for skill in text.split(",")]
    if not all(len(pair) == 2 and all(n.strip().isdecimal() and int(n) > 0 for n in pair) for pair in pairs):
        raise ValueError(f"--skills is {text!r}; write simulations x rollouts such as 2x1,64x4, each at least 1")
    return [(int(simulations), int(rollouts)) for simulations, rollouts in pairs]


def load_or_make(config: Any, folder: pathlib.Path) -> Data:
    """The data of a run's config; made and stored if it is not in `folder` yet.

    Raises:
      ValueError: too few different positions came up; see also `parse_skills`.
    """
    game = board_game()
    path = folder / _FILE
    made_from = repr([getattr(config, name) for name in _MADE_FROM])
    stored = dict(np.load(path)) if path.is_file() else {}
    if str(stored.get("made_from")) != made_from:
        stored = _make(game, config) | {"made_from": np.array(made_from)}
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "part.npz"
        np.savez_compressed(part, **stored)
        part.replace(path)
    tree = jax.tree.structure(game.init())
    unpack = lambda name: jax.tree.unflatten(tree, [stored[f"{name}_{i}"] for i in range(tree.num_leaves)])
    viewer = Viewer(game)
    train = language_td.look_ahead(
        game, viewer, unpack("train"), stored["actions"], unpack("reached"), config.variations
    )
    return Data(train, viewer.views(unpack("test")), stored["win_rates"], game.players)


def _make(game: Breakthrough, config: Any) -> dict[str, np.ndarray]:
    key_games, key_split, key_look, key_judge = jax.random.split(jax.random.key(config.seed), 4)
    clock = time.monotonic()
    say = lambda text: print(f"[{time.monotonic() - clock:5.0f} s] {text}", flush=True)
    policies = [mcts.mcts_policy(game, *skill) for skill in parse_skills(config.skills)]
    wanted = config.states + config.test_states
    positions = _states(game, policies, key_games, wanted)
    order = np.asarray(jax.random.permutation(key_split, len(jax.tree.leaves(positions)[0])))[:wanted]
    taken = lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf)[rows], positions)
    train, test = taken(order[config.test_states :]), taken(order[: config.test_states])
    say(f"{len(order)} positions from games of {len(policies)} players with each other")
    policy = mcts.mcts_policy(game, config.simulations, config.rollouts)
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, config.variations, axis=0), train)
    look = functools.partial(mcts.play_moves, game, policy)
    actions, reached = _in_chunks(lambda key, rows: look(key, rows, config.look_ahead), key_look, repeated, axis=1)
    say(f"{config.variations} variations of {config.look_ahead} moves from each")
    judge = functools.partial(mcts.win_rates, game, policy)
    copies = max(1, _ROWS // config.judge_games)
    rates = _in_chunks(lambda key, rows: judge(key, rows, config.judge_games), key_judge, test, axis=0, size=copies)
    say(f"win rates of {config.test_states} test positions, {config.judge_games} games each")
    named = {"train": train, "test": test, "reached": reached}
    arrays = {f"{name}_{i}": leaf for name, tree in named.items() for i, leaf in enumerate(jax.tree.leaves(tree))}
    return {**arrays, "actions": actions, "win_rates": rates}


def _states(game: Breakthrough, policies: list, key: jax.Array, wanted: int) -> Any:
    """At least `wanted` different positions, by playing as many games as it takes."""
    games, found = 4, 0
    for attempt in range(8):
        positions = mcts.state_dataset(game, policies, jax.random.fold_in(key, attempt), games)
        found = len(jax.tree.leaves(positions)[0])
        if found >= wanted:
            return positions
        games = max(games + 4, int(games * 1.2 * wanted / found))
    raise ValueError(f"only {found} different positions came up in {games} games a pair; ask for fewer --states")


def _in_chunks(function: Any, key: jax.Array, positions: Any, axis: int, size: int = _ROWS) -> Any:
    """`function(key, positions)` over parts of equal size, joined along `axis`; the last part is filled up."""
    rows = len(jax.tree.leaves(positions)[0])
    size = min(size, rows)
    parts = []
    for n, first in enumerate(range(0, rows, size)):
        index = np.minimum(np.arange(first, first + size), rows - 1)
        part = jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf[index]), positions)
        parts.append(jax.device_get(function(jax.random.fold_in(key, n), part)))
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
    return jax.tree.map(lambda leaf: leaf.take(np.arange(rows), axis=axis), whole)
