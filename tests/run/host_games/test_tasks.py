"""Tasks that are the same, and those that training never shows."""

import dataclasses
import random

import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.maze.env import maze
from nlrl_jax.launch.iterate_lac import IterateConfig, tasks_for
from nlrl_jax.launch.run_lac import LACRunConfig, make_game
from nlrl_jax.run.host_games.tasks import distinct, hold_out, looks_of, not_held_out, shortage, tasks_of
from nlrl_jax.run.ms_grpo.transcripts import Tasks
from nlrl_jax.types import MOST_RUN_SEED, HostGame, Outcome, Start

TASKS = [("", i) for i in range(6)]


def line(begin, place=lambda state: state, drawn=lambda state: 0, shown=True, actions=("left", "right")):
    """A corridor whose state is `begin(seed)`; `drawn` moves the player besides the action."""
    moved = {}

    def step(states, chosen):
        outcomes = []
        for state, action in zip(states, chosen):
            key = id(state)
            moved[key] = moved.get(key, 0) + (1 if action == "right" else -1) + drawn(state)
            at = place(state) + moved[key]
            outcomes.append(Outcome(state, f"at {at}", float(at > 3), at > 3, at > 3))
        return outcomes

    def reset(tasks):
        states = [begin(seed) for _, seed in tasks]
        keep.extend(states)  # no two have one id
        return [Start(state, "the end", f"at {place(state)}" if shown else "somewhere") for state in states]

    keep = []
    return HostGame("line", "Walk.", actions, 10, ("",), reset, step)


class Live:
    """As a Gymnasium or TextArena environment: it holds a generator, and a lock that cannot be pickled."""

    def __init__(self, seed):
        self.rng, self.x, self.lock = random.Random(seed), seed % 3, lambda: None


@pytest.mark.parametrize(
    "game, number",
    [
        (line(lambda seed: [seed % 3], lambda state: state[0]), 3),
        (line(lambda seed: [seed, seed % 3], lambda state: state[1]), 3),  # the state holds its seed
        (line(lambda seed: {"seed": seed, "x": seed % 3}, lambda state: state["x"]), 3),
        (line(Live, lambda state: state.x), 3),
        (line(Live, lambda state: state.x, lambda state: state.rng.choice((0, 1, 2))), 6),  # chance
        (line(lambda seed: [seed % 3], lambda state: state[0], shown=False), 3),  # what is hidden counts
        (line(lambda seed: [seed, 1], lambda state: 1), 1),
        (line(lambda seed: [seed % 3], lambda state: 0, actions=()), 3),  # any text: what the states hold
        (line(Live, lambda state: 0, actions=()), 6),
    ],
)
def test_a_task_that_comes_again_is_played_once(game, number):
    assert distinct(game, TASKS) == TASKS[:number]


def test_tasks_of_a_maze_are_its_free_cells():
    free = len(maze("double_t").starts)
    game = envs.make_host("maze_double_t")
    tasks = tasks_of(game, [""], 120, 0)
    different = distinct(game, tasks)
    assert len(different) == free == len(set(looks_of(game, tasks)))
    fewer = shortage(120, [""], different)
    assert f"--tasks is 120, but there are only {free} different ones" in fewer
    held = hold_out(game, [""], 50, 0)
    assert len(held.tasks) == len(held.looks) == free // 4
    assert held.note == (
        f"maze_double_t has {free} different starts among 200 tasks: {free // 4} are held out, and the other "
        f"{free - free // 4} are trained on"
    )


def test_slippery_ice_makes_another_task_of_every_seed():
    game = envs.make_host("frozen_lake_slippery")
    tasks = tasks_of(game, [""], 40, 0)
    assert len(distinct(game, tasks)) > len(set(looks_of(game, tasks)))


@pytest.mark.parametrize(
    "game, says",
    [
        (envs.make_host("tic_tac_toe"), "10 different starts among 200 tasks: training shows all, and held-out tasks "
         "differ in what is hidden or left to chance"),
        (line(lambda seed: [seed, seed % 2], lambda state: state[1]), "2 different starts among 200 tasks: training "
         "shows all, and held-out tasks differ in nothing"),
        (line(Live, lambda state: 0, lambda state: state.rng.choice((0, 1))), "has 1 start among 200"),
    ],
)  # fmt: skip
def test_a_game_with_few_starts_says_how_many(game, says):
    held = hold_out(game, [""], 20, 0)
    assert says in held.note and not held.looks and held.tasks


@pytest.mark.parametrize("starts, number", [(1, 1), (2, 2), (3, 3)])
def test_held_out_tasks_that_are_all_a_game_has(starts, number):
    game = line(lambda seed: [seed, seed % starts], lambda state: state[1])
    tasks = Tasks.of(game, game, "", number, 0)
    assert "training shows all" in tasks.held_out.note and not tasks.held_out.looks
    assert tasks.draw(4, np.random.default_rng(0))


