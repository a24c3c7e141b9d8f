"""The players who know the true state: they reach the goal in the engine and never make an invalid action."""

import importlib.util

import pytest

import envs
from nlrl_jax.types import HostGame


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
def test_the_planner_solves_alfworld_in_the_engine_and_the_simulator_says_the_same():
    game = envs.make_host("alfworld")
    tasks = [(kind, seed) for kind in game.kinds for seed in range(4)]
    played = play(game, tasks, game.expert, game.max_steps)
    assert all(made[-1].success for made in played)
    assert all(outcome.valid for made in played for outcome in made)
    assert played == play(game.simulator, tasks, game.expert, game.max_steps)
    assert game.reset(tasks) == game.simulator.reset(tasks)
    assert [len(made) for made in played] == [game.optimal(start.state) for start in game.reset(tasks)]


@pytest.mark.skipif(importlib.util.find_spec("craftax") is None, reason="the extra crafter is not installed")
def test_the_player_who_knows_the_map_unlocks_half_of_crafter_s_achievements_in_150_steps():
    game = envs.make_host("crafter")
    outcomes = play(game, [("", 5000 + i) for i in range(4)], game.expert, 150)
    scores = [22 * sum(outcome.reward for outcome in made) for made in outcomes]
    assert sum(scores) / len(scores) >= 11
    assert all(outcome.valid for made in outcomes for outcome in made)
