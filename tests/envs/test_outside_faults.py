"""Environments of a user's that fail: what it costs, what is said, and what is refused before work starts."""

import itertools
import sys
import threading
import types

import numpy as np
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.outside import episodes
from nlrl_jax.rollouts import host_games
from nlrl_jax.run.host_games.faults import FaultLog
from nlrl_jax.types import Outcome

HERE = __file__


class Stepped:
    """A class like Gymnasium's; the action says what goes wrong. Task 5 cannot begin."""

    max_steps, text = 4, "Say a fault."

    def reset(self, seed=None):
        if seed == 5:
            raise ConnectionError("no answer")
        self.done = seed == 6
        return self.text, {}

    def step(self, action):
        if action == "exit":
            sys.exit(0)
        if action == "assert":
            assert not self.text
        returned = {
            "none": None,
            "short": ("fine", 1.0),
            "info": ("fine", 1.0, False, False, 3),
            "nan": ("fine", np.nan, False, False, {}),
            "infinite": ("fine", -np.inf, False, False, {}),
            "huge": ("fine", 1e30, False, False, {}),
            "words": ("fine", "much", False, False, {}),
            "silent": (None, None, False, False, None),
        }
        return returned.get(action, ("fine", 0.5, False, False, {}))


class Tools:
    """A class of tools that is never paid where `pays` says so."""

    max_steps, pays = 2, 1.0

    def reset(self, seed=0):
        return None

    def stop(self, how: str) -> str:
        """Stops.

        Args:
            how: in which way.
        """
        if how == "exit":
            sys.exit(1)
        raise KeyError(how)

    def get_reward(self) -> float:
        if self.pays == "raise":
            raise RuntimeError("no reward today")
        return self.pays


@pytest.fixture(autouse=True)
def my_classes(monkeypatch):
    module = types.ModuleType("my_faulty")
    module.Stepped, module.Tools = Stepped, Tools
    monkeypatch.setitem(sys.modules, "my_faulty", module)


FAULTS = {
    "exit": f"SystemExit: 0 ({HERE}, line ",
    "assert": "AssertionError: assert not 'Say a fault.'",
    "none": "step returned None; it must be a tuple: observation, reward, terminated, truncated, info",
    "short": "step returned ('fine', 1.0) of type tuple; it must be a tuple: observation, reward,",
    "info": "step returned the info 3 of type int; it must be a dict",
    "nan": "the environment paid the reward nan",
    "infinite": "the environment paid the reward -inf",
    "huge": "the environment paid the reward 1e+30",
    "words": "could not convert string to float: 'much'",
}


@pytest.mark.parametrize("action", FAULTS)
def test_a_fault_of_a_step_costs_its_episode(action):
    game = envs.make_host("my_faulty:Stepped")
    starts = game.reset([("", 3), ("", 4)])
    broken, fine = game.step([start.state for start in starts], [action, "go"])
    assert broken.error.startswith(FAULTS[action]) and "\n" not in broken.error
    assert (broken.done, broken.valid, broken.reward) == (True, False, 0) and not fine.done and fine.reward == 0.5


def test_nothing_said_and_nothing_paid_is_no_fault():
    game = envs.make_host("my_faulty:Stepped")
    (outcome,) = game.step([game.reset([("", 3)])[0].state], ["silent"])
    assert (outcome.observation, outcome.reward, outcome.error, outcome.done) == ("", 0.0, "", False)


@pytest.mark.parametrize("seed, says", [(5, "ConnectionError: no answer ("), (6, episodes.ENDED)])
def test_an_episode_that_cannot_begin_ends_at_its_first_step(seed, says):
    game = envs.make_host("my_faulty:Stepped")
    (start,) = game.reset([("", seed)])
    (outcome,) = game.step([start.state], ["go"])
    assert start.observation == episodes.STOPPED and outcome.done and outcome.error.startswith(says)


@pytest.mark.parametrize("fault, says", [
    ({"text": 3}, "reset returned int; it must return a string or None"),
    ({"done": True, "reset": lambda self, seed=None: ("", {})}, episodes.ENDED),
    ({"step": lambda self, action: None}, "its first step, with 'nothing', fails: step returned None"),
])  # fmt: skip
def test_an_environment_whose_first_task_fails_is_refused(fault, says, monkeypatch):
    for name, value in fault.items():
        monkeypatch.setattr(Stepped, name, value, raising=False)
    with pytest.raises(ValueError, match="game 'my_faulty:Stepped'") as error:
        envs.make_host("my_faulty:Stepped")
    assert says in str(error.value)


def played(game, seed=3, action='{"name": "stop", "arguments": {"how": "now"}}'):
    def decide(histories, t):
        return host_games.StepDecisions([action], [""], [[]], [{}])

    (episode,) = host_games.play(game, decide, [("", seed)])
    return episode


@pytest.mark.parametrize("how, says", [("now", "error: KeyError: 'now'"), ("exit", "error: SystemExit: 1")])
def test_a_tool_that_fails_tells_the_model(how, says):
    game = envs.make_host("my_faulty:Tools")
    episode = played(game, action=f'{{"name": "stop", "arguments": {{"how": "{how}"}}}}')
    assert episode.history.steps[0].observation == says
    assert (episode.error, episode.valid, episode.reward) == ("", (False, False), 1.0)


PAYS = {
    None: "get_reward returned None; it must be a number",
    "raise": f"RuntimeError: no reward today ({HERE}, line ",
    float("nan"): "the environment paid the reward nan",
}


@pytest.mark.parametrize("pays, at_the_end", itertools.product(PAYS, (False, True)))
def test_a_reward_that_is_none_breaks_the_episode_off(pays, at_the_end, monkeypatch):
    game = envs.make_host("my_faulty:Tools")
    monkeypatch.setattr(Tools, "pays", pays)
    # By a reply without a call, which ends the episode, or at its horizon.
    episode = played(game) if at_the_end else played(game, action="Done.")
    assert PAYS[pays] in episode.error and episode.reward == 0 and episode.steps == 1 + at_the_end


def test_each_fault_is_told_once_with_what_repeats_it(capsys):
    game, log = envs.make_host("my_faulty:Stepped"), FaultLog("my_faulty:Stepped")
    log([played(game, 7, "nan"), played(game, 8, "nan"), played(game, 9, "go")])
    log([played(game, 9, "nan"), played(game, 5, "go")])
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "warning: an episode of my_faulty:Stepped broke off: the environment paid the reward nan. It counts nowhere "
        "but in broke_off; its task is ('', 7), its actions ['nan']"
    )
    assert "ConnectionError: no answer" in second and "its task is ('', 5), its actions ['go']" in second


def test_a_slow_step_is_told_once_with_its_task(monkeypatch, capsys):
    told, tell = threading.Event(), episodes.SlowWatch._tell
    monkeypatch.setattr(episodes, "SLOW", 0.001)
    monkeypatch.setattr(episodes.SlowWatch, "_tell", lambda watch: (tell(watch), told.set()))

    def move(episode, action):
        assert told.wait(10)
        return Outcome(None, "fine")

    def begin(kind, seed):
        return episodes.Beginning(0, "", "on")

    game = episodes.host_game("slow", begin, move, rules="", actions=(), max_steps=2)
    game.step([start.state for start in game.reset([("", 1)])], ["go"])
    note = "note: the steps of slow take longer than 0.001 s; the task ('', 0)"
    said = capsys.readouterr().err
    assert said.startswith(note) and said.count("note: ") == 1 and "Ctrl-C twice ends the run" in said
