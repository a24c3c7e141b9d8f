"""The players who know the true state: they reach the goal in the engine and never make an invalid action."""

import importlib.util

import pytest

from nlrl_jax import envs
from nlrl_jax.types import HostGame

needs_crafter = pytest.mark.skipif(
    importlib.util.find_spec("craftax") is None, reason="the extra crafter is not installed"
)


def play(game: HostGame, tasks, expert, most):
    """(outcomes of each task, most steps taken) of the expert's episodes."""
    states, outcomes = [start.state for start in game.reset(tasks)], [[] for _ in tasks]
    for _ in range(most):
        running = [i for i, made in enumerate(outcomes) if not (made and made[-1].done)]
        if not running:
            break
        moved = game.step([states[i] for i in running], [expert(states[i]) for i in running])
        for i, outcome in zip(running, moved, strict=True):
            outcomes[i].append(outcome)
            states[i] = outcome.state
    return outcomes


def test_the_buyer_gets_the_full_score_for_every_instruction():
    game = envs.make_host("webshop")
    outcomes = play(game, [("", i) for i in range(game.limits[""])], game.expert, game.max_steps)
    assert all(made[-1].success for made in outcomes)
    assert all(outcome.valid for made in outcomes for outcome in made)


@pytest.mark.skipif(importlib.util.find_spec("textworld") is None, reason="the extra alfworld is not installed")
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.slow)])
def test_the_planner_solves_alfworld_in_the_engine_and_the_simulator_says_the_same(seeds):
    game = envs.make_host("alfworld")
    tasks = [(kind, seed) for kind in game.kinds for seed in seeds]
    played = play(game, tasks, game.expert, game.max_steps)
    assert all(made[-1].success for made in played)
    assert all(outcome.valid for made in played for outcome in made)
    assert played == play(game.simulator, tasks, game.expert, game.max_steps)
    assert game.reset(tasks) == game.simulator.reset(tasks)
    assert [len(made) for made in played] == [game.optimal(start.state) for start in game.reset(tasks)]


@needs_crafter
def test_the_player_who_knows_the_map_unlocks_half_of_crafter_s_achievements_in_150_steps():
    game = envs.make_host("crafter")
    outcomes = play(game, [("", 5000 + i) for i in range(4)], game.expert, 150)
    scores = [22 * sum(outcome.reward for outcome in made) for made in outcomes]
    assert sum(scores) / len(scores) >= 11
    assert all(outcome.valid for made in outcomes for outcome in made)


CLOSED = {(0, 1): "stone", (0, -1): "stone", (1, 0): "stone", (-1, 0): "stone"}


@needs_crafter
@pytest.mark.parametrize(
    "action, state",
    [
        ("move east", dict(mobs=[("zombies", 0, 1)])),
        ("do", dict(mobs=[("zombies", -1, 0)])),
        ("move west", dict(blocks={(0, -3): "water"}, player_drink=3)),
        ("move south", dict(mobs=[("cows", 3, 0)], player_food=3)),
        ("sleep", dict(blocks=CLOSED, player_energy=2)),
        ("noop", dict(is_sleeping=True)),
        ("place table", dict(items={"wood": 9})),
        ("make iron sword", dict(blocks={(0, 1): "table", (1, 1): "furnace"}, items=dict(
            wood=1, stone=1, coal=1, iron=1,
            wood_pickaxe=1, wood_sword=1, stone_pickaxe=1, stone_sword=1, iron_pickaxe=1))),
        ("move north", dict(blocks={(0, 1): "lava", (0, 2): "tree", (-1, 3): "tree"})),
    ],
)  # fmt: skip
def test_what_the_player_who_knows_the_map_does(action, state):
    from nlrl_jax.envs.crafter import expert
    from tests.envs.crafter_worlds import state_of

    assert expert.act(state_of(**state).world) == action
