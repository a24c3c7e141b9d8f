"""Limits on episodes against the shortest solutions of their tasks, and against the games' own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs import frozen_lake
from nlrl_jax.run import limits


def lake(rows, position=0):
    holes = np.array([cell == "O" for cell in "".join(rows)])
    return frozen_lake.FrozenLakeState(time=0, position=position, holes=holes)


@pytest.mark.parametrize(
    ("rows", "position", "steps"),
    [
        (("____", "____", "____", "____"), 0, 6),
        (("____", "____", "____", "____"), 15, 0),
        (("____", "____", "____", "____"), 14, 1),
        (("_O__", "_O__", "_O__", "____"), 0, 6),
        (("_O__", "_O_O", "___O", "OO__"), 0, 6),
        (("_O__", "O___", "____", "____"), 0, None),
        (("__", "O_"), 0, 2),
        (("_____", "OOOO_", "_____", "_OOOO", "_____"), 0, 16),
    ],
)
def test_frozen_lake_knows_its_shortest_way(rows, position, steps):
    assert frozen_lake.optimal(lake(rows, position)) == steps


def fewest_by_trying(game, state, most):
    """Breadth first over the real environment: steps to the first success."""
    step = jax.jit(jax.vmap(lambda s, a: game.env.step_env(jax.random.key(0), s, a, game.params)[1:4], (None, 0)))
    level = [state]
    for steps in range(1, most + 1):
        following = {}
        for one in level:
            after, _, over = jax.device_get(step(one, jnp.arange(len(game.actions))))
            for i in range(len(game.actions)):
                row = jax.tree.map(lambda leaf, i=i: leaf[i], after)
                if game.success(row):
                    return steps
                key = tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(row.replace(time=0)))
                if not over[i]:
                    following.setdefault(key, row)
        level = list(following.values())
    return None


@pytest.mark.parametrize("name", ["frozen_lake", "maze_double_t", "maze_medium", "tic_tac_toe_first_move"])
def test_the_shortest_solution_is_what_trying_everything_finds(name):
    game = envs.make(name)
    for state in limits.first_states(game, 5, 3):
        assert game.optimal(state) == fewest_by_trying(game, state, 20), state


def test_games_of_two_need_at_least_so_many_moves():
    game = envs.make("tic_tac_toe")
    assert {game.optimal(state) for state in limits.first_states(game, 0)} == {3}
    game = envs.make("breakthrough", rows=5)
    for state in limits.first_states(game, 0, 8):
        assert game.optimal(state) == 3
    (state,) = limits.first_states(envs.make("breakthrough", rows=4, columns=2, pawn_rows=1), 0, 1)
    assert envs.make("breakthrough", rows=4, columns=2, pawn_rows=1).optimal(state) == 2  # both pawns, or the far row


@pytest.mark.parametrize(
    ("turns", "steps", "own", "says"),
    [
        (20, 20, 100, ""),
        (2, 6, 100, ""),
        (6, 6, 6, ""),
        (20, 5, 100, "ends after 5 steps (--eval_steps 5), and their shortest solutions take 6"),
        (1, 20, 100, "ends after 3 steps (--eval_turns 1 of 3 actions), and their shortest solutions take 6"),
        (20, 20, 4, "ends after 4 steps (the game's own limit), and their shortest solutions take 6"),
        (20, 1, 100, "ends after 1 step (--eval_steps 1)"),
    ],
)
def test_a_limit_below_the_shortest_solution_is_named_with_both_numbers(turns, steps, own, says):
    game = envs.make("frozen_lake", maps="held_out", max_steps=own)
    warned = limits.too_short("the evaluation", game, limits.first_states(game, 1, 9), "eval_turns", turns, steps)
    assert bool(warned) == bool(says)
    for sentence in warned:
        assert sentence.startswith("9 of the 9 tasks of the evaluation that were looked at cannot be solved") and (
            says in sentence
        )


def test_options_beyond_a_games_own_limit_are_named_with_both_numbers():
    game = envs.make("tic_tac_toe")
    capped = limits.capped(game, max_steps=9, eval_steps=20)
    assert capped == ["--eval_steps is 20, but tic_tac_toe ends an episode after 9 steps"]
    assert limits.capped(dataclasses.replace(game, params=None), max_steps=99) == []
    (sentence,) = limits.capped(envs.make_host("maze_medium", max_steps=4), max_turns=5)
    assert sentence.startswith("--max_turns is 5") and sentence.endswith("after 4 steps")


def test_tasks_beyond_a_limit_are_counted():
    game = envs.make("maze_double_t")
    states = limits.first_states(game, 1)
    needed = [game.optimal(state) for state in states]
    for steps in (4, 9, max(needed)):
        beyond = [n for n in needed if n > steps]
        warned = limits.too_short("training", game, states, "max_turns", 9, steps)
        assert len(warned) == bool(beyond)
        if beyond:
            assert (
                warned[0].startswith(f"{len(beyond)} of the 32 tasks")
                and f"{min(beyond)} to {max(beyond)}" in warned[0]
            )


@pytest.mark.parametrize("name", ["frozen_lake", "maze_medium", "babyai"])
def test_games_of_the_host_know_it_too(name):
    game = envs.make_host(name)
    states = limits.first_tasks(game, list(itertools.islice(((game.kinds[0], seed) for seed in range(99)), 3)))
    assert len(states) == 3
    (sentence,) = limits.too_short("the evaluation", game, states, "eval_turns", 1)
    assert "ends after 1 step (--eval_turns 1), and their shortest solutions take" in sentence
    assert limits.too_short("the evaluation", dataclasses.replace(game, optimal=None), states, "eval_turns", 1) == []