def trained_on(tasks, number=300):
    rng = np.random.default_rng(0)
    return {task for _ in range(number // 10) for task in tasks.draw(10, rng)}


@pytest.mark.parametrize("name", ["frozen_lake", "maze_double_t", "snake", "babyai", "breakthrough"])
def test_training_never_begins_as_a_held_out_task_does(name):
    learned, evaluated = envs.make_host_pair(name)
    tasks = Tasks.of(learned, evaluated, "", 24, 0)
    held = set(looks_of(evaluated, tasks.held_out.tasks))
    seen = trained_on(tasks)
    if name != "breakthrough":  # which has few, and says so
        assert not held & set(looks_of(learned, sorted(seen)))
    assert not seen & set(tasks_of(evaluated, learned.kinds, 5000, 0))


def test_maps_are_those_of_the_option():
    both = envs.make_host_pair("frozen_lake", ("all", "all"))
    assert both[0] is both[1] and Tasks.of(*both, "", 20, 0).held_out.looks
    learned, evaluated = envs.make_host_pair("frozen_lake_slippery")
    holes = lambda game: {start.state[1].holes.tobytes() for start in game.reset([("", i) for i in range(200)])}
    assert not holes(learned) & holes(evaluated)


def test_maps_that_are_kept_apart_are_all_evaluated_on():
    tasks = Tasks.of(*envs.make_host_pair("frozen_lake"), "", 200, 71)
    assert len(set(tasks.held_out.tasks)) == 200 and not tasks.held_out.looks


@pytest.mark.parametrize("name", ["babyai", "frozen_lake", "maze_medium"])
def test_run_lac_plays_what_nothing_trains_on(name):
    game, played = make_game(LACRunConfig(game=name, tasks=6))
    learned, evaluated = envs.make_host_pair(name)
    tasks = Tasks.of(learned, evaluated, "", len(played), 0)
    assert set(tasks.held_out.tasks) <= set(played) and not trained_on(tasks) & set(played)


@pytest.mark.parametrize("name", ["frozen_lake", "maze_double_t", "snake"])
def test_rounds_never_begin_as_a_held_out_task_does(name, capsys):
    config = IterateConfig(game=name, tasks=10, eval_tasks=20, rounds=2)
    learned, evaluated = envs.make_host_pair(name)
    held, rounds = tasks_for(config, learned, evaluated, [""])
    looks = [looks_of(learned, own) for own in rounds]
    assert len(rounds) == 3 and not set(looks_of(evaluated, held)) & set(sum(looks, []))
    assert all(len(set(own)) == len(own) for own in looks)
    assert ("different starts" in capsys.readouterr().out) == (name == "maze_double_t")
    longer = tasks_for(dataclasses.replace(config, rounds=3), learned, evaluated, [""])[1]
    assert longer[:3] == rounds


def test_tasks_and_seeds():
    few = line(lambda seed: [seed], lambda state: state[0])
    assert tasks_of(few, [""], 2, 3) == [("", 30_000), ("", 30_001)]
    with pytest.raises(ValueError, match="no tasks 'swim'"):
        tasks_of(few, ["swim"], 1, 0)
    few = dataclasses.replace(few, kinds=("a", "b"), limits={"a": 2})
    tasks = tasks_of(few, ["a", "b"], 3, 0)
    assert tasks == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2)]
    assert shortage(3, ["a", "b"], tasks) == (
        "--tasks is 3, but there are only 2 of 'a' different ones; each is played once"
    )
    assert shortage(2, ["a", "b"], tasks) == ""
    babyai = envs.make_host("babyai")
    assert babyai.reset(tasks_of(babyai, babyai.kinds[:1], 1, MOST_RUN_SEED))
    for seed in (MOST_RUN_SEED + 1, 500_000, 2**32 - 1):
        with pytest.raises(ValueError, match=f"--seed is {seed}; .* at most {MOST_RUN_SEED}"):
            tasks_of(babyai, babyai.kinds[:1], 1, seed)


def test_no_start_is_left_to_train_on():
    game = line(lambda seed: [seed % 5000], lambda state: state[0] if state[0] < 9 else 0)
    with pytest.raises(ValueError, match="line: 200 tasks in a row begin as one of the 5 held-out ones"):
        Tasks.of(game, game, "", 5, 0).draw(1, np.random.default_rng(0))
    game = line(lambda seed: [seed % 5], lambda state: state[0])
    assert not_held_out(game, [("", i) for i in range(50)], 3, frozenset(looks_of(game, [("", 0)]))) == [
        ("", 1), ("", 2), ("", 3),
    ]  # fmt: skip
