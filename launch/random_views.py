"""Positions of random games as views: material for tokenizers and for teaching a form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nlrl_jax.algorithms.board_play import advance, random_opponent
from nlrl_jax.text.views import View, Viewer
from nlrl_jax.types import BoardGame


def random_views(game: BoardGame, num: int, seed: int) -> list[View]:
    """`num` unfinished positions out of games in which both sides play at random; the same seed gives the same ones."""
    viewer, games = Viewer(game), min(max(num // 4, 8), 512)
    opponent = random_opponent(game)

    forward = jax.jit(lambda key, positions: advance(game, positions, opponent(key, positions))[0])
    found: list[View] = []
    key, n = jax.random.key(seed), 0
    while len(found) < num:
        positions = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (games, *jnp.shape(leaf))), game.initial())
        for _ in range(game.max_moves):
            views = [view for view in viewer.views(positions) if view.legal]
            if not views:
                break
            found += views
            positions, n = forward(jax.random.fold_in(key, n), positions), n + 1
    order = np.random.default_rng(seed).permutation(len(found))[:num]
    return [found[i] for i in order]
