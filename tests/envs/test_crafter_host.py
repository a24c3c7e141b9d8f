import jax
import numpy as np
import pytest

import envs
from envs.crafter import engine, reading, walker
from envs.crafter.env import ACTIONS
from nlrl_jax.roles.dialogues import NOTES
from nlrl_jax.text.host import NOTHING
from tests.envs.crafter_worlds import BATCH, fresh, game, row

TASKS = [("", seed) for seed in range(BATCH)]  # always as many, so that one program steps them


@pytest.fixture(scope="module")
def host():
    return envs.make_host("crafter")


def test_it_has_balrogs_horizon_and_our_texts(host):
    assert (host.max_steps, envs.make_host("crafter", 30).max_steps) == (2000, 30)
    assert host.actions == ACTIONS and all(action in host.rules for action in ACTIONS)
    starts = host.reset(TASKS)
    fields = jax.device_get(game().fields(row(fresh(), 5)))
    assert starts[5].observation == game().observation.render(fields) and "\n" not in starts[5].observation
    assert "22 achievements" in starts[5].goal and len(host.board(starts[5].state).splitlines()) == 7


def test_an_action_that_is_none_changes_nothing(host):
    starts = host.reset(TASKS)
    outcomes = host.step([start.state for start in starts], ["fly", *["Noop"] * (BATCH - 1)])
    assert outcomes[0].observation == f"{NOTHING} {starts[0].observation}" and outcomes[0].state[1].time == 0
    assert outcomes[1].state[1].time == 1 and not outcomes[0].done


def test_the_walker_reads_text_and_scores_its_achievements(host):
    made = walker.walk(host, range(BATCH), 80)
    assert all(step.note == "" for history in made.histories for step in history.steps)
    unlocked = np.array([state[1].world.achievements.sum() for state in made.states])
    np.testing.assert_allclose(made.scores, unlocked / len(engine.ACHIEVEMENTS), atol=1e-6)
    assert unlocked.mean() > 6  # random play: 3
    again = walker.walk(host, range(BATCH), 80)
    assert [h.steps for h in again.histories] == [h.steps for h in made.histories]


def test_examples_have_the_notes_that_are_asked_for(host, monkeypatch):
    monkeypatch.setattr("envs.crafter.host._EXAMPLE_STEPS", 3)
    for label in NOTES:
        examples = host.examples(label, BATCH)
        notes = [history.last_note for history in examples] + [history.steps[0].note for history in examples]
        assert len(examples) == BATCH and not any(len(history.steps) != 3 for history in examples)
        starts = {"": "", "Critic": "", "Thought": "", "Reward": "0", "Value": "The value is "}
        assert all(note.startswith(starts[label]) for note in notes)
        assert any(notes) == bool(label)
    assert {tuple(h.steps[0]) for h in host.examples("", BATCH)}


def test_reading():
    view = reading.read(
        "You see a tree 2 steps north and 1 step west, water 1 step east. You face a path. You are asleep. "
        "Health 9, food 3, drink 4, energy 0. You carry 2 wood, 1 stone pickaxe."
    )
    assert view.things == {"tree": (-2, -1), "water": (0, 1)} and view.faced == "path" and view.asleep
    assert [view[name] for name in ("health", "food", "drink", "energy", "wood", "stone pickaxe", "stone")] == [
        9, 3, 4, 0, 2, 1, 0,
    ]  # fmt: skip
    assert view.steps("tree") == 3 and view.steps("cow") == 99
    assert reading.read("Nothing happens. You see nothing but open ground. You face grass.").things == {}


def seen(things="nothing but open ground", faced="grass", carried="nothing", vitals=(9, 9, 9, 9)):
    health, food, drink, energy = vitals
    return (
        f"You see {things}. You face {faced}. Health {health}, food {food}, drink {drink}, energy {energy}. "
        f"You carry {carried}."
    )


@pytest.mark.parametrize(
    "observation, action",
    [
        (seen("a zombie 1 step north", "a zombie"), "do"),
        (seen("water 1 step north", "water", vitals=(9, 9, 3, 9)), "do"),
        (seen("water 3 steps east", vitals=(9, 9, 3, 9)), "move east"),
        (seen("a cow 2 steps west", vitals=(9, 3, 9, 9)), "move west"),
        (seen(carried="1 sapling"), "place plant"),
        (seen(carried="5 wood"), "place table"),
        (seen("a table 1 step west", carried="1 wood"), "make wood pickaxe"),
        (seen("a table 1 step west, a furnace 1 step south", carried="1 wood, 1 stone, 1 coal, 1 iron, "
              "1 wood pickaxe, 1 stone pickaxe, 1 wood sword, 1 stone sword"), "make iron pickaxe"),
        (seen("a tree 1 step north", "a tree"), "do"),
        (seen("stone 1 step north", "stone", "1 wood pickaxe, 1 wood sword, 9 wood"), "do"),
        (seen(vitals=(9, 9, 9, 1)), "sleep"),
    ],
)  # fmt: skip
def test_what_the_walker_does(observation, action):
    assert walker.Walker().act(observation) == action


def test_the_walker_stays_off_lava():
    for seed in range(20):
        one = walker.Walker(seed)
        one.heading = "north"
        assert one.act(seen("lava 1 step north", "lava")) != "move north"
