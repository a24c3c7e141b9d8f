"""LATS in a tree of doors whose rewards are known, with a model that prefers the wrong door."""

import dataclasses
import math

import pytest

from nlrl_jax.algorithms.imagine import Caller, PlanningConfig
from nlrl_jax.algorithms.planners import lats, react
from nlrl_jax.algorithms.planners.lats import EARLIER, LATSConfig
from nlrl_jax.roles.dialogues import Dialogue
from nlrl_jax.rollouts.host_games import play
from nlrl_jax.types import HostGame, Outcome, Reply, Score, Start

DOORS = ("left", "middle", "right")
PRIOR = {"left": 0.6, "middle": 0.3, "right": 0.1}
# Behind two doors there is a reward; anything else is 0.
REWARDS = {("left", "left"): 0.2, ("left", "right"): 0.4, ("middle", "left"): 0.5, ("right", "right"): 1.0}
DIALOGUE = dataclasses.replace(Dialogue.of("Go through two doors.", "Value"), label="")


def step(states, actions):
    outcomes = []
    for path, action in zip(states, actions, strict=True):
        path = (*path, action)
        reward, done = REWARDS.get(path, 0.0), len(path) == 2
        outcomes.append(Outcome(path, f"behind {', '.join(path)}", reward * done, done, done and reward == 1.0))
    return outcomes


GAME = HostGame(
    "doors", "Go through two doors.", DOORS, 4, ("",), lambda tasks: [Start((), "a prize", "a hall") for _ in tasks],
    step, score="score", reversible=True,
)  # fmt: skip
TASKS = [("", 0), ("", 1)]


class Doorkeeper:
    """It prefers the left door, and values all rooms alike."""

    can_score = True

    def __init__(self):
        self.roles, self.goals = [], set()

    def complete(self, chats, sampling, role, seed=0, stop=()):
        self.roles.append((role, len(chats)))
        self.goals |= {chat.context["history"].goal for chat in chats}
        return [Reply(self.write(chat), 1, 1) for chat in chats]

    def write(self, chat):
        history, line = chat.context["history"], chat.context["line"]
        if line == "Action:":
            return " left"
        if line == "Value:":
            return " The value is 1/2."
        assert line == lats.REFLECT
        return f" Do not go {' and '.join(step.action for step in history.steps)}."

    def score(self, chats, continuations, role):
        self.roles.append((role, sum(map(len, continuations))))
        return [[Score(math.log(PRIOR[text.strip()]), 1) for text in texts] for texts in continuations]


def search(model=None, game=GAME, tasks=TASKS, **options):
    options = {"expansions": 3, "iterations": 30, **options}
    return lats.plan(model or Doorkeeper(), DIALOGUE, game, tasks, PlanningConfig(), LATSConfig(**options), 0)


def test_the_search_finds_the_branch_that_the_prior_avoids():
    plans = search()
    assert plans.actions == [["right", "right"]] * 2
    assert plans.thinking[0][0]["candidates"] == list(DOORS)
    greedy = lambda histories, t: react.decide(Caller(Doorkeeper(), DIALOGUE, PlanningConfig(), 0), histories, DOORS)
    (episode,) = play(GAME, greedy, TASKS[:1])
    assert episode.reward == 0.2 and not episode.success


def test_values_are_means_of_first_evaluation_and_ends():
    # Iteration 1: the hall is expanded (all 1/2), then the left room; its best end is 0.4: (0.5 + 0.4) / 2.
    plans = search(iterations=1)
    assert plans.actions[0] == ["left", "right"]
    first, second = plans.thinking[0]
    assert first["q"] == pytest.approx([0.45, 0.5, 0.5])
    assert second["q"] == pytest.approx([0.2, 0.0, 0.4])
    # Iteration 2 takes the middle room: the left one is exhausted. Its best end is 0.5.
    plans = search(iterations=2)
    assert plans.actions[0] == ["middle", "left"]
    assert plans.thinking[0][0]["q"] == pytest.approx([0.45, 0.5, 0.5])


def test_uct_prefers_what_was_visited_less():
    parent = lats._Node(None, None, visits=9)
    known = lats._Node(None, None, parent, value=0.6, visits=7)
    new = lats._Node(None, None, parent, value=0.4, visits=1)
    parent.children = [known, new]
    one = lats._Search(parent)
    assert one.select(1.0) is new and one.select(0.0) is known
    assert known.uct(2.0) == pytest.approx(0.6 + 2 * math.sqrt(math.log(9) / 7))
    new.closed = True
    assert one.select(1.0) is known


def test_failed_ends_leave_reflections_and_every_phase_is_one_call():
    model = Doorkeeper()
    search(model, iterations=2)
    assert f"a prize {EARLIER} Do not go left and right." in model.goals
    # propose 2 x 3, values 2 x 3, propose 2 x 3, no values: all children are ends; one reflection each
    assert model.roles[:4] == [("policy", 6), ("critic", 6), ("policy", 6), ("note", 2)]


