"""Trajectories in the package: played again in their games, they are what the files say."""

import importlib.util
import itertools
from collections import Counter

import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs import recorded
from nlrl_jax.roles.dialogues import BAD, GOOD, NOTES, THINK, UNKNOWN, verdict
from nlrl_jax.types import HostGame

PACKAGES = {"alfworld": "textworld", "crafter": "craftax", "webshop": "rapidfuzz"}
needs = lambda name: pytest.mark.skipif(
    importlib.util.find_spec(PACKAGES[name]) is None, reason=f"the extra {name} is not installed"
)
each = pytest.mark.parametrize("name", envs.RECORDED)


def both(name):
    return [one for held_out in (False, True) for one in envs.demonstrations(name, 12, 6, 0, held_out)]


def play(game: HostGame, state, one):
    """Plays a trajectory and checks its observations; returns the outcomes."""
    outcomes = []
    for step in one.history.steps:
        (outcome,) = game.step([state], [step.action])
        assert outcome.observation == step.observation
        state = outcome.state
        outcomes.append(outcome)
    return outcomes


@each
def test_counts_endings_and_notes(name):
    made, held_out = envs.demonstrations(name, 12, 6, 0), envs.demonstrations(name, 12, 6, 0, True)
    for part in (made, held_out):
        assert [one.success for one in part] == [True] * 12 + [False] * 6
        words = Counter(verdict(step.note) for one in part for step in one.history.steps)
        assert set(words) == {GOOD, BAD, UNKNOWN} and min(words.values()) > 10
    assert envs.demonstrations(name, 3, 1, 5) == [*made[:3], made[12]]
    if name != "crafter":  # where a goal is reached or missed
        assert all(verdict(one.history.last_note) == GOOD for one in made if one.success)
    starts = lambda part: {(one.history.goal, one.history.observation) for one in part}
    if name == "webshop":
        assert len(starts(made) | starts(held_out)) == 36
    else:
        assert not starts(made) & starts(held_out)


@each
def test_examples_are_successes_with_notes_of_the_kind(name):
    for label in NOTES:
        first, *rest = recorded.examples(name, label, 12)
        assert len(rest) == 11 and not any(verdict(step.note) == BAD for step in first.steps)
        notes = [first.note, *(step.note for step in first.steps)]
        assert any(notes) == (label in ("Critic", "Thought", "Reward") or (label == "Value" and name == "crafter"))
    assert {step.note for step in recorded.examples(name, "Reward", 1)[0].steps[:-1]} == {"0"}
    plain, thinking = (recorded.examples(name, label, 1)[0].steps for label in ("", "Think"))
    thought = [step.action.startswith(THINK) for step in thinking]
    assert tuple(step for step in thinking if not step.action.startswith(THINK)) == plain and thought[0]
    assert not any(a and b for a, b in itertools.pairwise(thought))
    assert recorded.examples(name, "Reward", 1)[0].last_note == ("0" if name == "crafter" else "1")


@needs("webshop")
def test_webshop_s_trajectories():
    from nlrl_jax.envs.webshop import catalogue, engine, products

    _, goals, _ = catalogue.read(*products.records(), "here")
    asked = {(own[0].product.asin, i): goal for own in goals for i, goal in enumerate(own)}
    game = envs.make_host("webshop")
    tasks = {goal.instruction for goal in catalogue.load("").tasks}
    for one in both("webshop"):
        state = engine.ShopState(asked[one.task])
        assert state.goal.instruction == one.history.goal and one.history.goal not in tasks
        outcomes = play(game, state, one)
        assert all(outcome.valid for outcome in outcomes)
        assert outcomes[-1].done and outcomes[-1].success == one.success


@pytest.fixture(scope="module")
def household():
    """Trajectories of ALFWorld with their games."""
    from nlrl_jax.envs.alfworld import games

    return [(one, games.make(*one.task, "train")) for one in both("alfworld")]


@needs("alfworld")
def test_alfworld_s_trajectories(household):
    from nlrl_jax.envs.alfworld.host import HouseholdState
    from nlrl_jax.envs.alfworld.world import World

    game = envs.make_host("alfworld").simulator
    for one, room in household:
        assert (room.goal, World(room).intro()) == (one.history.goal, one.history.observation)
        outcomes = play(game, HouseholdState(room.goal, "", game=room), one)
        assert outcomes[-1].success == one.success and not any(outcome.success for outcome in outcomes[:-1])
        assert all(outcome.valid or verdict(step.note) == BAD for outcome, step in zip(outcomes, one.history.steps))


@pytest.mark.slow
@needs("alfworld")
def test_alfworld_s_trajectories_in_the_engine(household):
    from nlrl_jax.envs.alfworld import games
    from nlrl_jax.envs.alfworld.engine import Engine

    for one, room in household:
        engine = Engine(games.problem(room), games.package() / "data")
        engine.reset()
        answers = [engine.step(step.action) for step in one.history.steps]
        assert [answer[0] for answer in answers] == [step.observation for step in one.history.steps]
        assert answers[-1][1] == one.success


@needs("crafter")
def test_crafter_s_trajectories():
    from tests.envs.crafter_worlds import BATCH

    game, made = envs.make_host("crafter"), both("crafter")
    for part in (made[:12], made[12:18], made[18:30], made[30:]):  # a task listed again has chance of its own
        rows = [*part, *[part[-1]] * (BATCH - len(part))]  # always as many, so that one program steps them
        starts = game.reset([one.task for one in rows])
        assert [start.observation for start in starts] == [one.history.observation for one in rows]
        states, scores = [start.state for start in starts], np.zeros(BATCH)
        for steps in zip(*(one.history.steps for one in rows), strict=True):
            outcomes = game.step(states, [step.action for step in steps])
            observations = [outcome.observation for outcome in outcomes]
            assert observations[: len(part)] == [step.observation for step in steps][: len(part)]  # the rest is padding
            states = [outcome.state for outcome in outcomes]
            scores += [22 * outcome.reward for outcome in outcomes]
        assert all(score > 2.5 if one.success else score < 1.5 for one, score in zip(part, scores, strict=False))


@needs("crafter")
def test_a_task_of_crafter_has_one_world_in_every_batch():
    game = envs.make_host("crafter")
    tasks = [("", seed) for seed in range(32)]
    alone = [game.reset(tasks[i : i + 8])[0] for i in range(0, 32, 8)]
    for one, other in zip(alone, game.reset(tasks)[::8], strict=True):
        assert np.array_equal(one.state[1].world.map, other.state[1].world.map)
