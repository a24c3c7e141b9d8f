"""Games that are live environments, Gymnasium's and TextArena's among them: each imagined future is its own."""

import dataclasses
import random
import secrets
import threading

import numpy as np
import pytest

from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.usage import Usage
from nlrl_jax.envs.expert import Expert, Rates
from nlrl_jax.envs.expert_states import States
from nlrl_jax.envs.restorable import Path, restorable
from nlrl_jax.roles.dialogues import History, Step
from nlrl_jax.rollouts.host_games import StepDecisions, play
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.lac.episodes import Setting, run_method
from nlrl_jax.text.generators import Drawn
from nlrl_jax.types import HostGame, Outcome, Start

MOVES = ("left", "down", "right", "up")
WAY = {0: "right", 1: "right", 2: "down", 6: "down", 10: "down", 14: "right", 4: "down", 8: "right", 9: "right",
       13: "right"}  # fmt: skip


def lake(slippery=False) -> HostGame:
    """Gymnasium's FrozenLake as one wraps it at first: the state is the environment."""
    gymnasium = pytest.importorskip("gymnasium")

    def reset(tasks):
        starts = []
        for _, seed in tasks:
            env = gymnasium.make("FrozenLake-v1", is_slippery=slippery)
            cell, _ = env.reset(seed=seed)
            starts.append(Start(env, "the goal", f"cell {cell}"))
        return starts

    def step(envs, actions):
        outcomes = []
        for env, action in zip(envs, actions, strict=True):
            cell, reward, terminated, truncated, _ = env.step(MOVES.index(action))
            outcomes.append(Outcome(env, f"cell {cell}", float(reward), terminated or truncated, reward > 0))
        return outcomes

    expert = lambda env: WAY.get(int(env.unwrapped.s), "down")
    return HostGame("lake", "Walk.", MOVES, 12, ("",), reset, step, expert=expert)


class Counter:
    """Counts up or down to 6; `lucky` adds what Python's global generator draws."""

    def __init__(self, seed, lucky=False):
        random.seed(seed)
        self.x, self.lucky = seed % 3, lucky

    def step(self, action):
        self.x += {"up": 1, "down": -1}[action] * (random.randint(1, 2) if self.lucky else 1)
        return self.x


class Locked(Counter):
    def __init__(self, seed, **more):
        super().__init__(seed, **more)
        self.lock = threading.Lock()  # copy.deepcopy: cannot pickle '_thread.lock' object


class Stubborn(Counter):
    __deepcopy__ = lambda self, memo: self


class Shared(Counter):
    """What changes lies in a list of the class, outside the copied object."""

    places = []

    def __init__(self, seed, **more):
        super().__init__(seed, **more)
        self.number = len(self.places)
        self.places.append(self.x)

    def step(self, action):
        self.places[self.number] += {"up": 1, "down": -1}[action]
        self.x = self.places[self.number]
        return self.x


class Unseeded(Counter):
    def __init__(self, seed):
        self.x, self.lucky = seed % 3, False


class Random(Counter):
    def step(self, action):
        self.x += secrets.choice(range(1, 1000))
        return self.x


def counting(kind, **more) -> HostGame:
    def step(envs, actions):
        places = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        return [Outcome(env, f"at {x}", float(x == 6), x >= 6, x == 6) for env, x in zip(envs, places, strict=True)]

    reset = lambda tasks: [Start(env := kind(seed, **more), "6", f"at {env.x}") for _, seed in tasks]
    return HostGame("counter", "Count.", ("up", "down"), 20, ("",), reset, step, expert=lambda env: "up")


LIVE = {
    "Gymnasium": lambda: lake(),
    "Gymnasium, slippery": lambda: lake(slippery=True),
    "copied": lambda: counting(Unseeded),
    "seeds the global generator": lambda: counting(Counter),
    "with a lock": lambda: counting(Locked),
    "copies are itself": lambda: counting(Stubborn),
    "shared by copies": lambda: counting(Shared),
    "global generator": lambda: counting(Counter, lucky=True),
    "global generator, with a lock": lambda: counting(Locked, lucky=True),
}


def alone(game, task, actions):
    """The outcomes of an episode that nothing else disturbs."""
    ((state, _, _),), outcomes = game.reset([task]), []
    for action in actions:
        (outcome,) = game.step([state], [action])
        state = outcome.state
        outcomes.append(outcome[1:])
        if outcome.done:
            break
    return outcomes


@pytest.mark.parametrize("name", LIVE)
def test_every_candidate_of_one_state_leads_to_its_own_outcome(name):
    game, task = LIVE[name](), ("", 4)
    first = game.expert(game.reset([task])[0].state)
    want = {action: alone(game, task, [first, action])[-1] for action in game.actions}
    states = States(game, 1.0)
    (seen, *_), = [alone(game, task, [first])]  # fmt: skip
    random.seed(99), np.random.seed(99)
    before = random.getstate()
    history = History("", "", (Step(first, seen[0]),), task=task)
    for order in (game.actions, game.actions[::-1]):
        (place,) = states.find([history])
        outcomes = States.step(states, [place] * len(order), order)
        assert {a: one[1:] for a, one in zip(order, outcomes, strict=True)} == want
        states._outcomes.clear()
    assert random.getstate() == before


@pytest.mark.parametrize("kind, way", [(Counter, Drawn), (Locked, Path), (Unseeded, Unseeded)])
def test_a_reversible_game_is_stepped_as_it_is_and_another_by_copies_or_repeated_actions(kind, way):
    game = counting(kind)
    made, known = restorable(game, ("", 0)), dataclasses.replace(game, reversible=True)
    assert made.reversible and isinstance(made.reset([("", 0)])[0].state, way)
    assert restorable(known, ("", 0)) is known and restorable(made, ("", 0)) is made


def test_what_can_neither_be_copied_nor_repeated_is_refused():
    with pytest.raises(ValueError, match="counter cannot be imagined by its expert: neither a copy"):
        States(counting(Random), 1.0).find([History("", "", task=("", 0))])


@pytest.mark.parametrize("name", ["Gymnasium", "with a lock", "shared by copies"])
def test_planning_with_a_live_game_sees_what_is_true(name):
    """Of its own accord the model errs in most steps; with a perfect critic and imagination LAC does not."""
    game = LIVE[name]()
    tasks, method = [("", seed) for seed in range(4)], METHODS["lac"]
    model = Expert(game, Rates(prior=0.3, critic=1.0, world=1.0))
    dialogue = dialogue_of(method, game, PromptConfig(), "expert", None, 0)
    result = run_method(Setting(model, Usage(), game, LACConfig()), "lac", method, dialogue, tasks)
    assert [episode["success"] for episode in result["episodes"]] == [True] * 4
    again = lambda histories, t: StepDecisions(
        [e["steps"][t][0] for e in result["episodes"] if t < len(e["steps"])], [""] * 4, [[]] * 4, [{}] * 4
    )
    replayed = play(game, again, tasks)
    assert [[step.observation for step in one.history.steps] for one in replayed] == [
        [observation for _, observation, _ in episode["steps"]] for episode in result["episodes"]
    ]
