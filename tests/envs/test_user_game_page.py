"""The host games of docs/own_game.md, as they stand on the page: each block is a module that a reader saves."""

import json
import pathlib
import re
import sys
import types

import pytest

from nlrl_jax import envs
from nlrl_jax.algorithms.lac import LACConfig
from nlrl_jax.algorithms.planners.lats import LATSConfig
from nlrl_jax.algorithms.planners.methods import METHODS
from nlrl_jax.backends.usage import Usage
from nlrl_jax.envs import outside
from nlrl_jax.envs.expert import Expert, Rates
from nlrl_jax.rollouts.host_games import StepDecisions, play
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.lac.episodes import Setting, run_method

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "own_game.md").read_text()
SECTIONS = {
    "hidden": "A game that the host plays",
    "notebook": "An environment as a class",
}


@pytest.fixture
def page(monkeypatch):
    """Name of a module on the page -> the module with all blocks of its section."""

    def load(name):
        section = PAGE.split(f"\n## {SECTIONS[name]}\n")[1].split("\n## ")[0]
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, f"{name}.py", "exec"), module.__dict__)
        return module

    return load


def planned(game, method, tasks, **rates):
    model = Expert(game, Rates(**rates))
    dialogue = dialogue_of(METHODS[method], game, PromptConfig(), "expert", None, 0)
    setting = Setting(model, Usage(), game, LACConfig(), LATSConfig(iterations=3))
    return run_method(setting, method, METHODS[method], dialogue, tasks)["episodes"]


def scripted(game, task, actions):
    (episode,) = play(game, lambda histories, t: StepDecisions([actions[t]], [""], [[]], [{}]), [task])
    return episode


def test_names_on_the_page_are_its_sections():
    assert all(f"`{name}.py`" in PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0] for name, title in SECTIONS.items())


@pytest.mark.parametrize("method", ["lac", "lats", "react_think"])
def test_the_game_of_the_host(page, method):
    page("hidden")
    game, tasks = envs.make_host("hidden:host_game"), [("", seed) for seed in range(6)]
    assert all(episode["success"] for episode in planned(game, method, tasks, prior=1.0, critic=1.0, world=1.0))
    wrong = scripted(game, ("", 1), ["fly", "look into the shelf", "look into the drawer", "look into the box"])
    assert wrong.valid[0] is False and wrong.success and wrong.history.steps[0].observation == "There is no way to fly."


def test_the_class_of_tools(page):
    module = page("notebook")
    game = envs.make_host("notebook:Notebook")
    env = module.Notebook()
    env.reset(seed=5)
    multiply = json.dumps({"name": "multiply", "arguments": {"a": env.a, "b": env.b}})
    note = json.dumps({"name": "note", "arguments": {"text": str(env.a * env.b)}})
    episode = scripted(game, ("", 5), [multiply, note, "I am done."])
    assert [step.observation for step in episode.history.steps] == [str(env.a * env.b), "noted", ""]
    assert episode.rewards == (0, 0, 1) and game.max_steps == 6 and len(game.tools) == 2
    assert scripted(game, ("", 5), [multiply] * 6).rewards[-1] == 0


def test_the_class_like_those_of_gymnasium(page):
    page("notebook")
    game = envs.make_host("notebook:Count")
    episode = scripted(game, ("", 0), ["1", "I do not know", "2", "3"])
    assert episode.success and episode.valid == (True, False, True, True)


def test_the_names_on_the_page_are_made():
    table = PAGE.split("\n## Somebody else's environment, by name\n")[1].split("\n## ")[0]
    names = set(re.findall(r"gymnasium:[\w-]+-v\d", table))
    assert len(names) == 3 and all(envs.make_host(name).name for name in names)
    schemes = {name.partition(":")[0] for name in re.findall(r"^\| `(\w+:)", table, re.MULTILINE)}
    assert schemes == set(outside.SCHEMES)
    for scheme in outside.SCHEMES.values():
        assert all(f"`{command}`" in table for command in scheme.command.split(", then "))


def test_a_fault_is_repeated_as_the_page_says(page, capsys):
    page("notebook")
    section = PAGE.split("\n## When an environment fails\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(compile(code.replace("my_module:MyEnvironment", "notebook:Count").replace("down", "1"), "page", "exec"), {})
    assert capsys.readouterr().out == "At 0. 0.0 \nAt 1. 0.0 \n"
