"""What language TD is compared with: who is ahead by its target alone, by one search, and by rules that read the board.

None of them learns. A value model that is not better than its own target, made for the same position with a search,
has learned to do without the search and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import jax
import numpy as np

from nlrl_jax.algorithms import language_td, mcts
from nlrl_jax.algorithms.language_td import LanguageTDConfig, ValueFunction
from nlrl_jax.algorithms.language_td_data import Data, TDDataConfig, in_chunks
from nlrl_jax.config import check_seed
from nlrl_jax.roles.board_games import TDRoles, View, Viewer, side_of
from nlrl_jax.types import BoardGame, LanguageModel

Side = str | None
Rules = Mapping[str, Callable[[View], Side]]


def controls(
    game: BoardGame,
    data: Data,
    config: TDDataConfig,
    roles: TDRoles,
    value: ValueFunction,
    aggregator: LanguageModel,
    learning: LanguageTDConfig,
    rules: Rules,
    seed: int,
) -> dict[str, list[Side]]:
    """Name -> the side that it calls ahead in each test position, None where it names neither.

    "target alone": the first iteration's target, variations from the test position itself with their ends evaluated by
    `value` and put together by `aggregator`. "one search": the sign of one search's value, as strong as the policy that
    is evaluated.
    """
    key_look, key_search = jax.random.split(jax.random.key(check_seed(seed)))
    policy = mcts.mcts_policy(game, config.simulations, config.rollouts)
    # Row n * K + k is variation k of test position n, as in the data.
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, config.variations, axis=0), data.positions)

    def play(key, rows):
        return mcts.play_moves(game, policy, key, rows, config.look_ahead)

    actions, reached = in_chunks(play, key_look, repeated, axis=1)
    buffer = language_td.look_ahead(game, Viewer(game), data.positions, actions, reached, config.variations)
    targets = language_td.td_estimate(buffer, roles, value, aggregator, learning, seed, Counter())
    # A dropped target leaves its position without an answer.
    answers = {target.view: roles.read_advantage(target.text) for target in targets}
    search = jax.jit(lambda key, rows: policy(key, rows)[1])
    values = in_chunks(search, key_search, data.positions, axis=0)
    ahead = [side_of(value, game.players) for value in np.asarray(values)]
    by_rule = {name: [rule(view) for view in data.test] for name, rule in rules.items()}
    return {"target alone": [answers.get(view) for view in data.test], "one search": ahead, **by_rule}