def test_a_shallow_search_is_completed_greedily():
    plans = search(depth=1, iterations=5)
    assert plans.actions == [["left", "left"]] * 2
    assert plans.thinking[0][1] == {"candidates": ["left"]}


def test_the_search_stops_where_nothing_is_left():
    hopeless = dataclasses.replace(GAME, step=lambda states, actions: [
        outcome._replace(reward=0.0, success=False) for outcome in step(states, actions)
    ])  # fmt: skip
    model = Doorkeeper()
    plans = search(model, hopeless, iterations=100)
    assert [len(actions) for actions in plans.actions] == [2, 2]
    assert sum(role == "note" for role, _ in model.roles) == 3  # one iteration per room


class Dreamer(Doorkeeper):
    """It imagines a prize behind the middle door, then the left one."""

    def write(self, chat):
        history, line = chat.context["history"], chat.context["line"]
        if line.endswith("Observation:"):
            return f" behind {line.splitlines()[0].removeprefix('Action: ')}"
        won = line == "Value:" and [step.action for step in history.steps][:2] == ["middle", "left"]
        return " The value is 2/2." if won else super().write(chat)


def test_an_imagined_search_follows_the_models_beliefs_and_asks_the_game_nothing_before_it_plays():
    played = []
    watched = dataclasses.replace(
        GAME, step=lambda states, actions: played.append(list(actions)) or step(states, actions), reversible=False
    )
    model = Dreamer()
    args = PlanningConfig(), LATSConfig(expansions=3, iterations=30, depth=3), 0
    plans = lats.plan(model, DIALOGUE, watched, TASKS, *args, imagined=True)
    assert plans.actions == [["middle", "left"]] * 2
    assert played == [["middle", "middle"], ["left", "left"]]
    assert ("world model", 6) in model.roles and not model.goals - {"a prize"}
    assert [len(records) for records in plans.thinking] == [2, 2]


def test_games_without_a_way_back_are_refused():
    with pytest.raises(ValueError, match="LATS restores earlier states, which doors cannot do"):
        search(game=dataclasses.replace(GAME, reversible=False))


def ice(length: int, price: float = 0.0, score: str = "", prize: float = 0.0, goal: float = 1.0) -> HostGame:
    """A path of `length` steps to the right; the left door is a hole that ends the game, and pays `prize`."""

    def step(states, actions):
        outcomes = []
        for x, action in zip(states, actions, strict=True):
            x = x + 1 if action == "right" else x
            fell, won = action == "left", x == length
            reward = (prize if fell else goal if won else 0.0) - price
            outcomes.append(Outcome(x, "a hole" if fell else f"cell {x}", reward, fell or won, won))
        return outcomes

    start = lambda tasks: [Start(0, "the other side", "cell 0") for _ in tasks]
    return HostGame("ice", "Walk.", ("left", "right"), 12, ("",), start, step, score=score, reversible=True)


class Careful(Doorkeeper):
    """It likes the left door in words, and walks to the right where nothing was searched."""

    def write(self, chat):
        return " right" if chat.context["line"] == "Action:" else super().write(chat)


@pytest.mark.parametrize(
    "game, best",
    [
        (ice(8), "right"),  # the goal is beyond the depth: no end but holes is known
        (ice(8, prize=-1.0), "right"),
        (ice(8, score="points"), "right"),
        (ice(8, price=0.05, score="points"), "right"),  # each step costs, so the hole is the cheapest end
        (ice(8, prize=-1.0, price=0.05, score="points"), "right"),
        (ice(8, prize=0.4, score="points"), "left"),  # an end that pays is worth more than a node that has not yet
        (ice(3), "right"),  # the goal is within the depth
    ],
)
@pytest.mark.parametrize("iterations", [1, 2, 30])
def test_a_hole_that_the_search_knows_is_no_best_end(game, best, iterations):
    plans = search(Careful(), game, TASKS[:1], depth=4, iterations=iterations)
    if best == "left":
        assert plans.actions[0][-1] == "left"
    else:
        assert set(plans.actions[0]) == {"right"}


def test_a_success_comes_before_a_higher_reward():
    plans = search(Careful(), ice(3, prize=0.9, score="points", goal=0.5), TASKS[:1], depth=4)
    assert plans.actions == [["right"] * 3]


def test_where_all_ends_are_holes_the_best_of_them_is_played():
    pits = {"left": -1.0, "middle": 0.2, "right": 0.1}
    fall = lambda states, actions: [Outcome((a,), "a hole", pits[a], True) for a in actions]
    plans = search(game=dataclasses.replace(GAME, step=fall), tasks=TASKS[:1])
    assert plans.actions == [["middle"]]


def test_a_search_in_imagination_goes_on_where_the_model_sees_no_end():
    plans = lats.plan(
        Dreamer(), DIALOGUE, dataclasses.replace(GAME, max_steps=3), TASKS[:1], PlanningConfig(),
        LATSConfig(expansions=1, iterations=1, depth=2), 0, imagined=True,
    )  # fmt: skip
    assert plans.actions == [["left", "left"]]
