"""The host games of docs/own_game.md, as they stand on the page: each block is a module that a reader saves."""

import dataclasses
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
from nlrl_jax.envs.expert import Expert, Rates
from nlrl_jax.rollouts.host_games import StepDecisions, play
from nlrl_jax.run.host_games.prompts import PromptConfig, dialogue_of
from nlrl_jax.run.lac.episodes import Setting, run_method

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "own_game.md").read_text()
SECTIONS = {
    "hidden": "A game that the host plays",
    "guess": "Wrap a TextArena environment",
    "cliff": "Wrap a Gymnasium environment",
}
NEEDS = {"guess": "textarena", "cliff": "gymnasium"}


@pytest.fixture
def page(monkeypatch):
    """(name of a module on the page, text to replace by another, ...) -> the module with all blocks of its section."""

    def load(name, **changes):
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        section = PAGE.split(f"\n## {SECTIONS[name]}\n")[1].split("\n## ")[0]
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, f"{name}.py", "exec"), module.__dict__)
        vars(module).update(changes)
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


def test_textarena(page, capsys):
    page("guess")
    game, tasks = envs.make_host("guess:host_game"), [("", seed) for seed in range(4)]
    assert not capsys.readouterr().err
    episodes = planned(game, "lac", tasks, prior=0.3, critic=1.0, world=1.0)
    assert all(episode["success"] and episode["reward"] == 1 for episode in episodes)
    assert len({episode["steps"][-1][0] for episode in episodes}) > 1  # other tasks, other numbers
    (start,) = game.reset(tasks[:1])
    right = int(game.expert(start.state)[1:-1])
    other = [n for n in range(1, 21) if n != right][:3]
    lost = scripted(game, tasks[0], [f"[{other[0]}]", "seven", f"{other[1]}", "seven", "eight"])
    assert lost.valid == (True, False, True, False, False) and not lost.success and 0 < lost.reward < 1
    assert "higher" in lost.history.steps[0].observation or "lower" in lost.history.steps[0].observation
    assert "Invalid Move" in lost.history.steps[-1].observation and not lost.error


def test_textarena_with_states_that_lats_restores(page):
    module = page("guess")
    live = lambda: dataclasses.replace(
        module.host_game(), reset=module.reset_paths, step=module.step_paths, reversible=True,
        expert=lambda state: f"[{module.live(*state).state.game_state['game_number']}]",
    )  # fmt: skip
    module.paths = live
    game = envs.make_host("guess:paths")
    episodes = planned(game, "lats", [("", 5), ("", 6)], prior=0.5, critic=1.0, world=1.0)
    assert all(episode["success"] for episode in episodes)


# Other games by the marked lines alone: (changes, actions, what is said after the first).
TEXTARENA = {
    "FrozenLake": ({"MAX_STEPS": 40, "RULES": "Walk."}, ["right", "down"], "You moved right"),
    "TowerOfHanoi": ({}, ["A C", "A B", "fly"], "You moved disk 1 from A to C."),
    "Mastermind": ({}, ["1 2 3 4"], "Feedback:"),
    "2048": ({}, ["Up", "Left", "Right", "Down"], "Score:"),
    "Blackjack": ({}, ["Hit", "Stand"], "Hand"),
    "LightsOut": ({}, ["0 0"], "Current grid state"),
    "TicTacToe": ({"PLAYERS": 2, "opponent": lambda text: "[8]"}, ["4", "0"], "O"),
    "Nim": ({"PLAYERS": 2, "opponent": lambda text: "[2 1]"}, ["0 1"], "pile"),
}


@pytest.mark.parametrize("name", TEXTARENA)
def test_another_textarena_game_changes_the_marked_lines_alone(page, name, capsys):
    changes, actions, says = TEXTARENA[name]
    module = page("guess", GAME=f"{name}-v0-raw", **changes)
    module.made = lambda: dataclasses.replace(module.host_game(), expert=None)
    game = envs.make_host("guess:made")
    assert not capsys.readouterr().err
    alone = [scripted(game, ("", 3), [*actions, *["nothing"] * 40]) for _ in range(2)]
    assert alone[0].history == alone[1].history and says in alone[0].history.steps[0].observation
    same = lambda histories, t: StepDecisions(
        [[*actions, *["nothing"] * 40][t]] * len(histories), [""] * 3, [[]] * 3, [{}] * 3
    )
    beside = play(game, same, [("", 2), ("", 3), ("", 4)])
    assert beside[1].history == alone[0].history  # whatever is drawn beside it
    assert not any(episode.error for episode in beside)


def test_gymnasium(page):
    page("cliff")
    game, task = envs.make_host("cliff:host_game"), ("", 0)
    won = scripted(game, task, ["up", *["right"] * 11, "down"])
    assert won.success and won.reward == -13
    fell = scripted(game, task, ["right", *["up"] * 39])
    assert fell.reward < -100 and not fell.success and len(fell.rewards) == 40
    assert scripted(game, task, ["jump", *["up"] * 39]).valid[0] is False
