"""Games by name: ours, and one's own as module:attribute."""

import dataclasses
import sys
import types

import jax
import pytest

from nlrl_jax import envs
from nlrl_jax.envs.walkers import demonstrate, reply_template
from nlrl_jax.types import HostGame


@pytest.fixture
def mine(monkeypatch):
    """A module of the user's own with games in several forms."""
    module = types.ModuleType("my_module")
    lake = dataclasses.replace(envs.make("frozen_lake", "compact"), name="my_lake", max_actions_per_turn=2)
    module.value = lake
    module.text_game = lambda prompt="paper", size=4: dataclasses.replace(lake, rules=f"{prompt} {size}")
    module.one_form = lambda: lake
    module.board_game = lambda: envs.make_board("tic_tac_toe")
    module.number = 3
    monkeypatch.setitem(sys.modules, "my_module", module)
    return lake


def test_own_games_are_values_or_functions(mine):
    assert envs.make("my_module:value") is mine
    assert envs.make("my_module:text_game", "compact").rules == "compact 4"
    assert envs.make("my_module:text_game", size=8).rules == "paper 8"
    assert envs.make("my_module:one_form", "compact") is mine
    assert envs.make_board("my_module:board_game").name == "tic_tac_toe"


def test_own_games_on_the_host(mine):
    """A host game or a text game, each as a value or a function; the horizon that is given holds for all."""
    module = sys.modules["my_module"]
    own = envs.make_host("maze_double_t")
    module.host_value, module.host_game = own, lambda: own
    module.sized = lambda max_steps=3: dataclasses.replace(own, name=f"sized {max_steps}", max_steps=max_steps)
    module.free = lambda **options: dataclasses.replace(own, name=str(options))
    for name in ("host_value", "host_game", "sized", "value", "text_game", "one_form"):
        game = envs.make_host(f"my_module:{name}", max_steps=7)
        assert isinstance(game, HostGame) and game.max_steps == 7, name
    assert envs.make_host("my_module:sized", max_steps=7).name == "sized 7"
    assert envs.make_host("my_module:free", max_steps=7).name == "{'max_steps': 7}"
    assert envs.make_host("my_module:host_game").max_steps == own.max_steps
    assert envs.make_host("my_module:sized").max_steps == 3
    assert envs.make_host("my_module:value").max_steps == mine.params.max_steps_in_episode
    with pytest.raises(ValueError, match="my_module has no HostGame or TextGame named 'board_game'"):
        envs.make_host("my_module:board_game")


@pytest.mark.parametrize(
    "make, name, says",
    [
        (envs.make, "chess", "unknown game 'chess'; choose one of frozen_lake, .* or your own as my_module:text_game"),
        (envs.make_board, "go", "choose one of tic_tac_toe, breakthrough, or your own as my_module:board_game"),
        (envs.make_control, "go", "choose one of pong, hopper, .* or your own as my_module:control_game"),
        (envs.make, "nowhere:game", "there is no module 'nowhere' here or on PYTHONPATH"),
        (envs.make, "my_module:number", "my_module has no TextGame named 'number'; it has value, text_game, one_form"),
        (envs.make, "my_module:chess", "my_module has no TextGame named 'chess'"),
        (envs.make_control, "my_module:board_game", "my_module has no ControlGame named 'board_game'"),
    ],
)
def test_what_is_no_game_is_named(mine, make, name, says):
    with pytest.raises(ValueError, match=says):
        make(name)


def test_a_game_without_a_walker_shows_random_actions_in_the_form_of_a_reply(mine):
    fields, actions = jax.jit(lambda key: demonstrate(mine, key, 200, 0.0, False))(jax.random.key(0))
    assert actions.shape == (200, 2) and set(map(int, actions.ravel())) == {-1, 0, 1, 2, 3}
    assert (actions[:, 0] >= 0).all() and 50 < int((actions[:, 1] >= 0).sum()) < 150
    assert len({(int(x), int(y)) for x, y in zip(fields["player_x"], fields["player_y"])}) > 4  # not the start alone
    shown = {"shown": [1, 0], "num_shown": 2}
    assert reply_template(mine, "compact").render(shown) == "<action>Down || Up</action>"
    paper = reply_template(mine, "paper").render(shown)
    assert paper.endswith("<plan>I choose Down, then Up.</plan>\n<action>Down || Up</action>")


def test_every_host_game_has_a_horizon():
    for name in ("maze_medium", "tic_tac_toe", "breakthrough", "babyai"):
        with pytest.raises(ValueError, match="max_steps is -1"):
            envs.make_host(name, max_steps=-1)


@pytest.mark.parametrize("wrong", [{"points": 0}, {"cell": 0}, {"racket_speed": -1}, {"max_steps_in_episode": 0.5}])
def test_numbers_of_pong_have_bounds(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be an integer from"):
        envs.make_control("pong", **wrong)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("nlrl_jax.envs.webshop")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ValueError, match=r"webshop needs the package rapidfuzz: pip install 'nlrl_jax\[webshop\]'"):
        envs.make_host("webshop")
