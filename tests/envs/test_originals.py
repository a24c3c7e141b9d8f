"""MS-GRPO's games against code that the paper's first author has published: what it does and shows, kept as goldens.

`jim-dilkes/FastSnake` (the engine; 60 positions, six of them made by hand, each stepped once without new apples) and
the FrozenLake of `jim-dilkes/Verlog`. The wording of texts is ours; coordinates, symbols, order and rules are theirs.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs import frozen_lake, snake
from tests.envs.test_snake import state_of

GOLDENS = json.loads((pathlib.Path(__file__).parents[1] / "goldens" / "ms_grpo_games.json").read_text())
SIZE = 5
GAME = envs.make("snake", size=SIZE)
advance = jax.jit(snake.advance, static_argnums=(2, 3))
enemy_moves = jax.jit(snake.enemy_moves, static_argnums=1)
fields = jax.jit(GAME.fields)


def points(fields, name, number=None):
    """The (x, y) of a field."""
    x, y = np.atleast_1d(fields[f"{name}_x"], fields[f"{name}_y"])
    return np.stack([x, y], 1)[:number].tolist()


def drawn(game, fields):
    return game.board.render(fields).replace(" ", "").split("\n")


@pytest.mark.parametrize("number", range(len(GOLDENS["snake"])))
def test_snake_moves_pays_and_shows_as_the_engine(number):
    case = GOLDENS["snake"][number]
    state = state_of(GAME.env, case["you"], case["enemy"], case["apples"])
    assert np.flatnonzero(enemy_moves(state, SIZE)).tolist() == case["options"]
    shown = jax.device_get(fields(state))
    assert drawn(GAME, shown) == case["board"]
    assert points(shown, "head") + points(shown, "segment", shown["num_segments"]) == case["you"]
    assert points(shown, "enemy_head") + points(shown, "enemy_segment", shown["num_enemy_segments"]) == case["enemy"]
    assert sorted(points(shown, "apple", shown["num_apples"])) == sorted(case["apples"])
    after, ate, died = advance(state, jnp.array([case["action"], case["enemy_action"]]), SIZE, 30)
    reward = snake.DEATH_REWARD if died[0] else ate[0] * case["apple_reward"]
    assert (float(reward), bool(GAME.env.is_terminated(after, None))) == (case["reward"], case["over"])
    assert after.alive.tolist() == case["alive"]
    shown = jax.device_get(fields(after))
    assert points(shown, "head") + points(shown, "segment", shown["num_segments"]) == case["after"][0]
    assert points(shown, "enemy_head") + points(shown, "enemy_segment", shown["num_enemy_segments"]) == case["after"][1]
    assert sorted(points(shown, "apple", shown["num_apples"])) == sorted(case["left"])


@pytest.mark.parametrize("case", GOLDENS["frozen_lake"], ids=lambda case: case["map"][0])
def test_frozen_lake_shows_what_the_authors_does(case):
    size = len(case["map"])
    game = envs.make("frozen_lake", size=size)
    holes = np.array([tile == "H" for tile in "".join(case["map"])])
    shown = game.fields(frozen_lake.FrozenLakeState(time=0, position=jnp.int32(case["cell"]), holes=jnp.asarray(holes)))
    shown = jax.device_get(shown)
    assert points(shown, "player") == [case["player"]] and drawn(game, shown) == case["board"]
    assert points(shown, "hole", shown["num_holes"]) == case["holes"]  # in its order, too
    assert case["goal"] == [size - 1, 0] and f"Goal: ({size - 1}, 0)" in game.observation.render(shown)


def test_the_goldens_hold_what_they_are_for():
    """Points, poison, deaths of either, heads that meet, a tail that is entered, full circles of the enemy."""
    cases = GOLDENS["snake"]
    assert {case["reward"] for case in cases} == {-3, -1, 0, 1}
    assert {tuple(case["alive"]) for case in cases} == {(True, True), (True, False), (False, True), (False, False)}
    tails = [case for case in cases if len(case["enemy"]) > 2 and not case["alive"][1]]
    to = lambda case: np.add(case["enemy"][0], [(0, 1), (0, -1), (-1, 0), (1, 0)][case["enemy_action"]]).tolist()
    assert any(to(case) == case["enemy"][-1] for case in tails)
