"""The world model of Crafter's player by rule, against the engine."""

import pytest

from envs.crafter import host, predict, reading, text, walker


@pytest.mark.slow
def test_predictions_come_true_in_real_episodes():
    played = walker.walk(host.host_game(200), range(5000, 5004), 200)
    steps = right_items = faced = right_faced = 0
    for history in played.histories:
        seen = [history.observation, *(step.observation for step in history.steps)]
        facing = "north"
        for before, step in zip(seen, history.steps, strict=False):
            guess, truth = (
                reading.read(one) for one in (predict.predict(before, facing, step.action), step.observation)
            )
            facing = step.action.removeprefix("move ") if step.action.startswith("move ") else facing
            steps += 1
            right_items += all(guess[name] == truth[name] for name in text.ITEM_NAMES)
            solid = guess.faced not in (*reading.FREE, "cow", "zombie", "skeleton")
            faced += solid
            right_faced += solid and guess.faced == truth.faced
    assert steps > 400 and right_items > 0.97 * steps and right_faced > 0.8 * faced > 0


def shown(view, faced, carried="nothing", vitals="Health 9, food 5, drink 9, energy 9"):
    return f"You see {view}. You face {faced}. {vitals}. You carry {carried}."


AWAY = "water 3 steps south"
OPEN = text.NOTHING_SEEN


@pytest.mark.parametrize(
    "observation, facing, action, after",
    [
        # a move shifts what is seen, a turn towards something solid does not
        (shown(AWAY, "grass"), "north", "move east", shown("water 3 steps south and 1 step west", "grass")),
        (shown("a tree 1 step east", "sand"), "north", "move east", shown("a tree 1 step east", "a tree")),
        (shown("a tree 2 steps east", "sand"), "east", "move east", shown("a tree 1 step east", "a tree")),
        (shown("stone 3 steps north", "grass"), "north", "move south", shown(OPEN, "grass")),  # out of sight
        # what is taken
        (shown("a tree 1 step east", "a tree"), "east", "do", shown(OPEN, "grass", "1 wood")),
        (shown("stone 1 step east", "stone"), "east", "do", shown("stone 1 step east", "stone")),  # no pickaxe
        (
            shown("stone 1 step east", "stone", "1 wood pickaxe"), "east", "do",
            shown(OPEN, "a path", "1 stone, 1 wood pickaxe"),
        ),
        (
            shown("a cow 1 step north", "a cow"), "north", "do",
            shown(OPEN, "grass", vitals="Health 9, food 9, drink 9, energy 9"),
        ),
        # what is placed and made
        (shown(OPEN, "grass", "3 wood"), "east", "place table", shown("a table 1 step east", "a table", "1 wood")),
        (shown(OPEN, "grass", "1 wood"), "east", "place table", shown(OPEN, "grass", "1 wood")),
        (
            shown("a table 1 step east", "a table", "1 wood"), "east", "make wood pickaxe",
            shown("a table 1 step east", "a table", "1 wood pickaxe"),
        ),
        (shown(OPEN, "grass", "1 wood"), "east", "make wood pickaxe", shown(OPEN, "grass", "1 wood")),  # no table
        (shown(OPEN, "grass"), "east", "noop", shown(OPEN, "grass")),
    ],
)  # fmt: skip
def test_by_hand(observation, facing, action, after):
    assert predict.predict(observation, facing, action) == after


def test_what_counts():
    views = [reading.read(shown(OPEN, "grass", carried)) for carried in ("2 wood", "3 wood", "1 wood")]
    assert predict.achieved(views[0], views[1], "do")
    assert not predict.achieved(views[1], views[0], "do")
    assert predict.achieved(views[1], views[2], "place table")
